package upstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// streamsPerConnection bounds the requests at once on one HTTP/2 connection. It
// is high because an aggregator sends those of all its clients over one.
const streamsPerConnection = 1000

// Listening is a listener whose connections are being answered.
type Listening struct {
	connections  *connections
	stop         chan struct{}
	idle, closed <-chan struct{}
}

// ServeTLS answers HTTPS on a listener until Shutdown, which is then given the
// time grace at most. Certificates are read anew when they change.
func ServeTLS(l net.Listener, handler http.Handler, serving dynamiccertificates.CertKeyContentProvider, clients dynamiccertificates.CAContentProvider, grace time.Duration) (*Listening, error) {
	listening := newListening(l)
	info := &server.SecureServingInfo{
		Listener:                     listening.connections,
		Cert:                         serving,
		ClientCA:                     clients,
		HTTP2MaxStreamsPerConnection: streamsPerConnection,
	}
	var err error
	if listening.idle, listening.closed, err = info.Serve(handler, grace, listening.stop); err != nil {
		return nil, fmt.Errorf("serve HTTPS: %w", err)
	}
	return listening, nil
}

// ServePlain is ServeTLS without TLS.
func ServePlain(l net.Listener, handler http.Handler, grace time.Duration) (*Listening, error) {
	listening := newListening(l)
	plain := &http.Server{
		Handler:           handler,
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second,
	}
	var err error
	if listening.idle, listening.closed, err = server.RunServer(plain, listening.connections, grace, listening.stop); err != nil {
		return nil, fmt.Errorf("serve HTTP: %w", err)
	}
	return listening, nil
}

func newListening(l net.Listener) *Listening {
	return &Listening{
		connections: &connections{Listener: l, open: map[*connection]struct{}{}},
		stop:        make(chan struct{}),
	}
}

// Shutdown closes the listener and waits until its connections are idle. Those that
// are not when the context ends are cut off.
func (l *Listening) Shutdown(ctx context.Context) {
	close(l.stop)
	<-l.closed
	select {
	case <-l.idle:
	case <-ctx.Done():
	}
	l.connections.cut()
}

// connections is a listener that knows its open connections: the HTTP server's own
// Shutdown leaves those that are still busy to themselves.
type connections struct {
	net.Listener

	mu   sync.Mutex
	open map[*connection]struct{}
}

func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	accepted := &connection{Conn: conn, of: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[accepted] = struct{}{}
	return accepted, nil
}

// cut closes all connections. The listener accepts no more.
func (c *connections) cut() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for conn := range open {
		_ = conn.Conn.Close()
	}
}

type connection struct {
	net.Conn
	of *connections
}

func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
