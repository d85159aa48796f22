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
	"k8s.io/klog/v2"
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
		connections: &connections{Listener: l, most: maxConnections(), open: map[*connection]struct{}{}},
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

// connections is a listener that knows its open connections and bounds their
// number: the HTTP server's own Shutdown leaves those that are still busy to
// themselves, and it accepts connections, of strangers too, until the process has no
// files left for the storage to open.
type connections struct {
	net.Listener
	most int // 0 is any number

	mu   sync.Mutex
	open map[*connection]struct{}
	full bool // connections are being refused
}

func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		accepted := &connection{Conn: conn, of: c}
		if c.add(accepted) {
			return accepted, nil
		}
		_ = conn.Close()
	}
}

// add tells whether there is room for one more connection.
func (c *connections) add(conn *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	full := c.most > 0 && len(c.open) >= c.most
	if full && !c.full {
		klog.Background().Error(nil, "Connections are refused, too many are open", "address", c.Addr().String(), "open", len(c.open))
	}
	if c.full = full; full {
		return false
	}
	c.open[conn] = struct{}{}
	return true
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
