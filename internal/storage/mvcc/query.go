package mvcc

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sort"
	"strings"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/base/ordered"
)

var _ ordered.Querier = (*resourceStore)(nil)

// mostRuns is the largest number of runs that are merged into an order. An interval in each of several namespaces is
// one run per namespace. A condition that would exceed the limit is checked against each object instead.
const mostRuns = 10_000

// Query implements ordered.Querier. A page without conditions costs its length, and its total costs a few steps for
// each requested namespace. The same holds for a page whose only conditions are on the field that it is ordered by.
// Every other query reads each object that the conditions on sortable fields leave.
func (s *resourceStore) Query(ctx context.Context, key string, q *ordered.Query) (*ordered.Page, error) {
	prefix, err := s.key(key, true)
	if err != nil {
		return nil, err
	}
	asked := *q
	if namespace := strings.TrimSuffix(strings.TrimPrefix(prefix, s.keyspace.prefix), "/"); namespace != "" {
		asked.Namespaces = []string{}
		if _, in := slices.BinarySearch(q.Namespaces, namespace); in || q.Namespaces == nil {
			asked.Namespaces = append(asked.Namespaces, namespace)
		}
	}
	for {
		// Start again if compaction has passed the query's versions.
		page, err := s.query(ctx, &asked)
		if !errors.Is(err, errCompacted) {
			return page, err
		}
		if ctx.Err() != nil {
			return nil, tooSlow(s.keyspace.prefix)
		}
	}
}

// query is like Query, but may return errCompacted.
func (s *resourceStore) query(ctx context.Context, q *ordered.Query) (*ordered.Page, error) {
	by, others := splitConditions(q)
	if len(others) == 0 && q.Matches == nil && len(q.Counted) == 0 {
		return s.pageOf(ctx, q, by)
	}
	return s.search(ctx, q, by, others)
}

// splitConditions returns the set of values of the field that the query sorts by, and the conditions on other fields.
func splitConditions(q *ordered.Query) (by ordered.Set, others []ordered.Condition) {
	by = ordered.All()
	for _, c := range q.Where {
		if c.Field.Name == q.By.Name {
			if both := by.And(c.Set); len(both)*len(q.Namespaces) <= mostRuns {
				by = both
				continue
			}
		}
		others = append(others, c)
	}
	return by, others
}

// pageOf returns a page directly from an order.
func (s *resourceStore) pageOf(ctx context.Context, q *ordered.Query, by ordered.Set) (*ordered.Page, error) {
	state, revision, err := s.order(q.By, q.Namespaces != nil).exact(ctx)
	if err != nil {
		return nil, err
	}
	page := &ordered.Page{Revision: revision}
	all := runsOf(state, q.Namespaces, by, q.Descending)
	page.Total = all.size()
	switch {
	case q.Limit <= 0:
		return page, nil
	case q.After != nil:
		all.dropUpTo(s.entryAt(*q.After))
	case q.Offset > 0:
		all.drop(q.Offset)
	}
	var entries []indexEntry
	for e := range all.inOrder() {
		if page.More = len(entries) == q.Limit; page.More {
			break
		}
		entries = append(entries, e)
	}
	return page, s.fill(ctx, page, entries)
}

// fill reads the objects of entries into a page.
func (s *resourceStore) fill(ctx context.Context, page *ordered.Page, entries []indexEntry) error {
	versions := versionsOf(entries)
	if account := budget.From(ctx); account != nil {
		if err := hold(ctx, account, weigh(slices.Values(versions), 0).memory(account)); err != nil {
			return err
		}
	}
	var failed unreadable
	for i, found := range s.read(ctx, versions) {
		if found.err != nil {
			if !failed.add(versions[i].key, found.err) {
				break
			}
			continue
		}
		page.Objects = append(page.Objects, found.object)
	}
	if ctx.Err() != nil {
		return tooSlow(s.keyspace.prefix)
	}
	if err := s.failure(failed); err != nil {
		return err
	}
	if last := len(entries) - 1; last >= 0 {
		page.Last = s.place(entries[last].value, entries[last].key)
	}
	return nil
}

// failure returns the error for objects that could not be read: errCompacted, which restarts the query, if compaction
// has passed one of them.
func (s *resourceStore) failure(failed unreadable) error {
	if errors.Is(failed.abort, errCompacted) {
		return errCompacted
	}
	return failed.err(s.resource.Resource)
}

// versionsOf returns the versions of entries. Compaction may pass them.
func versionsOf(entries []indexEntry) []*version {
	versions := make([]*version, len(entries))
	for i, e := range entries {
		versions[i] = e.of
	}
	return versions
}

// search reads all objects that one condition on a sortable field leaves, and filters them by all other conditions. It
// uses the condition that leaves the fewest objects.
func (s *resourceStore) search(ctx context.Context, q *ordered.Query, by ordered.Set, others []ordered.Condition) (*ordered.Page, error) {
	namespaced := q.Namespaces != nil
	state, revision, err := s.order(q.By, namespaced).exact(ctx)
	if err != nil {
		return nil, err
	}
	all, inOrder := runsOf(state, q.Namespaces, by, q.Descending), true
	for _, c := range others {
		if !c.Field.Sortable || len(c.Set)*len(q.Namespaces) > mostRuns {
			continue
		}
		other, at, err := s.order(c.Field, namespaced).exact(ctx)
		if err != nil {
			return nil, err
		}
		if fewer := runsOf(other, q.Namespaces, c.Set, false); fewer.size() < all.size()/2 {
			revision, all, inOrder = at, fewer, false
		}
	}
	page := &ordered.Page{Revision: revision, Counts: ordered.NewCounts(q)}
	found, err := s.find(ctx, page, q, all)
	if err != nil {
		return nil, err
	}
	page.Total = len(found)
	if !inOrder {
		slices.SortFunc(found, func(a, b indexEntry) int {
			if q.Descending {
				a, b = b, a
			}
			return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.key, b.key))
		})
	}
	first := min(q.Offset, len(found))
	if q.After != nil {
		order, after := run{descending: q.Descending}, s.entryAt(*q.After)
		first = sort.Search(len(found), func(i int) bool { return order.comesBefore(after, found[i]) })
	}
	last := min(first+max(q.Limit, 0), len(found))
	page.More = q.Limit > 0 && last < len(found)
	return page, s.fill(ctx, page, found[first:last])
}

// foundBytes is the memory of a search for each object that it may find, beside the object.
const foundBytes = 128

// find returns the objects of the runs that fulfill the conditions, as entries of the order that q sorts by, and counts
// their values.
func (s *resourceStore) find(ctx context.Context, page *ordered.Page, q *ordered.Query, all runs) ([]indexEntry, error) {
	account, places := budget.From(ctx), int64(all.size())*foundBytes
	if err := hold(ctx, account, places); err != nil {
		return nil, err
	}
	found := make([]indexEntry, 0, all.size())
	var failed unreadable
	for batch := range inBatches(all.inOrder(), decodeBatch) {
		if ctx.Err() != nil {
			return nil, tooSlow(s.keyspace.prefix)
		}
		versions := versionsOf(batch)
		values, objects := make([]ordered.Value, len(batch)), s.read(ctx, versions)
		inParallel(len(batch), func(i int) {
			if objects[i].err == nil && q.Selects(objects[i].object) {
				values[i] = q.By.Value(objects[i].object)
				return
			}
			objects[i].object = nil
		})
		for i, o := range objects {
			switch {
			case o.err != nil:
				if !failed.add(versions[i].key, o.err) {
					return nil, s.failure(failed)
				}
			case o.object != nil:
				if err := page.Count(q, o.object); err != nil {
					return nil, err
				}
				found = append(found, indexEntry{string(values[i]), batch[i].key, batch[i].of})
			}
		}
		if err := hold(ctx, account, places+page.CountedBytes()); err != nil {
			return nil, err
		}
	}
	return found, s.failure(failed)
}
