// Package annextest runs a server inside a test: the real server, on a free port of this machine, with its objects in
// memory. It is ready within milliseconds, and tests may run any number of servers concurrently. The package also
// tests that versions of a kind convert without loss (RoundTrip), and that stored objects stay readable
// (GoldenObjects).
package annextest

import (
	"context"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/base/dialed"
	"github.com/annexapi/annex/store/memory"
)

// Start runs the server until the test and its subtests are done, and returns the administrator's client
// configuration. It fails the test if the server does not start, or does not stop without an error.
func Start(t testing.TB, server annex.Server) *rest.Config {
	t.Helper()
	return StartWith(t, server, annex.Options{Storage: memory.Storage()})
}

// StartWith is Start with the caller's options, for example a data directory on which the same test later starts
// another server. Without an address in Listen, it listens on a free port of this machine.
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
	connections := &dialed.Connections{}
	t.Cleanup(func() {
		cancel()
		connections.Close()
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
	config.Dial = connections.Dial
	return config
}
