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
	// maxIssuerAnswer bounds a response of an issuer, in bytes.
	maxIssuerAnswer = 4 << 20
	// issuerPause and maxIssuerPause are the first and the longest pause between attempts to reach an unavailable
	// issuer. issuerReminder is the interval of log lines about it.
	issuerPause, maxIssuerPause = 100 * time.Millisecond, 10 * time.Second
	issuerReminder              = time.Hour
	// keysMemory is how long the keys of an issuer are cached. Each token with an unknown key ID makes the server
	// request them, and clients can create such tokens at no cost.
	keysMemory = time.Second
)

// issuerTransport is the HTTP transport to an issuer. It retries a request for the discovery document until the
// response is valid, because upstream's authenticator would log each attempt.
type issuerTransport struct {
	base      http.RoundTripper
	issuer    string
	discovery string
	// running is closed when requests may be sent.
	running <-chan struct{}

	mu   sync.Mutex
	last issuerAnswer
}

// issuerAnswer is a response with its complete body.
type issuerAnswer struct {
	url      string
	response http.Response
	body     []byte
	time     time.Time
}

// newIssuerClient returns the client of an issuer's authenticator.
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
	// A response to a request with its own token must not be shared.
	shared := r.Method == http.MethodGet && r.Header.Get("Authorization") == ""
	if shared {
		t.mu.Lock()
		a := t.last
		t.mu.Unlock()
		if a.url == r.URL.String() && time.Since(a.time) < keysMemory {
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

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (t *issuerTransport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// discover requests the discovery document until the issuer returns a valid one.
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
				logger.Info("The issuer answers again, its tokens are accepted")
			}
			return a.of(r), nil
		}
		if r.Context().Err() == nil && time.Since(logged) > issuerReminder {
			logged = time.Now()
			logger.Error(err, "Cannot read the keys of the issuer, its tokens are rejected meanwhile", "url", t.discovery)
		}
		if !await.Sleep(r.Context(), clock.RealClock{}, pause) {
			return nil, r.Context().Err()
		}
	}
}

// check reports an error if the discovery document is not valid for the issuer.
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
		return fmt.Errorf("its discovery document has the issuer %q", document.Issuer)
	case document.Keys == "":
		return errors.New("its discovery document has no jwks_uri")
	}
	return nil
}

// ask sends a request and reads the response.
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
	return issuerAnswer{url: r.URL.String(), response: *response, body: body, time: time.Now()}, nil
}

// of returns the answer as the response to r.
func (a issuerAnswer) of(r *http.Request) *http.Response {
	response := a.response
	response.Request, response.Header = r, a.response.Header.Clone()
	response.Body = io.NopCloser(bytes.NewReader(a.body))
	return &response
}
