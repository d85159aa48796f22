package store

import (
	"context"
	"errors"
	"iter"

	"k8s.io/apiserver/pkg/storage/value"
)

// Maintenance is what the storage tools need of a Backend, below the level of
// resources: keys, and values as they are stored. All methods may be called
// concurrently, and beside those of Backend.
type Maintenance interface {
	Backend

	// Snapshot returns everything that is stored at the newest revision. It delays
	// no writer. The history is not compacted past a snapshot that is open, so it
	// must be closed, and soon: a backend may give it up when it holds back too much.
	Snapshot(ctx context.Context) (Snapshot, error)

	// Put stores data at a key and returns the revision that it has then. It does so
	// only if the newest revision of the key is seen, 0 if there is no object; else
	// the error matches ErrChanged. Data must have been transformed for ValueContext
	// of the key. Revision and Context of the value are not used.
	Put(ctx context.Context, v Value, seen uint64) (revision uint64, err error)

	// ValueContext is the Context of a value that is stored at a key here.
	ValueContext(key string) value.DefaultContext

	// Compact forgets the history up to a revision, on disk too where that is the
	// backend's own; see Snapshot. ErrInUse if an open
	// snapshot is in the way. A revision that is compacted already is no error, one
	// that has not been reached is.
	Compact(ctx context.Context, revision uint64) error

	// Status returns figures about the backend as a whole.
	Status(ctx context.Context) (Status, error)
}

// Snapshot is what a backend stores at one revision.
type Snapshot interface {
	// Revision is the revision of the snapshot.
	Revision() uint64
	// Values yields all values in the order of keys. It can be called again. An
	// error ends it; one that matches ErrSnapshotLost says that the snapshot has been
	// given up.
	Values(ctx context.Context) iter.Seq2[Value, error]
	// Close releases the snapshot. Closing twice does nothing.
	Close()
}

// Status is what a backend knows about itself. What it does not know is left out.
type Status struct {
	// Revision is the newest revision, Compacted the oldest that can still be read
	// exactly; 0 if nothing has been compacted, or that is unknown.
	Revision  uint64 `json:"revision"`
	Compacted uint64 `json:"compacted,omitempty"`
	// HistoryEvents and HistoryBytes say how much of the past is kept.
	HistoryEvents int   `json:"historyEvents,omitempty"`
	HistoryBytes  int64 `json:"historyBytes,omitempty"`
	// DiskBytes is what the backend's files take on disk.
	DiskBytes uint64 `json:"diskBytes,omitempty"`
	// Watches are those open.
	Watches int `json:"watches,omitempty"`
}

var (
	// ErrChanged is returned by Put for a key that is not as the caller has seen it.
	ErrChanged = errors.New("the object has changed")
	// ErrInUse is returned by Compact while a snapshot needs what it would forget.
	ErrInUse = errors.New("a snapshot is open")
	// ErrSnapshotLost is what a snapshot ends with that was open for too long, or held
	// back too much of the history.
	ErrSnapshotLost = errors.New("the snapshot was given up, for it kept the history from being compacted: read it faster")
)
