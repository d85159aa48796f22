package store

import (
	"context"
	"errors"
	"iter"

	"k8s.io/apiserver/pkg/storage/value"
)

// Maintenance is the interface of a Backend for the storage tools. It works below the level of resources, on keys and
// encoded values. All methods may be called concurrently, and concurrently with the methods of Backend.
type Maintenance interface {
	Backend

	// Snapshot returns a snapshot of all values at the newest revision. It delays no writer. The history is not
	// compacted past an open snapshot, so the caller must close it, and soon: a backend may give up a snapshot that
	// holds back too much history.
	Snapshot(ctx context.Context) (Snapshot, error)

	// Put stores the Data of v at its Key and returns the new revision of the key. It does so only if seen is the
	// newest revision of the key, or 0 if the key holds no object; otherwise the error matches ErrChanged. Data must
	// have been transformed for the ValueContext of the key. The Revision and Context of v are ignored.
	Put(ctx context.Context, v Value, seen uint64) (revision uint64, err error)

	// ValueContext returns the encryption context of values at a key of this backend.
	ValueContext(key string) value.DefaultContext

	// Compact removes the history up to a revision, on disk too if the files are the backend's own; see Snapshot. It
	// returns an error matching ErrInUse if an open snapshot needs that history. A revision that is compacted already
	// is no error; a revision above the newest one is.
	Compact(ctx context.Context, revision uint64) error

	// Status returns figures about the backend as a whole.
	Status(ctx context.Context) (Status, error)
}

// Snapshot is a consistent view of the values of a backend at one revision.
type Snapshot interface {
	// Revision returns the revision of the snapshot.
	Revision() uint64
	// Values yields all values in the order of their keys. It can be called again. It ends at the first error it
	// yields; an error that matches ErrSnapshotLost means that the backend has given up the snapshot.
	Values(ctx context.Context) iter.Seq2[Value, error]
	// Close releases the snapshot. A second call does nothing.
	Close()
}

// Status holds the figures that a backend knows about itself. Unknown figures are zero, and left out of JSON.
type Status struct {
	// Revision is the newest revision. Compacted is the oldest revision that can still be read exactly; 0 if nothing
	// has been compacted or the backend does not know.
	Revision  uint64 `json:"revision"`
	Compacted uint64 `json:"compacted,omitempty"`
	// HistoryEvents and HistoryBytes are the size of the history of watches, in events and in bytes.
	HistoryEvents int   `json:"historyEvents,omitempty"`
	HistoryBytes  int64 `json:"historyBytes,omitempty"`
	// KeptRevisions and KeptBytes are the number and size of the revisions that are kept for clients beyond that.
	KeptRevisions int64 `json:"keptRevisions,omitempty"`
	KeptBytes     int64 `json:"keptBytes,omitempty"`
	// DiskBytes is the size of the backend's files on disk, in bytes.
	DiskBytes uint64 `json:"diskBytes,omitempty"`
	// Watches is the number of open watches.
	Watches int `json:"watches,omitempty"`
}

var (
	// ErrChanged is returned by Put if the newest revision of the key is not the revision that the caller has seen.
	ErrChanged = errors.New("the object has changed")
	// ErrInUse is returned by Compact if an open snapshot needs the history to be removed.
	ErrInUse = errors.New("a snapshot is open")
	// ErrSnapshotLost is yielded by a snapshot that was open for too long, or held back too much history.
	ErrSnapshotLost = errors.New("the snapshot was aborted, because it prevented the compaction of the history: read it faster")
)
