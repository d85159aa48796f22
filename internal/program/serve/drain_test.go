package serve

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// fakeDrain returns the drain of a server whose parts record in steps when they end.
func fakeDrain(steps *[]string) drain {
	step := func(name string) { *steps = append(*steps, name) }
	return drain{
		signals:         newSignals(),
		timeout:         time.Minute,
		stopControllers: func() { step("stop controllers") },
		leave:           func(context.Context) { step("leave") },
		waitForControllers: []func(){
			func() { step("wait for controllers") },
			func() { step("wait for operations") },
		},
		stopInformers: func() { step("stop informers") },
		awaitRequests: func(context.Context) error { step("await requests"); return nil },
		stopListening: func(context.Context) { step("stop listening") },
	}
}

func isClosed(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}

func TestDrain_order(t *testing.T) {
	t.Parallel()
	var steps []string
	d := fakeDrain(&steps)
	leave, await := d.leave, d.awaitRequests
	d.leave = func(ctx context.Context) {
		leave(ctx)
		if !isClosed(d.signals.draining) || isClosed(d.signals.stopping) {
			t.Error("the mode leaves a server that is ready, or that refuses requests")
		}
	}
	d.awaitRequests = func(ctx context.Context) error {
		if !isClosed(d.signals.stopping) {
			t.Error("the server waits for requests while it accepts more")
		}
		return await(ctx)
	}
	d.run(t.Context())
	want := []string{
		"stop controllers", "leave", "wait for controllers", "wait for operations", "stop informers", "await requests", "stop listening",
	}
	if !slices.Equal(steps, want) {
		t.Errorf("got %q, want %q", steps, want)
	}
}

func TestDrain_shutdownDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var steps []string
		d := fakeDrain(&steps)
		d.delay = 5 * time.Second
		began := time.Now()
		go func() {
			<-d.signals.draining
			if took := time.Since(began); took != 0 {
				t.Errorf("it was ready for another %s", took)
			}
		}()
		d.begin(t.Context())
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it answered for %s", took)
		}
		if isClosed(d.signals.stopping) {
			t.Error("watches were ended")
		}
	})
}

func TestDrain_timeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var steps []string
		d := fakeDrain(&steps)
		// Neither requests nor connections end by themselves.
		d.awaitRequests = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		d.stopListening = func(ctx context.Context) { <-ctx.Done() }
		began := time.Now()
		d.run(t.Context())
		if took := time.Since(began); took != d.timeout {
			t.Errorf("it took %s, want %s", took, d.timeout)
		}
	})
}

func TestDrain_idleConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var steps []string
		d := fakeDrain(&steps)
		d.stopListening = func(ctx context.Context) { <-ctx.Done() }
		began := time.Now()
		d.run(t.Context())
		if took := time.Since(began); took != idleTimeout {
			t.Errorf("connections without a request held it up for %s, want %s", took, idleTimeout)
		}
	})
}

func TestStart_timeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		wait := start(t.Context(), time.Second, "It has not ended", func() { <-ended })
		began := time.Now()
		wait()
		if took := time.Since(began); took != time.Second {
			t.Errorf("it waited for %s", took)
		}
		close(ended)
		synctest.Wait()
		began = time.Now()
		wait()
		if took := time.Since(began); took != 0 {
			t.Errorf("it waited for another %s", took)
		}
	})
}
