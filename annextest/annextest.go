// Package annextest runs a server inside a test: the real one, on a free port of
// this machine, with its objects in memory. It is ready within milliseconds, and
// tests may run as many at once as they like.
package annextest

import (
	"context"
	"net"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// Start runs the server until the test and its subtests are done, and returns the
// administrator's client configuration. It fails the test if the server does not
// start or does not end in order.
func Start(t testing.TB, server annex.Server) *rest.Config {
	t.Helper()
	return StartWith(t, server, annex.Options{Storage: memory.Storage()})
}

// StartWith is Start with options of one's own: a data directory, say, to start a
// server on again in the same test. Without an address to listen on, it is a free port of
// this machine.
func StartWith(t testing.TB, server annex.Server, options annex.Options) *rest.Config {
	t.Helper()
	if options.Listen == "" {
		options.Listen = "127.0.0.1:0"
	}
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, server, options)
	if err != nil {
		cancel()
		t.Fatalf("start server %s: %v", server.Name, err)
	}
	ready := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	connections := &dialer{}
	t.Cleanup(func() {
		cancel()
		connections.close()
		if err := <-done; err != nil {
			t.Errorf("server %s: %v", server.Name, err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("server %s ended before it was ready: %v", server.Name, err)
	}
	config, err := instance.ClientConfig()
	if err != nil {
		t.Fatalf("client configuration of server %s: %v", server.Name, err)
	}
	config.QPS = -1
	config.Dial = connections.dial
	return config
}

// dialer keeps the connections that a test's clients leave open, so that the
// server need not wait for them to become idle.
type dialer struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, conn)
	return conn, nil
}

func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.conns {
		conn.Close()
	}
}
