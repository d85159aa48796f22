package certs

import (
	"crypto/x509"
	"fmt"
	"sync/atomic"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"

	"github.com/annexapi/annex/internal/identity/clientcert"
)

// The providers below do not implement dynamiccertificates.ControllerRunner, because a server runs all providers that
// do. Certs.Run owns their background work.
var (
	_ dynamiccertificates.CertKeyContentProvider = (*servingContent)(nil)
	_ dynamiccertificates.CAContentProvider      = (*clientCAs)(nil)
	_ dynamiccertificates.Listener               = (*Certs)(nil)
)

// servingContent is the serving certificate of the moment.
type servingContent struct {
	clientcert.Listeners
	name    string
	content func() (cert, key []byte)
}

func (s *servingContent) Name() string                              { return s.name }
func (s *servingContent) CurrentCertKeyContent() (cert, key []byte) { return s.content() }

// clientCAs are the authorities of client certificates, parsed once per change.
type clientCAs struct {
	clientcert.Listeners
	name    string
	content func() []byte
	current atomic.Pointer[clientCABundle]
}

type clientCABundle struct {
	pem   []byte
	roots *x509.CertPool
}

func (c *clientCAs) Name() string                   { return c.name }
func (c *clientCAs) CurrentCABundleContent() []byte { return c.current.Load().pem }

func (c *clientCAs) VerifyOptions() (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{
		Roots:     c.current.Load().roots,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, true
}

// Enqueue implements dynamiccertificates.Listener. The provider has checked the new content. If it cannot be parsed
// nevertheless, the previous authorities stay in use.
func (c *clientCAs) Enqueue() {
	if c.refresh() == nil {
		c.Listeners.Enqueue()
	}
}

func (c *clientCAs) refresh() error {
	pem := c.content()
	roots, err := cert.NewPoolFromBytes(pem)
	if err != nil {
		return fmt.Errorf("parse authorities: %w", err)
	}
	c.current.Store(&clientCABundle{pem: pem, roots: roots})
	return nil
}
