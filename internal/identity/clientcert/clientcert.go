// Package clientcert knows callers by their client certificates without verifying the
// same certificate for every request.
//
// Upstream's authenticators verify it each time, which takes about as long as a read from
// memory takes otherwise. Here the outcome is remembered for a minute, as long as the
// certificate and those above it are valid and the authorities are the same ones. Nothing
// is refused from memory: what is not known to be good goes the way of upstream's
// authenticators, which say why it is bad. Their histogram of the certificates' remaining
// life does not see those that do not come that way.
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
	// memory is how long an outcome is remembered.
	memory = time.Minute
	// most bounds the certificates remembered; when there are more, all are forgotten.
	most = 1024
)

// Verified remembers which certificates some authorities have issued. Its methods may be
// called concurrently.
type Verified struct {
	options x509request.VerifyOptionFunc
	clock   clock.PassiveClock

	mu sync.RWMutex
	// known is by the certificate that a connection has parsed, which is no other
	// connection's unless that presents the same.
	known map[*x509.Certificate]outcome
}

type outcome struct {
	roots *x509.CertPool
	until time.Time
	chain []*x509.Certificate // nil if it is not one of theirs
	// user is what the owner's requests are authenticated as; nil if there is none. It is shared by all of them.
	user *authenticator.Response
}

// New returns a Verified for the authorities that options name at the time. They are told
// apart by their pool: other authorities are another pool.
func New(options x509request.VerifyOptionFunc) *Verified {
	return &Verified{options: options, clock: clock.RealClock{}, known: map[*x509.Certificate]outcome{}}
}

// Chain returns the certificates from that of a request up to an authority, nil if it has
// none that the authorities have issued.
func (v *Verified) Chain(r *http.Request) []*x509.Certificate { return v.outcome(r).chain }

func (v *Verified) outcome(r *http.Request) outcome {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return outcome{}
	}
	options, ok := v.options()
	if !ok {
		return outcome{}
	}
	leaf := r.TLS.PeerCertificates[0]
	now := v.clock.Now()
	v.mu.RLock()
	o, ok := v.known[leaf]
	v.mu.RUnlock()
	if ok && o.roots == options.Roots && now.Before(o.until) {
		return o
	}
	o = outcome{roots: options.Roots, until: now.Add(memory)}
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
	if len(v.known) >= most {
		clear(v.known)
	}
	v.known[leaf] = o
	return o
}

// userOf finds out for all requests with a certificate what upstream does for each: who that is, with a digest of it, and that such
// users are authenticated.
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

// Users authenticates the owners of certificates: the common name is the user, the
// organizations are the groups, and system:authenticated is one of these. It has no opinion of others.
func (v *Verified) Users() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response := v.outcome(r).user
		return response, response != nil, nil
	})
}

// Proxies authenticates those on whose behalf owners of certificates send requests, by
// headers. If names is not empty, the owner's common name has to be one of them. It has no
// opinion of others.
func (v *Verified) Proxies(names headerrequest.StringSliceProvider, headers authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if !v.proxied(r, names) {
			return nil, false, nil
		}
		return headers.AuthenticateRequest(r)
	})
}

// proxied reports whether a request came from the owner of a certificate whose common name is one of names, if there are any.
func (v *Verified) proxied(r *http.Request, names headerrequest.StringSliceProvider) bool {
	chain := v.Chain(r)
	if chain == nil {
		return false
	}
	allowed := names.Value()
	return len(allowed) == 0 || slices.Contains(allowed, chain[0].Subject.CommonName)
}
