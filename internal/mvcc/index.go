package mvcc

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
)

// indexes are what the Indexers of a resource declare. They are built by the first
// list that can use one, and brought up to date from the resource's log of events
// by each list that follows, and before the log is trimmed: writers never wait for
// them, and no value that cannot be decoded stands in a write's way.
//
// What they say about a revision is a superset of the objects that have a value
// then: the objects that had it at the indexes' own revision, and all that have an
// event between the two. Readers look at the objects themselves, so a
// list is the same with and without them.
type indexes struct {
	store  *resourceStore
	byName map[string]*index
	used   atomic.Bool

	// token is held by the one who brings the indexes up to date.
	token      chan struct{}
	unreadable map[string]struct{} // keys whose values cannot be told

	current atomic.Pointer[indexState] // nil until they are built
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

	mu     sync.Mutex
	groups map[string]*group // by value
}

type indexEntry struct{ value, key string }

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

// state returns the indexes as they were at most recently. It only waits if they
// have never been built.
func (x *indexes) state(ctx context.Context) (*indexState, error) {
	x.used.Store(true)
	current := x.current.Load()
	if current == nil {
		select {
		case x.token <- struct{}{}:
		case <-ctx.Done():
			return nil, tooSlow(x.store.keyspace.prefix)
		}
	} else {
		if x.store.keyspace.log.snapshot.Load().last() <= current.revision {
			return current, nil
		}
		select {
		case x.token <- struct{}{}:
		default:
			return current, nil // what is missing is found among the events
		}
	}
	defer func() { <-x.token }()
	return x.update(ctx)
}

// keepUp brings indexes that are in use up to date before events are trimmed, lest
// they be built anew.
func (x *indexes) keepUp(ctx context.Context) {
	if !x.used.Load() {
		return
	}
	select {
	case x.token <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-x.token }()
	if x.current.Load() != nil {
		_, _ = x.update(ctx) // what fails now is done by the next list
	}
}

// update applies what has happened since the last time. It needs token.
func (x *indexes) update(ctx context.Context) (*indexState, error) {
	core, current := x.store.core, x.current.Load()
	// Every event up to what is published now is in the log that is read next.
	published := core.published.Load()
	log := x.store.keyspace.log.snapshot.Load()
	if current == nil || core.compacted.Load() > current.revision {
		return x.build(ctx)
	}
	events := log.events[log.after(current.revision):]
	seen := make(map[string]struct{}, len(events))
	for _, v := range slices.Backward(events) {
		if _, again := seen[v.key]; !again {
			seen[v.key] = struct{}{}
			x.apply(v.key, x.valuesOf(v, x.object))
		}
	}
	return x.publish(max(published, log.last())), nil
}

// build makes the indexes from all objects. It needs token.
func (x *indexes) build(ctx context.Context) (*indexState, error) {
	x.current.Store(nil)
	x.reset()
	snapshot, prefix := x.store.core.snapshot(), x.store.keyspace.prefix
	values := make([]map[string][]string, decodeBatch)
	for batch := range inBatches(snapshot.under(prefix, prefix, snapshot.revision), decodeBatch) {
		if ctx.Err() != nil {
			return nil, tooSlow(prefix)
		}
		inParallel(len(batch), func(i int) { values[i] = x.valuesOf(batch[i], x.object) })
		for i, v := range batch {
			x.apply(v.key, values[i])
		}
	}
	return x.publish(snapshot.revision), nil
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

// apply gives a key new values. It needs token.
func (x *indexes) apply(key string, values map[string][]string) {
	delete(x.unreadable, key)
	if values == nil {
		x.unreadable[key] = struct{}{}
	}
	for name, index := range x.byName {
		index.set(key, values[name])
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
		x.entries.Delete(indexEntry{value, key})
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
		x.entries.Set(indexEntry{g.values[0], key})
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

// cachedValues returns the values of a version that a slot of a shared event holds, or
// puts them there.
func (x *indexes) cachedValues(slot *atomic.Pointer[map[string][]string], v *version, read func(*version) (runtime.Object, error)) map[string][]string {
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

// plan is what the indexes have to say about a predicate; nil is nothing.
type plan struct {
	lookups []lookup
	state   *indexState
}

// plan asks the indexes, and builds them if need be. It comes before the snapshot
// that is to be read, which would age meanwhile.
func (s *resourceStore) plan(ctx context.Context, predicate storage.SelectionPredicate) (*plan, error) {
	if s.indexes == nil || predicate.Empty() {
		return nil, nil
	}
	lookups := s.indexes.lookups(predicate)
	if len(lookups) == 0 {
		return nil, nil
	}
	state, err := s.indexes.state(ctx)
	return &plan{lookups, state}, err
}

// candidates yields the objects with a prefix at a revision, from a key on, by key:
// at least those that the predicate of a plan selects, and all if no index makes
// that fewer.
func (s *resourceStore) candidates(p *plan, snapshot *snapshot, prefix, from string, revision uint64) iter.Seq[*version] {
	all := snapshot.under(prefix, from, revision)
	if p == nil {
		return all
	}
	// An index is worth it if it leaves out half of the objects.
	var best lookup
	fewest := s.objects() / 2
	for _, l := range p.lookups {
		if count := s.indexes.byName[l.index].count(l.values); count < fewest {
			best, fewest = l, count
		}
	}
	others, known := s.changedBetween(p.state.revision, revision, s.objects()/2-fewest)
	if best.index == "" || !known {
		return all
	}
	others = append(others, p.state.unreadable...)
	slices.Sort(others)
	return func(yield func(*version) bool) {
		for key := range p.state.keys(best, prefix, from, others) {
			if v := snapshot.latest.get(key).at(revision); v != nil && !yield(v) {
				return
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
	c.is(c.entries.Seek(indexEntry{value, from}))
	return c
}

func (c *cursor) next() { c.is(c.entries.Next()) }

func (c *cursor) is(found bool) {
	c.more = found && c.entries.Item().value == c.value
	if c.more {
		c.key = c.entries.Item().key
	}
}
