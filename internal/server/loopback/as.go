package loopback

import (
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// Host is the URL of a server for its own clients. No other server has this name.
const Host = "http://loopback"

// TokenOf returns the bearer token of requests under another name. It is as secret as Token. The server decides which
// names it authenticates.
func (l *Loopback) TokenOf(name string) string { return tokenOf(l.token, name) }

func tokenOf(token, name string) string { return token + "/" + name }

// As returns a configuration whose requests are made under a name. It returns the configuration of another server
// unchanged: its client is the user of its kubeconfig.
func As(config *rest.Config, name string) *rest.Config {
	if config.Host != Host {
		return config
	}
	as := rest.CopyConfig(config)
	as.BearerToken = tokenOf(config.BearerToken, name)
	return as
}

// SharingReads returns a configuration whose lists and watches are made under the name reader, and all other requests
// under writer.
func SharingReads(config *rest.Config, reader, writer string) *rest.Config {
	if config.Host != Host {
		return config
	}
	as, token := As(config, writer), tokenOf(config.BearerToken, reader)
	as.Wrap(func(next http.RoundTripper) http.RoundTripper { return readTransport{next, token} })
	return as
}

// readTransport is below the transport that sets the token.
type readTransport struct {
	next  http.RoundTripper
	token string
}

// RoundTrip implements http.RoundTripper.
func (r readTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	// Lists and watches of informers have query parameters, a get has none.
	if request.Method == http.MethodGet && request.URL.RawQuery != "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	return r.next.RoundTrip(request)
}

// AsService returns a configuration for clients that treat this server as a Service with its own address, name and
// authorities. Their requests are sent here regardless of these. It returns the configuration of another server
// unchanged.
func AsService(config *rest.Config) *rest.Config {
	if config.Host != Host {
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
	here.URL.Scheme, here.URL.Host, _ = strings.Cut(Host, "://")
	here.Host = here.URL.Host
	return s.loopback.RoundTrip(here)
}
