package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
)

const (
	// issuerTimeout bounds one request to an issuer.
	issuerTimeout = 10 * time.Second
	// maxIssuerAnswer bounds what an issuer answers, in bytes.
	maxIssuerAnswer = 4 << 20
	// The first and the longest pause between attempts to reach an issuer that is away, and
	// how often the log says that it still is.
	issuerPause, maxIssuerPause = 100 * time.Millisecond, 10 * time.Second
	issuerReminder              = time.Hour
	// keysMemory is how long the keys of an issuer are used again. Each token that names a key
	// that is not known makes the server ask for them, and such tokens cost nothing to make.
	keysMemory = time.Second
)

// issuerTransport is the way to an issuer. A request for the discovery document is answered
// when the issuer has answered it well; upstream's authenticator would log each attempt.
type issuerTransport struct {
	base      http.RoundTripper
	issuer    string
	discovery string
	// running is closed when the server may ask.
	running <-chan struct{}

	mu   sync.Mutex
	last issuerAnswer
}

// issuerAnswer is an answer that has been read to its end.
type issuerAnswer struct {
	url      string
	response http.Response
	body     []byte
	at       time.Time
}

// newIssuerClient returns the client that an issuer's authenticator asks with.
func newIssuerClient(issuer apiserver.Issuer, running <-chan struct{}) (*http.Client, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if issuer.CertificateAuthority != "" {
		var err error
		if trust.RootCAs, err = cert.NewPoolFromBytes([]byte(issuer.CertificateAuthority)); err != nil {
			return nil, fmt.Errorf("issuer %s: certificateAuthority: %w", issuer.URL, err)
		}
	}
	discovery := issuer.DiscoveryURL
	if discovery == "" {
		discovery = strings.TrimSuffix(issuer.URL, "/") + "/.well-known/openid-configuration"
	}
	base := utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: trust})
	return &http.Client{Transport: &issuerTransport{base: base, issuer: issuer.URL, discovery: discovery, running: running}}, nil
}

// RoundTrip implements http.RoundTripper.
func (t *issuerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && r.URL.String() == t.discovery {
		return t.discover(r)
	}
	// An answer to a token of the request's own is for that request only.
	shared := r.Method == http.MethodGet && r.Header.Get("Authorization") == ""
	if shared {
		t.mu.Lock()
		a := t.last
		t.mu.Unlock()
		if a.url == r.URL.String() && time.Since(a.at) < keysMemory {
			return a.of(r), nil
		}
	}
	a, err := t.ask(r)
	if err != nil {
		return nil, err
	}
	if shared {
		t.mu.Lock()
		t.last = a
		t.mu.Unlock()
	}
	return a.of(r), nil
}

// CloseIdleConnections is called by the client's method of that name.
func (t *issuerTransport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// discover asks for the discovery document until the issuer gives a good one.
func (t *issuerTransport) discover(r *http.Request) (*http.Response, error) {
	select {
	case <-t.running:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	logger := klog.FromContext(r.Context()).WithValues("issuer", t.issuer)
	var logged time.Time
	for pause := issuerPause; ; pause = min(2*pause, maxIssuerPause) {
		a, err := t.ask(r)
		if err == nil {
			err = t.check(a)
		}
		if err == nil {
			if !logged.IsZero() {
				logger.Info("The issuer answers, its tokens are known from now on")
			}
			return a.of(r), nil
		}
		if r.Context().Err() == nil && time.Since(logged) > issuerReminder {
			logged = time.Now()
			logger.Error(err, "The issuer gives no keys, its tokens are refused meanwhile", "url", t.discovery)
		}
		if !await.Sleep(r.Context(), clock.RealClock{}, pause) {
			return nil, r.Context().Err()
		}
	}
}

// check returns why a discovery document is none of the issuer.
func (t *issuerTransport) check(a issuerAnswer) error {
	if a.response.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", a.response.Status)
	}
	var document struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(a.body, &document); err != nil {
		return fmt.Errorf("its discovery document: %w", err)
	}
	switch {
	case document.Issuer != t.issuer:
		return fmt.Errorf("its discovery document is of the issuer %q", document.Issuer)
	case document.Keys == "":
		return errors.New("its discovery document has no jwks_uri")
	}
	return nil
}

// ask sends a request and reads the answer.
func (t *issuerTransport) ask(r *http.Request) (issuerAnswer, error) {
	ctx, cancel := context.WithTimeout(r.Context(), issuerTimeout)
	defer cancel()
	response, err := t.base.RoundTrip(r.Clone(ctx))
	if err != nil {
		return issuerAnswer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxIssuerAnswer+1))
	if err != nil {
		return issuerAnswer{}, err
	}
	if len(body) > maxIssuerAnswer {
		return issuerAnswer{}, fmt.Errorf("the answer has more than %d bytes", maxIssuerAnswer)
	}
	return issuerAnswer{url: r.URL.String(), response: *response, body: body, at: time.Now()}, nil
}

// of is the answer to a request.
func (a issuerAnswer) of(r *http.Request) *http.Response {
	response := a.response
	response.Request, response.Header = r, a.response.Header.Clone()
	response.Body = io.NopCloser(bytes.NewReader(a.body))
	return &response
}
