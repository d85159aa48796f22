package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/base/worker"
)

// step is one handling of a key: its duration and its error.
type step struct {
	err  error
	wait time.Duration
}

// handled runs a queue in which the key is added once, and returns when its handling began, as long as there are steps.
func handled(t *testing.T, steps ...step) (at []time.Duration, reported []error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		queue, begin := worker.NewQueue[string](time.Second, 3*time.Second), time.Now()
		queue.Add("key")
		do := func(_ context.Context, key string) error {
			at = append(at, time.Since(begin))
			s := steps[len(at)-1]
			time.Sleep(s.wait)
			return s.err
		}
		go worker.Run(ctx, queue, 2, worker.Retrying(queue, do, func(_ context.Context, _ string, err error) {
			reported = append(reported, err)
		}))
		time.Sleep(time.Hour)
		cancel()
		synctest.Wait()
	})
	return at, reported
}

func TestRetrying_backoff(t *testing.T) {
	failed := errors.New("it failed")
	at, reported := handled(t, step{err: failed}, step{err: failed}, step{err: failed}, step{err: failed}, step{})
	if want := []time.Duration{0, time.Second, 3 * time.Second, 6 * time.Second, 9 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("handled at %v, want %v", at, want)
	}
	if len(reported) != 4 {
		t.Errorf("reported %v", reported)
	}
}

func TestRetrying_withoutReport(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "thing", errors.New("it has changed"))
	at, reported := handled(t, step{err: conflict}, step{err: errors.Join(worker.ErrAgain)}, step{})
	if want := []time.Duration{0, time.Second, 3 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("handled at %v, want %v", at, want)
	}
	if len(reported) > 0 {
		t.Errorf("reported %v", reported)
	}
}

func TestAfter_hasNoBackoff(t *testing.T) {
	failed := errors.New("it failed")
	at, _ := handled(t, step{err: failed}, step{err: worker.After(time.Minute)}, step{err: failed}, step{})
	if want := []time.Duration{0, time.Second, 61 * time.Second, 63 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("handled at %v, want %v", at, want)
	}
}

func TestRun_addedWhileHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		queue := worker.NewQueue[string](time.Second, time.Second)
		queue.Add("key")
		var calls, inFlight, most int
		go worker.Run(ctx, queue, 4, func(context.Context, string) {
			calls++
			inFlight++
			most = max(most, inFlight)
			time.Sleep(time.Second)
			inFlight--
		})
		synctest.Wait()
		queue.Add("key")
		queue.Add("key")
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls != 2 || most != 1 {
			t.Errorf("%d calls, %d at a time; want 2, each after the other", calls, most)
		}
		cancel()
	})
}

func TestRun_contextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		queue := worker.NewQueue[int](time.Second, time.Second)
		for i := range 10 {
			queue.Add(i)
		}
		var calls int
		var reported []error
		ended := make(chan struct{})
		do := func(ctx context.Context, _ int) error {
			calls++
			<-ctx.Done()
			time.Sleep(time.Second) // it cleans up
			return ctx.Err()
		}
		go func() {
			defer close(ended)
			worker.Run(ctx, queue, 1, worker.Retrying(queue, do, func(_ context.Context, _ int, err error) { reported = append(reported, err) }))
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("it ended before its function did")
		default:
		}
		<-ended
		if calls != 1 || len(reported) > 0 || !queue.ShuttingDown() {
			t.Errorf("%d calls, reported %v, shutting down: %t; want 1, nothing, true", calls, reported, queue.ShuttingDown())
		}
	})
}
