package loopback

import (
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// host is that of all requests. No server elsewhere is called so.
const host = "http://loopback"

// TokenOf is the bearer token of requests that are made under another name. It is as secret as Token. The server is to
// authenticate those names that it knows.
func (l *Loopback) TokenOf(name string) string { return tokenOf(l.token, name) }

func tokenOf(token, name string) string { return token + "/" + name }

// As returns a configuration whose requests are made under a name. One that is not of a loopback is returned as it
// is: a client of another server is the user of its kubeconfig.
func As(config *rest.Config, name string) *rest.Config {
	if config.Host != host {
		return config
	}
	as := rest.CopyConfig(config)
	as.BearerToken = tokenOf(config.BearerToken, name)
	return as
}

// SharingReads returns a configuration whose requests are made under a name, but for lists and watches, which are made under
// another one.
func SharingReads(config *rest.Config, reader, writer string) *rest.Config {
	if config.Host != host {
		return config
	}
	as, token := As(config, writer), tokenOf(config.BearerToken, reader)
	as.Wrap(func(next http.RoundTripper) http.RoundTripper { return reading{next, token} })
	return as
}

// reading is below the transport that sets the token.
type reading struct {
	next  http.RoundTripper
	token string
}

// RoundTrip implements http.RoundTripper.
func (r reading) RoundTrip(request *http.Request) (*http.Response, error) {
	// Informers have parameters in what they ask, and the get of an object has none.
	if request.Method == http.MethodGet && request.URL.RawQuery != "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	return r.next.RoundTrip(request)
}

// AsService returns a configuration for clients that take this server for a Service, with an address, a name and
// authorities of its own: whatever they say of these, their requests come here. One that is not of a loopback is returned as
// it is.
func AsService(config *rest.Config) *rest.Config {
	if config.Host != host {
		return config
	}
	return &rest.Config{
		BearerToken:   config.BearerToken,
		QPS:           -1,
		WrapTransport: func(http.RoundTripper) http.RoundTripper { return service{config.Transport} },
	}
}

type service struct{ loopback http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s service) RoundTrip(request *http.Request) (*http.Response, error) {
	here := request.Clone(request.Context())
	here.URL.Scheme, here.URL.Host, _ = strings.Cut(host, "://")
	here.Host = here.URL.Host
	return s.loopback.RoundTrip(here)
}
