// Package testwait waits, in tests, for other goroutines, processes and servers: it retries with a backoff, and fails
// at a deadline with the last error.
package testwait

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Patience is the time in which a condition has to hold. Only failing tests wait that long, so it is generous:
// machines may be slow, and busy with other tests.
const Patience = 2 * time.Minute

// The first pause is short enough for goroutines of the same process; the last does not hurry a server. After a try that takes
// long, such as a scrape of all metrics, the pause is as long, which leaves the processor to what is waited for.
const (
	firstPause = 100 * time.Microsecond
	maxPause   = 20 * time.Millisecond
	longPause  = 200 * time.Millisecond
)

var errNotYet = errors.New("still false")

// Until waits until holds returns true. After Patience it fails the test at once, so it must be called from the
// test's goroutine.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	NoError(t, what, func(context.Context) error {
		if holds() {
			return nil
		}
		return errNotYet
	})
}

// NoError waits until try returns nil. After Patience it fails the test at once, with the last error that try
// returned before its context expired; it must be called from the test's goroutine. It also works in functions given
// to Cleanup.
func NoError(t testing.TB, what string, try func(context.Context) error) {
	t.Helper()
	if err := Retry(context.WithoutCancel(t.Context()), try); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Retry calls try until it returns nil, Patience is over or ctx is done. It then returns the last error that try
// returned before its context expired.
func Retry(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	start := time.Now()
	var last error
	for pause := firstPause; ; pause = min(pause*4/3, maxPause) {
		began := time.Now()
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", time.Since(start).Round(time.Millisecond), last)
		case <-time.After(max(pause, min(time.Since(began), longPause))):
		}
	}
}
