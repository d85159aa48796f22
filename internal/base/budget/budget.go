// Package budget accounts for the memory of a process's requests. Caches bound themselves, but requests come and go,
// and a few large lists at once can need many times the memory of the caches. So a request asks for its memory before
// it takes it. If that does not fit beside the shares of other requests, it waits, and it is rejected if it has
// waited too long or too many wait already.
//
// The need of a request is estimated from known sizes: the length of its body, or the encoded size of the listed
// objects, times a measured factor for decoding and encoding. The estimates are upper bounds.
//
// # Work, and bytes on the wire
//
// Memory is held for work: decoding, validating, storing, encoding. Work always makes progress, so a share of the
// lanes for work is released soon, whatever clients do. Bytes that a client first has to send or read are in a lane
// of their own, the wire: a slow client fills only that lane, and only its user's part of it.
//
// # No caller fills it for others
//
// Each lane is shared by users: see lane. Users take turns in its queue, and so do the connections of one user; one
// user fills at most half of the queue. An eighth of each lane is reserved: see Class.
//
// # No deadlock, no starvation
//
// A request's Account holds one share, and never waits for a second one: an account that cannot grow releases its
// share, and waits for a share of the new size.
//
// A need larger than the whole lane counts as the whole lane: that request runs exclusively. So that it does not
// block all other requests meanwhile, small needs have a lane of their own, an eighth of the budget.
package budget

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// smallLane is the divisor of a budget for the part that only small needs share.
	smallLane = 8
	// wireLane is the divisor for the part of bytes that clients have to send or read.
	wireLane = 4
	// smallNeed is the divisor of a budget for the largest small need.
	smallNeed = 256
	// mostWaiting is the number of requests that may wait in a lane. It is lower than the number of requests in
	// flight, so that requests with negligible needs are answered meanwhile.
	mostWaiting = 100
	// longestWait is well within the time that a request has.
	longestWait = 15 * time.Second
)

// Minimum is the smallest budget, in bytes: one request with the largest body fits.
const Minimum = 64 << 20

// Budget is the memory that the requests of a process share. A nil budget has no bounds. Its methods may be called
// concurrently.
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

// New returns a budget of so many bytes, and at least of Minimum bytes.
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
	Bytes   int64  // of the whole budget
	Used    int64  // held by requests
	Wire    int64  // the part of Used that clients have to send or read
	Waiting int    // requests in the queues
	Refused uint64 // rejected requests so far
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

// BusyError rejects a request. Nothing has been done for the request, and it may be sent again.
type BusyError struct {
	after time.Duration
	bytes int64
}

// RetryAfter returns the time after which a retry makes sense.
func (e *BusyError) RetryAfter() time.Duration { return e.after }

func (e *BusyError) Error() string {
	return fmt.Sprintf("other requests use the server's memory, and this request needs about %d MiB; try again, or reduce the answer with "+
		"a limit or a selector; the operator can raise the memory budget of the server", (e.bytes+1<<20-1)>>20)
}

// lane returns the lane of a need, and the caller and size that count there. An urgent request with a large need is
// an ordinary one.
func (b *Budget) lane(c Caller, bytes int64) (int, Caller, int64) {
	if bytes <= b.bytes/smallNeed {
		return small, c, bytes
	}
	if c.Class == Urgent {
		c.Class = Ordinary
	}
	return large, c, min(bytes, b.lanes[large].limit(c.Class))
}

// await waits for a share. It needs mu, releases it while it waits, and returns with it held.
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
