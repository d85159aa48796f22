package mvcc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/store/journal"
)

// recoveryInterval is the time between two attempts to recover a failed journal.
const recoveryInterval = time.Second

// recoverFailures recovers the journal after each transient failure, until ctx ends. It also does the other work that
// is due every second.
//
// A recovery is a restart of the journal alone. The recovered journal must hold the published records unchanged. It may
// hold more: records whose writers got an error about an unknown outcome. The durable ones among them are published, in
// order; the others have never happened, and their revisions are assigned again. No client can notice, because a
// revision becomes known to readers, watchers and its own writer only by being published; the same holds after a crash.
// A lost record cannot come back later either: the recovered journal has determined the end of its records, and appends
// from there.
//
// Readers and watchers do not notice the recovery. They continue with the values in memory and with the failed journal,
// which is replaced at once when the recovered journal has been checked.
func (c *Core) recoverFailures(ctx context.Context) {
	ticker := c.clock.NewTicker(recoveryInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		// Both channels may be ready, and a closed store must not recover.
		if ctx.Err() != nil {
			return
		}
		c.decoded.rest()
		if !errors.Is(c.Health(), journal.ErrTransient) {
			continue
		}
		if err := c.reopen(ctx); err != nil && ctx.Err() == nil {
			klog.V(2).InfoS("The store cannot be recovered yet", "err", err)
		}
	}
}

// reopen replaces the journal by the recovered one.
func (c *Core) reopen(ctx context.Context) error {
	// The state must not change while the journal is compared with it.
	c.compacting.Lock()
	defer c.compacting.Unlock()
	c.writing.Lock()
	if c.failure.load() == nil {
		c.failure.store(c.Health())
	}
	failed, ok := c.journal().(journal.Recoverer)
	c.writing.Unlock()
	if !ok {
		return errors.New("the journal is none that can be recovered")
	}
	// A write that began before the failure may still be published.
	c.writers.Wait()
	c.publishing.Lock()
	defer c.publishing.Unlock()

	recovered, err := failed.Recover()
	if err != nil {
		return err
	}
	release := journal.Journal.Close
	if recovered == journal.Journal(failed) {
		release = func(journal.Journal) error { return nil } // this journal stays in use for reads in any case
	}
	found, err := c.compare(ctx, recovered)
	var places []*keptPlace
	if err == nil {
		places, err = placesOf(recovered)
	}
	if err != nil {
		if closing := release(recovered); closing != nil {
			err = fmt.Errorf("%w (and closing the journal: %w)", err, closing)
		}
		if errors.Is(err, journal.ErrDamaged) {
			c.writing.Lock()
			c.failure.store(fmt.Errorf("recover store: %w", err))
			c.writing.Unlock()
			klog.ErrorS(err, "The store cannot be recovered, it stays read-only")
		}
		return err
	}
	c.adopt(recovered, found)
	c.shelf.load(places)
	_ = release(failed) // its failure is already known
	c.recoveries.Add(1)
	// A warning, since the failure is logged as an error, and the log of a server has no information by default.
	klog.Warningf("The store takes writes again, from revision %d on; %d writes that had failed were found durable", c.Revision(),
		len(found.tail))

	// The moves that the recovered journal has not made are found anew.
	c.pend(append(c.pendingTrim, found.garbage...), found.moves)
	if len(c.pendingTrim) > 0 || found.compacted < c.compacted.Load() {
		if err := c.trimMoving(c.compacted.Load(), c.pendingTrim, c.pendingMoves); err != nil {
			return err // the next compaction retries
		}
		c.pend(nil, nil)
	}
	return nil
}

// adopt makes a recovered journal the core's own and publishes its tail. It requires publishing.
func (c *Core) adopt(recovered journal.Journal, found *findings) {
	c.open.Lock()
	c.writing.Lock()
	c.inUse.Store(&recovered)
	c.writing.Unlock()
	c.open.Unlock()

	for _, s := range c.show(found.tail) {
		s.log.wakeAll()
	}

	c.writing.Lock()
	defer c.writing.Unlock()
	c.assigned, c.failedAt = c.published.Load(), 0
	if c.closing {
		c.failure.store(journal.ErrClosed)
	} else {
		c.failure.store(nil)
	}
}

// findings are the differences between a recovered journal and the published state.
type findings struct {
	core      *Core
	visible   *snapshot
	last      uint64              // the last revision read
	base      int                 // number of objects at or below the compacted revision
	next      uint64              // the next expected revision of the history
	newest    map[string]*version // in the tail, by key
	tail      []*write            // durable, but not published
	garbage   []uint64            // compacted records that the journal still holds
	compacted uint64
	// moves are those of the garbage that belong on the shelf; unmoved has the newest garbage by key, of which the record
	// that replaced it has not been read yet.
	moves   []moving
	unmoved map[string]uint64
}

// compare replays a recovered journal. An error that matches journal.ErrDamaged means that it is not the journal that
// failed. compare requires publishing and compacting.
func (c *Core) compare(ctx context.Context, recovered journal.Journal) (*findings, error) {
	f := &findings{core: c, visible: c.snapshot(), next: c.history.after + 1, newest: map[string]*version{},
		unmoved: map[string]uint64{}}
	var err error
	f.compacted, err = recovered.Replay(ctx, func(r journal.Record) error {
		if r.Revision <= f.last {
			return journal.Damaged(r.Revision, "comes after revision %d", f.last)
		}
		f.last = r.Revision
		return errors.Join(f.take(r), ctx.Err())
	})
	switch {
	case err != nil:
		return nil, err
	case f.next <= f.visible.revision:
		return nil, journal.Damaged(f.next, "is missing, though it has been published")
	case f.compacted > c.compacted.Load():
		return nil, journal.Damaged(0, "compacted at revision %d, which should be at most %d", f.compacted, c.compacted.Load())
	}
	if want := f.visible.objectsUpTo(c.compacted.Load()); f.base != want {
		return nil, journal.Damaged(0, "%d objects from before revision %d, want %d", f.base, c.compacted.Load(), want)
	}
	return f, nil
}

// objectsUpTo returns the number of objects at or below a revision that are still needed.
func (s *snapshot) objectsUpTo(revision uint64) int {
	n := 0
	for latest := range s.latest.from("") {
		for v := latest; v != nil; v = v.previous.Load() {
			if v.revision <= revision && !v.deleted {
				n++
			}
		}
	}
	return n
}

// take compares the next record.
func (f *findings) take(r journal.Record) error {
	c := f.core
	f.takeMove(r)
	if r.Revision <= c.history.after {
		v := f.visible.latest.get(r.Key)
		for v != nil && v.revision > r.Revision {
			v = v.previous.Load()
		}
		if v == nil || v.revision != r.Revision || v.deleted {
			f.garbage = append(f.garbage, r.Revision)
			if !r.Deleted && c.shelf.of(r.Key) != nil {
				f.unmoved[r.Key] = r.Revision
			}
			return nil
		}
		f.base++
		return v.mustBe(r)
	}
	if r.Revision != f.next {
		return journal.Damaged(f.next, "is missing, the next record is revision %d", r.Revision)
	}
	f.next++
	if r.Revision <= f.visible.revision {
		return c.history.at(r.Revision).mustBe(r)
	}
	previous := f.newest[r.Key]
	if previous == nil {
		previous = f.visible.latest.get(r.Key)
	}
	r.Value = bytes.Clone(r.Value) // the journal owns the value
	v := newVersion(r, previous)
	f.newest[r.Key] = v
	f.tail = append(f.tail, &write{version: v})
	return checkEvent(v, r.Revision)
}

// takeMove notes that a record replaced garbage that belongs on the shelf. It is called before the record is looked at.
func (f *findings) takeMove(r journal.Record) {
	garbage, ok := f.unmoved[r.Key]
	if !ok || r.Previous != garbage {
		return
	}
	delete(f.unmoved, r.Key)
	f.moves = append(f.moves, moving{key: r.Key, event: r.Revision, replaced: garbage, time: r.Committed.UnixMicro(), deletes: r.Deleted})
}

// mustBe compares a version with its record, whose times may be less precise. If the value is not in memory, only its
// size is compared.
func (v *version) mustBe(r journal.Record) error {
	other := newVersion(r, nil)
	same := v.matches(r) && v.size == other.size && micro(v.committed) == micro(other.committed) && micro(v.expires) == micro(other.expires)
	if !same {
		return journal.Damaged(r.Revision, "of %q is not what was published", r.Key)
	}
	return nil
}

func micro(nano int64) int64 { return time.Unix(0, nano).UnixMicro() }
