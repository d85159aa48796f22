package aggregate

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// serverBehind signals each request on asked, and responds with the errors from answers.
type serverBehind struct {
	asked   chan struct{}
	answers chan error
	path    string
}

// RoundTrip implements http.RoundTripper.
func (b *serverBehind) RoundTrip(r *http.Request) (*http.Response, error) {
	b.asked <- struct{}{}
	select {
	case err := <-b.answers:
		if err != nil {
			return nil, err
		}
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	body := `{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{"` + b.path +
		`":{"get":{"responses":{"200":{"description":"OK"}}}}}}`
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// ResolveEndpoint implements apiserver.ServiceResolver.
func (b *serverBehind) ResolveEndpoint(string, string, int32) (*url.URL, error) {
	return url.Parse("https://behind.example.com")
}

// behind returns a server for a version.
func behind(v schema.GroupVersion) (*serverBehind, *remote) {
	b := &serverBehind{asked: make(chan struct{}), answers: make(chan error), path: prefix + "/" + v.String() + "/things"}
	s := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: v.Version + "." + v.Group}}
	s.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: "behind", Port: new(int32(443))}
	return b, &remote{service: s, available: true, resolver: b, transport: b}
}

func TestSwagger_failedServer_blocksNoRequest(t *testing.T) {
	hangs, lives := schema.GroupVersion{
		Group:   "hangs.example.com",
		Version: "v1",
	}, schema.GroupVersion{
		Group:   "lives.example.com",
		Version: "v1",
	}
	hanging, one := behind(hangs)
	living, other := behind(lives)
	clock, askings := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)), newAskings()
	s := newSwagger(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"swagger":"2.0","info":{"title":"own","version":"1"},"paths":{"/own":{}}}`)
	}), askings)
	s.clock = clock
	defer askings.end()
	now := &servers{versions: map[schema.GroupVersion]*remote{hangs: one, lives: other}}
	document := func(want, not string) {
		t.Helper()
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, swaggerPath, nil)
		r.Header.Set("Accept", "application/json")
		if s.serve(
			w,
			r,
			now,
		); w.Code != http.StatusOK || !bytes.Contains(w.Body.Bytes(), []byte(want)) ||
			not != "" && bytes.Contains(w.Body.Bytes(), []byte(not)) {
			t.Errorf("%d %s, which should have %q and not %q", w.Code, w.Body, want, not)
		}
	}
	settled := func() {
		t.Helper()
		testwait.Until(t, "nothing is asked", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.sources[hangs].inFlight == nil && s.sources[lives].inFlight == nil
		})
	}

	var requests sync.WaitGroup
	for range 3 { // together they ask each server once
		requests.Go(func() { document(living.path, hanging.path) })
	}
	<-hanging.asked
	<-living.asked
	living.answers <- nil
	hanging.answers <- errors.New("no answer")
	requests.Wait()
	document(living.path, hanging.path) // does not wait

	clock.Step(documentsInterval)
	go func() {
		<-living.asked
		living.answers <- nil
	}()
	document(living.path, hanging.path)
	<-hanging.asked // hangs while further requests are served
	document(living.path, hanging.path)
	hanging.answers <- errors.New("no answer")
	settled()

	clock.Step(documentsInterval)
	go func() {
		<-living.asked
		living.answers <- errors.New("no answer")
	}()
	document(living.path, hanging.path) // the previous document; the other server is not due yet
	clock.Step(documentsInterval)
	document(living.path, hanging.path)
	<-hanging.asked
	<-living.asked
	living.answers <- nil
	hanging.answers <- nil
	settled()
	document(living.path, "")
	document(hanging.path, "")

	clock.Step(documentsInterval)
	requests.Go(func() { document(hanging.path, "") }) // waits again for servers that respond
	<-living.asked
	<-hanging.asked
	askings.end()
	requests.Wait()
	clock.Step(longestPause)
	document(hanging.path, "") // asks no more servers
}
