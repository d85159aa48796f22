package mvcc

import (
	"math"
	"time"

	"k8s.io/utils/clock"
)

// Options tune a core. A zero field selects its default. A negative number means none at all; for History.MaxBytes,
// LargeValue, SnapshotAge and SnapshotBytes it means no limit.
type Options struct {
	// History is the rule for compaction.
	History History

	// HotBytes bounds the encoded values of updated and deleted objects that stay in memory; older ones are read from
	// the journal. Default 16 MiB.
	HotBytes int64

	// ValueBytes bounds the encoded values of the latest versions that stay in memory. The values that were written
	// longest ago are read from the journal. Default 1 GiB.
	ValueBytes int64
	// LargeValue is the size in bytes from which the value of a latest version is large. All large values together get
	// a sixteenth of ValueBytes, unless Resident is set. Default 64 KiB; if negative, no value is large.
	LargeValue int64

	// Resident must be set if the journal keeps its records in memory. The core then shares the values with the journal
	// instead of copying them into slabs.
	Resident bool

	// ObjectCacheBytes bounds the estimated size of the decoded objects that are kept beside their encoded bytes.
	// Default 256 MiB.
	ObjectCacheBytes int64

	// LabelEntries bounds the entries of indexes of labels that no Indexer declares. Lists that select by such labels
	// create these indexes. An index has one entry of about 150 bytes for each object with the label. Default
	// 1,000,000.
	LabelEntries int64
	// LabelObjects is the number of objects from which a list may create such an index, and from which a query with
	// conditions uses orders, and digests of objects, to decide about them; lists of fewer objects check
	// each object. Default 1,000.
	LabelObjects int64

	// SnapshotAge bounds how long a snapshot may delay the compaction of the history. Storage verbs such as a backup
	// hold snapshots, and so do long lists while they are written. SnapshotBytes bounds by how much the history may
	// exceed History.MaxBytes because of that. A snapshot beyond either bound is given up. Default 1 hour, and 256 MiB.
	SnapshotAge   time.Duration
	SnapshotBytes int64

	// BookmarkInterval is the time between two bookmarks of one watch, for watches that request them. Default one
	// minute.
	BookmarkInterval time.Duration

	// Idle disables all background work: nothing expires, the history is compacted only by calls of Compact or
	// CompactHistory, and a failed journal is not recovered.
	Idle bool

	// Clock stamps records and drives expiry, compaction and bookmarks. Default is the system clock.
	Clock clock.WithTickerAndDelayedExecution
}

// DefaultLabelEntries is the default of Options.LabelEntries.
const DefaultLabelEntries = 1_000_000

// largeValuesPart is the divisor of ValueBytes that yields the budget of all large values.
const largeValuesPart = 16

// History is the rule for compaction. An event stays if it is younger than MinAge or among the last MinRevisions.
// Events are compacted earlier if the values that only the history needs exceed MaxBytes.
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
