package mvcc

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
)

const (
	// updateTime bounds how long a list waits for indexes to be built or brought up to date. Decoding values may take
	// long, for example by a conversion webhook.
	updateTime = 5 * time.Second
	// buildPause is how long lists scan after a build of the indexes took longer than updateTime. Then the next list
	// tries to build them again.
	buildPause = time.Minute
	// unusedTime is the time without a list after which indexes are dropped.
	unusedTime = 10 * time.Minute
)

// indexes are the indexes that the Indexers of a resource declare. The first list that can use one of them builds them,
// and each later list brings them up to date from the resource's log of events. Writers never wait for indexes, and a
// value that cannot be decoded does not block a write. keepUp handles the trimming of the log.
//
// For a given revision and value, indexes yield a superset of the objects: the objects that had the value at the
// indexes' own revision, and all objects with an event between the two revisions. Readers apply the selector to the
// objects, so a list is the same with and without indexes. A reader skips this check only if the superset is exactly
// the objects with the one label that the list selects by.
type indexes struct {
	store  *resourceStore
	byName map[string]*index
	used   atomic.Int64 // time of the last list that used them, in nanoseconds of the core's clock
	// asked is set for orders of queries: a query waits for them without a time limit, because it cannot be answered
	// without them.
	asked bool
	// bounded indexes are dropped when all bounded indexes of the core have too many entries.
	bounded bool

	// token is held by the goroutine that brings the indexes up to date.
	token      chan struct{}
	unreadable map[string]struct{} // keys whose values cannot be computed
	paused     time.Time           // time until which they are not built

	current atomic.Pointer[indexState] // nil until the indexes are built
	entries atomic.Int64               // number of entries, counted for bounded indexes only
}

// indexState is the state of the indexes at one revision. It is immutable.
type indexState struct {
	revision   uint64
	entries    map[string]*btree.BTreeG[indexEntry]
	unreadable []string
}

// index is one of the indexes. Changing it requires token; changing the groups also requires mu.
type index struct {
	values  cache.IndexFunc
	entries *btree.BTreeG[indexEntry]
	of      map[string][]string // the values of each key
	ordered bool                // set for an order, which has no groups

	mu     sync.Mutex
	groups map[string]*group // by value
}

// indexEntry is one value of one object. In an order, of is the latest version of the object at the revision of the
// indexes; otherwise it is nil.
type indexEntry struct {
	value, key string
	of         *version
}

// group is the set of objects with one value. Its objects without another value share the slice values.
type group struct {
	values []string
	count  int
}

func newIndexes(s *resourceStore) *indexes {
	if s.resource.Indexers == nil || len(*s.resource.Indexers) == 0 {
		return nil
	}
	x := &indexes{store: s, byName: map[string]*index{}, token: make(chan struct{}, 1)}
	for name, values := range *s.resource.Indexers {
		x.byName[name] = &index{values: values}
	}
	return x
}

// state returns the indexes at their newest published state, or nil if building them takes too long. It waits only if
// there is none.
func (x *indexes) state(ctx context.Context) (*indexState, error) {
	x.used.Store(x.store.core.clock.Now().UnixNano())
	current := x.current.Load()
	if current == nil {
		return x.built(ctx)
	}
	if x.isUpToDate(current) {
		return current, nil
	}
	select {
	case x.token <- struct{}{}:
	default:
		return current, nil // the list reads the missing keys from the events
	}
	defer func() { <-x.token }()
	return x.update(ctx)
}

// isUpToDate reports whether an update would change nothing. Unreadable values count as a change, because they may be
// readable now.
func (x *indexes) isUpToDate(current *indexState) bool {
	return x.store.keyspace.log.snapshot.Load().last() <= current.revision &&
		x.store.core.compacted.Load() <= current.revision && len(current.unreadable) == 0
}

// built is state for indexes that must be built first.
func (x *indexes) built(ctx context.Context) (*indexState, error) {
	clock := x.store.core.clock
	patience := clock.NewTimer(updateTime)
	defer patience.Stop()
	select {
	case x.token <- struct{}{}:
	case <-patience.C():
		return nil, nil
	case <-ctx.Done():
		return nil, tooSlow(x.store.keyspace.prefix)
	}
	defer func() { <-x.token }()
	if x.current.Load() == nil && clock.Now().Before(x.paused) {
		return nil, nil
	}
	return x.update(ctx)
}

// letGo drops indexes that no list has used for unusedTime.
func (x *indexes) letGo() {
	if x.current.Load() == nil || x.store.core.clock.Now().UnixNano()-x.used.Load() < int64(unusedTime) {
		return
	}
	select {
	case x.token <- struct{}{}:
		defer func() { <-x.token }()
		x.free()
	default: // a list is using them
	}
}

// keepUp prepares the indexes for trimming the log up to a revision. Indexes at a later revision need nothing; others
// are brought up to date, so that they need not be rebuilt. If this requires decoding unstructured objects, which may
// call a conversion webhook, the indexes are dropped instead: compaction must not wait for a webhook.
func (x *indexes) keepUp(ctx context.Context, revision uint64) {
	if current := x.current.Load(); current == nil || current.revision >= revision {
		return
	}
	select {
	case x.token <- struct{}{}:
	default:
		if x.store.resource.Unstructured {
			return // the holder of token checks for trimmed events itself
		}
		select {
		case x.token <- struct{}{}:
		case <-ctx.Done():
			return
		}
	}
	defer func() { <-x.token }()
	switch current := x.current.Load(); {
	case current == nil:
	case x.store.resource.Unstructured && x.store.keyspace.log.snapshot.Load().last() > current.revision:
		x.free()
	default:
		_, _ = x.update(ctx) // the next list retries after an error
	}
}

// update applies the events since the indexes' revision. If that takes too long, it returns the previous state, which
// may be nil. It requires token.
func (x *indexes) update(ctx context.Context) (*indexState, error) {
	core, current := x.store.core, x.current.Load()
	// Load the published revision first: then the log, read next, holds every event up to it.
	published := core.published.Load()
	log := x.store.keyspace.log.snapshot.Load()
	if current == nil || core.compacted.Load() > current.revision {
		return x.build(ctx)
	}
	revision := max(published, log.last())
	events := log.events[log.after(current.revision):]
	seen := make(map[string]struct{}, len(events))
	var changed []*version
	for _, v := range slices.Backward(events) {
		if _, again := seen[v.key]; !again {
			seen[v.key] = struct{}{}
			changed = append(changed, v)
		}
	}
	before := slices.Collect(maps.Keys(x.unreadable))
	if inTime, err := x.applyAll(ctx, slices.Values(changed)); err != nil || !inTime {
		if !x.fit() {
			x.giveUp()
			return nil, nil
		}
		return current, err
	}
	for _, key := range before {
		// A version above the revision is among the events of the next update.
		if v, _ := core.get(key); v != nil && v.revision <= revision {
			values := x.valuesOf(v, x.object)
			if values == nil {
				break // the others would fail for the same reason; lists read all unreadable keys
			}
			x.apply(v, values)
		}
	}
	return x.publish(revision), nil
}

// build makes the indexes from all objects. It returns nil if that takes too long. It requires token.
func (x *indexes) build(ctx context.Context) (*indexState, error) {
	x.free()
	snapshot, prefix := x.store.core.snapshot(), x.store.keyspace.prefix
	inTime, err := x.applyAll(ctx, snapshot.under(prefix, prefix, snapshot.revision))
	switch {
	case err != nil:
		x.free()
		return nil, err
	case !inTime:
		x.giveUp()
		return nil, nil
	}
	return x.publish(snapshot.revision), nil
}

// giveUp drops indexes that take too long or too much memory, and delays the next build by buildPause. It requires
// token.
func (x *indexes) giveUp() {
	x.free()
	x.paused = x.store.core.clock.Now().Add(buildPause)
}

// fit updates the count of entries. It reports whether all bounded indexes of the core together are within
// Options.LabelEntries; for an index that is not bounded it returns true. It requires token.
func (x *indexes) fit() bool {
	if !x.bounded {
		return true
	}
	entries := 0
	for _, index := range x.byName {
		entries += index.entries.Len()
	}
	x.entries.Store(int64(entries))
	return x.store.core.labelEntries() <= x.store.core.options.LabelEntries
}

// labelEntries returns the number of entries of all bounded indexes.
func (c *Core) labelEntries() int64 {
	all := int64(0)
	for _, x := range c.indexes() {
		all += x.entries.Load()
	}
	return all
}

// applyAll computes and stores the values of versions. inTime is false if that takes longer than updateTime or too many
// entries. It requires token.
func (x *indexes) applyAll(ctx context.Context, versions iter.Seq[*version]) (inTime bool, err error) {
	clock := x.store.core.clock
	deadline := clock.Now().Add(updateTime)
	tooLate := func() bool { return ctx.Err() != nil || !x.asked && clock.Now().After(deadline) }
	values := make([]map[string][]string, decodeBatch)
	for batch := range inBatches(versions, decodeBatch) {
		inParallel(len(batch), func(i int) {
			if !tooLate() {
				values[i] = x.valuesOf(batch[i], x.object)
			}
		})
		if ctx.Err() != nil {
			return false, tooSlow(x.store.keyspace.prefix)
		}
		if tooLate() {
			return false, nil
		}
		for i, v := range batch {
			x.apply(v, values[i])
		}
		if !x.fit() {
			return false, nil
		}
	}
	return true, nil
}

// free drops all entries of the indexes. It requires token.
func (x *indexes) free() {
	x.current.Store(nil)
	x.reset()
	x.fit()
}

func (x *indexes) reset() {
	byValue := func(a, b indexEntry) bool {
		if a.value != b.value {
			return a.value < b.value
		}
		return a.key < b.key
	}
	x.unreadable = map[string]struct{}{}
	for _, index := range x.byName {
		index.mu.Lock()
		index.entries = btree.NewBTreeGOptions(byValue, btree.Options{NoLocks: true})
		index.of, index.groups = map[string][]string{}, map[string]*group{}
		index.mu.Unlock()
	}
}

// publish makes the current entries visible to readers. It requires token.
func (x *indexes) publish(revision uint64) *indexState {
	state := &indexState{
		revision:   revision,
		entries:    make(map[string]*btree.BTreeG[indexEntry], len(x.byName)),
		unreadable: slices.Collect(maps.Keys(x.unreadable)),
	}
	for name, index := range x.byName {
		state.entries[name] = index.entries.Copy()
	}
	x.current.Store(state)
	return state
}

// valuesOf returns the values of a version by index: empty for a tombstone, nil if the values cannot be computed.
func (x *indexes) valuesOf(v *version, read func(*version) (runtime.Object, error)) (values map[string][]string) {
	if v.live() == 0 {
		return map[string][]string{}
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
	values = make(map[string][]string, len(x.byName))
	for name, index := range x.byName {
		if values[name], err = index.values(object); err != nil {
			return nil
		}
	}
	return values
}

// object reads an object on behalf of the indexes, without the context of a request.
func (x *indexes) object(v *version) (runtime.Object, error) {
	return x.store.object(context.Background(), v)
}

// apply stores the values for the key of a version. It requires token.
func (x *indexes) apply(v *version, values map[string][]string) {
	delete(x.unreadable, v.key)
	if values == nil {
		x.unreadable[v.key] = struct{}{}
	}
	for name, index := range x.byName {
		if index.ordered {
			index.place(v, values[name])
		} else {
			index.set(v.key, values[name])
		}
	}
}

func (x *index) set(key string, values []string) {
	old := x.of[key]
	if slices.Equal(old, values) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, value := range old {
		x.entries.Delete(indexEntry{value: value, key: key})
		if g := x.groups[value]; g.count > 1 {
			g.count--
		} else {
			delete(x.groups, value)
		}
	}
	for _, value := range values {
		g := x.groups[value]
		if g == nil {
			// A copy, because the value may be a substring of a large string that it would keep alive.
			g = &group{values: []string{strings.Clone(value)}}
			x.groups[g.values[0]] = g
		}
		g.count++
		x.entries.Set(indexEntry{value: g.values[0], key: key})
	}
	switch len(values) {
	case 0:
		delete(x.of, key)
	case 1:
		x.of[key] = x.groups[values[0]].values
	default:
		x.of[key] = slices.Clone(values)
	}
}

// place is like set, for an order: there few objects share a value, and each object has one value.
func (x *index) place(v *version, values []string) {
	old := x.of[v.key]
	if len(old) > 0 && !slices.Equal(old, values) {
		x.entries.Delete(indexEntry{value: old[0], key: v.key})
	}
	if len(values) == 0 {
		delete(x.of, v.key)
		return
	}
	x.entries.Set(indexEntry{values[0], v.key, v})
	x.of[v.key] = values
}

// cachedValues returns the values of a version from a slot of a shared event. It fills an empty slot.
func (x *indexes) cachedValues(
	slot *atomic.Pointer[map[string][]string],
	v *version,
	read func(*version) (runtime.Object, error),
) map[string][]string {
	if values := slot.Load(); values != nil {
		return *values
	}
	values := x.valuesOf(v, read)
	slot.Store(&values)
	return values
}

// count returns the approximate number of objects with any of the values.
func (x *index) count(values []string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	count := 0
	for _, value := range values {
		if g := x.groups[value]; g != nil {
			count += g.count
		}
	}
	return count
}

// lookup is a query of one index for the objects with any of some values.
type lookup struct {
	index  string
	values []string
}

// lookups returns the lookups that follow from a predicate. The result of each lookup contains every selected object.
func (x *indexes) lookups(predicate storage.SelectionPredicate) []lookup {
	var found []lookup
	add := func(name string, values ...string) {
		if x.byName[name] != nil {
			slices.Sort(values)
			found = append(found, lookup{name, slices.Compact(values)})
		}
	}
	if predicate.Field != nil {
		for _, r := range predicate.Field.Requirements() {
			if r.Operator == selection.Equals || r.Operator == selection.DoubleEquals {
				add(storage.FieldIndex(r.Field), r.Value)
			}
		}
	}
	if predicate.Label != nil {
		requirements, _ := predicate.Label.Requirements()
		for _, r := range requirements {
			if namesValues(r) {
				add(storage.LabelIndex(r.Key()), r.ValuesUnsorted()...)
			}
		}
	}
	return found
}

// mayAnswer reports whether an object with these values by index may be in the result of every lookup. Values that
// cannot be computed (nil) may match anything.
func mayAnswer(lookups []lookup, values map[string][]string) bool {
	if values == nil {
		return true
	}
	for _, l := range lookups {
		if !slices.ContainsFunc(values[l.index], func(value string) bool { return slices.Contains(l.values, value) }) {
			return false
		}
	}
	return true
}

func namesValues(r labels.Requirement) bool {
	return r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals || r.Operator() == selection.In
}

// plan holds the lookups for a predicate; a list uses the best one of them.
type plan []planned

// planned is a lookup in an index at some revision.
type planned struct {
	lookup
	index *index
	state *indexState
	// decides is set if the predicate selects exactly the result of the lookup at the revision of the indexes.
	decides bool
}

// plan returns the lookups for a predicate under a prefix. It builds missing indexes. Call it before taking the
// snapshot to read, which would get old while indexes are built.
func (s *resourceStore) plan(ctx context.Context, prefix string, predicate storage.SelectionPredicate) (plan, error) {
	if predicate.Empty() {
		return nil, nil
	}
	var p plan
	if s.indexes != nil {
		if lookups := s.indexes.lookups(predicate); len(lookups) > 0 {
			state, err := s.indexes.state(ctx)
			if err != nil {
				return nil, err
			}
			p = p.with(s.indexes, state, lookups...)
		}
	}
	return s.planLabels(ctx, p, prefix, predicate)
}

func (p plan) with(x *indexes, state *indexState, lookups ...lookup) plan {
	if state == nil {
		return p
	}
	for _, l := range lookups {
		p = append(p, planned{lookup: l, index: x.byName[l.index], state: state})
	}
	return p
}

// candidates yields objects with a prefix at a revision, from a key on, ordered by key. It yields at least the objects
// that the predicate of the plan selects, or all objects if no index narrows them down enough. If selected is true, it
// yields exactly the selected objects.
func (s *resourceStore) candidates(
	p plan,
	snapshot *snapshot,
	prefix, from string,
	revision uint64,
) (objects iter.Seq[*version], selected bool) {
	all := snapshot.under(prefix, from, revision)
	// An index is worth using if it excludes half of the objects.
	var best *planned
	fewest := s.objects() / 2
	for i := range p {
		if count := p[i].index.count(p[i].values); count < fewest {
			best, fewest = &p[i], count
		}
	}
	if best == nil {
		return all, false
	}
	others, known := s.changedBetween(best.state.revision, revision, s.objects()/2-fewest)
	if !known {
		return all, false
	}
	others = append(others, best.state.unreadable...)
	slices.Sort(others)
	return func(yield func(*version) bool) {
		for found := range s.core.found(best.state.keys(best.lookup, prefix, from, others), snapshot) {
			if v := found.at(revision); v != nil && !yield(v) {
				return
			}
		}
	}, best.decides && len(others) == 0
}

// foundAtOnce is the number of keys that are looked up with the core's mutex held.
const foundAtOnce = 16

// found yields the versions of the keys that exist in a snapshot.
func (c *Core) found(keys iter.Seq[string], snapshot *snapshot) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		var versions [foundAtOnce]*version
		for batch := range inBatches(keys, foundAtOnce) {
			// The core's own tree finds most keys without a search.
			c.mu.RLock()
			for i, key := range batch {
				versions[i] = c.latest.get(key)
			}
			c.mu.RUnlock()
			for i, key := range batch {
				v := versions[i]
				if v == nil || v.revision > snapshot.revision { // changed since the snapshot
					v = snapshot.latest.get(key)
				}
				if v != nil && !yield(v) {
					return
				}
			}
		}
	}
}

func (s *resourceStore) objects() int {
	s.core.mu.RLock()
	defer s.core.mu.RUnlock()
	return int(s.keyspace.objects)
}

// changedBetween returns the keys with events between two revisions. known is false if there are more than most events,
// or if the history no longer holds all of them.
func (s *resourceStore) changedBetween(a, b uint64, most int) (keys []string, known bool) {
	log := s.keyspace.log.snapshot.Load()
	if s.core.compacted.Load() > min(a, b) {
		return nil, false
	}
	events := log.events[log.after(min(a, b)):log.after(max(a, b))]
	if len(events) > most {
		return nil, false
	}
	for _, v := range events {
		keys = append(keys, v.key)
	}
	return keys, true
}

// keys yields, in order and without duplicates, the keys that have one of the lookup's values and the keys in others,
// which must be sorted. It is limited to keys with the prefix, starting at from.
func (st *indexState) keys(l lookup, prefix, from string, others []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		var cursors []*cursor
		for _, value := range l.values {
			cursors = append(cursors, newCursor(st.entries[l.index], value, from))
		}
		first, _ := slices.BinarySearch(others, from)
		others := others[first:]
		for {
			var key string
			more := len(others) > 0
			if more {
				key = others[0]
			}
			for _, c := range cursors {
				if c.more && (!more || c.key < key) {
					key, more = c.key, true
				}
			}
			if !more || !strings.HasPrefix(key, prefix) || !yield(key) {
				return
			}
			for len(others) > 0 && others[0] == key {
				others = others[1:]
			}
			for _, c := range cursors {
				if c.more && c.key == key {
					c.next()
				}
			}
		}
	}
}

// cursor is a position among the keys with one value.
type cursor struct {
	entries btree.IterG[indexEntry]
	value   string
	key     string
	more    bool
}

func newCursor(entries *btree.BTreeG[indexEntry], value, from string) *cursor {
	c := &cursor{entries: entries.Iter(), value: value}
	c.is(c.entries.Seek(indexEntry{value: value, key: from}))
	return c
}

func (c *cursor) next() { c.is(c.entries.Next()) }

func (c *cursor) is(found bool) {
	c.more = found && c.entries.Item().value == c.value
	if c.more {
		c.key = c.entries.Item().key
	}
}
