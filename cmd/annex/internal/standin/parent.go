package standin

import (
	"context"
	"os"
	"time"
)

// withParent returns a context that ends when the process's parent ends, however it dies. Otherwise a test that is killed
// would leave its servers behind.
func withParent(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	parent := os.Getppid()
	go func() {
		defer cancel()
		if waitForEnd(ctx, parent) {
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
