package budget

import "sync"

// Places are what so many requests take at once, shared by users as a lane of memory is: a user alone takes half of the
// places that ordinary requests may have, and a request that finds none is refused. Its methods may be called concurrently.
type Places struct {
	mu   sync.Mutex
	lane lane
}

// NewPlaces returns so many places, all of which are free.
func NewPlaces(number int) *Places { return &Places{lane: newLane(int64(number))} }

// Enter takes a place for a caller's request; false if there is none for it. Leave must be called if it is true.
func (p *Places) Enter(c Caller) bool {
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
