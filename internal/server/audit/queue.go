package audit

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/util/flowcontrol"

	"github.com/annexapi/annex/config"
)

var (
	errFull   = errors.New("too many events are waiting")
	errClosed = errors.New("the server is shutting down")
)

// queue collects events into batches.
type queue struct {
	options  config.AuditBatchOptions
	maxBytes int64 // of a batch; 0 means no bound
	senders  int
	throttle flowcontrol.RateLimiter // nil for none

	events chan []byte
	mu     sync.RWMutex
	closed bool
}

func newQueue(o config.AuditBatchOptions, maxBytes int64, senders int) *queue {
	q := &queue{options: o, maxBytes: maxBytes, senders: senders, events: make(chan []byte, o.BufferSize)}
	if o.ThrottleQPS > 0 {
		q.throttle = flowcontrol.NewTokenBucketRateLimiter(o.ThrottleQPS, o.ThrottleBurst)
	}
	return q
}

// add never blocks.
func (q *queue) add(event []byte) error {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed {
		return errClosed
	}
	select {
	case q.events <- event:
		return nil
	default:
		return errFull
	}
}

// close makes the queue reject further events. It is idempotent.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.events)
	}
}

// run calls send with batches, concurrently if there are several senders. When ctx is done, it closes the queue, and
// returns after the remaining events have been sent.
func (q *queue) run(ctx context.Context, send func(events [][]byte)) {
	var sending sync.WaitGroup
	defer sending.Wait()
	free := make(chan struct{}, q.senders)
	var first []byte
	for open := true; open; {
		var batch [][]byte
		if batch, first, open = q.gather(ctx, first); len(batch) == 0 {
			continue
		}
		if q.throttle != nil {
			_ = q.throttle.Wait(ctx) // when ctx is done, throttling ends
		}
		free <- struct{}{}
		sending.Go(func() {
			defer func() { <-free }()
			send(batch)
		})
	}
}

// gather returns the next batch, which begins with first if that is not nil, and an event that did not fit. It
// returns false when the queue is closed and empty.
func (q *queue) gather(ctx context.Context, first []byte) (batch [][]byte, next []byte, open bool) {
	stopping := ctx.Done()
	var due <-chan time.Time
	size := int64(0)
	for len(batch) < q.options.MaxSize {
		event := first
		first = nil
		for event == nil {
			select {
			case <-stopping:
				stopping = nil
				q.close()
				continue
			case <-due:
				return batch, nil, true
			case event, open = <-q.events:
				if !open {
					return batch, nil, false
				}
			}
		}
		if size += int64(len(event)); q.maxBytes > 0 && size > q.maxBytes && len(batch) > 0 {
			return batch, event, true
		}
		if batch = append(batch, event); len(batch) == 1 && q.options.MaxSize > 1 {
			due = time.After(q.options.MaxWait)
		}
	}
	return batch, nil, true
}
