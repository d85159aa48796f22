// Package loopback connects a server's own controllers to its complete handler chain without a socket. Such a client
// needs no port, certificate or name. It works before the server listens, and if the server does not listen at all.
//
// Requests use in-memory connections between Go's own HTTP client and server, so streaming, flushing, cancellation
// and concurrency behave as over a network.
package loopback

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// ErrClosed is the error of every request that begins after Close.
var ErrClosed = errors.New("loopback is closed")

// idleConnections is the number of idle connections that are kept. A watch occupies a connection; further ones are
// created as needed.
const idleConnections = 32

// Loopback connects clients in this process to one handler. Its methods may be called concurrently.
type Loopback struct {
	token     string
	listener  *listener
	transport *http.Transport
	server    *http.Server

	mu      sync.Mutex
	closed  bool
	serving chan struct{} // closed when Serve has ended; nil before Serve
}

// New returns a loopback without a handler. Close must be called.
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

// Token returns the bearer token of requests. It is secret, different for every New, and has to be authenticated as
// the server itself.
func (l *Loopback) Token() string { return l.token }

// Config returns a client configuration without a rate limit. Requests wait until Serve is called, or until their
// context ends.
func (l *Loopback) Config() *rest.Config {
	return &rest.Config{
		Host:        Host,
		BearerToken: l.token,
		Transport:   l.transport,
		QPS:         -1,
	}
}

// Serve starts to serve requests with handler and returns at once. It must be called at most once; after Close it has
// no effect.
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
		// Serve returns only after Close, always with an error.
		_ = l.server.Serve(l.listener)
	}()
}

// Close ends all requests, including those in progress. The contexts of handlers are canceled; Close does not wait
// for the handlers to return. A second call does nothing and returns nil.
func (l *Loopback) Close() error {
	l.mu.Lock()
	l.closed = true
	serving := l.serving
	l.mu.Unlock()

	l.listener.Close()
	if serving != nil {
		// When Serve has ended, the server knows every accepted connection.
		<-serving
	}
	err := l.server.Close()
	l.transport.CloseIdleConnections()
	return err
}

// listener passes the server's end of a pipe to Accept for every dial.
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
	case l.conns <- quiet{server}:
		return client, nil
	case <-l.done:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// quiet is the server's end of a pipe. A write after the other end was closed succeeds and is lost: a client of the server
// itself has left, which happens when the server ends, and upstream's handlers would log an error. The request's context
// ends all the same.
type quiet struct{ net.Conn }

// Write implements net.Conn.
func (q quiet) Write(data []byte) (int, error) {
	n, err := q.Conn.Write(data)
	if errors.Is(err, io.ErrClosedPipe) {
		return len(data), nil
	}
	return n, err
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
