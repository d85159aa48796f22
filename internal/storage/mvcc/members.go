package mvcc

import (
	"context"
	"iter"
	"math"
	"slices"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/base/ordered"
)

const (
	// mostChanged is the number of events up to which two orders of different revisions are compared.
	mostChanged = 1000
	// mostMembers is the number of objects up to which a search keeps the keys that a condition selects, and digests.
	mostMembers = 200_000
	// memberBytes is the memory of one such key.
	memberBytes = 48
)

// members are the objects that the conditions of a query select, by the orders of their fields.
type members struct {
	sets      []map[string]struct{}
	uncertain map[string]struct{} // keys whose objects have to be read
	complete  bool                // the sets decide about all conditions, and nothing is counted
}

// members returns the objects that conditions select at a revision, which is that of the order that they are read in.
// It returns nil if orders decide about none of the conditions.
func (s *resourceStore) members(ctx context.Context, q *ordered.Query, others []ordered.Condition, revision uint64) (*members, error) {
	m := &members{uncertain: map[string]struct{}{}, complete: q.Matches == nil && len(q.Counted) == 0}
	for _, c := range others {
		if !c.Field.Sortable || len(c.Set)*max(1, len(q.Namespaces)) > maxRuns {
			m.complete = false
			continue
		}
		order, err := s.order(ctx, c.Field, q.Namespaces != nil)
		if err != nil {
			return nil, err
		}
		runs := order.Runs(q.Namespaces, c.Set, false)
		selected := make(map[string]struct{}, runs.Size())
		for e := range runs.All() {
			selected[e.Key] = struct{}{}
		}
		m.sets = append(m.sets, selected)
		if !s.changedSince(m, order.Revision(), revision) {
			return nil, nil
		}
	}
	if !q.Search.Empty() {
		order, err := s.order(ctx, q.Search.Digest, false)
		if err != nil {
			return nil, err
		}
		selected := map[string]struct{}{}
		for e := range order.Runs(nil, ordered.All(), false).All() {
			matches, known := q.Search.Matches(e.Value)
			if !known {
				m.uncertain[e.Key] = struct{}{}
			}
			if matches {
				selected[e.Key] = struct{}{}
			}
		}
		m.sets = append(m.sets, selected)
		if !s.changedSince(m, order.Revision(), revision) {
			return nil, nil
		}
	}
	if len(m.sets) == 0 {
		return nil, nil
	}
	// Most objects are decided by the smallest set.
	slices.SortFunc(m.sets, func(a, b map[string]struct{}) int { return len(a) - len(b) })
	size := len(m.uncertain)
	for _, set := range m.sets {
		size += len(set)
	}
	return m, hold(ctx, budget.From(ctx), int64(size)*memberBytes)
}

// labelCounts counts labels by the digests of objects. It returns nil if they do not suffice.
func (s *resourceStore) labelCounts(ctx context.Context, q *ordered.Query) (*ordered.Page, error) {
	if n := s.objects(); int64(n) < s.core.options.LabelObjects || n > mostMembers {
		return nil, nil
	}
	order, err := s.order(ctx, q.Search.Digest, false)
	if err != nil {
		return nil, err
	}
	page := &ordered.Page{Revision: order.Revision(), Counts: ordered.NewCounts(q)}
	for e := range order.Runs(nil, ordered.All(), false).All() {
		if _, in := slices.BinarySearch(q.Namespaces, s.position(e).Namespace); q.Namespaces != nil && !in {
			continue
		}
		selected, known := q.Search.Matches(e.Value)
		if !known {
			return nil, nil
		}
		if !selected {
			continue
		}
		page.Total++
		if err := page.CountEach(0, ordered.LabelsOfDigest(e.Value)); err != nil {
			return nil, err
		}
	}
	return page, hold(ctx, budget.From(ctx), page.CountedBytes())
}

// changedSince adds the keys with events between the revisions of two orders, about which they may differ. It returns
// false if they are too many, or not known any more.
func (s *resourceStore) changedSince(m *members, a, b uint64) bool {
	if a == b {
		return true
	}
	keys, known := s.changedBetween(a, b, mostChanged)
	for _, key := range keys {
		m.uncertain[key] = struct{}{}
	}
	return known
}

// decide reports whether the object of a key is selected. If certain is false, the object has to be read for that.
func (m *members) decide(key string) (selected, certain bool) {
	if _, unsure := m.uncertain[key]; unsure {
		return true, false
	}
	for _, set := range m.sets {
		if _, in := set[key]; !in {
			return false, true
		}
	}
	return true, m.complete
}

// most is a bound of the number of objects that may be selected: none if m is nil.
func (m *members) most() int {
	if m == nil {
		return math.MaxInt
	}
	return len(m.sets[0]) + len(m.uncertain)
}

// possible yields the entries that may be selected: all of them if m is nil.
func (m *members) possible(all iter.Seq[orderEntry]) iter.Seq[orderEntry] {
	if m == nil {
		return all
	}
	return func(yield func(orderEntry) bool) {
		for e := range all {
			if selected, _ := m.decide(e.Key); selected && !yield(e) {
				return
			}
		}
	}
}

// split returns the entries of a batch whose objects have to be read, and those that are selected for certain.
func (m *members) split(batch []orderEntry) (read, certain []orderEntry) {
	if m == nil || !m.complete {
		return batch, nil
	}
	for _, e := range batch {
		if _, is := m.decide(e.Key); is {
			certain = append(certain, e)
		} else {
			read = append(read, e)
		}
	}
	return read, certain
}
