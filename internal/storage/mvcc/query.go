package mvcc

import (
	"context"
	"errors"
	"slices"
	"sort"
	"strings"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/base/parallel"
	"github.com/annexapi/annex/internal/storage/mvcc/index"
)

var _ ordered.Querier = (*resourceStore)(nil)

// maxRuns is the largest number of runs that are merged into an order. An interval in each of several namespaces is
// one run per namespace. A condition that would exceed the limit is checked against each object instead.
const maxRuns = 10_000

// Query implements ordered.Querier. A page without conditions costs its length, and its total costs a few steps for
// each requested namespace. The same holds for a page whose only conditions are on the field that it is ordered by.
// Every other query reads each object that the conditions on sortable fields leave.
func (s *resourceStore) Query(ctx context.Context, key string, q *ordered.Query) (*ordered.Page, error) {
	prefix, err := s.key(key, true)
	if err != nil {
		return nil, err
	}
	narrowed := *q
	if namespace := strings.TrimSuffix(strings.TrimPrefix(prefix, s.keyspace.prefix), "/"); namespace != "" {
		narrowed.Namespaces = []string{}
		if _, in := slices.BinarySearch(q.Namespaces, namespace); in || q.Namespaces == nil {
			narrowed.Namespaces = append(narrowed.Namespaces, namespace)
		}
	}
	for {
		// Start again if compaction has passed the query's versions.
		page, err := s.query(ctx, &narrowed)
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
	if len(others) == 0 && q.Matches == nil && q.Search.Empty() && len(q.Counted) == 0 {
		return s.pageOf(ctx, q, by)
	}
	if q.CountsLabels() {
		if page, err := s.labelCounts(ctx, q); page != nil || err != nil {
			return page, err
		}
	}
	return s.search(ctx, q, by, others)
}

// splitConditions returns the set of values of the field that the query sorts by, and the conditions on other fields.
func splitConditions(q *ordered.Query) (by ordered.Set, others []ordered.Condition) {
	by = ordered.All()
	for _, c := range q.Where {
		if c.Field.OrderName() == q.By.OrderName() {
			if both := by.And(c.Set); len(both)*len(q.Namespaces) <= maxRuns {
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
	order, err := s.order(ctx, q.By, q.Namespaces != nil)
	if err != nil {
		return nil, err
	}
	page := &ordered.Page{Revision: order.Revision()}
	all := order.Runs(q.Namespaces, by, q.Descending)
	page.Total = all.Size()
	switch {
	case q.Limit <= 0:
		return page, nil
	case q.After != nil:
		all.DropThrough(s.entryAt(*q.After))
	case q.Offset > 0:
		all.Drop(q.Offset)
	}
	var entries []orderEntry
	for e := range all.All() {
		if page.More = len(entries) == q.Limit; page.More {
			break
		}
		entries = append(entries, e)
	}
	return page, s.fill(ctx, page, entries)
}

// fill reads the objects of entries into a page.
func (s *resourceStore) fill(ctx context.Context, page *ordered.Page, entries []orderEntry) error {
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
		page.Last = s.position(entries[last])
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
func versionsOf(entries []orderEntry) []*version {
	versions := make([]*version, len(entries))
	for i, e := range entries {
		versions[i] = e.Version
	}
	return versions
}

// search returns a page of the objects that fulfill all conditions. If one condition on a sortable field leaves few
// objects, it reads these. Otherwise it decides by orders, and reads the objects about which they do not decide.
func (s *resourceStore) search(ctx context.Context, q *ordered.Query, by ordered.Set, others []ordered.Condition) (*ordered.Page, error) {
	namespaced := q.Namespaces != nil
	order, err := s.order(ctx, q.By, namespaced)
	if err != nil {
		return nil, err
	}
	revision, inOrder, sorted := order.Revision(), order.Runs(q.Namespaces, by, q.Descending), true
	all := inOrder
	for _, c := range others {
		if !c.Field.Sortable || len(c.Set)*len(q.Namespaces) > maxRuns {
			continue
		}
		other, err := s.order(ctx, c.Field, namespaced)
		if err != nil {
			return nil, err
		}
		if fewer := other.Runs(q.Namespaces, c.Set, false); fewer.Size() < all.Size()/2 {
			revision, all, sorted = other.Revision(), fewer, false
		}
	}
	var known *members
	if int64(all.Size()) >= s.core.options.LabelObjects && s.objects() <= mostMembers {
		if known, err = s.members(ctx, q, others, order.Revision()); err != nil {
			return nil, err
		}
		if known != nil {
			revision, all, sorted = order.Revision(), inOrder, len(known.uncertain) == 0
		}
	}
	page := &ordered.Page{Revision: revision, Counts: ordered.NewCounts(q)}
	found, err := s.find(ctx, page, q, all, known)
	if err != nil {
		return nil, err
	}
	page.Total = len(found)
	compare := orderEntry.Compare
	if q.Descending {
		compare = func(a, b orderEntry) int { return b.Compare(a) }
	}
	if !sorted {
		slices.SortFunc(found, compare)
	}
	first := min(q.Offset, len(found))
	if q.After != nil {
		after := s.entryAt(*q.After)
		first = sort.Search(len(found), func(i int) bool { return compare(after, found[i]) < 0 })
	}
	last := min(first+max(q.Limit, 0), len(found))
	page.More = q.Limit > 0 && last < len(found)
	return page, s.fill(ctx, page, found[first:last])
}

// orderEntry is the place of an object in an order.
type orderEntry = index.Entry[*version]

// foundBytes is the memory of a search for each object that it may find, beside the object.
const foundBytes = 128

// find returns the objects of the runs that fulfill the conditions, as entries of the order that q sorts by, and counts
// their values.
func (s *resourceStore) find(
	ctx context.Context,
	page *ordered.Page,
	q *ordered.Query,
	all index.Runs[*version],
	known *members,
) ([]orderEntry, error) {
	account, places := budget.From(ctx), int64(all.Size())*foundBytes
	if err := hold(ctx, account, places); err != nil {
		return nil, err
	}
	found := make([]orderEntry, 0, min(all.Size(), known.most()))
	var failed unreadable
	for batch := range parallel.Batches(known.possible(all.All()), decodeBatch) {
		if ctx.Err() != nil {
			return nil, tooSlow(s.keyspace.prefix)
		}
		batch, certain := known.split(batch)
		found = append(found, certain...)
		versions := versionsOf(batch)
		values, objects := make([]ordered.Value, len(batch)), s.read(ctx, versions)
		parallel.Do(len(batch), func(i int) {
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
				found = append(found, orderEntry{Value: string(values[i]), Key: batch[i].Key, Version: batch[i].Version})
			}
		}
		if err := hold(ctx, account, places+page.CountedBytes()); err != nil {
			return nil, err
		}
	}
	return found, s.failure(failed)
}

// order returns the order of a field, which contains all objects.
func (s *resourceStore) order(ctx context.Context, field ordered.Field, namespaced bool) (index.Order[*version], error) {
	order, err := s.indexes.Order(ctx, field, namespaced)
	if err != nil {
		return order, tooSlow(s.keyspace.prefix)
	}
	if keys := order.Unreadable(); len(keys) > 0 {
		return order, s.firstUnreadable(ctx, keys)
	}
	return order, nil
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

// position returns the position of an entry in an order.
func (s *resourceStore) position(e orderEntry) ordered.Position {
	namespace, name := s.nameOf(e.Key)
	return ordered.Position{Value: ordered.Value(e.Value), Namespace: namespace, Name: name}
}

// nameOf returns the namespace and name of the object with a key.
func (s *resourceStore) nameOf(key string) (namespace, name string) {
	namespace, name, namespaced := strings.Cut(strings.TrimPrefix(key, s.keyspace.prefix), "/")
	if !namespaced {
		return "", namespace
	}
	return namespace, name
}

// entryAt returns the entry at a position, with the key of the object there.
func (s *resourceStore) entryAt(p ordered.Position) orderEntry {
	key := s.keyspace.prefix
	if p.Namespace != "" {
		key += p.Namespace + "/"
	}
	return orderEntry{Value: string(p.Value), Key: key + p.Name}
}
