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
	// updateTime bounds how long a list waits for indexes to be built or brought up to
	// date: values may take long to decode, by a conversion webhook say.
	updateTime = 5 * time.Second
	// buildPause is how long lists look at all objects when it took longer to build the
	// indexes, before one tries again.
	buildPause = time.Minute
	// unusedTime is after how long without a list indexes are let go.
	unusedTime = 10 * time.Minute
)

// indexes are what the Indexers of a resource declare. They are built by the first
// list that can use one, and brought up to date from the resource's log of events
// by each list that follows: writers never wait for them, and no value that cannot be
// decoded stands in a write's way. keepUp says what becomes of them when the log is
// trimmed.
//
// What they say about a revision is a superset of the objects that have a value
// then: the objects that had it at the indexes' own revision, and all that have an
// event between the two. Readers look at the objects themselves, so a
// list is the same with and without them. Only if the superset is the objects that had
// the label that a list asks for, and nothing else, there is nothing to look for.
type indexes struct {
	store  *resourceStore
	byName map[string]*index
	used   atomic.Int64 // when a list last asked, in nanoseconds of the core's clock
	// asked indexes are waited for: there is no answer without them.
	asked bool
	// bounded indexes are let go when all of the core's have too many entries.
	bounded bool

	// token is held by the one who brings the indexes up to date.
	token      chan struct{}
	unreadable map[string]struct{} // keys whose values cannot be told
	paused     time.Time           // until when they are not built

	current atomic.Pointer[indexState] // nil until they are built
	entries atomic.Int64               // of bounded indexes
}

// indexState is what the indexes were at one revision. It never changes.
type indexState struct {
	revision   uint64
	entries    map[string]*btree.BTreeG[indexEntry]
	unreadable []string
}

// index is one of the indexes. Changing it needs token, and mu too for the groups.
type index struct {
	values  cache.IndexFunc
	entries *btree.BTreeG[indexEntry]
	of      map[string][]string // the values of a key
	ordered bool                // it has no groups

	mu     sync.Mutex
	groups map[string]*group // by value
}

// indexEntry is that an object has a value. In an order it is of a version, the latest at the revision
// of the indexes.
type indexEntry struct {
	value, key string
	of         *version
}

// group is the objects with one value. Those that have no other share values.
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

// state returns the indexes as they were at most recently, or nil if it takes too long
// to build them. It only waits if there are none.
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
		return current, nil // what is missing is found among the events
	}
	defer func() { <-x.token }()
	return x.update(ctx)
}

// isUpToDate tells whether an update would change nothing. Values that could not be told
// may be told now.
func (x *indexes) isUpToDate(current *indexState) bool {
	return x.store.keyspace.log.snapshot.Load().last() <= current.revision &&
		x.store.core.compacted.Load() <= current.revision && len(current.unreadable) == 0
}

// built is state of indexes that are to be built.
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

// letGo frees indexes that no list has used for long.
func (x *indexes) letGo() {
	if x.current.Load() == nil || x.store.core.clock.Now().UnixNano()-x.used.Load() < int64(unusedTime) {
		return
	}
	select {
	case x.token <- struct{}{}:
		defer func() { <-x.token }()
		x.free()
	default: // a list uses them
	}
}

// keepUp prepares the indexes for the log being trimmed up to a revision. Those that
// lists have brought further need nothing; others are brought up to date, lest they be
// built anew. But if that takes decoding unstructured objects, which a webhook may
// convert, they are let go: compaction waits for none.
func (x *indexes) keepUp(ctx context.Context, revision uint64) {
	if current := x.current.Load(); current == nil || current.revision >= revision {
		return
	}
	select {
	case x.token <- struct{}{}:
	default:
		if x.store.resource.Unstructured {
			return // who has it will see what was trimmed
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
		_, _ = x.update(ctx) // what fails now is done by the next list
	}
}

// update applies what has happened since the last time. If that takes too long, it
// returns the indexes as they were, which may be nil. It needs token.
func (x *indexes) update(ctx context.Context) (*indexState, error) {
	core, current := x.store.core, x.current.Load()
	// Every event up to what is published now is in the log that is read next.
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
		// What is newer than the revision is among the events of the next time.
		if v, _ := core.get(key); v != nil && v.revision <= revision {
			values := x.valuesOf(v, x.object)
			if values == nil {
				break // what hinders it hinders the others, and lists look at them all
			}
			x.apply(v, values)
		}
	}
	return x.publish(revision), nil
}

// build makes the indexes from all objects. It returns nil if that takes too long. It
// needs token.
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

// giveUp lets go indexes that take too long, or too much memory, for a while. It needs token.
func (x *indexes) giveUp() {
	x.free()
	x.paused = x.store.core.clock.Now().Add(buildPause)
}

// fit is false if this and all other bounded indexes have too many entries. It needs token.
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

// labelEntries is how many entries all bounded indexes have.
func (c *Core) labelEntries() int64 {
	all := int64(0)
	for _, x := range c.indexes() {
		all += x.entries.Load()
	}
	return all
}

// applyAll gives the keys of versions their values, if that is done in time. It needs
// token.
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

// free forgets what the indexes hold. It needs token.
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

// publish lets readers see the indexes as they are. It needs token.
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

// valuesOf returns the values of a version by index: empty if it is no object, nil
// if they cannot be told.
func (x *indexes) valuesOf(v *version, read func(*version) (runtime.Object, error)) (values map[string][]string) {
	if v.live() == 0 {
		return map[string][]string{}
	}
	// The functions are a user's. What panics does so again where the object is read.
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

// object reads an object for the indexes themselves.
func (x *indexes) object(v *version) (runtime.Object, error) {
	return x.store.object(context.Background(), v)
}

// apply gives the key of a version its values. It needs token.
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
			// A copy, lest it keep alive a text that it is part of.
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

// place is set of an order, where few objects have the same value, and an object has one.
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

// cachedValues returns the values of a version that a slot of a shared event holds, or
// puts them there.
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

// count returns how many objects have one of some values, about.
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

// lookup asks for the objects that have one of some values.
type lookup struct {
	index  string
	values []string
}

// lookups returns what the indexes can be asked about a predicate. Whatever it
// selects is in each answer.
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

// mayAnswer tells whether an object with some values by index may be in the answer to
// each of some lookups. Values that cannot be told may be any.
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

// plan is what indexes have to say about a predicate, one of which is enough.
type plan []planned

// planned is a lookup in an index as it was at some revision.
type planned struct {
	lookup
	index *index
	state *indexState
	// decides says that the predicate selects nothing but what the index had then, and all of it.
	decides bool
}

// plan asks the indexes about what a predicate selects under a prefix, and builds them if need
// be. It comes before the snapshot that is to be read, which would age meanwhile.
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

// candidates yields the objects with a prefix at a revision, from a key on, by key:
// at least those that the predicate of a plan selects, and all if no index makes
// that fewer. They are just these if selected is true.
func (s *resourceStore) candidates(
	p plan,
	snapshot *snapshot,
	prefix, from string,
	revision uint64,
) (objects iter.Seq[*version], selected bool) {
	all := snapshot.under(prefix, from, revision)
	// An index is worth it if it leaves out half of the objects.
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

// foundAtOnce is how many keys are looked up with the core's mutex held.
const foundAtOnce = 16

// found yields the versions of those keys that a snapshot has.
func (c *Core) found(keys iter.Seq[string], snapshot *snapshot) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		var versions [foundAtOnce]*version
		for batch := range inBatches(keys, foundAtOnce) {
			// The tree of the core knows where most are without a search.
			c.mu.RLock()
			for i, key := range batch {
				versions[i] = c.latest.get(key)
			}
			c.mu.RUnlock()
			for i, key := range batch {
				v := versions[i]
				if v == nil || v.revision > snapshot.revision { // it has changed since
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

// changedBetween returns the keys with events between two revisions, known being
// false if there are more than a number of events or they are no longer all there.
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

// keys yields the keys that have one of a lookup's values, and others, which are
// sorted: those with a prefix, from a key on, in order and once.
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
