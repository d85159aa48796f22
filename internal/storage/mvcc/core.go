package mvcc

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/storage/mvcc/index"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// Core is a store.Backend above a journal.
//
// Three mutexes, always taken in this order, split its state:
//
//   - publishing is held by the one goroutine that makes durable writes visible.
//   - writing guards revisions that are assigned but not yet visible.
//   - mu guards the visible state. It is held for microseconds, never across the
//     journal.
type Core struct {
	options Options
	clock   clock.WithTickerAndDelayedExecution
	decoded objectCache
	indexes *index.Maintenance[*version] // of all resources

	// open is held for reading while a goroutine that does not hold writing uses the journal; closed forbids further
	// use. Replacing a recovered journal requires both mutexes.
	open   sync.RWMutex
	closed bool
	inUse  atomic.Pointer[journal.Journal]

	publishing sync.Mutex

	writing  sync.Mutex
	assigned uint64            // the last assigned revision
	pending  map[string]*write // the newest unpublished write of each key
	queue    []*write          // unpublished writes, by revision
	failedAt uint64            // no revision from here on is published until the journal is recovered; 0 without a failure
	closing  bool
	writers  sync.WaitGroup

	// failure is the reason why the core is read-only until it is recovered. It is set with writing held, and read
	// without it: Health answers even while a write hangs.
	failure atomicError

	mu             sync.RWMutex
	latest         *tree         // by key, tombstones included
	cachedSnapshot *snapshot     // of latest; nil once latest has changed
	published      atomic.Uint64 // written with mu held
	history        history
	keyspaces      []*keyspace // by prefix
	expiry         expiryHeap
	values         latestValues
	pins           map[*pinned]struct{} // open snapshots, of storage verbs and of lists
	// compactedTime is the time of the compacted revision in Unix nanoseconds, 0 if it is unknown.
	compactedTime int64
	// watchesEnded is set once no watch may start any more, in keyspaces that are opened later as well.
	watchesEnded bool

	compacting  sync.Mutex
	compacted   atomic.Uint64
	pendingTrim []uint64 // records that a failed Trim left in the journal
	// pendingMoves are those of pendingTrim that belong on the shelf.
	pendingMoves []moving
	// waiting are the pendingMoves for readers.
	waiting    atomic.Pointer[[]moving]
	shelf      shelf
	early      atomic.Uint64 // events compacted only because of MaxBytes
	recoveries atomic.Uint64

	watching sync.WaitGroup // the goroutines of all watches

	overweight chan struct{}   // signals that the history exceeds its MaxBytes
	running    context.Context // ends when Close is called
	stop       context.CancelFunc
	background sync.WaitGroup
}

// snapshot is the visible state at one revision. It is immutable.
type snapshot struct {
	latest   *tree
	revision uint64
}

var _ store.Backend = (*Core)(nil)

// Open replays a journal and returns a core that owns it: Close closes the journal, and so does a failed Open. ctx
// bounds the replay only.
//
// If the records of the journal are inconsistent, Open returns an error that matches journal.ErrDamaged and names the
// revision.
func Open(ctx context.Context, j journal.Journal, options Options) (*Core, error) {
	options = options.withDefaults()
	c := &Core{
		options:    options,
		clock:      options.Clock,
		decoded:    objectCache{budget: options.ObjectCacheBytes},
		indexes:    index.NewMaintenance[*version](options.LabelEntries),
		values:     newLatestValues(options),
		pending:    map[string]*write{},
		latest:     newTree(),
		overweight: make(chan struct{}, 1),
	}
	c.inUse.Store(&j)
	c.history.drop = c.values.slabs.drop
	err := c.replay(ctx)
	if err == nil {
		err = c.loadShelf(j)
	}
	if err != nil {
		if closeErr := j.Close(); closeErr != nil {
			err = fmt.Errorf("%w (and closing the journal: %w)", err, closeErr)
		}
		return nil, fmt.Errorf("open store: %w", err)
	}
	c.running, c.stop = context.WithCancel(context.Background())
	if options.Idle {
		return c, nil
	}
	c.background.Go(func() { c.compactPeriodically(c.running) })
	c.background.Go(func() { c.deleteExpired(c.running) })
	c.background.Go(func() { c.recoverFailures(c.running) })
	return c, nil
}

// Open implements store.Backend.
func (c *Core) Open(resource store.Resource) (storage.Interface, error) {
	if err := checkResource(resource); err != nil {
		return nil, err
	}
	keyspace, err := c.keyspace(resource.Prefix)
	if err != nil {
		return nil, err
	}
	if resource.Retention != nil {
		if err := c.retain(keyspace, *resource.Retention); err != nil {
			return nil, err
		}
	}
	return newResourceStore(c, keyspace, resource), nil
}

func checkResource(r store.Resource) error {
	switch {
	case !strings.HasPrefix(r.Prefix, "/") || strings.HasSuffix(r.Prefix, "/"):
		return fmt.Errorf("open resource %s: prefix %q must start with a slash and not end with one", r.Resource, r.Prefix)
	case r.Codec == nil || r.New == nil || r.NewList == nil:
		return fmt.Errorf("open resource %s: Codec, New and NewList are required", r.Resource)
	}
	return nil
}

// Revision implements store.Backend.
func (c *Core) Revision() uint64 { return c.published.Load() }

// CompactedRevision returns the oldest revision that can still be listed exactly or watched from; 0 if nothing has been
// compacted.
func (c *Core) CompactedRevision() uint64 { return c.compacted.Load() }

// journal returns the journal in use.
func (c *Core) journal() journal.Journal { return *c.inUse.Load() }

// Health implements store.Backend. After an error that matches journal.ErrTransient, the core recovers by itself once
// the cause is gone. Health takes no lock, so it never waits for the disk.
func (c *Core) Health() error {
	failure := c.failure.load()
	switch reported := c.journal().Err(); {
	case failure == nil:
		return reported
	case reported != nil && errors.Is(failure, journal.ErrTransient):
		return reported // may have become permanent meanwhile
	}
	return failure
}

// atomicError is an error that is read without a lock. The zero value holds nil.
type atomicError struct{ pointer atomic.Pointer[error] }

func (e *atomicError) load() error {
	if err := e.pointer.Load(); err != nil {
		return *err
	}
	return nil
}

func (e *atomicError) store(err error) { e.pointer.Store(&err) }

// Close implements store.Backend. Reads that need only memory keep working.
func (c *Core) Close() error {
	c.writing.Lock()
	c.closing = true
	if c.failure.load() == nil {
		c.failure.store(journal.ErrClosed)
	}
	c.writing.Unlock()

	c.stop()
	c.background.Wait()
	c.stopWatchers()
	c.writers.Wait()

	c.open.Lock()
	defer c.open.Unlock()
	c.closed = true
	return c.journal().Close()
}

// Stats are figures about a core, for metrics and tests.
type Stats struct {
	Revision     uint64
	Compacted    uint64
	Events       int    // revisions in the history
	HistoryBytes int64  // values and keys that only the history needs
	HistoryLimit int64  // History.MaxBytes
	HotBytes     int64  // the part of HistoryBytes that is in memory
	Kept         int64  // records on the shelf of the journal
	KeptBytes    int64  // their size with the entries by which they are found
	TrimmedEarly uint64 // events that were compacted early because of MaxBytes
	ValueBytes   int64  // values in memory of the latest versions
	ValueLimit   int64  // Options.ValueBytes
	DecodedBytes int64  // estimate for the decoded objects in memory
	DecodedLimit int64  // Options.ObjectCacheBytes
	LabelEntries int64  // entries of the indexes of labels that no Indexer declares
	LabelLimit   int64  // Options.LabelEntries
	Watches      int
	ReadOnly     bool
	Recoveries   uint64 // times that a failed journal was recovered
}

// Stats returns the current figures. It may be called concurrently with any other method.
func (c *Core) Stats() Stats {
	readOnly := c.Health() != nil
	labelEntries := c.indexes.LabelEntries()

	var kept, keptBytes int64
	for _, place := range c.shelf.all() {
		kept, keptBytes = kept+place.records, keptBytes+place.bytes
	}

	c.mu.RLock()
	defer c.mu.RUnlock()
	watches := 0
	for _, s := range c.keyspaces {
		watches += int(s.watches.count.Load())
	}
	return Stats{
		Revision:     c.published.Load(),
		Compacted:    c.compacted.Load(),
		Events:       len(c.history.events),
		HistoryBytes: c.history.bytes,
		HistoryLimit: c.options.History.MaxBytes,
		HotBytes:     c.history.hotBytes,
		Kept:         kept,
		KeptBytes:    keptBytes,
		TrimmedEarly: c.early.Load(),
		ValueBytes:   c.values.bytes(),
		ValueLimit:   c.values.budget,
		DecodedBytes: c.decoded.bytes(),
		DecodedLimit: c.decoded.budget,
		LabelEntries: labelEntries,
		LabelLimit:   c.options.LabelEntries,
		Watches:      watches,
		ReadOnly:     readOnly,
		Recoveries:   c.recoveries.Load(),
	}
}

// snapshot returns the visible state. Snapshots are shared until the next write.
func (c *Core) snapshot() *snapshot {
	c.mu.RLock()
	cachedSnapshot := c.cachedSnapshot
	c.mu.RUnlock()
	if cachedSnapshot != nil {
		return cachedSnapshot
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshotLocked()
}

// snapshotLocked is snapshot with mu held.
func (c *Core) snapshotLocked() *snapshot {
	if c.cachedSnapshot == nil {
		c.cachedSnapshot = &snapshot{latest: c.latest.copy(), revision: c.published.Load()}
	}
	return c.cachedSnapshot
}

// get returns the latest visible version of a key, which may be a tombstone, and the published revision at that moment.
func (c *Core) get(key string) (*version, uint64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.latest.get(key), c.published.Load()
}

// bytes returns the encoded value of a version, from memory or else from the journal. It returns errCompacted if the
// history has been compacted past the version.
func (c *Core) bytes(v *version) ([]byte, error) {
	if value := v.value.Load(); value != nil {
		return value.data, nil
	}
	record, err := c.read(v.revision)
	switch {
	case err == nil:
		return record.Value, nil
	case c.compacted.Load() > v.revision:
		// The record of a latest version is never trimmed, so a missing one means damage.
		if latest, _ := c.get(v.key); latest != v {
			return nil, errCompacted
		}
	}
	return nil, fmt.Errorf("read the journal: %w", err)
}

func (c *Core) read(revision uint64) (journal.Record, error) {
	record, from, err := c.readNow(revision)
	if err == nil || c.isSound(from) {
		return record, err
	}
	// Recovering a journal may remove files that the failed journal still reads. Wait until the recovery has ended.
	c.compacting.Lock()
	defer c.compacting.Unlock()
	record, _, err = c.readNow(revision)
	return record, err
}

func (c *Core) readNow(revision uint64) (journal.Record, journal.Journal, error) {
	c.open.RLock()
	defer c.open.RUnlock()
	if c.closed {
		return journal.Record{}, c.journal(), journal.ErrClosed
	}
	from := c.journal()
	record, err := from.Read(revision)
	return record, from, err
}

// isSound reports whether j is the current journal and is not being recovered from a transient failure.
func (c *Core) isSound(j journal.Journal) bool {
	return c.journal() == j && !errors.Is(c.Health(), journal.ErrTransient)
}

// keyspace returns the keyspace of a prefix. It makes a missing one from the tree and the history.
func (c *Core) keyspace(prefix string) (*keyspace, error) {
	prefix += "/"
	c.mu.Lock()
	defer c.mu.Unlock()
	i := sort.Search(len(c.keyspaces), func(i int) bool { return c.keyspaces[i].prefix >= prefix })
	if i < len(c.keyspaces) && c.keyspaces[i].prefix == prefix {
		return c.keyspaces[i], nil
	}
	for _, other := range c.keyspaces {
		if strings.HasPrefix(other.prefix, prefix) || strings.HasPrefix(prefix, other.prefix) {
			return nil, fmt.Errorf("open resource: prefix %q overlaps with %q", prefix, other.prefix)
		}
	}
	s := newKeyspace(prefix, c.latest, c.history.events)
	s.watches.closed = c.watchesEnded
	if place := c.shelf.place(prefix); place != nil {
		s.attributed.Store(place.rule.Keeps())
	}
	c.keyspaces = append(c.keyspaces[:i:i], append([]*keyspace{s}, c.keyspaces[i:]...)...)
	return s, nil
}

// keyspaceOf returns the keyspace that a key belongs to, nil if its resource is not open. It requires mu.
func (c *Core) keyspaceOf(key string) *keyspace {
	i := sort.Search(len(c.keyspaces), func(i int) bool { return c.keyspaces[i].prefix > key }) - 1
	if i >= 0 && strings.HasPrefix(key, c.keyspaces[i].prefix) {
		return c.keyspaces[i]
	}
	return nil
}
