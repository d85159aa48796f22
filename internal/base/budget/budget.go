// Package budget is the one accountant of a process's memory. Caches bound themselves;
// requests come and go, and a few large lists at once can need many times
// what the caches hold. So a request asks for its memory before it takes it,
// and if that does not fit beside what others hold, it waits, and is refused if it has
// waited too long or too many wait already.
//
// The need of a request follows from bytes that are counted anyway: the length of its
// body, or the encoded size of what it lists, times what decoding and encoding make of
// it. These are estimates from above, by measurement.
//
// # Work, and bytes on the wire
//
// Memory is held for work: to decode, validate, store, encode. A processor always gets on with work, so that a share of
// the lanes of work comes back soon, whatever clients do. Bytes that a client has to send or to read first are in a lane of
// their own, the wire: a client that is slow fills that lane alone, and only its own part of it.
//
// # No caller fills it for others
//
// Each lane is shared by users: see lane. Users take turns in its queue, and so do the connections of one user; one user
// fills half of the queue at most. An eighth of each lane is reserved: see Class.
//
// # No deadlock, no starvation
//
// A request's Account holds one share, which never has to wait for another of the same
// request: an account that has to grow and cannot gives its share back, and waits
// for a share of the new size.
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
	// wireLane is the part for bytes that clients have to send or to read.
	wireLane = 4
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

	mu      sync.Mutex
	lanes   [3]lane
	refused uint64
}

// The lanes of a budget.
const (
	small = iota
	large
	wire
)

// New returns a budget of so many bytes, the Minimum if they are fewer.
func New(bytes int64) *Budget {
	bytes = max(bytes, Minimum)
	b := &Budget{bytes: bytes}
	b.lanes[small] = newLane(bytes/smallLane, mostWaiting)
	b.lanes[wire] = newLane(bytes/wireLane, mostWaiting)
	b.lanes[large] = newLane(bytes-bytes/smallLane-bytes/wireLane, mostWaiting)
	return b
}

// Stats are figures about a budget.
type Stats struct {
	Bytes   int64  // of the whole
	Used    int64  // held by requests
	Wire    int64  // of those, bytes that clients have to send or to read
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
	s := Stats{Bytes: b.bytes, Wire: b.lanes[wire].used, Refused: b.refused}
	for i := range b.lanes {
		s.Used += b.lanes[i].used
		s.Waiting += b.lanes[i].waiting
	}
	return s
}

// BusyError refuses a request. Nothing has been done for it, and it may be
// sent again.
type BusyError struct {
	after time.Duration
	bytes int64
}

// RetryAfter is when sending it again makes sense at the earliest.
func (e *BusyError) RetryAfter() time.Duration { return e.after }

func (e *BusyError) Error() string {
	return fmt.Sprintf("the server's memory is in use by other requests, and this one needs about %d MiB of it; "+
		"try again, or ask for less at once (a limit, a selector); the operator may raise the memory budget of the server", (e.bytes+1<<20-1)>>20)
}

// lane returns the lane of a need, and what it counts as there. An urgent request with a large need is an ordinary one.
func (b *Budget) lane(c Caller, bytes int64) (int, Caller, int64) {
	if bytes <= b.bytes/smallNeed {
		return small, c, bytes
	}
	if c.Class == Urgent {
		c.Class = Ordinary
	}
	return large, c, min(bytes, b.lanes[large].limit(c.Class))
}

// await waits for a share. It needs mu, and returns with it.
func (b *Budget) await(ctx context.Context, in int, c Caller, bytes int64) error {
	err := b.lanes[in].await(ctx, &b.mu, longestWait, c, bytes)
	switch err {
	case errQueueFull:
		b.refused++
		return &BusyError{after: 5 * time.Second, bytes: bytes}
	case errPatience:
		b.refused++
		return &BusyError{after: time.Second, bytes: bytes}
	}
	return err
}
