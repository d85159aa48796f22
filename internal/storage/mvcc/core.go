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

	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// Core is a store.Backend above a journal.
//
// Three mutexes, always taken in this order, split its state:
//
//   - publishing is held by the one goroutine that makes durable writes visible.
//   - writing guards what is assigned but not yet visible.
//   - mu guards what is visible. It is held for microseconds, never across the
//     journal.
type Core struct {
	options Options
	clock   clock.WithTickerAndDelayedExecution
	decoded objectCache

	// open is held for reading while the journal is used beside writing; closed
	// ends that. A journal that is recovered is replaced with both mutexes held.
	open   sync.RWMutex
	closed bool
	inUse  atomic.Pointer[journal.Journal]

	publishing sync.Mutex

	writing  sync.Mutex
	assigned uint64            // the last revision given out
	pending  map[string]*write // the newest unpublished write of a key
	queue    []*write          // unpublished writes, by revision
	failedAt uint64            // no revision from here on is published until the core is recovered
	closing  bool
	writers  sync.WaitGroup

	// failure says why the core is read-only until it is recovered. It is set with
	// writing held, and read without: Health answers even while a write hangs.
	failure atomicError

	mu             sync.RWMutex
	latest         *tree         // by key, tombstones included
	cachedSnapshot *snapshot     // of latest, nil once that has changed
	published      atomic.Uint64 // written with mu held
	history        history
	keyspaces      []*keyspace // by prefix
	expiry         expiryHeap
	values         latestValues
	pins           map[*pinned]struct{} // snapshots of the storage tools
	// watchesEnded says that what is opened from now on takes no watches.
	watchesEnded bool

	compacting  sync.Mutex
	compacted   atomic.Uint64
	pendingTrim []uint64      // records that a failed Trim left behind
	early       atomic.Uint64 // events compacted for their bytes alone
	recoveries  atomic.Uint64

	watching sync.WaitGroup // the goroutines of all watches

	overweight chan struct{}   // the history exceeds its bytes
	running    context.Context // ends when Close is called
	stop       context.CancelFunc
	background sync.WaitGroup
}

// snapshot is the visible state at one revision. It never changes.
type snapshot struct {
	latest   *tree
	revision uint64
}

var _ store.Backend = (*Core)(nil)

// Open replays a journal and returns a core that owns it: Close closes it, and
// so does a failed Open. The context bounds the replay only.
//
// A journal whose records do not fit together gives an error that matches
// journal.ErrDamaged and names the revision.
func Open(ctx context.Context, j journal.Journal, options Options) (*Core, error) {
	options = options.withDefaults()
	c := &Core{
		options:    options,
		clock:      options.Clock,
		decoded:    objectCache{budget: options.ObjectCacheBytes},
		values:     newLatestValues(options),
		pending:    map[string]*write{},
		latest:     newTree(),
		overweight: make(chan struct{}, 1),
	}
	c.inUse.Store(&j)
	c.history.drop = c.values.slabs.drop
	if err := c.replay(ctx); err != nil {
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
	s := newResourceStore(c, keyspace, resource)
	if s.indexes != nil {
		s.maintain(s.indexes)
	}
	return s, nil
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

// CompactedRevision is the oldest revision that can still be listed exactly or
// watched from; 0 if nothing has been compacted.
func (c *Core) CompactedRevision() uint64 { return c.compacted.Load() }

// journal returns the journal in use.
func (c *Core) journal() journal.Journal { return *c.inUse.Load() }

// Health implements store.Backend. An error that matches journal.ErrTransient is
// one that the core recovers from by itself when its cause has passed. It takes no
// lock, so that it answers whatever the disk does.
func (c *Core) Health() error {
	failure := c.failure.load()
	switch reported := c.journal().Err(); {
	case failure == nil:
		return reported
	case reported != nil && errors.Is(failure, journal.ErrTransient):
		return reported // which may have turned into a lasting one
	}
	return failure
}

// atomicError is an error that is read without a lock; nil at first.
type atomicError struct{ pointer atomic.Pointer[error] }

func (e *atomicError) load() error {
	if err := e.pointer.Load(); err != nil {
		return *err
	}
	return nil
}

func (e *atomicError) store(err error) { e.pointer.Store(&err) }

// Close implements store.Backend. Reads in memory go on working.
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
	HotBytes     int64  // of those, the values in memory
	TrimmedEarly uint64 // events that MaxBytes took before their time
	ValueBytes   int64  // values of the latest versions in memory
	ValueLimit   int64  // Options.ValueBytes
	DecodedBytes int64  // estimate for the decoded objects in memory
	DecodedLimit int64  // Options.ObjectCacheBytes
	LabelEntries int64  // of indexes of labels that no Indexer declares
	LabelLimit   int64  // Options.LabelEntries
	Watches      int
	ReadOnly     bool
	Recoveries   uint64 // times that a failed journal was recovered
}

// Stats returns the current figures.
func (c *Core) Stats() Stats {
	readOnly := c.Health() != nil
	labelEntries := c.labelEntries()

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

// get returns the latest visible version of a key, which may be a tombstone, and
// the revision at which that is so.
func (c *Core) get(key string) (*version, uint64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.latest.get(key), c.published.Load()
}

// bytes returns what the journal holds for a version: from memory, else from the
// journal. errCompacted if the history has moved past it.
func (c *Core) bytes(v *version) ([]byte, error) {
	if value := v.value.Load(); value != nil {
		return value.data, nil
	}
	record, err := c.read(v.revision)
	switch {
	case err == nil:
		return record.Value, nil
	case c.compacted.Load() > v.revision:
		// The record of the latest version stays for as long as it is that.
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
	// Recovering a journal may take files from under the failed one. This waits
	// until it has ended.
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

// isSound tells whether a journal is the current one and has not failed in a way
// that it is being recovered from.
func (c *Core) isSound(j journal.Journal) bool {
	return c.journal() == j && !errors.Is(c.Health(), journal.ErrTransient)
}

// keyspace returns the keyspace of a prefix, making it from what is stored if need be.
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
	c.keyspaces = append(c.keyspaces[:i:i], append([]*keyspace{s}, c.keyspaces[i:]...)...)
	return s, nil
}

// keyspaceOf returns the keyspace that a key belongs to, nil if its resource is not
// open. It needs mu.
func (c *Core) keyspaceOf(key string) *keyspace {
	i := sort.Search(len(c.keyspaces), func(i int) bool { return c.keyspaces[i].prefix > key }) - 1
	if i >= 0 && strings.HasPrefix(key, c.keyspaces[i].prefix) {
		return c.keyspaces[i]
	}
	return nil
}
