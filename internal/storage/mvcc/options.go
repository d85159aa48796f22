package mvcc

import (
	"math"
	"time"

	"k8s.io/utils/clock"
)

// Options tune a core. The zero value means the defaults; of every number,
// negative means "none at all", which for History.MaxBytes and the bounds of snapshots
// is no limit.
type Options struct {
	// History says how much of the past stays readable.
	History History

	// HotBytes bounds the encoded values of updated and deleted objects that stay
	// in memory; older ones are read from the journal. Default 16 MiB.
	HotBytes int64

	// ValueBytes bounds the encoded values of objects as they are that stay in
	// memory; those written longest ago are read from the journal. Default 1 GiB.
	ValueBytes int64
	// LargeValue is the size in bytes from which such a value is large: those share a
	// sixteenth of ValueBytes, unless Resident. Default 64 KiB; none is large if negative.
	LargeValue int64

	// Resident says that the journal keeps its records in memory. Their values are shared with it
	// then, instead of copied to where they take the least.
	Resident bool

	// ObjectCacheBytes bounds the decoded objects kept beside their encoded
	// bytes, by an estimate. Default 256 MiB.
	ObjectCacheBytes int64

	// LabelEntries bounds the indexes of labels that no Indexer declares, which lists
	// make by selecting by them: one entry for each object that has such a label, of
	// about 150 bytes. Default 1,000,000.
	LabelEntries int64
	// LabelObjects is how many objects a list must be about for such an index: fewer
	// are looked at one by one. Default 1,000.
	LabelObjects int64

	// SnapshotAge bounds how long a snapshot of the storage tools, a backup that is
	// being read say, may hold back the compaction of the history; SnapshotBytes bounds
	// how far the history may exceed History.MaxBytes by that. A snapshot beyond either
	// is given up. Default 1 hour, and 256 MiB.
	SnapshotAge   time.Duration
	SnapshotBytes int64

	// BookmarkInterval is the time between two bookmarks of one watch, for
	// watches that ask for them. Default one minute.
	BookmarkInterval time.Duration

	// Idle leaves the store as it is: nothing expires and no history is compacted
	// unless Compact is called.
	Idle bool

	// Clock stamps records and drives expiry, compaction and bookmarks. Default
	// is the system's clock.
	Clock clock.WithTickerAndDelayedExecution
}

// DefaultLabelEntries is the default of Options.LabelEntries.
const DefaultLabelEntries = 1_000_000

// largeValuesPart is the part of ValueBytes that large values share.
const largeValuesPart = 16

// History is the rule for what compaction leaves: an event stays if it is
// younger than MinAge or among the last MinRevisions, but never more than
// MaxBytes of values that only the history still needs.
type History struct {
	MinAge       time.Duration // default 5 minutes
	MinRevisions int64         // default 10,000
	MaxBytes     int64         // default 256 MiB, counted as encoded
}

func (o Options) withDefaults() Options {
	o.History.MinAge = setting(o.History.MinAge, 5*time.Minute, 0)
	o.History.MinRevisions = setting(o.History.MinRevisions, 10_000, 0)
	o.History.MaxBytes = setting(o.History.MaxBytes, 256<<20, math.MaxInt64)
	o.ValueBytes = setting(o.ValueBytes, 1<<30, 0)
	o.LargeValue = setting(o.LargeValue, largeObject, math.MaxInt64)
	o.HotBytes = setting(o.HotBytes, 16<<20, 0)
	o.ObjectCacheBytes = setting(o.ObjectCacheBytes, 256<<20, 0)
	o.LabelEntries = setting(o.LabelEntries, DefaultLabelEntries, 0)
	o.LabelObjects = setting(o.LabelObjects, 1000, 0)
	o.SnapshotAge = setting(o.SnapshotAge, time.Hour, math.MaxInt64)
	o.SnapshotBytes = setting(o.SnapshotBytes, 256<<20, math.MaxInt64)
	o.BookmarkInterval = setting(o.BookmarkInterval, time.Minute, 0)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

func setting[T ~int64](given, standard, none T) T {
	switch {
	case given == 0:
		return standard
	case given < 0:
		return none
	}
	return given
}
