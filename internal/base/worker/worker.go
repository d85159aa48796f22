// Package worker runs the work queues of controllers: it takes keys from a queue, handles each by one goroutine at a time,
// and tries failed keys again with a backoff.
//
// It has no informers: a controller adds keys to the queue itself.
package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
)

// Queue is a work queue. A key that is added while it is handled is handled once more.
type Queue[K comparable] = workqueue.TypedRateLimitingInterface[K]

// NewQueue returns a queue whose backoff of a key begins with first and doubles up to last. It runs goroutines until Run
// or its ShutDown shuts it down.
func NewQueue[K comparable](first, last time.Duration) Queue[K] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[K](first, last))
}

// Run calls handle with the keys of a queue, from the given number of goroutines, until ctx is done. It then shuts the
// queue down and returns when all calls have returned. handle itself must add a key again to retry it.
func Run[K comparable](ctx context.Context, queue Queue[K], workers int, handle func(context.Context, K)) {
	defer context.AfterFunc(ctx, queue.ShutDown)()
	var running sync.WaitGroup
	defer running.Wait()
	for range workers {
		running.Go(func() {
			for one(ctx, queue, handle) {
			}
		})
	}
}

func one[K comparable](ctx context.Context, queue Queue[K], handle func(context.Context, K)) bool {
	key, shutDown := queue.Get()
	if shutDown {
		return false
	}
	defer queue.Done(key)
	if ctx.Err() != nil {
		return false
	}
	handle(ctx, key)
	return true
}

// ErrAgain makes Retrying handle a key again with a backoff, without a report.
var ErrAgain = errors.New("the key is handled again")

// After returns an error for a key that is to be handled again after d, without a report and without a backoff.
func After(d time.Duration) error { return retryError(d) }

type retryError time.Duration

func (a retryError) Error() string {
	return fmt.Sprintf("retrying the key after %s", time.Duration(a))
}

// Retrying returns a function for Run that calls do. If do fails, the key is handled again with a backoff. report gets
// the error, unless ctx is done or the error is a conflict of a write, which a lagging informer causes.
func Retrying[K comparable](
	queue Queue[K],
	do func(context.Context, K) error,
	report func(ctx context.Context, key K, err error),
) func(context.Context, K) {
	return func(ctx context.Context, key K) {
		err := do(ctx, key)
		if err == nil {
			queue.Forget(key)
			return
		}
		if d, is := errors.AsType[retryError](err); is {
			queue.AddAfter(key, time.Duration(d))
			return
		}
		if ctx.Err() == nil && !errors.Is(err, ErrAgain) && !apierrors.IsConflict(err) {
			report(ctx, key, err)
		}
		queue.AddRateLimited(key)
	}
}
