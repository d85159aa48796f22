package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/annexapi/annex/internal/server/streams"
)

// Backend is where a request is handed on to: an agent, or an HTTP server. It gets none of the
// caller's credentials, and no header that says who the caller is.
type Backend struct {
	// URL is http or https.
	URL *url.URL
	// TLS are the authorities that a backend of https is trusted by, and the client certificate; nil
	// is the system's authorities and none.
	TLS *tls.Config
	// BearerToken is sent to the backend if it is not empty.
	BearerToken string
	// Header is sent to the backend instead of what the client sends by the same names.
	Header http.Header
	// Dial connects with the backend; nil is a connection over TCP, within 30 seconds.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// checked returns the backend, or an error about what is missing.
func (b *Backend) checked() (streams.Backend, error) {
	if b == nil || b.URL == nil || b.URL.Scheme != "http" && b.URL.Scheme != "https" || b.URL.Host == "" {
		return streams.Backend{}, apierrors.NewInternalError(errors.New("the backend has no URL of http or https"))
	}
	header := b.Header.Clone()
	if b.BearerToken != "" {
		if header == nil {
			header = http.Header{}
		}
		header.Set("Authorization", "Bearer "+b.BearerToken)
	}
	return streams.Backend{URL: b.URL, TLS: b.TLS, Dial: b.Dial, Header: header}, nil
}

// agent is the backend with options in its query, unless it has one.
func (b *Backend) agent(options url.Values) (streams.Backend, error) {
	agent, err := b.checked()
	if err != nil || agent.URL.RawQuery != "" {
		return agent, err
	}
	location := *agent.URL
	location.RawQuery = options.Encode()
	agent.URL = &location
	return agent, nil
}
