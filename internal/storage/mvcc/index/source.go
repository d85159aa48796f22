package index

import (
	"context"
	"iter"

	"k8s.io/apimachinery/pkg/runtime"
)

// Source is the resource whose objects are indexed. Its methods may be called concurrently, and only Object may take
// long.
//
// A write becomes visible at one moment, in the order of revisions. All methods see it from that moment on.
type Source[V Version] interface {
	// Changes returns the events of the resource after a revision.
	Changes(after uint64) Changes[V]
	// Snapshot returns the objects of the resource at the newest visible revision, without tombstones, and that
	// revision. The sequence may be iterated at any later time, and yields the same versions then.
	Snapshot() (objects iter.Seq[V], revision uint64)
	// Latest returns the newest visible version of a key, which may be a tombstone; false if there is none.
	Latest(key string) (V, bool)
	// Object returns the object of a version, which must not be a tombstone. The caller must not change the object. An
	// error concerns this version only, and may be gone at the next call. ctx is that of the request; the maintenance
	// of indexes passes one that never ends.
	Object(ctx context.Context, v V) (runtime.Object, error)
	// HasObjects reports whether the resource has at least n objects with a key prefix.
	HasObjects(n int64, prefix string) bool
}

// Version is one version of an object. It is immutable.
type Version interface {
	// Key returns the key of the object.
	Key() string
	// Revision returns the revision of the write that made the version.
	Revision() uint64
	// Deleted reports whether the version is a tombstone, which records the deletion of its object.
	Deleted() bool
}

// Changes are the events of a resource after a revision.
type Changes[V Version] struct {
	// Events holds the version that each event made, ordered by revision. The caller must not change it.
	Events []V
	// Through is the revision up to which Events holds every event. It is not below the revision asked for, and not
	// below any revision that was visible before the call.
	Through uint64
	// Complete is false if the history is compacted beyond the revision asked for. Events may then lack some events.
	Complete bool
}

// none reports whether there was certainly no event.
func (c Changes[V]) none() bool { return c.Complete && len(c.Events) == 0 }
