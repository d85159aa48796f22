package annex_test

import (
	"context"
	"testing"

	"github.com/annexapi/annex"
)

// run runs a server until stop is called, which returns what Run returned, or the
// test ends.
func run(t *testing.T, server annex.Server, options annex.Options) (instance *annex.Instance, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, server, options)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan struct{})
	var result error
	go func() {
		defer close(done)
		result = instance.Run(ctx, func() { close(ready) })
	}()
	stop = func() error {
		cancel()
		<-done
		return result
	}
	t.Cleanup(func() { _ = stop() })
	select {
	case <-ready:
	case <-done:
		t.Fatalf("the server ended: %v", result)
	}
	return instance, stop
}
