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
}

// New returns a Verified for the authorities that options name at the time. They are told
// apart by their pool: other authorities are another pool.
func New(options x509request.VerifyOptionFunc) *Verified {
	return &Verified{options: options, clock: clock.RealClock{}, known: map[*x509.Certificate]outcome{}}
}

// Chain returns the certificates from that of a request up to an authority, nil if it has
// none that the authorities have issued.
func (v *Verified) Chain(r *http.Request) []*x509.Certificate {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	options, ok := v.options()
	if !ok {
		return nil
	}
	leaf := r.TLS.PeerCertificates[0]
	now := v.clock.Now()
	v.mu.RLock()
	o, ok := v.known[leaf]
	v.mu.RUnlock()
	if ok && o.roots == options.Roots && now.Before(o.until) {
		return o.chain
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
	return o.chain
}

// Users authenticates the owners of certificates: the common name is the user, the
// organizations are the groups. It has no opinion of others.
func (v *Verified) Users() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		chain := v.Chain(r)
		if chain == nil {
			return nil, false, nil
		}
		return x509request.CommonNameUserConversion.User(chain)
	})
}

// Proxies authenticates those on whose behalf owners of certificates send requests, by
// headers. If names is not empty, the owner's common name has to be one of them. It has no
// opinion of others.
func (v *Verified) Proxies(names headerrequest.StringSliceProvider, headers authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		chain := v.Chain(r)
		if chain == nil {
			return nil, false, nil
		}
		if allowed := names.Value(); len(allowed) > 0 && !slices.Contains(allowed, chain[0].Subject.CommonName) {
			return nil, false, nil
		}
		return headers.AuthenticateRequest(r)
	})
}
