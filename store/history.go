package store

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Point is a moment in the history of a backend: a revision, or a time if Revision is 0.
type Point struct {
	Revision uint64
	Time     time.Time
}

// String returns the point as people write it.
func (p Point) String() string {
	switch {
	case p.Revision == 0 && p.Time.IsZero():
		return "the beginning"
	case p.Revision == 0:
		return p.Time.UTC().Format(time.RFC3339Nano)
	case p.Time.IsZero():
		return fmt.Sprintf("revision %d", p.Revision)
	}
	return fmt.Sprintf("revision %d, %s", p.Revision, p.Time.UTC().Format(time.RFC3339))
}

// PastRevision is one revision of one object.
type PastRevision struct {
	Key      string
	Revision uint64
	// Previous is the revision of the object that this revision replaced or deleted, 0 if it created the object.
	Previous uint64
	Deleted  bool
	// Time is the time of the write, the zero time if the backend does not know it.
	Time time.Time
	// User is the name of the user who wrote, empty if the backend has not recorded it.
	User string
	// Object is the object at this revision, in the type of Resource.New. Of a deletion it is the deleted object. It is nil if it is
	// no longer kept. Objects are shared, and must not be changed.
	Object runtime.Object
}

// PastPage is a part of the history of an object or of a resource, the newest revision first.
type PastPage struct {
	Revisions []PastRevision
	// More reports that older revisions are kept.
	More bool
	// Since is the point from which on the history is complete.
	Since Point
}

// Historian is a storage.Interface that reads past revisions. A Backend whose resources are no Historians keeps no history
// for clients.
type Historian interface {
	storage.Interface

	// History returns at most limit revisions of the object at a key, the newest first, from below the revision before; 0
	// is from the newest one. It returns an empty page for a key that never had an object.
	History(ctx context.Context, key string, before uint64, limit int) (PastPage, error)

	// Past sets out to the object at a point. The error matches NotKeptError if the point is no longer kept, FutureError if
	// it is not reached yet, and storage.NewKeyNotFoundError if there was no object.
	Past(ctx context.Context, key string, at Point, out runtime.Object) error

	// RevisionAt returns the newest revision of the backend at a point at which lists can be read. Its errors are those of Past.
	RevisionAt(ctx context.Context, at Point) (uint64, error)

	// PastList sets list to the objects below a key prefix at a point, also at one that lists can no longer be read at. Its
	// errors are those of Past.
	PastList(ctx context.Context, prefix string, at Point, predicate storage.SelectionPredicate, list runtime.Object) error

	// Deletions returns at most limit deletions of objects below a key prefix, the newest first, from below the revision
	// before. Objects that exist again are left out, and so are all deletions of a key but the last.
	Deletions(ctx context.Context, prefix string, before uint64, limit int) (PastPage, error)
}

// Retention is how long the revisions of a resource's objects are kept, beyond what watches need. The zero value keeps no
// more than that. The bounds hold together: a revision is removed as soon as one of them is exceeded.
type Retention struct {
	// Age is the time after which a replaced revision may be removed; 0 is no bound.
	Age time.Duration
	// Revisions is the number of replaced revisions that are kept of each object; 0 is no bound.
	Revisions int
	// Bytes bounds the encoded size of all kept revisions of the resource; the oldest ones are removed first. 0 is
	// DefaultRetentionBytes if one of the other bounds is set.
	Bytes int64
}

// DefaultRetentionBytes is the default of Retention.Bytes.
const DefaultRetentionBytes = 1 << 30

// DeletedAge is how long the history of a deleted object is kept if Retention has no Age.
const DeletedAge = 30 * 24 * time.Hour

// Keeps reports whether the retention keeps anything.
func (r Retention) Keeps() bool { return r.Age > 0 || r.Revisions > 0 }

// NotKeptError reports a point that the history no longer reaches.
type NotKeptError struct {
	At Point
	// Since is the point from which on the history is complete.
	Since Point
}

// Error implements error.
func (e *NotKeptError) Error() string {
	return fmt.Sprintf("%s is no longer kept: the history is kept since %s", e.At, e.Since)
}

// FutureError reports a point that is not reached yet.
type FutureError struct {
	At Point
	// Newest is the newest point.
	Newest Point
}

// Error implements error.
func (e *FutureError) Error() string {
	return fmt.Sprintf("%s is in the future: the newest one is %s", e.At, e.Newest)
}
