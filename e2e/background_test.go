package e2e

import (
	"context"
	"testing"
)

// background runs a function beside the test until the context or the test ends, and fails the test if it returns an
// error.
func background(ctx context.Context, t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
