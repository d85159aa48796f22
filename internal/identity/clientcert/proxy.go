package clientcert

import (
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/annexapi/annex/config"
)

// RequestHeaders returns the configuration for authenticating the users that a proxy names in headers. authorities
// verify the proxy's certificate.
func RequestHeaders(
	o config.RequestHeaderOptions,
	authorities dynamiccertificates.CAContentProvider,
) *authenticatorfactory.RequestHeaderConfig {
	or := func(given []string, usual string) headerrequest.StaticStringSlice {
		if len(given) > 0 {
			return given
		}
		return headerrequest.StaticStringSlice{usual}
	}
	return &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider:  authorities,
		AllowedClientNames: headerrequest.StaticStringSlice(o.AllowedNames),
		UsernameHeaders:    or(o.UsernameHeaders, "x-remote-user"),
		// Without a default: clusters before Kubernetes 1.32 forward this header from their clients.
		UIDHeaders:          headerrequest.StaticStringSlice(o.UIDHeaders),
		GroupHeaders:        or(o.GroupHeaders, "x-remote-group"),
		ExtraHeaderPrefixes: or(o.ExtraHeadersPrefix, "x-remote-extra-"),
	}
}

// FrontProxy returns two authenticators of the users on whose behalf a proxy sends requests: known, which caches
// verified certificates, and upstream, which verifies each request.
func FrontProxy(c *authenticatorfactory.RequestHeaderConfig) (known, upstream authenticator.Request) {
	headers := headerrequest.NewDynamic(c.UsernameHeaders, c.UIDHeaders, c.GroupHeaders, c.ExtraHeaderPrefixes)
	known = New(c.CAContentProvider.VerifyOptions).Proxies(c.AllowedClientNames, headers)
	return known, headerrequest.NewDynamicVerifyOptionsSecure(c.CAContentProvider.VerifyOptions, c.AllowedClientNames,
		c.UsernameHeaders, c.UIDHeaders, c.GroupHeaders, c.ExtraHeaderPrefixes)
}

// Proxied returns a function that reports whether a proxy sent a request. It may be called concurrently.
func Proxied(c *authenticatorfactory.RequestHeaderConfig) func(*http.Request) bool {
	proxies := New(c.CAContentProvider.VerifyOptions)
	return func(r *http.Request) bool { return proxies.proxied(r, c.AllowedClientNames) }
}

// Union returns the combined authorities. Unlike upstream's union, it accepts listeners at any time, and a server
// does not run it: the parts are run separately.
func Union(authorities ...dynamiccertificates.CAContentProvider) dynamiccertificates.CAContentProvider {
	all := &union{CAContentProvider: dynamiccertificates.NewUnionCAContentProvider(authorities...)}
	all.CAContentProvider.AddListener(all)
	return all
}

type union struct {
	dynamiccertificates.CAContentProvider
	Listeners
}

// AddListener implements dynamiccertificates.Notifier.
func (u *union) AddListener(l dynamiccertificates.Listener) { u.Listeners.AddListener(l) }

// Listeners passes a change on to all registered listeners. Unlike upstream's providers it takes listeners at any time.
// Its methods may be called concurrently.
type Listeners struct {
	mu   sync.Mutex
	list []dynamiccertificates.Listener
}

// AddListener implements dynamiccertificates.Notifier.
func (l *Listeners) AddListener(listener dynamiccertificates.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, listener)
}

// Enqueue implements dynamiccertificates.Listener.
func (l *Listeners) Enqueue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, listener := range l.list {
		listener.Enqueue()
	}
}
