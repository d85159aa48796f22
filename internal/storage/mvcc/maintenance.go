package mvcc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

var _ store.Maintenance = (*Core)(nil)

// pinned is a snapshot for a storage verb or a list. While it is open, the history is not compacted past its revision,
// so every value of it can be read, if necessary from the journal.
//
// A slow reader could stop compaction forever. Therefore a snapshot is given up when it has been open for
// Options.SnapshotAge, or when the history that it holds back exceeds its limit by Options.SnapshotBytes, oldest first.
// Its reader gets an error at the next value.
type pinned struct {
	core     *Core
	snapshot *snapshot
	revision uint64 // the history is not compacted past it
	opened   time.Time
	release  func()
	lost     atomicError // the reason why the snapshot was given up; nil while it is valid
	// yields is set if the snapshot is given up for a requested compaction.
	yields bool
}

// Snapshot implements store.Maintenance.
func (c *Core) Snapshot(context.Context) (store.Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pin(c.published.Load()), nil
}

// pinList pins a revision for a list, so that its values stay in the journal while the list is written. A requested
// compaction overrides the pin. pinList returns nil if compaction has passed the revision.
func (c *Core) pinList(revision uint64) *pinned {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.compacted.Load() > revision {
		return nil
	}
	p := c.newPin(revision)
	p.yields = true
	return p
}

// dropLists gives up the pins of lists that would block a requested compaction.
func (c *Core) dropLists(revision uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.pins {
		if p.yields && p.revision < revision {
			c.dropPin(p, fmt.Errorf("%w: the history was compacted up to revision %d", store.ErrSnapshotLost, revision))
		}
	}
}

// pin returns a new pin with the current snapshot. It requires mu.
func (c *Core) pin(revision uint64) *pinned {
	p := c.newPin(revision)
	p.snapshot = c.snapshotLocked()
	return p
}

// newPin is like pin, without a snapshot.
func (c *Core) newPin(revision uint64) *pinned {
	p := &pinned{core: c, revision: revision, opened: c.clock.Now()}
	p.release = sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pins, p)
	})
	if c.pins == nil {
		c.pins = map[*pinned]struct{}{}
	}
	c.pins[p] = struct{}{}
	return p
}

// dropPins gives up snapshots that hold back compaction for too long, or too much of the history.
func (c *Core) dropPins() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.pins {
		if age := c.clock.Since(p.opened); age > c.options.SnapshotAge {
			c.dropPin(p, fmt.Errorf("%w: it was open for %s", store.ErrSnapshotLost, age.Round(time.Second)))
		}
	}
	if c.history.bytes-c.options.History.MaxBytes <= c.options.SnapshotBytes {
		return
	}
	_, excess := c.horizonLocked()
	oldest := c.unpinned(excess)
	for p := range c.pins {
		if p.revision == oldest && oldest < excess {
			c.dropPin(p, fmt.Errorf("%w: it held back %d bytes of history", store.ErrSnapshotLost, c.history.bytes))
		}
	}
}

func (c *Core) dropPin(p *pinned, reason error) {
	p.lost.store(reason)
	delete(c.pins, p)
}

// unpinned returns the revision up to which the history may be compacted, at most the given one. It requires mu.
func (c *Core) unpinned(revision uint64) uint64 {
	for p := range c.pins {
		revision = min(revision, p.revision)
	}
	return revision
}

// Revision implements store.Snapshot.
func (p *pinned) Revision() uint64 { return p.snapshot.revision }

// Values implements store.Snapshot.
func (p *pinned) Values(ctx context.Context) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		for v := range p.snapshot.latest.from("") {
			if v.live() == 0 {
				continue
			}
			stored, err := p.core.value(v)
			if err == nil {
				err = ctx.Err()
			}
			if lost := p.lost.load(); lost != nil {
				err = lost
			}
			if !yield(stored, err) || err != nil {
				return
			}
		}
	}
}

// Close implements store.Snapshot.
func (p *pinned) Close() { p.release() }

// Put implements store.Maintenance.
func (c *Core) Put(ctx context.Context, v store.Value, seen uint64) (uint64, error) {
	ch := change{key: v.Key, seen: seen, value: v.Data, ttl: c.ttl(v.Expires)}
	w, err := c.append(ctx, ch)
	switch {
	case errors.Is(err, errConflict):
		return 0, fmt.Errorf("put %s: %w", v.Key, store.ErrChanged)
	case err != nil:
		return 0, err
	}
	if err := c.awaitCommit(w); err != nil {
		return 0, err
	}
	return w.revision, nil
}

// ttl returns the number of seconds until a time, at least one; 0 for the zero time, which never expires.
func (c *Core) ttl(expires time.Time) *uint64 {
	ttl := uint64(0)
	if !expires.IsZero() {
		left := expires.Sub(c.clock.Now()) + time.Second - 1
		ttl = uint64(max(1, left/time.Second))
	}
	return &ttl
}

// ValueContext implements store.Maintenance.
func (c *Core) ValueContext(key string) value.DefaultContext { return value.DefaultContext(key) }

// Status implements store.Maintenance.
func (c *Core) Status(context.Context) (store.Status, error) {
	stats := c.Stats()
	status := store.Status{
		Revision:      stats.Revision,
		Compacted:     stats.Compacted,
		HistoryEvents: stats.Events,
		HistoryBytes:  stats.HistoryBytes,
		KeptRevisions: stats.Kept,
		KeptBytes:     stats.KeptBytes,
		Watches:       stats.Watches,
	}
	c.open.RLock()
	defer c.open.RUnlock()
	if c.closed {
		return store.Status{}, journal.ErrClosed
	}
	if sized, ok := c.journal().(interface{ DiskUsage() uint64 }); ok {
		status.DiskBytes = sized.DiskUsage()
	}
	return status, nil
}

// maxInFlight is the number of records of a Fill that wait for the disk at once.
const maxInFlight = 1024

// Fill writes values into a new journal, as objects created at the revisions above base, and compacts their history: a
// watch from any revision below the last one, which Fill returns, is expired. When Fill returns without an error, the
// values are durable. The journal must be new, because Fill replays it. Fill does not close it.
func Fill(ctx context.Context, j journal.Journal, base uint64, values iter.Seq2[store.Value, error]) (last uint64, err error) {
	compacted, err := j.Replay(ctx, func(r journal.Record) error {
		return fmt.Errorf("the journal is not new: it holds revision %d", r.Revision)
	})
	if err != nil {
		return 0, err
	}
	if compacted != 0 {
		return 0, fmt.Errorf("the journal is not new: revision %d is compacted", compacted)
	}
	base = max(base, firstRevision)
	if err := j.Trim(base, nil); err != nil {
		return 0, err
	}
	last = base
	var waits []func() error
	awaitAll := func() error {
		for _, wait := range waits {
			if err := wait(); err != nil {
				return err
			}
		}
		waits = waits[:0]
		return nil
	}
	now := time.Now().UTC()
	for v, err := range values {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return 0, err
		}
		last++
		wait, err := j.Append(journal.Record{Revision: last, Key: v.Key, Value: v.Data, Committed: now, Expires: v.Expires})
		if err != nil {
			return 0, err
		}
		if wait != nil {
			waits = append(waits, wait)
		}
		if len(waits) == maxInFlight {
			if err := awaitAll(); err != nil {
				return 0, err
			}
		}
	}
	if err := awaitAll(); err != nil {
		return 0, err
	}
	return last, j.Trim(last, nil)
}

// Scan reads every record that the core still needs from the journal and compares it with the state in memory. It
// passes each record to yield, or to damaged if the record cannot be read or differs. It returns the compacted revision
// at the time of the call.
func (c *Core) Scan(ctx context.Context, yield func(journal.Record) error, damaged func(*journal.Damage)) (compacted uint64, err error) {
	c.mu.Lock()
	compacted = c.compacted.Load()
	p := c.pin(compacted)
	c.mu.Unlock()
	defer p.Close()

	var kept []*version
	for v := range p.snapshot.latest.from("") {
		for ; v != nil; v = v.previous.Load() {
			if !v.deleted || v.revision > compacted {
				kept = append(kept, v)
			}
			if v.revision <= compacted {
				break // earlier records are trimmed, or about to be
			}
		}
	}
	slices.SortFunc(kept, func(a, b *version) int { return cmp.Compare(a.revision, b.revision) })
	for _, v := range kept {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		r, err := c.read(v.revision)
		if err == nil && !v.matches(r) {
			err = journal.Damaged(v.revision, "the record is not the one that was written")
		}
		if errors.Is(err, journal.ErrClosed) {
			return 0, err
		}
		if lost := p.lost.load(); lost != nil {
			return 0, lost // a missing record may have been compacted meanwhile
		}
		if err != nil {
			damaged(&journal.Damage{First: v.revision, Last: v.revision, Err: err})
			continue
		}
		if err := yield(r); err != nil {
			return 0, err
		}
	}
	return compacted, nil
}

// matches reports whether a record belongs to a version, as far as the version is in memory.
func (v *version) matches(r journal.Record) bool {
	value := v.value.Load()
	return r.Key == v.key && r.Previous == v.superseded && r.Deleted == v.deleted &&
		(value == nil || bytes.Equal(value.data, r.Value))
}
