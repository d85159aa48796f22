package budget

import (
	"context"
	"sync"
)

// Places are what so many requests take at once, shared by users as a lane of memory is: a user alone takes half of the
// places that ordinary requests may have. Its methods may be called concurrently.
type Places struct {
	mu   sync.Mutex
	lane lane
}

// NewPlaces returns so many places, all of which are free, for which so many requests wait at most.
func NewPlaces(number, waiting int) *Places { return &Places{lane: newLane(int64(number), waiting)} }

// Enter takes a place for a caller's request, and waits for it up to 15 seconds. It is false if there is none in that time, if the
// context ends, or if too many requests wait already. If it is true, Leave must be called.
func (p *Places) Enter(ctx context.Context, c Caller) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lane.take(c, 1) || p.lane.await(ctx, &p.mu, longestWait, c, 1) == nil
}

// TryEnter is Enter without waiting.
func (p *Places) TryEnter(c Caller) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lane.take(c, 1)
}

// Leave gives back a place of a caller.
func (p *Places) Leave(c Caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lane.give(c, 1)
}
