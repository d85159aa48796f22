// Package budget is the one accountant of a process's memory. Caches bound themselves;
// what requests need comes and goes, and a few large lists at once can need many times
// what the caches hold. So a request says what it is going to need before it takes it,
// and if that does not fit beside what others hold, it waits, and is refused if it has
// waited too long or too many wait already.
//
// What a request needs is known from bytes that are counted anyway: the length of its
// body, or the encoded size of what it lists, times what decoding and encoding make of
// it. These are estimates from above, by what was measured.
//
// # No deadlock, no starvation
//
// A request's Account holds one share, which never has to wait for another of the same
// request: an account that has to grow and cannot gives its share back, and waits at the
// end of the queue for a share of the new size. Requests are served in their order.
//
// A need larger than everything there is counts as everything there is: that request is
// served alone. So that it does not hold up all other requests meanwhile, small needs have a
// lane of their own, an eighth of the budget.
package budget

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// smallLane is the part of a budget that only small needs share.
	smallLane = 8
	// smallNeed is the part of a budget up to which a need is small.
	smallNeed = 256
	// mostWaiting is how many requests wait in a lane. Fewer than are handled at once:
	// those that need nothing to speak of are answered meanwhile.
	mostWaiting = 100
	// longestWait is well within the time that a request has.
	longestWait = 15 * time.Second
)

// Minimum is the smallest budget, in bytes: one request with the largest body fits.
const Minimum = 64 << 20

// Budget is what the requests of a process share. A nil budget has no bounds. Its methods
// may be called concurrently.
type Budget struct {
	bytes int64
	wait  time.Duration

	mu      sync.Mutex
	lanes   [2]lane
	refused uint64
}

// lane is a part of a budget with a queue of its own. Its budget's mu guards it.
type lane struct {
	bytes, used int64
	queue       []*waiting
}

// waiting is a request in a queue. It is admitted when ready is closed.
type waiting struct {
	bytes int64
	ready chan struct{}
}

// The lanes of a budget.
const (
	small = iota
	large
)

// New returns a budget of so many bytes, the Minimum if they are fewer.
func New(bytes int64) *Budget {
	bytes = max(bytes, Minimum)
	b := &Budget{bytes: bytes, wait: longestWait}
	b.lanes[small].bytes = bytes / smallLane
	b.lanes[large].bytes = bytes - bytes/smallLane
	return b
}

// Stats are figures about a budget.
type Stats struct {
	Bytes   int64  // of the whole
	Used    int64  // held by requests
	Waiting int    // requests in the queues
	Refused uint64 // requests so far
}

// Stats returns the current figures.
func (b *Budget) Stats() Stats {
	if b == nil {
		return Stats{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{Bytes: b.bytes, Refused: b.refused}
	for i := range b.lanes {
		s.Used += b.lanes[i].used
		s.Waiting += len(b.lanes[i].queue)
	}
	return s
}

// BusyError says that a request was refused. Nothing has been done for it, and it may be
// sent again.
type BusyError struct {
	after time.Duration
	bytes int64
}

// RetryAfter is when sending it again makes sense at the earliest.
func (e *BusyError) RetryAfter() time.Duration { return e.after }

func (e *BusyError) Error() string {
	return fmt.Sprintf("the server's memory is in use by other requests, and this one needs about %d MiB of it; "+
		"try again, or ask for less at once: a limit, a selector", (e.bytes+1<<20-1)>>20)
}

// lane returns the lane of a need, and what it counts as there.
func (b *Budget) lane(bytes int64) (int, int64) {
	if bytes <= b.bytes/smallNeed {
		return small, bytes
	}
	return large, min(bytes, b.lanes[large].bytes)
}

// take takes a share if it fits now. It needs mu.
func (b *Budget) take(in int, bytes int64) bool {
	l := &b.lanes[in]
	if len(l.queue) > 0 || l.used+bytes > l.bytes {
		return false
	}
	l.used += bytes
	return true
}

// give returns a share, and admits who has waited for it. It needs mu.
func (b *Budget) give(in int, bytes int64) {
	l := &b.lanes[in]
	l.used -= bytes
	for len(l.queue) > 0 && l.used+l.queue[0].bytes <= l.bytes {
		l.used += l.queue[0].bytes
		close(l.queue[0].ready)
		l.queue[0] = nil
		l.queue = l.queue[1:]
	}
}

// await waits for a share. It needs mu, and returns with it.
func (b *Budget) await(ctx context.Context, in int, bytes int64) error {
	l := &b.lanes[in]
	if len(l.queue) >= mostWaiting {
		b.refused++
		return &BusyError{after: 5 * time.Second, bytes: bytes}
	}
	w := &waiting{bytes, make(chan struct{})}
	l.queue = append(l.queue, w)
	b.mu.Unlock()
	patience := time.NewTimer(b.wait)
	defer patience.Stop()
	var err error
	select {
	case <-w.ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-patience.C:
		err = &BusyError{after: time.Second, bytes: bytes}
	}
	b.mu.Lock()
	if err == nil || !b.leave(in, w) {
		return nil
	}
	if ctx.Err() == nil {
		b.refused++
	}
	return err
}

// leave takes a request out of a queue. It is false if it has been admitted meanwhile.
func (b *Budget) leave(in int, w *waiting) bool {
	l := &b.lanes[in]
	for i := range l.queue {
		if l.queue[i] == w {
			l.queue = append(l.queue[:i:i], l.queue[i+1:]...)
			b.give(in, 0) // those behind it may fit
			return true
		}
	}
	return false
}
