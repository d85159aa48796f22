package mvcc

import (
	"sync/atomic"
	"time"

	"github.com/annexapi/annex/internal/storage/mvcc/index"
	"github.com/annexapi/annex/internal/wire/verbatim"
	"github.com/annexapi/annex/store/journal"
)

// version is the result of one revision for one key. Once it is visible, its plain fields do not change, except
// replaced, kept and cached.
type version struct {
	key      string
	revision uint64
	// superseded is the revision of the object that this version replaced or deleted; 0 if it created the object.
	superseded uint64
	deleted    bool
	replaced   bool        // there is a later version; guarded by the core's mu
	kept       bool        // the value counts or counted in latestValues; guarded by the core's mu
	cached     cachedState // guarded by the mutex of the core's objectCache
	size       int32       // of the value, which may not be in memory
	committed  int64       // Unix nanoseconds
	expires    int64       // Unix nanoseconds, 0 for never

	// previous is the version before this one, which may be a tombstone. It is set to nil when this version's event
	// leaves the history.
	previous atomic.Pointer[version]
	// value is the value in the journal; nil if it must be read there.
	value   atomic.Pointer[stored]
	decoded atomic.Pointer[decoded]
	// match describes how the value can be served verbatim in an encoding; nil before the first request in one.
	match atomic.Pointer[verbatim.Match]
	// made holds a sizing in its upper half, and in its lower half the size of the item that was last made for that
	// sizing. It costs no memory: with it, a version still fits the same size class of Go's allocator.
	made atomic.Uint64
}

// madeSize returns the size of the item made for a sizing, which must not be 0; false if the size is unknown.
func (v *version) madeSize(as verbatim.Sizing) (int32, bool) {
	made := v.made.Load()
	return int32(uint32(made)), verbatim.Sizing(made>>32) == as
}

// setMadeSize remembers the size of an item.
func (v *version) setMadeSize(as verbatim.Sizing, size int) {
	v.made.Store(uint64(as)<<32 | uint64(uint32(size)))
}

func newVersion(record journal.Record, previous *version) *version {
	v := newVersionOf(record, previous)
	if !v.deleted {
		v.value.Store(&stored{data: record.Value})
	}
	if previous != nil {
		v.key = previous.key // equal; all versions of a key share one string
	}
	return v
}

// newVersionOf is like newVersion, without the value.
func newVersionOf(record journal.Record, previous *version) *version {
	v := &version{
		key:        record.Key,
		revision:   record.Revision,
		superseded: record.Previous,
		deleted:    record.Deleted,
		size:       int32(len(record.Value)),
		committed:  record.Committed.UnixNano(),
	}
	if !record.Expires.IsZero() {
		v.expires = record.Expires.UnixNano()
	}
	v.previous.Store(previous)
	return v
}

var _ index.Version = (*version)(nil)

// Key implements index.Version.
func (v *version) Key() string { return v.key }

// Revision implements index.Version.
func (v *version) Revision() uint64 { return v.revision }

// Deleted implements index.Version.
func (v *version) Deleted() bool { return v.deleted }

func (v *version) created() bool { return v.superseded == 0 }

// live returns the revision that a writer must have seen to write after v; 0 if there is no object.
func (v *version) live() uint64 {
	if v == nil || v.deleted {
		return 0
	}
	return v.revision
}

// at returns the version that was the latest at a revision, nil if there was no object. Compaction may cut the chain
// below it meanwhile, so the result is valid only if the revision is still not compacted afterwards.
func (v *version) at(revision uint64) *version {
	for v != nil && v.revision > revision {
		v = v.previous.Load()
	}
	if v.live() == 0 {
		return nil
	}
	return v
}

// weight returns the encoded bytes that the history holds only because of this event: the object that it replaced or
// deleted, and its own tombstone.
func (v *version) weight(replaced *version) int64 {
	var bytes int64
	if replaced.live() != 0 {
		bytes += int64(len(replaced.key)) + int64(replaced.size)
	}
	if v.deleted {
		bytes += int64(len(v.key))
	}
	return bytes
}

func fromNano(nano int64) time.Time {
	if nano == 0 {
		return time.Time{}
	}
	return time.Unix(0, nano).UTC()
}
