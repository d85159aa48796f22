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

// Backend is the agent or HTTP server to which a request is forwarded. It gets none of the caller's credentials, and
// no header that identifies the caller.
type Backend struct {
	// URL has the scheme http or https, and a host.
	URL *url.URL
	// TLS configures connections to an https backend: the authorities to trust, and the client certificate. Nil means
	// the system's authorities and no client certificate.
	TLS *tls.Config
	// BearerToken is sent to the backend if it is not empty.
	BearerToken string
	// Header is sent to the backend. Each of its headers replaces the client's header of the same name.
	Header http.Header
	// Dial connects to the backend; nil connects over TCP, within 30 seconds.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// checked returns the backend with its credentials in the header, or an error if it has no usable URL.
func (b *Backend) checked() (streams.Backend, error) {
	if b == nil || b.URL == nil || b.URL.Scheme != "http" && b.URL.Scheme != "https" || b.URL.Host == "" {
		return streams.Backend{}, apierrors.NewInternalError(errors.New("the backend has no http or https URL"))
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

// agent returns the backend with the options as its query, unless its URL already has a query.
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
