// Package await has the ways in which goroutines wait for time and for each other.
package await

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Sleep waits for d and returns true, or returns false as soon as ctx is done.
func Sleep(ctx context.Context, c clock.Clock, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// Notify sends on a channel of capacity one unless a signal is pending there already. It never blocks.
func Notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
