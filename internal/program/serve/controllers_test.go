package serve

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
	"github.com/annexapi/annex/internal/program/definition"
)

// leaseServer serves one Lease, with the verbs that an election needs.
type leaseServer struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	refuses atomic.Bool
}

func (s *leaseServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	answer := func(code int, v any) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	refuse := func(code int, reason metav1.StatusReason) {
		answer(
			code,
			metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status:   metav1.StatusFailure,
				Code:     int32(code),
				Reason:   reason,
			},
		)
	}
	if strings.HasSuffix(r.URL.Path, "/coordination.k8s.io/v1") {
		answer(
			200,
			metav1.APIResourceList{
				GroupVersion: "coordination.k8s.io/v1",
				APIResources: []metav1.APIResource{{Name: "leases", Namespaced: true, Kind: "Lease"}},
			},
		)
		return
	}
	if s.refuses.Load() {
		refuse(403, metav1.StatusReasonForbidden)
		return
	}
	if r.Method == http.MethodGet {
		if s.lease == nil {
			refuse(404, metav1.StatusReasonNotFound)
			return
		}
		answer(200, s.lease)
		return
	}
	var sent coordinationv1.Lease
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
		refuse(400, metav1.StatusReasonBadRequest)
		return
	}
	version := 1
	if s.lease != nil {
		if r.Method == http.MethodPost || sent.ResourceVersion != s.lease.ResourceVersion {
			refuse(409, metav1.StatusReasonConflict)
			return
		}
		version, _ = strconv.Atoi(s.lease.ResourceVersion)
		version++
	}
	sent.ResourceVersion = strconv.Itoa(version)
	sent.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
	s.lease = &sent
	answer(200, s.lease)
}

func election() LeaderElection {
	return LeaderElection{
		Enabled:       true,
		Namespace:     "default",
		Name:          "e",
		LeaseDuration: 3 * time.Second,
		RenewDeadline: 2 * time.Second,
		RetryPeriod:   50 * time.Millisecond,
	}
}

func noEnv(*define.Server, *rest.Config, *informer.Set, func() []byte) any { return nil }

func leaseConfig(t *testing.T) (*leaseServer, *rest.Config) {
	leases := &leaseServer{}
	server := httptest.NewServer(leases)
	t.Cleanup(server.Close)
	// The fake does not support protobuf, the default of the election's client.
	return leases, &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

func TestElect_oneLeader(t *testing.T) {
	t.Parallel()
	_, config := leaseConfig(t)
	var leaders atomic.Int32
	leads := make(chan int)
	process := func(n int) (stop func() error) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		work := define.Controller{Name: "c", Run: func(ctx context.Context, _ any) error {
			if leaders.Add(1) != 1 {
				t.Error("two lead at a time")
			}
			defer leaders.Add(-1)
			leads <- n
			<-ctx.Done()
			return nil
		}}
		go func() {
			done <- testControllers(work, config).Run(ctx)
		}()
		return func() error { cancel(); return <-done }
	}
	stops := []func() error{process(0), process(1), process(2)}
	for range stops {
		leader := <-leads
		if err := stops[leader](); err != nil {
			t.Errorf("process %d: %v", leader, err)
		}
	}
}

func TestElect_lostLease(t *testing.T) {
	t.Parallel()
	leases, config := leaseConfig(t)
	work := define.Controller{Name: "c", Run: func(ctx context.Context, _ any) error {
		leases.refuses.Store(true)
		<-ctx.Done()
		return nil
	}}
	err := testControllers(work, config).Run(t.Context())
	if err == nil || err.Error() != "leadership lost: the Lease default/e could not be renewed" {
		t.Errorf("got %v", err)
	}
}

func TestElect_workDone(t *testing.T) {
	t.Parallel()
	_, config := leaseConfig(t)
	work := define.Controller{Name: "c", Run: func(context.Context, any) error { return nil }}
	if err := testControllers(work, config).Run(t.Context()); err != nil {
		t.Error(err)
	}
}

func testControllers(work define.Controller, config *rest.Config) Controllers {
	return Controllers{
		Definition: &definition.Definition{Server: &define.Server{Name: "s"}, NewEnv: noEnv}, Selected: []define.Controller{work}, Config: config,
		Election: election(), Started: func() {},
	}
}
