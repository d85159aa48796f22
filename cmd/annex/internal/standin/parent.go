package standin

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// lifetime returns the context of a program: it ends when a signal arrives or the parent ends.
func lifetime() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := withParent(ctx)
	return ctx, func() {
		cancel()
		stop()
	}
}

// withParent returns a context that ends when the process's parent ends, however it dies. Otherwise a test that is killed
// would leave its servers behind.
func withParent(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	parent := os.Getppid()
	go func() {
		defer cancel()
		if isStranger(parent) || waitForEnd(ctx, parent) {
			return
		}
		// The system cannot report the end of a process that is not a child. An orphan gets another parent.
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for os.Getppid() == parent {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return ctx, cancel
}
