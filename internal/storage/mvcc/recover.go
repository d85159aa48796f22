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

// recoveryInterval is the time between two tries to recover a failed journal.
const recoveryInterval = time.Second

// recoverFailures recovers the journal whenever it has failed transiently, until
// the context ends. What is due every second besides is done there, too.
//
// A recovery is a restart of the journal alone. What it replays must be what is
// published, unchanged, and may go on after that: records whose writers were told
// that the outcome was unknown. Those that turn out to be durable are published, in order; the
// others have never happened, and their revisions are given out again. No client
// can tell, because a revision becomes known to readers, watchers and its own writer
// only by being published; it is the same after a crash. Nor can the lost record
// come back later: the recovered journal has found out where its records end, and
// goes on from there.
//
// Readers and watchers do not notice. They go on with what is in memory and with
// the failed journal, which is replaced at once when the new one has been checked.
func (c *Core) recoverFailures(ctx context.Context) {
	ticker := c.clock.NewTicker(recoveryInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		// Both may have come, and a store that is closed recovers no more.
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

// reopen replaces the journal by what it recovers to.
func (c *Core) reopen(ctx context.Context) error {
	// Nothing else moves while a journal is compared with what is published.
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
		release = func(journal.Journal) error { return nil } // it is what is read, whatever comes
	}
	found, err := c.compare(ctx, recovered)
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
	_ = release(failed) // that it has failed is known
	c.recoveries.Add(1)
	klog.InfoS("The store takes writes again", "revision", c.Revision(), "foundDurable", len(found.tail))

	c.pendingTrim = append(c.pendingTrim, found.garbage...)
	if len(c.pendingTrim) > 0 || found.compacted < c.compacted.Load() {
		if err := c.trim(c.compacted.Load(), c.pendingTrim); err != nil {
			return err // the next compaction tries again
		}
		c.pendingTrim = nil
	}
	return nil
}

// adopt makes a recovered journal the core's own and publishes its tail. It needs
// publishing.
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

// findings are what a recovered journal holds, compared with what is published.
type findings struct {
	core      *Core
	visible   *snapshot
	last      uint64              // the last revision seen
	base      int                 // objects at or below the compacted revision
	next      uint64              // of the history
	newest    map[string]*version // in the tail, by key
	tail      []*write            // durable, but not published
	garbage   []uint64            // compacted away, but still there
	compacted uint64
}

// compare replays a recovered journal. An error that matches ErrDamaged says that
// it is not the one that failed. It needs publishing and compacting.
func (c *Core) compare(ctx context.Context, recovered journal.Journal) (*findings, error) {
	f := &findings{core: c, visible: c.snapshot(), next: c.history.after + 1, newest: map[string]*version{}}
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

// objectsUpTo counts the objects of up to a revision that are still needed.
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
	if r.Revision <= c.history.after {
		v := f.visible.latest.get(r.Key)
		for v != nil && v.revision > r.Revision {
			v = v.previous.Load()
		}
		if v == nil || v.revision != r.Revision || v.deleted {
			f.garbage = append(f.garbage, r.Revision)
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
	r.Value = bytes.Clone(r.Value) // the journal's
	v := newVersion(r, previous)
	f.newest[r.Key] = v
	f.tail = append(f.tail, &write{version: v})
	return checkEvent(v, r.Revision)
}

// mustBe compares a version with its record, which may be less precise about
// times. A value that is not in memory can only be compared by its size.
func (v *version) mustBe(r journal.Record) error {
	other := newVersion(r, nil)
	same := v.matches(r) && v.size == other.size && micro(v.committed) == micro(other.committed) && micro(v.expires) == micro(other.expires)
	if !same {
		return journal.Damaged(r.Revision, "of %q is not what was published", r.Key)
	}
	return nil
}

func micro(nano int64) int64 { return time.Unix(0, nano).UnixMicro() }
