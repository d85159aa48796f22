package mvcc

import (
	"container/heap"
	"context"
	"fmt"
	"iter"
	"sort"
	"strings"
	"sync"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/base/ordered"
)

// orders are the indexes that queries sort by, by field. Each is built on its own. Like other indexes, an order is
// brought up to date by its readers and dropped when it is not used.
type orders struct {
	mu     sync.Mutex
	byName map[orderName]*indexes
}

// orderName identifies an order: its field, and whether the namespace comes before the value.
type orderName struct {
	field      string
	namespaced bool
}

// the is the name of the only index of an order.
const the = ""

// afterNamespace separates the namespace, which cannot contain it, from the value.
const afterNamespace = "\x00"

// order returns the order of a field. Fields with the same name must be the same field.
func (s *resourceStore) order(field ordered.Field, namespaced bool) *indexes {
	s.orders.mu.Lock()
	defer s.orders.mu.Unlock()
	name := orderName{field.Name, namespaced}
	if x := s.orders.byName[name]; x != nil {
		return x
	}
	value := func(object runtime.Object) string { return string(field.Value(object)) }
	if namespaced {
		value = func(object runtime.Object) string {
			return objects.Meta(object).GetNamespace() + afterNamespace + string(field.Value(object))
		}
	}
	x := &indexes{store: s, token: make(chan struct{}, 1), asked: true, byName: map[string]*index{the: {
		ordered: true,
		values: func(object any) ([]string, error) {
			o, ok := object.(runtime.Object)
			if !ok {
				return nil, fmt.Errorf("order by %s: %T is no object", field.Name, object)
			}
			return []string{value(o)}, nil
		},
	}}}
	if s.orders.byName == nil {
		s.orders.byName = map[orderName]*indexes{}
	}
	s.orders.byName[name] = x
	s.maintain(x)
	return x
}

// maintain makes compaction keep indexes up to date until the resource store is closed.
func (s *resourceStore) maintain(x *indexes) {
	s.core.mu.Lock()
	defer s.core.mu.Unlock()
	if s.open.Err() == nil {
		s.keyspace.indexes = append(s.keyspace.indexes[:len(s.keyspace.indexes):len(s.keyspace.indexes)], x)
	}
}

// exact returns the indexes at a revision that is not older than the call. The resource has no event between the
// revision of the indexes and the returned revision.
func (x *indexes) exact(ctx context.Context) (state *indexState, revision uint64, err error) {
	core := x.store.core
	x.used.Store(core.clock.Now().UnixNano())
	look := func() bool {
		revision = core.published.Load() // must be loaded before the log is read
		state = x.current.Load()
		return state != nil && x.isUpToDate(state)
	}
	if !look() {
		select {
		case x.token <- struct{}{}:
			defer func() { <-x.token }()
		case <-ctx.Done():
			return nil, 0, tooSlow(x.store.keyspace.prefix)
		}
		if !look() {
			if state, err = x.update(ctx); err != nil {
				return nil, 0, err
			}
			revision = state.revision
		}
	}
	if len(state.unreadable) > 0 {
		return nil, 0, x.store.firstUnreadable(ctx, state.unreadable)
	}
	return state, max(revision, state.revision), nil
}

// firstUnreadable returns the error of a query while objects without a place in the order cannot be read. It returns
// errCompacted, so that the query is retried, if they can be read by now.
func (s *resourceStore) firstUnreadable(ctx context.Context, keys []string) error {
	var found unreadable
	for _, key := range keys {
		v, _ := s.core.get(key)
		if v.live() == 0 {
			continue
		}
		if _, err := s.object(ctx, v); err != nil && !found.add(key, err) {
			break
		}
	}
	if err := found.err(s.resource.Resource); err != nil {
		return err
	}
	return errCompacted
}

// run is a range of consecutive entries of an order: the entries of one namespace, or of all, whose values are in one
// interval. A descending run starts with the last entry.
type run struct {
	entries     *btree.BTreeG[indexEntry]
	first, size int
	descending  bool
	skip        int // length of the namespace prefix of each value
}

// runsOf returns the runs of an order for a set of values. nil means all namespaces.
func runsOf(state *indexState, namespaces []string, values ordered.Set, descending bool) runs {
	entries := state.entries[the]
	var all runs
	add := func(prefix, end string, interval ordered.Interval) {
		to := end
		if interval.To != "" {
			to = prefix + string(interval.To)
		}
		r := run{entries: entries, descending: descending, skip: len(prefix)}
		r.first = rankOf(entries, prefix+string(interval.From))
		r.size = entries.Len() - r.first
		if to != "" {
			r.size = rankOf(entries, to) - r.first
		}
		if r.size > 0 {
			all = append(all, r)
		}
	}
	for _, interval := range values {
		if namespaces == nil {
			add("", "", interval)
		}
		for _, namespace := range namespaces {
			add(namespace+afterNamespace, namespace+string(afterNamespace[0]+1), interval)
		}
	}
	return all
}

// rankOf returns the number of entries with a lower value.
func rankOf(entries *btree.BTreeG[indexEntry], value string) int {
	return sort.Search(entries.Len(), func(i int) bool {
		e, _ := entries.GetAt(i)
		return e.value >= value
	})
}

// at returns the entry at an index of the run, without its namespace.
func (r run) at(i int) indexEntry {
	i += r.first
	if r.descending {
		i = 2*r.first + r.size - 1 - i
	}
	e, _ := r.entries.GetAt(i)
	return indexEntry{e.value[r.skip:], e.key, e.of}
}

// comesBefore reports whether entry a is before entry b in the order.
func (r run) comesBefore(a, b indexEntry) bool {
	if r.descending {
		a, b = b, a
	}
	if a.value != b.value {
		return a.value < b.value
	}
	return a.key < b.key
}

// upTo returns the number of entries of the run that are not after e.
func (r run) upTo(e indexEntry) int {
	return sort.Search(r.size, func(i int) bool { return r.comesBefore(e, r.at(i)) })
}

// drop removes the first n entries.
func (r *run) drop(n int) {
	if !r.descending {
		r.first += n
	}
	r.size -= n
}

// runs are merged into one order.
type runs []run

func (all runs) size() int {
	total := 0
	for _, r := range all {
		total += r.size
	}
	return total
}

// dropUpTo removes all entries that are not after e.
func (all runs) dropUpTo(e indexEntry) {
	for i := range all {
		all[i].drop(all[i].upTo(e))
	}
}

// drop removes the first n entries of the merged order. It reads only a few entries of each run: it repeatedly halves
// the largest remaining range at its middle entry, until no range remains.
func (all runs) drop(n int) {
	if n >= all.size() {
		for i := range all {
			all[i].drop(all[i].size)
		}
		return
	}
	if len(all) == 1 {
		all[0].drop(n)
		return
	}
	question := make(runs, len(all)) // the undecided range of each run
	copy(question, all)
	dropped := make([]int, len(all))
	for n > 0 {
		largest := 0
		for i := range question {
			if question[i].size > question[largest].size {
				largest = i
			}
		}
		middle := question[largest].at(question[largest].size / 2)
		counts, count := make([]int, len(question)), 0
		for i, r := range question {
			counts[i] = r.upTo(middle)
			count += counts[i]
		}
		for i := range question {
			switch {
			case count <= n:
				question[i].drop(counts[i])
				dropped[i] += counts[i]
			case i == largest:
				question[i].keep(counts[i] - 1) // excludes the middle entry itself, which stays
			default:
				question[i].keep(counts[i])
			}
		}
		if count <= n {
			n -= count
		}
	}
	for i := range all {
		all[i].drop(dropped[i])
	}
}

// keep removes all entries but the first n.
func (r *run) keep(n int) {
	if r.descending {
		r.first += r.size - n
	}
	r.size = n
}

// inOrder yields the remaining entries of the runs in merged order.
func (all runs) inOrder() iter.Seq[indexEntry] {
	return func(yield func(indexEntry) bool) {
		m := &merging{}
		for _, r := range all {
			if r.size > 0 {
				m.runs, m.heads = append(m.runs, r), append(m.heads, r.at(0))
			}
		}
		heap.Init(m)
		for len(m.runs) > 0 && yield(m.heads[0]) {
			r := &m.runs[0]
			if r.drop(1); r.size == 0 {
				heap.Pop(m)
				continue
			}
			m.heads[0] = r.at(0)
			heap.Fix(m, 0)
		}
	}
}

// merging is a heap of runs, ordered by their first entries.
type merging struct {
	runs  runs
	heads []indexEntry
}

func (m *merging) Len() int           { return len(m.runs) }
func (m *merging) Less(i, j int) bool { return m.runs[i].comesBefore(m.heads[i], m.heads[j]) }
func (m *merging) Swap(i, j int) {
	m.runs[i], m.runs[j] = m.runs[j], m.runs[i]
	m.heads[i], m.heads[j] = m.heads[j], m.heads[i]
}

// Push implements heap.Interface. It does nothing, because runs are only removed.
func (m *merging) Push(any) {}

// Pop implements heap.Interface.
func (m *merging) Pop() any {
	last := len(m.runs) - 1
	m.runs, m.heads = m.runs[:last], m.heads[:last]
	return nil
}

// place returns the position of a key with a value in an order.
func (s *resourceStore) place(value, key string) ordered.Position {
	namespace, name, namespaced := strings.Cut(strings.TrimPrefix(key, s.keyspace.prefix), "/")
	if !namespaced {
		namespace, name = "", namespace
	}
	return ordered.Position{Value: ordered.Value(value), Namespace: namespace, Name: name}
}

// entryAt returns the entry at a position, with the key of the object there.
func (s *resourceStore) entryAt(p ordered.Position) indexEntry {
	key := s.keyspace.prefix
	if p.Namespace != "" {
		key += p.Namespace + "/"
	}
	return indexEntry{value: string(p.Value), key: key + p.Name}
}
