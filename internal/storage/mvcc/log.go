package mvcc

import (
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/annexapi/annex/internal/base/await"
)

// keyspace is the state of one resource beside its share of the tree.
type keyspace struct {
	prefix  string // ends with a slash
	log     eventLog
	watches watchSet
	// attributed is set if records have the name of the user who writes.
	attributed atomic.Bool

	// Guarded by the core's mu.
	objects int64
	bytes   int64  // size of the encoded objects
	created uint64 // revision of the newest create since the keyspace was made
	written uint64 // revision of the newest write, deletes included
}

func newKeyspace(prefix string, latest *tree, events []*version) *keyspace {
	s := &keyspace{prefix: prefix}
	stored := false // every key of the history is also in the tree, if only as a tombstone
	for v := range latest.from(prefix) {
		if !strings.HasPrefix(v.key, prefix) {
			break
		}
		stored = true
		s.count(v, +1)
	}
	log := &logSnapshot{}
	if stored {
		log.events = eventsOf(prefix, events)
	}
	s.log.snapshot.Store(log)
	return s
}

// eventsOf returns the events of one resource.
func eventsOf(prefix string, all []*version) []*version {
	events := make([]*version, 0, len(all))
	for _, v := range all {
		if strings.HasPrefix(v.key, prefix) {
			events = append(events, v)
		}
	}
	if len(events) < len(all)/2 {
		return slices.Clone(events)
	}
	return events
}

// add records the next event of the resource. replaced is the version before v, object its decoded object if it had
// one.
func (s *keyspace) add(v, replaced *version, object *decoded) {
	s.count(replaced, -1)
	s.count(v, +1)
	if v.created() {
		s.created = v.revision
	}
	s.written = v.revision
	s.log.append(v)
	if s.watches.count.Load() == 0 {
		return
	}
	// A watch that lags finds both objects here after they have been detached from their versions.
	position := s.log.snapshot.Load().end() - 1
	if current := v.decoded.Load(); current != nil {
		s.log.sharedAt(position, current.store).now.Store(current)
	}
	if object != nil {
		s.log.sharedAt(position, object.store).before.Store(object)
	}
}

func (s *keyspace) count(v *version, sign int64) {
	if v.live() != 0 {
		s.objects += sign
		s.bytes += sign * int64(v.size)
	}
}

// eventLog is the history of one resource. Any number of watchers read it without a lock. The position of an event
// never changes.
type eventLog struct {
	snapshot atomic.Pointer[logSnapshot]
	garbage  int                         // events trimmed since the array was last copied
	shared   atomic.Pointer[sharedSlots] // nil until a watch delivers an event: most resources are never watched

	waiting sync.Mutex
	first   *watcher // the list of watchers that wait for the next event
}

// logSnapshot is the log at one moment. It is immutable; a later snapshot may share its array.
type logSnapshot struct {
	first  uint64 // position of the first event
	events []*version
}

// last returns the revision of the last event, 0 if there is none.
func (v *logSnapshot) last() uint64 {
	if len(v.events) == 0 {
		return 0
	}
	return v.events[len(v.events)-1].revision
}

func (v *logSnapshot) end() uint64 { return v.first + uint64(len(v.events)) }

// append and trim require the core's mu.
func (l *eventLog) append(v *version) {
	current := l.snapshot.Load()
	l.snapshot.Store(&logSnapshot{first: current.first, events: append(current.events, v)})
}

// trim removes the events up to a revision.
func (l *eventLog) trim(revision uint64) {
	current := l.snapshot.Load()
	n := current.after(revision)
	if n == 0 {
		return
	}
	events := current.events[n:]
	if l.garbage += n; l.garbage > len(events) {
		// Readers may still hold the old array, so it cannot be cleared.
		events = append([]*version(nil), events...)
		l.garbage = 0
	}
	l.snapshot.Store(&logSnapshot{first: current.first + uint64(n), events: events})
	l.forget(current.first + uint64(n))
}

// after returns the index of the first event above a revision.
func (v *logSnapshot) after(revision uint64) int {
	return sort.Search(len(v.events), func(i int) bool { return v.events[i].revision > revision })
}

// position returns the position of the first event above a revision.
func (l *eventLog) position(revision uint64) uint64 {
	current := l.snapshot.Load()
	return current.first + uint64(current.after(revision))
}

// next returns up to limit events from the position of a watcher on. It returns errCompacted if the history has been
// compacted past that position.
func (l *eventLog) next(w *watcher, limit int) ([]*version, error) {
	return l.snapshot.Load().from(w.position, limit)
}

// await registers a watcher to be woken by the next event. It returns false, without registering, if there is already
// an event or an error for the watcher.
func (l *eventLog) await(w *watcher) bool {
	l.waiting.Lock()
	defer l.waiting.Unlock()
	if events, err := l.snapshot.Load().from(w.position, 1); len(events) > 0 || err != nil {
		return false
	}
	if w.waits {
		return true
	}
	w.waits, w.previous, w.next = true, nil, l.first
	if l.first != nil {
		l.first.previous = w
	}
	l.first = w
	return true
}

// leave removes a watcher from the list of waiting watchers.
func (l *eventLog) leave(w *watcher) {
	l.waiting.Lock()
	defer l.waiting.Unlock()
	if !w.waits {
		return
	}
	if w.previous != nil {
		w.previous.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.previous = w.previous
	}
	w.waits, w.previous, w.next = false, nil, nil
}

func (v *logSnapshot) from(position uint64, limit int) ([]*version, error) {
	if position < v.first {
		return nil, errCompacted
	}
	events := v.events[position-v.first:]
	return events[:min(limit, len(events))], nil
}

// wakeAll wakes every waiting watcher. It calls hold on all of them before it wakes the first, so that every connection
// knows of further events before the first watcher writes.
func (l *eventLog) wakeAll() {
	l.waiting.Lock()
	defer l.waiting.Unlock()
	for w := l.first; w != nil; w = w.next {
		w.hold()
	}
	for w := l.first; w != nil; {
		next := w.next
		w.waits, w.previous, w.next = false, nil, nil
		await.Notify(w.signal)
		w = next
	}
	l.first = nil
}
