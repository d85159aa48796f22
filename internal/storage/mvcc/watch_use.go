package mvcc

import (
	"slices"
	"sync"
	"sync/atomic"
)

// watchSet is the set of watches of one resource.
type watchSet struct {
	count atomic.Int64 // length of all

	mu     sync.Mutex
	all    map[*watcher]struct{}
	closed bool
}

// add adds a watch and counts it. It returns false if the set is closed.
func (s *watchSet) add(w *watcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.all == nil {
		s.all = map[*watcher]struct{}{}
	}
	s.all[w] = struct{}{}
	if w.store.open.Err() != nil { // closeOf may have run already
		w.cancel()
	}
	s.count.Store(int64(len(s.all)))
	w.use.running.Add(1)
	return true
}

// remove returns the number of remaining watches.
func (s *watchSet) remove(w *watcher) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, w)
	s.count.Store(int64(len(s.all)))
	return len(s.all)
}

// close cancels all watches and rejects new ones.
func (s *watchSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for w := range s.all {
		w.cancel()
		w.use.abandon()
	}
}

// closeOf cancels the watches of a closed store.
func (s *watchSet) closeOf(store *resourceStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		if w.store == store {
			w.cancel()
		}
	}
}

// stopWatchers ends every watch, waits for them, and rejects new ones.
func (c *Core) stopWatchers() {
	c.mu.Lock()
	c.watchesEnded = true
	keyspaces := slices.Clone(c.keyspaces)
	c.mu.Unlock()
	for _, s := range keyspaces {
		s.watches.close()
	}
	c.watching.Wait()
}

// use is the state of a watch's use of the core. Before the core closes, it waits for the watches that are using it.
type use struct {
	state   atomic.Int32
	running *sync.WaitGroup
}

const (
	notBegun = iota
	using
	paused // the watch waits, or its client reads
	over
	abandoned // ended while paused; the core no longer waits for the watch
)

// begin returns true for its first caller only.
func (u *use) begin() bool { return u.state.CompareAndSwap(notBegun, using) }

func (u *use) pause() { u.state.CompareAndSwap(using, paused) }

// resume returns false if the core has closed.
func (u *use) resume() bool { return u.state.CompareAndSwap(paused, using) }

// abandon ends a use that is paused. A use that is not paused ends at its next pause or at its end.
func (u *use) abandon() {
	if u.state.CompareAndSwap(paused, abandoned) {
		u.running.Done()
	}
}

// end must be called exactly once, by the goroutine whose begin returned true.
func (u *use) end() {
	if u.state.Swap(over) != abandoned {
		u.running.Done()
	}
}

// pause lets the core close while the watch waits. The core still waits for goroutines of its own.
func (w *watcher) pause() {
	if w.out == nil {
		return
	}
	w.use.pause()
	if w.ctx.Err() != nil {
		w.use.abandon()
	}
}

// resume returns false if the watch must end.
func (w *watcher) resume() bool {
	return (w.out == nil || w.use.resume()) && w.ctx.Err() == nil
}

// hold makes the watch's connection buffer its writes until release.
func (w *watcher) hold() {
	if w.out != nil && w.held.CompareAndSwap(false, true) {
		w.out.Hold()
	}
}

// release writes the buffered output; the core does not wait for that. It returns false if the watch must end.
func (w *watcher) release() bool {
	if w.out == nil || !w.held.CompareAndSwap(true, false) {
		return true
	}
	w.pause()
	w.out.Release()
	return w.resume()
}
