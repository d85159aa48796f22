package index

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/parallel"
)

const (
	// updateTimeout bounds how long a list waits for indexes to be brought up to date, and to be built if decoding a
	// value may call a webhook. Other builds have no limit: a list that gave them up would decode the same objects.
	updateTimeout = 5 * time.Second
	// buildPause is how long lists scan after a build of the indexes took longer than updateTimeout. Then the next list
	// tries to build them again.
	buildPause = time.Minute
	// unusedTime is the time without a list after which indexes are dropped.
	unusedTime = 10 * time.Minute
	// decodeBatch is the number of objects that are decoded before their values are stored.
	decodeBatch = 1024
)

// set is one index or several that are built and brought up to date together. The first list that can use one of them
// builds them, and each later list brings them up to date from the resource's events. Writers never wait for indexes,
// and a value that cannot be decoded does not block a write. beforeTrim handles the trimming of the events.
//
// For a given revision and value, indexes yield a superset of the objects: the objects that had the value at the
// indexes' own revision, and all objects with an event between the two revisions. Readers apply the selector to the
// objects, so a list is the same with and without indexes. A reader skips this check only if the superset is exactly
// the objects with the one label that the list selects by.
type set[V Version] struct {
	of     *Indexes[V]
	byName map[string]*valueIndex[V]
	used   atomic.Int64 // time of the last list that used them, in nanoseconds of the clock
	// noTimeout is set for orders of queries: a query waits for them without a time limit, because it cannot be
	// answered without them.
	noTimeout bool
	// fromKey, if it is set, returns the value of an order from the key of an object, which is not read then.
	fromKey func(key string) []string
	// bounded indexes are dropped when all bounded indexes of the core have too many entries.
	bounded bool

	// token is held by the goroutine that brings the indexes up to date.
	token       chan struct{}
	unreadable  map[string]struct{} // keys whose values cannot be computed
	pausedUntil time.Time           // time until which they are not built

	current atomic.Pointer[state[V]] // nil until the indexes are built
	entries atomic.Int64             // number of entries, counted for bounded indexes only
}

// state is the state of the indexes of a set at one revision. It is immutable.
type state[V Version] struct {
	revision   uint64
	entries    map[string]*btree.BTreeG[Entry[V]]
	unreadable []string
}

func (x *Indexes[V]) newSet() *set[V] {
	return &set[V]{of: x, byName: map[string]*valueIndex[V]{}, token: make(chan struct{}, 1)}
}

func (s *set[V]) markUsed() { s.used.Store(s.of.Clock.Now().UnixNano()) }

// read returns the indexes at their newest published state, or nil if building them takes too long. It waits only if
// there is none.
func (s *set[V]) read(ctx context.Context) (*state[V], error) {
	s.markUsed()
	current := s.current.Load()
	if current == nil {
		return s.readBuilt(ctx)
	}
	if _, upToDate := s.isUpToDate(current); upToDate || !s.tryLock() {
		return current, nil // the list reads the missing keys from the events
	}
	defer s.unlock()
	return s.update(ctx)
}

// readBuilt is like read for indexes that must be built first.
func (s *set[V]) readBuilt(ctx context.Context) (*state[V], error) {
	clock := s.of.Clock
	var tooLong <-chan time.Time
	if s.of.SlowObjects {
		timer := clock.NewTimer(updateTimeout)
		defer timer.Stop()
		tooLong = timer.C()
	}
	select {
	case s.token <- struct{}{}:
	case <-tooLong:
		return nil, nil
	case <-ctx.Done():
		return nil, contextEnded(ctx)
	}
	defer s.unlock()
	if s.current.Load() == nil && clock.Now().Before(s.pausedUntil) {
		return nil, nil
	}
	return s.update(ctx)
}

// readLatest returns the indexes at a revision that is not older than the call. The resource has no event between the
// revision of the indexes and the returned revision. If there are unreadable keys, they could not be read during the
// call.
func (s *set[V]) readLatest(ctx context.Context) (current *state[V], revision uint64, err error) {
	s.markUsed()
	if current, revision = s.latest(); current != nil {
		return current, revision, nil
	}
	if err := s.lock(ctx); err != nil {
		return nil, 0, err
	}
	defer s.unlock()
	if current, revision = s.latest(); current != nil {
		return current, revision, nil
	}
	if current, err = s.update(ctx); err != nil {
		return nil, 0, err
	}
	return current, current.revision, nil
}

// latest returns the indexes if they are up to date, and the revision up to which they are; nil if not.
func (s *set[V]) latest() (current *state[V], revision uint64) {
	if current = s.current.Load(); current == nil {
		return nil, 0
	}
	revision, upToDate := s.isUpToDate(current)
	if !upToDate {
		return nil, 0
	}
	return current, revision
}

// isUpToDate reports whether an update would change nothing, and up to which revision that is so. Unreadable values
// count as a change, because they may be readable now.
func (s *set[V]) isUpToDate(current *state[V]) (through uint64, upToDate bool) {
	changes := s.of.Source.Changes(current.revision)
	return changes.Through, changes.none() && len(current.unreadable) == 0
}

// dropUnused drops indexes that no list has used for unusedTime.
func (s *set[V]) dropUnused() {
	if s.current.Load() == nil || s.of.Clock.Now().UnixNano()-s.used.Load() < int64(unusedTime) {
		return
	}
	if s.tryLock() { // otherwise a list is using them
		defer s.unlock()
		s.drop()
	}
}

// beforeTrim prepares the indexes for trimming the events up to a revision. Indexes at a later revision need nothing;
// others are brought up to date, so that they need not be rebuilt. If this requires decoding objects that may call a
// conversion webhook, the indexes are dropped instead: compaction must not wait for a webhook.
func (s *set[V]) beforeTrim(ctx context.Context, revision uint64) {
	if current := s.current.Load(); current == nil || current.revision >= revision {
		return
	}
	if !s.tryLock() {
		if s.of.SlowObjects {
			return // the holder of token checks for trimmed events itself
		}
		if s.lock(ctx) != nil {
			return
		}
	}
	defer s.unlock()
	switch current := s.current.Load(); {
	case current == nil:
	case s.of.SlowObjects && !s.of.Source.Changes(current.revision).none():
		s.drop()
	default:
		_, _ = s.update(ctx) // the next list retries after an error
	}
}

// lock takes token.
func (s *set[V]) lock(ctx context.Context) error {
	select {
	case s.token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return contextEnded(ctx)
	}
}

// tryLock takes token if no other goroutine holds it.
func (s *set[V]) tryLock() bool {
	select {
	case s.token <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *set[V]) unlock() { <-s.token }

// contextEnded returns the error of a read whose context has ended.
func contextEnded(ctx context.Context) error { return fmt.Errorf("read indexes: %w", ctx.Err()) }

// update applies the events since the indexes' revision. If that takes too long, it returns the previous state, which
// may be nil. It requires token.
func (s *set[V]) update(ctx context.Context) (*state[V], error) {
	current := s.current.Load()
	if current == nil {
		return s.build(ctx)
	}
	changes := s.of.Source.Changes(current.revision)
	if !changes.Complete {
		return s.build(ctx)
	}
	unreadable := slices.Collect(maps.Keys(s.unreadable))
	if inTime, err := s.applyAll(ctx, newestOfEach(changes.Events)); err != nil || !inTime {
		if !s.countEntries() {
			s.dropForNow()
			return nil, nil
		}
		return current, err
	}
	for _, key := range unreadable {
		// A version above the revision is among the events of the next update.
		if v, exists := s.of.Source.Latest(key); exists && v.Revision() <= changes.Through {
			values := s.valuesOf(v, s.object)
			if values == nil {
				break // the others would fail for the same reason; lists read all unreadable keys
			}
			s.apply(v, values)
		}
	}
	return s.publish(changes.Through), nil
}

// newestOfEach returns the newest version of each key.
func newestOfEach[V Version](events []V) iter.Seq[V] {
	seen := make(map[string]struct{}, len(events))
	var newest []V
	for _, v := range slices.Backward(events) {
		if _, again := seen[v.Key()]; !again {
			seen[v.Key()] = struct{}{}
			newest = append(newest, v)
		}
	}
	return slices.Values(newest)
}

// build makes the indexes from all objects. It returns nil if that takes too long. It requires token.
func (s *set[V]) build(ctx context.Context) (*state[V], error) {
	s.drop()
	objects, revision := s.of.Source.Snapshot()
	inTime, err := s.applyAll(ctx, objects)
	switch {
	case err != nil:
		s.drop()
		return nil, err
	case !inTime:
		s.dropForNow()
		return nil, nil
	}
	return s.publish(revision), nil
}

// dropForNow drops indexes that take too long or too much memory, and delays the next build by buildPause. It requires
// token.
func (s *set[V]) dropForNow() {
	s.drop()
	s.pausedUntil = s.of.Clock.Now().Add(buildPause)
}

// countEntries updates the count of entries. It reports whether all bounded indexes of the core together are within
// their limit; for indexes that are not bounded it returns true. It requires token.
func (s *set[V]) countEntries() (withinLimit bool) {
	if !s.bounded {
		return true
	}
	entries := 0
	for _, index := range s.byName {
		entries += index.entries.Len()
	}
	s.entries.Store(int64(entries))
	return s.of.Maintenance.LabelEntries() <= s.of.Maintenance.labelEntries
}

// applyAll computes and stores the values of versions. inTime is false if that takes longer than updateTimeout, where
// it applies, or too many entries. It requires token.
func (s *set[V]) applyAll(ctx context.Context, versions iter.Seq[V]) (inTime bool, err error) {
	clock := s.of.Clock
	deadline := clock.Now().Add(updateTimeout)
	limited := !s.noTimeout && (s.of.SlowObjects || s.current.Load() != nil)
	tooLate := func() bool { return ctx.Err() != nil || limited && clock.Now().After(deadline) }
	values := make([]Values, decodeBatch)
	for batch := range parallel.Batches(versions, decodeBatch) {
		parallel.Do(len(batch), func(i int) {
			if !tooLate() {
				values[i] = s.valuesOf(batch[i], s.object)
			}
		})
		if ctx.Err() != nil {
			return false, contextEnded(ctx)
		}
		if tooLate() {
			return false, nil
		}
		for i, v := range batch {
			s.apply(v, values[i])
		}
		if !s.countEntries() {
			return false, nil
		}
	}
	return true, nil
}

// drop drops all entries of the indexes. It requires token.
func (s *set[V]) drop() {
	s.current.Store(nil)
	s.unreadable = map[string]struct{}{}
	for _, index := range s.byName {
		index.reset()
	}
	s.countEntries()
}

// publish makes the current entries visible to readers. It requires token.
func (s *set[V]) publish(revision uint64) *state[V] {
	published := &state[V]{
		revision:   revision,
		entries:    make(map[string]*btree.BTreeG[Entry[V]], len(s.byName)),
		unreadable: slices.Collect(maps.Keys(s.unreadable)),
	}
	for name, index := range s.byName {
		published.entries[name] = index.entries.Copy()
	}
	s.current.Store(published)
	return published
}

// valuesOf returns the values of a version: empty for a tombstone, nil if the values cannot be computed. read is called only
// if they do not follow from the key.
func (s *set[V]) valuesOf(v V, read func(V) (runtime.Object, error)) (values Values) {
	if v.Deleted() {
		return Values{}
	}
	if s.fromKey != nil {
		return Values{orderIndex: s.fromKey(v.Key())}
	}
	// The index functions are the user's. A panic here occurs again where the object is read, and is reported there.
	defer func() {
		if recover() != nil {
			values = nil
		}
	}()
	object, err := read(v)
	if err != nil {
		return nil
	}
	values = make(Values, len(s.byName))
	for name, index := range s.byName {
		if values[name], err = index.values(object); err != nil {
			return nil
		}
	}
	return values
}

// object reads an object on behalf of the indexes, without the context of a request.
func (s *set[V]) object(v V) (runtime.Object, error) {
	return s.of.Source.Object(context.Background(), v)
}

// apply stores the values for the key of a version. It requires token.
func (s *set[V]) apply(v V, values Values) {
	delete(s.unreadable, v.Key())
	if values == nil {
		s.unreadable[v.Key()] = struct{}{}
	}
	for name, index := range s.byName {
		if index.order {
			index.setPosition(v, values[name])
		} else {
			index.setValues(v.Key(), values[name])
		}
	}
}
