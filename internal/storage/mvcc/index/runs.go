package index

import (
	"container/heap"
	"iter"
	"sort"

	"github.com/tidwall/btree"

	"github.com/annexapi/annex/internal/base/ordered"
)

// run is a range of consecutive entries of an order: the entries of one namespace, or of all, whose values are in one
// interval. A descending run starts with the last entry.
type run[V Version] struct {
	entries     *btree.BTreeG[Entry[V]]
	first, size int
	descending  bool
	skip        int // length of the namespace prefix of each value
}

// Runs are ranges of entries of an order that are merged into one sequence.
type Runs[V Version] []run[V]

// Runs returns the entries of an order whose values are in a set: one run for each interval, or for each interval in
// each namespace. namespaces must be nil if the order is not namespaced, and only then.
func (o Order[V]) Runs(namespaces []string, values ordered.Set, descending bool) Runs[V] {
	entries := o.entries()
	var all Runs[V]
	add := func(prefix, end string, interval ordered.Interval) {
		to := end
		if interval.To != "" {
			to = prefix + string(interval.To)
		}
		r := run[V]{entries: entries, descending: descending, skip: len(prefix)}
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
func rankOf[V Version](entries *btree.BTreeG[Entry[V]], value string) int {
	return sort.Search(entries.Len(), func(i int) bool {
		e, _ := entries.GetAt(i)
		return e.Value >= value
	})
}

// at returns the entry at an index of the run, without its namespace.
func (r run[V]) at(i int) Entry[V] {
	i += r.first
	if r.descending {
		i = 2*r.first + r.size - 1 - i
	}
	e, _ := r.entries.GetAt(i)
	return Entry[V]{e.Value[r.skip:], e.Key, e.Version}
}

// comesBefore reports whether entry a is before entry b in the order.
func (r run[V]) comesBefore(a, b Entry[V]) bool {
	if r.descending {
		a, b = b, a
	}
	return a.less(b)
}

// countThrough returns the number of entries of the run that are not after e.
func (r run[V]) countThrough(e Entry[V]) int {
	return sort.Search(r.size, func(i int) bool { return r.comesBefore(e, r.at(i)) })
}

// drop removes the first n entries.
func (r *run[V]) drop(n int) {
	if !r.descending {
		r.first += n
	}
	r.size -= n
}

// Size returns the number of entries.
func (all Runs[V]) Size() int {
	total := 0
	for _, r := range all {
		total += r.size
	}
	return total
}

// DropThrough removes all entries that are not after e.
func (all Runs[V]) DropThrough(e Entry[V]) {
	for i := range all {
		all[i].drop(all[i].countThrough(e))
	}
}

// Drop removes the first n entries of the merged sequence. It reads only a few entries of each run: it repeatedly
// halves the largest remaining range at its middle entry, until no range remains.
func (all Runs[V]) Drop(n int) {
	if n >= all.Size() {
		for i := range all {
			all[i].drop(all[i].size)
		}
		return
	}
	if len(all) == 1 {
		all[0].drop(n)
		return
	}
	undecided := make(Runs[V], len(all)) // the range of each run that may be dropped or kept
	copy(undecided, all)
	dropped := make([]int, len(all))
	for n > 0 {
		largest := 0
		for i := range undecided {
			if undecided[i].size > undecided[largest].size {
				largest = i
			}
		}
		middle := undecided[largest].at(undecided[largest].size / 2)
		counts, count := make([]int, len(undecided)), 0
		for i, r := range undecided {
			counts[i] = r.countThrough(middle)
			count += counts[i]
		}
		for i := range undecided {
			switch {
			case count <= n:
				undecided[i].drop(counts[i])
				dropped[i] += counts[i]
			case i == largest:
				undecided[i].keep(counts[i] - 1) // excludes the middle entry itself, which stays
			default:
				undecided[i].keep(counts[i])
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
func (r *run[V]) keep(n int) {
	if r.descending {
		r.first += r.size - n
	}
	r.size = n
}

// All yields the remaining entries of the runs in merged order.
func (all Runs[V]) All() iter.Seq[Entry[V]] {
	return func(yield func(Entry[V]) bool) {
		h := &runHeap[V]{}
		for _, r := range all {
			if r.size > 0 {
				h.runs, h.heads = append(h.runs, r), append(h.heads, r.at(0))
			}
		}
		heap.Init(h)
		for len(h.runs) > 0 && yield(h.heads[0]) {
			r := &h.runs[0]
			if r.drop(1); r.size == 0 {
				heap.Pop(h)
				continue
			}
			h.heads[0] = r.at(0)
			heap.Fix(h, 0)
		}
	}
}

// runHeap is a heap of runs, ordered by their first entries.
type runHeap[V Version] struct {
	runs  Runs[V]
	heads []Entry[V]
}

func (h *runHeap[V]) Len() int           { return len(h.runs) }
func (h *runHeap[V]) Less(i, j int) bool { return h.runs[i].comesBefore(h.heads[i], h.heads[j]) }
func (h *runHeap[V]) Swap(i, j int) {
	h.runs[i], h.runs[j] = h.runs[j], h.runs[i]
	h.heads[i], h.heads[j] = h.heads[j], h.heads[i]
}

// Push implements heap.Interface. It does nothing, because runs are only removed.
func (h *runHeap[V]) Push(any) {}

// Pop implements heap.Interface.
func (h *runHeap[V]) Pop() any {
	last := len(h.runs) - 1
	h.runs, h.heads = h.runs[:last], h.heads[:last]
	return nil
}
