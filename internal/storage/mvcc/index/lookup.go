package index

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
)

// Lookups are the queries of indexes that follow from one predicate. The result of each of them contains every selected
// object.
type Lookups []lookup

// lookup is a query of one index for the objects with any of some values.
type lookup struct {
	index  string
	values []string
}

// Lookups returns the lookups in declared indexes that follow from a predicate.
func (x *Indexes[V]) Lookups(predicate storage.SelectionPredicate) Lookups {
	if x.declared == nil {
		return nil
	}
	var lookups Lookups
	add := func(name string, values ...string) {
		if x.declared.byName[name] != nil {
			slices.Sort(values)
			lookups = append(lookups, lookup{name, slices.Compact(values)})
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
			if hasValues(r) {
				add(storage.LabelIndex(r.Key()), r.ValuesUnsorted()...)
			}
		}
	}
	return lookups
}

// hasValues reports whether a requirement names the values that it matches.
func hasValues(r labels.Requirement) bool {
	return r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals || r.Operator() == selection.In
}

// MayMatch reports whether an object with these values may be in the result of every lookup. Values that cannot be
// computed may match anything.
func (l Lookups) MayMatch(values Values) bool {
	if values == nil {
		return true
	}
	for _, lookup := range l {
		if !slices.ContainsFunc(values[lookup.index], func(value string) bool { return slices.Contains(lookup.values, value) }) {
			return false
		}
	}
	return true
}

// Values returns the values of a version in the declared indexes, of which there must be one. It calls read for the
// object, unless the version is a tombstone.
func (x *Indexes[V]) Values(v V, read func(V) (runtime.Object, error)) Values {
	return x.declared.valuesOf(v, read)
}

// Plan holds the lookups for a predicate, each with the index at some revision. A list uses the best one of them. The
// zero Plan has no lookups.
type Plan[V Version] []Result[V]

// Result is the result of a lookup at the revision of its index. It is immutable.
type Result[V Version] struct {
	lookup lookup
	index  *valueIndex[V]
	state  *state[V]
	exact  bool
}

// Plan returns the lookups for a predicate under a key prefix. It builds missing indexes, for at most five seconds.
// Call it before taking the snapshot to read, which would get old while indexes are built.
func (x *Indexes[V]) Plan(ctx context.Context, prefix string, predicate storage.SelectionPredicate) (Plan[V], error) {
	if predicate.Empty() {
		return nil, nil
	}
	var p Plan[V]
	if lookups := x.Lookups(predicate); len(lookups) > 0 {
		current, err := x.declared.read(ctx)
		if err != nil {
			return nil, err
		}
		p = p.with(x.declared, current, lookups...)
	}
	return x.planLabels(ctx, p, prefix, predicate)
}

func (p Plan[V]) with(s *set[V], current *state[V], lookups ...lookup) Plan[V] {
	if current == nil {
		return p
	}
	for _, l := range lookups {
		p = append(p, Result[V]{lookup: l, index: s.byName[l.index], state: current})
	}
	return p
}

// Best returns the result with the fewest objects, and their approximate number. It returns nil if no result has fewer
// objects than limit.
func (p Plan[V]) Best(limit int) (best *Result[V], objects int) {
	objects = limit
	for i := range p {
		if count := p[i].index.count(p[i].lookup.values); count < objects {
			best, objects = &p[i], count
		}
	}
	return best, objects
}

// Revision returns the revision of the index.
func (r *Result[V]) Revision() uint64 { return r.state.revision }

// Unreadable returns the keys of the objects whose values cannot be computed. Each may belong to the result. The caller
// must not change the slice.
func (r *Result[V]) Unreadable() []string { return r.state.unreadable }

// Exact reports whether the predicate selects all objects of the result, at the revision of the index.
func (r *Result[V]) Exact() bool { return r.exact }

// Keys yields, in order and without duplicates, the keys of the result and the keys in others, which must be sorted. It
// is limited to keys with the prefix, starting at from.
func (r *Result[V]) Keys(prefix, from string, others []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		var cursors []*cursor[V]
		for _, value := range r.lookup.values {
			cursors = append(cursors, newCursor(r.state.entries[r.lookup.index], value, from))
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
type cursor[V Version] struct {
	entries btree.IterG[Entry[V]]
	value   string
	key     string
	more    bool
}

func newCursor[V Version](entries *btree.BTreeG[Entry[V]], value, from string) *cursor[V] {
	c := &cursor[V]{entries: entries.Iter(), value: value}
	c.load(c.entries.Seek(Entry[V]{Value: value, Key: from}))
	return c
}

func (c *cursor[V]) next() { c.load(c.entries.Next()) }

// load reads the key at the position; exists is false after the last entry.
func (c *cursor[V]) load(exists bool) {
	c.more = exists && c.entries.Item().Value == c.value
	if c.more {
		c.key = c.entries.Item().Key
	}
}
