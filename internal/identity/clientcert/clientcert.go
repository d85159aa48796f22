// Package clientcert authenticates callers by their client certificates without verifying the same certificate for
// every request.
//
// Upstream's authenticators verify it each time, which takes about as long as the rest of a read from memory. This
// package caches the result for a minute, while the certificate and its issuers are valid and the authorities are
// unchanged. Refusals are never served from the cache: every other certificate is passed on to upstream's
// authenticators, whose errors name the reason. Their histogram of remaining certificate lifetimes does not include
// cached requests.
package clientcert

import (
	"crypto/x509"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/utils/clock"
)

const (
	// memory is how long a result is cached.
	memory = time.Minute
	// most is the maximum number of cached certificates. When it is exceeded, the cache is emptied.
	most = 1024
)

// Verifier caches which certificates were issued by a set of authorities. Its methods may be called concurrently.
type Verifier struct {
	options x509request.VerifyOptionFunc
	clock   clock.PassiveClock

	mu sync.RWMutex
	// cache is keyed by the parsed certificate of a connection. Connections share a parsed certificate only if they
	// present the same certificate.
	cache map[*x509.Certificate]verification
}

type verification struct {
	roots *x509.CertPool
	until time.Time
	chain []*x509.Certificate // nil if the authorities have not issued it
	// user is the authenticated owner of the certificate; nil if there is none. All of the owner's requests share it.
	user *authenticator.Response
}

// New returns a Verifier for the current authorities of options. A different pool means different authorities.
func New(options x509request.VerifyOptionFunc) *Verifier {
	return &Verifier{options: options, clock: clock.RealClock{}, cache: map[*x509.Certificate]verification{}}
}

// Chain returns the certificates from that of a request up to an authority. It returns nil if the authorities have
// not issued the certificate, or the request has none.
func (v *Verifier) Chain(r *http.Request) []*x509.Certificate { return v.verify(r).chain }

func (v *Verifier) verify(r *http.Request) verification {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return verification{}
	}
	options, ok := v.options()
	if !ok {
		return verification{}
	}
	leaf := r.TLS.PeerCertificates[0]
	now := v.clock.Now()
	v.mu.RLock()
	o, ok := v.cache[leaf]
	v.mu.RUnlock()
	if ok && o.roots == options.Roots && now.Before(o.until) {
		return o
	}
	o = verification{roots: options.Roots, until: now.Add(memory)}
	if options.Intermediates == nil && len(r.TLS.PeerCertificates) > 1 {
		options.Intermediates = x509.NewCertPool()
		for _, c := range r.TLS.PeerCertificates[1:] {
			options.Intermediates.AddCert(c)
		}
	}
	if chains, err := leaf.Verify(options); err == nil && len(chains) > 0 {
		o.chain = chains[0]
		o.user = userOf(r, o.chain)
		for _, c := range o.chain {
			if c.NotAfter.Before(o.until) {
				o.until = c.NotAfter
			}
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.cache) >= most {
		clear(v.cache)
	}
	v.cache[leaf] = o
	return o
}

// userOf authenticates a certificate once, where upstream does so for each request: it returns the user, including the
// digest of the certificate and the group of authenticated users.
func userOf(r *http.Request, chain []*x509.Certificate) *authenticator.Response {
	conversion := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return x509request.CommonNameUserConversion.User(chain)
	})
	response, ok, err := group.NewAuthenticatedGroupAdder(conversion).AuthenticateRequest(r)
	if err != nil || !ok {
		return nil
	}
	return response
}

// Users authenticates the owners of certificates. The common name is the user, the organizations are the groups, and
// system:authenticated is added to them. It has no opinion on other requests.
func (v *Verifier) Users() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response := v.verify(r).user
		return response, response != nil, nil
	})
}

// Proxies authenticates the users that a proxy names in headers, if the proxy has a certificate of the authorities.
// If names is not empty, it has to contain the proxy's common name. Proxies has no opinion on other requests.
func (v *Verifier) Proxies(names headerrequest.StringSliceProvider, headers authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if !v.proxied(r, names) {
			return nil, false, nil
		}
		return headers.AuthenticateRequest(r)
	})
}

// proxied reports whether the certificate of a request belongs to a proxy: its common name is in names, or names is
// empty.
func (v *Verifier) proxied(r *http.Request, names headerrequest.StringSliceProvider) bool {
	chain := v.Chain(r)
	if chain == nil {
		return false
	}
	allowed := names.Value()
	return len(allowed) == 0 || slices.Contains(allowed, chain[0].Subject.CommonName)
}
