package testwait_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// failing records the failure of a test instead of failing.
type failing struct {
	testing.TB
	failure string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failureOf returns the failure of a test that runs f, and the time until then.
func failureOf(t *testing.T, f func(testing.TB)) (string, time.Duration) {
	recorded, start, done := &failing{TB: t}, time.Now(), make(chan struct{})
	go func() { defer close(done); f(recorded) }()
	<-done
	return recorded.failure, time.Since(start)
}

func TestNoError_endsWhenConditionHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		failure, took := failureOf(t, func(t testing.TB) {
			testwait.Until(t, "the condition", func() bool { tries++; return tries == 10 })
		})
		if failure != "" || tries != 10 || took > 10*time.Millisecond {
			t.Errorf("%d tries in %s: %s", tries, took, failure)
		}
	})
}

func TestUntil_slowCondition_isTriedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for try, pause := range map[time.Duration]time.Duration{
			0:                      0,
			100 * time.Millisecond: 100 * time.Millisecond,
			time.Minute / 2:        200 * time.Millisecond,
		} {
			tries := 0
			_, took := failureOf(t, func(t testing.TB) {
				testwait.Until(t, "the condition", func() bool { time.Sleep(try); tries++; return tries == 3 })
			})
			if pauses := took - 3*try; pauses < 2*pause || pauses > 2*pause+time.Millisecond {
				t.Errorf("after tries of %s, pauses of %s, want twice %s", try, pauses, pause)
			}
		}
	})
}

func TestNoError_deadline_failsWithLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		failure, took := failureOf(t, func(t testing.TB) {
			testwait.NoError(t, "the server", func(ctx context.Context) error {
				if tries++; tries < 200 {
					return errors.New("connection refused")
				}
				<-ctx.Done()
				return ctx.Err() // not an error of the server
			})
		})
		if !strings.Contains(failure, "the server: not within 2m0s: connection refused") || took != testwait.Patience || tries != 200 {
			t.Errorf("after %d tries in %s: %q", tries, took, failure)
		}
		failure, took = failureOf(t, func(t testing.TB) { testwait.Until(t, "the flag", func() bool { return false }) })
		if !strings.Contains(failure, "the flag: not within") || took != testwait.Patience {
			t.Errorf("after %s: %q", took, failure)
		}
	})
}

func TestNoError_inCleanup(t *testing.T) {
	t.Run("", func(t *testing.T) {
		t.Cleanup(func() {
			testwait.NoError(t, "a context that is not cancelled", func(ctx context.Context) error { return ctx.Err() })
		})
	})
}
