package await_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
)

func TestSleep_endsWithTimeOrContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		if !await.Sleep(ctx, clock.RealClock{}, time.Hour) || time.Since(start) != time.Hour {
			t.Errorf("it slept for %s, want an hour", time.Since(start))
		}
		time.AfterFunc(time.Minute, cancel)
		start = time.Now()
		if await.Sleep(ctx, clock.RealClock{}, time.Hour) || time.Since(start) != time.Minute {
			t.Errorf("it slept for %s, want a minute", time.Since(start))
		}
		if await.Sleep(ctx, clock.RealClock{}, 0) {
			t.Error("it slept though the context was done")
		}
	})
}

func TestNotify_keepsOneSignal(t *testing.T) {
	signal := make(chan struct{}, 1)
	await.Notify(signal)
	await.Notify(signal)
	<-signal
	select {
	case <-signal:
		t.Error("two signals were pending")
	default:
	}
}
