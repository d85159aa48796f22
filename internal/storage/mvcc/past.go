package mvcc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

var _ store.Historian = (*resourceStore)(nil)

// mostPastBytes is the encoded size of the objects of a page of the history after which the page ends.
const mostPastBytes = 1 << 20

// pastRecord is a record of the history with what is known beside it.
type pastRecord struct {
	journal.Record
	// ordinal is the number of the record among those of its key that were moved to the shelf; 0 if it is in the history
	// of the core.
	ordinal uint64
}

// History implements store.Historian.
func (s *resourceStore) History(ctx context.Context, key string, before uint64, limit int) (store.PastPage, error) {
	prepared, err := s.key(key, false)
	if err != nil {
		return store.PastPage{}, err
	}
	page := store.PastPage{}
	var size int
	var oldest *pastRecord
	err = s.core.past(prepared, before, func(r pastRecord) bool {
		if len(page.Revisions) == limit || size > mostPastBytes {
			page.More = true
			return false
		}
		if ctx.Err() != nil {
			return false
		}
		oldest = &r
		size += len(r.Value)
		page.Revisions = append(page.Revisions, store.PastRevision{
			Key: prepared, Revision: r.Revision, Previous: r.Previous, Deleted: r.Deleted, Time: r.Committed, User: r.User,
			Object: s.pastObject(ctx, r.Record),
		})
		return true
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return store.PastPage{}, s.pastError(prepared, err)
	}
	page.Since = s.core.since(s.keyspace.prefix)
	if oldest != nil && !page.More && isCut(oldest, page.Since) {
		page.Since = store.Point{Revision: oldest.Revision, Time: oldest.Committed}
	}
	return page, nil
}

// isCut reports whether older revisions than the oldest record of a key have been removed after the history began.
func isCut(oldest *pastRecord, since store.Point) bool {
	return oldest.Revision > since.Revision && (oldest.Previous != 0 || oldest.ordinal > 1)
}

// pastObject returns the object of a record, nil for a tombstone and for one that cannot be read.
func (s *resourceStore) pastObject(ctx context.Context, r journal.Record) runtime.Object {
	if r.Deleted {
		return nil
	}
	object, err := s.decodePast(ctx, r)
	if err != nil {
		return nil
	}
	return object
}

func (s *resourceStore) decodePast(ctx context.Context, r journal.Record) (runtime.Object, error) {
	data := r.Value
	if s.resource.Transformer != nil {
		var err error
		if data, _, err = s.resource.Transformer.TransformFromStorage(ctx, data, value.DefaultContext(r.Key)); err != nil {
			return nil, s.untransformable(r.Revision, err)
		}
	}
	return s.decode(data, r.Revision)
}

func (s *resourceStore) pastError(key string, err error) error {
	return fmt.Errorf("read the history of %s: %w", strings.TrimPrefix(key, s.keyspace.prefix), err)
}

// Past implements store.Historian.
func (s *resourceStore) Past(ctx context.Context, key string, at store.Point, out runtime.Object) error {
	prepared, err := s.key(key, false)
	if err != nil {
		return err
	}
	record, err := s.core.recordAt(s.keyspace.prefix, prepared, at)
	if err != nil {
		return err
	}
	object, err := s.decodePast(ctx, record.Record)
	if err != nil {
		return getError(key, err)
	}
	return assignTo(out, object)
}

// recordAt returns the record of an object at a point.
func (c *Core) recordAt(place, key string, at store.Point) (*pastRecord, error) {
	if newest := c.newestPoint(); at.Revision > newest.Revision || at.Revision == 0 && at.Time.After(newest.Time) {
		return nil, &store.FutureError{At: at, Newest: newest}
	}
	var found *pastRecord
	see := func(r pastRecord) bool {
		if isAt(r.Record, at) {
			found = &r
		}
		return found == nil
	}
	// The history is in the order of revisions, so that the wanted record is the first one.
	before := uint64(0)
	if at.Revision != 0 {
		before = at.Revision + 1
	}
	var err error
	if before != 0 {
		err = c.past(key, before, see)
	} else {
		err = c.pastAt(key, at.Time, see)
	}
	if err != nil {
		return nil, fmt.Errorf("read the history of %s: %w", key, err)
	}
	switch {
	case found != nil && found.Deleted:
		return nil, storage.NewKeyNotFoundError(key, 0)
	case found != nil:
		return found, nil
	}
	// The records after the point show whether older ones existed.
	oldest, err := c.oldestPast(key)
	if err != nil {
		return nil, fmt.Errorf("read the history of %s: %w", key, err)
	}
	since := c.since(place)
	switch {
	case oldest != nil && isCut(oldest, since):
		return nil, &store.NotKeptError{At: at, Since: store.Point{Revision: oldest.Revision, Time: oldest.Committed}}
	case at.Revision != 0 && at.Revision < since.Revision, at.Revision == 0 && at.Time.Before(since.Time):
		return nil, &store.NotKeptError{At: at, Since: since}
	}
	return nil, storage.NewKeyNotFoundError(key, 0)
}

func isAt(r journal.Record, at store.Point) bool {
	if at.Revision != 0 {
		return r.Revision <= at.Revision
	}
	return !r.Committed.After(at.Time)
}

// newestPoint returns the published revision and the present.
func (c *Core) newestPoint() store.Point {
	return store.Point{Revision: c.published.Load(), Time: c.clock.Now().UTC()}
}

// since returns the point from which on the history of a place is complete.
func (c *Core) since(place string) store.Point {
	if kept := c.shelf.place(place); kept != nil && kept.rule.Keeps() {
		return kept.since()
	}
	return c.watchable()
}

// watchable returns the point from which on watches can begin.
func (c *Core) watchable() store.Point {
	c.mu.RLock()
	defer c.mu.RUnlock()
	point := store.Point{Revision: max(c.compacted.Load(), firstRevision), Time: fromNano(c.compactedTime)}
	if c.compactedTime == 0 && point.Revision > firstRevision && len(c.history.events) > 0 {
		point.Time = fromNano(c.history.events[0].committed)
	}
	return point
}

// chain returns the versions of a key below a revision, the newest first, at most limit.
func (c *Core) chain(key string, before uint64, limit int) []*version {
	v, _ := c.get(key)
	var all []*version
	for ; v != nil && len(all) < limit; v = v.previous.Load() {
		if before == 0 || v.revision < before {
			all = append(all, v)
		}
	}
	return all
}

// pastBatch is the number of versions that are read from the chain at once.
const pastBatch = 64

// past calls yield for the records of a key below a revision, 0 being none, the newest first, until yield returns false.
// While it reads, compaction may move records from the history to the shelf, but never leave one out.
func (c *Core) past(key string, before uint64, yield func(pastRecord) bool) error {
	for {
		chain := c.chain(key, before, pastBatch)
		for _, v := range chain {
			record, err := c.pastRecordOf(v)
			if errors.Is(err, journal.ErrNotFound) {
				return nil // compacted, and not kept
			}
			if err != nil {
				return err
			}
			if !yield(record) {
				return nil
			}
			before = v.revision
		}
		if len(chain) == pastBatch {
			continue
		}
		for _, revision := range c.waitingOf(key, before) {
			record, err := c.recordOf(key, revision)
			if errors.Is(err, journal.ErrNotFound) {
				break // moved, and removed
			}
			if err != nil {
				return err
			}
			if !yield(record) {
				return nil
			}
			before = revision
		}
		return c.shelved(key, before, yield)
	}
}

// pastRecordOf reads the record of a version, which compaction may have moved to the shelf or removed.
func (c *Core) pastRecordOf(v *version) (pastRecord, error) { return c.recordOf(v.key, v.revision) }

func (c *Core) recordOf(key string, revision uint64) (pastRecord, error) {
	record, err := c.read(revision)
	if err == nil {
		return pastRecord{Record: record}, nil
	}
	if !errors.Is(err, journal.ErrNotFound) || c.compacted.Load() < revision {
		return pastRecord{}, err
	}
	return c.shelvedAt(key, revision)
}

// pastAt is like past, but begins at the newest record of a time.
func (c *Core) pastAt(key string, at time.Time, yield func(pastRecord) bool) error {
	before := uint64(0)
	v, _ := c.get(key)
	for ; v != nil; v = v.previous.Load() {
		if !fromNano(v.committed).After(at) {
			return c.past(key, v.revision+1, yield)
		}
		before = v.revision
	}
	if len(c.waitingOf(key, before)) > 0 {
		return c.past(key, before, yield)
	}
	return c.shelvedSince(key, before, at, yield)
}

// oldestPast returns the oldest record of a key, without its value, nil if there is none.
func (c *Core) oldestPast(key string) (*pastRecord, error) {
	oldest, err := c.oldestShelved(key)
	if oldest != nil || err != nil {
		return oldest, err
	}
	if waiting := c.waitingOf(key, 0); len(waiting) > 0 {
		record, err := c.recordOf(key, waiting[len(waiting)-1])
		record.Value = nil
		return &record, err
	}
	v, _ := c.get(key)
	for ; v != nil; v = v.previous.Load() {
		oldest = &pastRecord{Record: journal.Record{
			Revision: v.revision, Previous: v.superseded, Deleted: v.deleted, Key: key, Committed: fromNano(v.committed),
		}}
	}
	return oldest, nil
}

// RevisionAt implements store.Historian. It reaches as far back as lists do.
func (s *resourceStore) RevisionAt(_ context.Context, at store.Point) (uint64, error) {
	c := s.core
	if newest := c.newestPoint(); at.Revision > newest.Revision || at.Revision == 0 && at.Time.After(newest.Time) {
		return 0, &store.FutureError{At: at, Newest: newest}
	}
	since := c.watchable()
	c.mu.RLock()
	defer c.mu.RUnlock()
	if at.Revision != 0 {
		if at.Revision < since.Revision {
			return 0, &store.NotKeptError{At: at, Since: since}
		}
		return at.Revision, nil
	}
	later := sort.Search(len(c.history.events), func(i int) bool { return c.history.events[i].committed > at.Time.UnixNano() })
	revision := c.history.after + uint64(later)
	if later == 0 && at.Time.Before(since.Time) {
		return 0, &store.NotKeptError{At: at, Since: since}
	}
	return revision, nil
}

// mostListedBytes is the encoded size of the objects of a list of the past.
const mostListedBytes = 64 << 20

// PastList implements store.Historian.
func (s *resourceStore) PastList(
	ctx context.Context, prefix string, at store.Point, predicate storage.SelectionPredicate, list runtime.Object,
) error {
	prepared, err := s.key(prefix, true)
	if err != nil {
		return err
	}
	items, err := itemsOf(list)
	if err != nil {
		return err
	}
	c := s.core
	if newest := c.newestPoint(); at.Revision > newest.Revision || at.Revision == 0 && at.Time.After(newest.Time) {
		return &store.FutureError{At: at, Newest: newest}
	}
	if since := c.since(s.keyspace.prefix); at.Revision != 0 && at.Revision < since.Revision ||
		at.Revision == 0 && at.Time.Before(since.Time) {
		return &store.NotKeptError{At: at, Since: since}
	}
	keys, err := c.pastKeys(prepared)
	if err != nil {
		return s.pastError(prepared, err)
	}
	var objects []runtime.Object
	revision, size := at.Revision, 0
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return s.pastError(prepared, err)
		}
		record, err := c.recordAt(s.keyspace.prefix, key, at)
		if storage.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if size += len(record.Value); size > mostListedBytes {
			return apierrors.NewRequestEntityTooLargeError(
				fmt.Sprintf("the objects of %s have more than %d MiB: read the past of one namespace, or of one object", at, mostListedBytes>>20))
		}
		object, err := s.decodePast(ctx, record.Record)
		if err != nil {
			return getError(key, err)
		}
		if at.Revision == 0 {
			revision = max(revision, record.Revision)
		}
		selected := predicate.Empty()
		if !selected {
			if selected, err = predicate.Matches(object); err != nil {
				return err
			}
		}
		if selected {
			objects = append(objects, object)
		}
	}
	if err := s.assignItems(items, objects); err != nil {
		return err
	}
	return versioner.UpdateList(list, max(revision, firstRevision), "", nil)
}

// pastKeys returns the keys below a prefix that have an object, or records in the history, in their order.
func (c *Core) pastKeys(prefix string) ([]string, error) {
	var keys []string
	// Records move from here to the shelf, so that the other order could miss a key.
	for v := range c.snapshot().latest.from(prefix) {
		if !strings.HasPrefix(v.key, prefix) {
			break
		}
		keys = append(keys, v.key)
	}
	shelved, err := c.shelvedKeys(prefix)
	if err != nil {
		return nil, err
	}
	keys = append(keys, shelved...)
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Deletions implements store.Historian.
func (s *resourceStore) Deletions(ctx context.Context, prefix string, before uint64, limit int) (store.PastPage, error) {
	prepared, err := s.key(prefix, true)
	if err != nil {
		return store.PastPage{}, err
	}
	page := store.PastPage{}
	size := 0
	see := func(v deletion) (bool, error) {
		if len(page.Revisions) == limit || size > mostPastBytes {
			page.More = true
			return false, nil
		}
		deleted := store.PastRevision{Key: v.key, Revision: v.revision, Deleted: true}
		err := s.core.past(v.key, 0, func(r pastRecord) bool {
			if r.Revision == v.revision {
				deleted.Previous, deleted.Time, deleted.User = r.Previous, r.Committed, r.User
				return true
			}
			if r.Revision == deleted.Previous {
				deleted.Object = s.pastObject(ctx, r.Record)
				size += len(r.Value)
			}
			return false // or it was written after this deletion
		})
		if err != nil {
			return false, err
		}
		if deleted.Previous != 0 {
			page.Revisions = append(page.Revisions, deleted)
		}
		return true, ctx.Err()
	}
	if err := s.core.deletions(s.keyspace, prepared, before, see); err != nil {
		return store.PastPage{}, s.pastError(prepared, err)
	}
	page.Since = s.core.since(s.keyspace.prefix)
	return page, nil
}

// deletion is the tombstone of a key.
type deletion struct {
	key      string
	revision uint64
}

// deletions calls yield for the tombstones below a key prefix and a revision, 0 being none, the newest first.
func (c *Core) deletions(s *keyspace, prefix string, before uint64, yield func(deletion) (more bool, err error)) error {
	events := s.log.snapshot.Load().events
	for i := len(events) - 1; i >= 0; i-- {
		v := events[i]
		if before != 0 && v.revision >= before {
			continue
		}
		before = v.revision
		if !v.deleted || !strings.HasPrefix(v.key, prefix) {
			continue
		}
		if more, err := yield(deletion{v.key, v.revision}); !more || err != nil {
			return err
		}
	}
	for _, move := range slices.Backward(c.waitingMoves()) {
		if !move.deletes || before != 0 && move.event >= before || !strings.HasPrefix(move.key, prefix) {
			continue
		}
		before = move.event
		if more, err := yield(deletion{move.key, move.event}); !more || err != nil {
			return err
		}
	}
	return c.shelvedDeletions(s.prefix, prefix, before, yield)
}
