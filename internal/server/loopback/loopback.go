// Package loopback lets a server's own controllers reach it through its whole
// handler chain without a socket: as a client that needs no port, no certificate
// and no name, and that works before the server listens and when it listens
// nowhere at all.
//
// Requests run over connections in memory between Go's own HTTP client and server,
// so streaming, flushing, cancellation and concurrency are those of the network.
package loopback

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// ErrClosed is the cause of failure of every request begun after Close.
var ErrClosed = errors.New("loopback is closed")

// idleConnections is how many connections wait for the next request. A watch
// occupies one while it lasts; more are made as needed.
const idleConnections = 32

// Loopback connects clients in this process with one handler. Its methods may be
// called concurrently.
type Loopback struct {
	token     string
	listener  *listener
	transport *http.Transport
	server    *http.Server

	mu      sync.Mutex
	closed  bool
	serving chan struct{} // closed when Serve has ended; nil before Serve
}

// New returns a loopback without a handler yet. Close must be called.
func New() *Loopback {
	l := &Loopback{
		token:    rand.Text(),
		listener: newListener(),
	}
	l.server = &http.Server{ReadHeaderTimeout: time.Minute}
	l.transport = &http.Transport{
		DialContext:         l.listener.dial,
		MaxIdleConnsPerHost: idleConnections,
		DisableCompression:  true,
	}
	return l
}

// Token is the bearer token that requests carry. It is secret, made anew by every
// New, and is to be authenticated as the server itself.
func (l *Loopback) Token() string { return l.token }

// Config returns a client configuration. Clients made from it have no rate limit.
// Their requests wait until Serve is called, as long as their context allows.
func (l *Loopback) Config() *rest.Config {
	return &rest.Config{
		Host:        host,
		BearerToken: l.token,
		Transport:   l.transport,
		QPS:         -1,
	}
}

// Serve starts to answer requests by handler and returns at once. It is called
// once at most; after Close it has no effect.
func (l *Loopback) Serve(handler http.Handler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.server.Handler = handler
	serving := make(chan struct{})
	l.serving = serving
	go func() {
		defer close(serving)
		// It returns only after Close, with an error that says no more than that.
		_ = l.server.Serve(l.listener)
	}()
}

// Close ends all requests, those in progress too. Handlers see their request's
// context done; Close does not wait for them to return. Closing twice is an
// error-free no-op.
func (l *Loopback) Close() error {
	l.mu.Lock()
	l.closed = true
	serving := l.serving
	l.mu.Unlock()

	l.listener.Close()
	if serving != nil {
		// Every connection accepted is known to the server when Serve has ended.
		<-serving
	}
	err := l.server.Close()
	l.transport.CloseIdleConnections()
	return err
}

// listener hands the server's end of a pipe to Accept for every dial.
type listener struct {
	conns  chan net.Conn
	done   chan struct{}
	closed sync.Once
}

func newListener() *listener {
	return &listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *listener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.closed.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "loopback" }
func (address) String() string  { return "loopback" }
