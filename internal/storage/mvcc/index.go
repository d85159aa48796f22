package mvcc

import (
	"context"
	"iter"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/base/parallel"
	"github.com/annexapi/annex/internal/storage/mvcc/index"
)

func newIndexes(s *resourceStore) *index.Indexes[*version] {
	var indexers cache.Indexers
	if s.resource.Indexers != nil {
		indexers = *s.resource.Indexers
	}
	return index.New(index.Config[*version]{
		Source:       indexSource{s},
		Indexers:     indexers,
		NameOf:       s.nameOf,
		SlowObjects:  s.resource.Unstructured,
		LabelObjects: s.core.options.LabelObjects,
		Maintenance:  s.core.indexes,
		Clock:        s.core.clock,
	})
}

// indexSource is a resource as its indexes read it.
type indexSource struct{ store *resourceStore }

var _ index.Source[*version] = indexSource{}

// Changes implements index.Source. It loads the published revision before the log: then the log holds every event up to
// it. It loads the compacted revision after the log: compaction announces a revision before it trims the log.
func (s indexSource) Changes(after uint64) index.Changes[*version] {
	published := s.store.core.published.Load()
	log := s.store.keyspace.log.snapshot.Load()
	changes := index.Changes[*version]{Through: max(published, after), Complete: s.store.core.compacted.Load() <= after}
	if last := log.last(); last > after {
		changes.Events, changes.Through = log.events[log.after(after):], max(published, last)
	}
	return changes
}

// Snapshot implements index.Source.
func (s indexSource) Snapshot() (objects iter.Seq[*version], revision uint64) {
	snapshot, prefix := s.store.core.snapshot(), s.store.keyspace.prefix
	return snapshot.under(prefix, prefix, snapshot.revision), snapshot.revision
}

// Latest implements index.Source.
func (s indexSource) Latest(key string) (*version, bool) {
	v, _ := s.store.core.get(key)
	return v, v != nil
}

// Object implements index.Source.
func (s indexSource) Object(ctx context.Context, v *version) (runtime.Object, error) {
	return s.store.object(ctx, v)
}

// HasObjects implements index.Source.
func (s indexSource) HasObjects(n int64, prefix string) bool {
	return s.store.core.snapshot().latest.atLeast(int(n), prefix, below(prefix))
}

// candidates yields objects with a prefix at a revision, from a key on, ordered by key. It yields at least the objects
// that the predicate of the plan selects, or all objects if no index narrows them down enough. If selected is true, it
// yields exactly the selected objects.
func (s *resourceStore) candidates(
	plan index.Plan[*version],
	snapshot *snapshot,
	prefix, from string,
	revision uint64,
) (objects iter.Seq[*version], selected bool) {
	all := snapshot.under(prefix, from, revision)
	// An index is worth using if it excludes half of the objects.
	half := s.objects() / 2
	best, count := plan.Best(half)
	if best == nil {
		return all, false
	}
	others, known := s.changedBetween(best.Revision(), revision, half-count)
	if !known {
		return all, false
	}
	others = append(others, best.Unreadable()...)
	slices.Sort(others)
	return func(yield func(*version) bool) {
		for latest := range s.core.latestOf(best.Keys(prefix, from, others), snapshot) {
			if v := latest.at(revision); v != nil && !yield(v) {
				return
			}
		}
	}, best.Exact() && len(others) == 0
}

// keyBatch is the number of keys that are looked up with the core's mutex held.
const keyBatch = 16

// latestOf yields the latest versions of the keys that exist in a snapshot.
func (c *Core) latestOf(keys iter.Seq[string], snapshot *snapshot) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		var versions [keyBatch]*version
		for batch := range parallel.Batches(keys, keyBatch) {
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

// changedBetween returns the keys with events between two revisions. known is false if there are more events than
// limit, or if the history no longer holds all of them.
func (s *resourceStore) changedBetween(a, b uint64, limit int) (keys []string, known bool) {
	log := s.keyspace.log.snapshot.Load()
	if s.core.compacted.Load() > min(a, b) {
		return nil, false
	}
	events := log.events[log.after(min(a, b)):log.after(max(a, b))]
	if len(events) > limit {
		return nil, false
	}
	for _, v := range events {
		keys = append(keys, v.key)
	}
	return keys, true
}
