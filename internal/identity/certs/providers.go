package certs

import (
	"crypto/x509"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
)

// The providers below do not implement dynamiccertificates.ControllerRunner, because a server runs all providers that
// do. Certs.Run owns their background work.
var (
	_ dynamiccertificates.CertKeyContentProvider = (*servingContent)(nil)
	_ dynamiccertificates.CAContentProvider      = (*clientCAs)(nil)
	_ dynamiccertificates.Listener               = (*Certs)(nil)
)

// listeners notifies all registered listeners of a change. Unlike upstream's providers, it accepts new listeners at
// any time.
type listeners struct {
	mu   sync.Mutex
	list []dynamiccertificates.Listener
}

func (l *listeners) AddListener(listener dynamiccertificates.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, listener)
}

func (l *listeners) Enqueue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, listener := range l.list {
		listener.Enqueue()
	}
}

// servingContent is the current serving certificate.
type servingContent struct {
	listeners
	name    string
	content func() (cert, key []byte)
}

func (s *servingContent) Name() string                              { return s.name }
func (s *servingContent) CurrentCertKeyContent() (cert, key []byte) { return s.content() }

// clientCAs are the authorities of client certificates, parsed once per change.
type clientCAs struct {
	listeners
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
		c.listeners.Enqueue()
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
