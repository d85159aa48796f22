package budget

import (
	"context"
	"sync"
)

// Places bound the number of concurrent requests. Users share them as a lane of memory: a single user gets half of
// the places for ordinary requests. Its methods may be called concurrently.
type Places struct {
	mu   sync.Mutex
	lane lane
}

// NewPlaces returns a number of free places, for which at most waiting requests wait.
func NewPlaces(number, waiting int) *Places { return &Places{lane: newLane(int64(number), waiting)} }

// Enter takes a place for a caller's request, and waits up to 15 seconds for it. It returns false if there is none in
// that time, if the context ends, or if too many requests wait already. After true, Leave must be called.
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

// Leave returns a place of a caller.
func (p *Places) Leave(c Caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lane.give(c, 1)
}
