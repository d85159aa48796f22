package mvcc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// compactionBatch bounds the number of events that leave the history in one step, and thereby how long writers wait.
const compactionBatch = 512

// Compact removes the history up to a visible revision. Objects of that revision stay; earlier revisions can no longer
// be listed or watched from, and their records are also erased from the files of the journal. Compact returns an error
// that matches store.ErrInUse if a snapshot of a storage verb needs an earlier revision. Lists that are being written
// and still read such records are cut off.
func (c *Core) Compact(ctx context.Context, revision uint64) error {
	if current := c.Revision(); revision > current {
		return fmt.Errorf("compact revision %d: the current one is %d", revision, current)
	}
	c.dropLists(revision)
	c.compacting.Lock()
	err := c.compact(ctx, revision)
	c.compacting.Unlock()
	if err != nil {
		return err
	}
	return c.purge(ctx)
}

// purge makes the journal erase all trimmed records from its files.
func (c *Core) purge(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.running, cancel)()
	c.open.RLock()
	defer c.open.RUnlock()
	purger, ok := c.journal().(journal.Purger)
	if !ok || c.closed {
		return nil
	}
	if err := purger.Purge(ctx); err != nil {
		return fmt.Errorf("the history is compacted, but the disk still holds it: %w", err)
	}
	return nil
}

// compact is like Compact, with compacting held and without purging.
func (c *Core) compact(ctx context.Context, revision uint64) error {
	if c.compacted.Load() < revision {
		c.indexes.BeforeTrim(ctx, revision)
	}
	for c.compacted.Load() < revision {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("compact revision %d: %w", revision, err)
		}
		if err := c.compactStep(min(revision, c.compacted.Load()+compactionBatch)); err != nil {
			return fmt.Errorf("compact revision %d: %w", revision, err)
		}
	}
	return nil
}

// compactStep advances the compacted revision. It announces the new one before it removes anything, so that a reader
// that misses a record can find the reason.
func (c *Core) compactStep(revision uint64) error {
	c.mu.Lock()
	if revision = c.movable(c.unpinned(revision)); revision <= c.compacted.Load() {
		c.mu.Unlock()
		return fmt.Errorf("revision %d is read by a snapshot: %w", revision, store.ErrInUse)
	}
	events := slices.Clone(c.history.upTo(revision))
	c.compacted.Store(revision)
	c.mu.Unlock()

	drop, moves := c.pendingTrim, c.pendingMoves
	for _, v := range events {
		if move, kept := c.movingOf(v); kept {
			moves = append(moves, move)
		}
		if v.superseded != 0 {
			drop = append(drop, v.superseded)
		}
		if v.deleted {
			drop = append(drop, v.revision)
		}
	}
	err := c.trimMoving(revision, drop, moves)
	if err != nil {
		c.pend(drop, moves)
	} else {
		c.pend(nil, nil)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if len(events) > 0 {
		c.compactedTime = events[len(events)-1].committed
	}
	c.history.trim(revision)
	for _, s := range c.keyspaces {
		s.log.trim(revision)
	}
	for _, v := range events {
		v.previous.Store(nil)
		if v.deleted && c.latest.get(v.key) == v {
			c.latest.remove(v.key)
		}
	}
	return err
}

// compactPeriodically compacts by the rules of Options.History until ctx ends.
func (c *Core) compactPeriodically(ctx context.Context) {
	interval := min(max(c.options.History.MinAge/10, time.Second), 30*time.Second)
	ticker := c.clock.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		case <-c.overweight:
		}
		if c.Health() != nil {
			continue // keep the history as long as nothing can be added to it
		}
		if err := c.CompactHistory(ctx); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Compacting the history failed, it will be tried again")
		}
	}
}

// CompactHistory compacts the events that the rules of Options.History do not keep. The core calls it periodically.
func (c *Core) CompactHistory(ctx context.Context) error {
	c.dropPins()
	c.indexes.DropUnused()
	c.compacting.Lock()
	defer c.compacting.Unlock()
	byAge, byBytes := c.horizon()
	if byBytes > byAge {
		c.early.Add(byBytes - byAge)
	}
	err := c.compact(ctx, max(byAge, byBytes))
	if errors.Is(err, store.ErrInUse) {
		err = nil // the next call retries
	}
	if err != nil {
		return err
	}
	return c.trimShelf(ctx)
}

// horizon returns the revision up to which events may be compacted because of their age and number, and the revision up
// to which they must be compacted because of their size.
func (c *Core) horizon() (byAge, byBytes uint64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.horizonLocked()
}

// horizonLocked is horizon with mu held.
func (c *Core) horizonLocked() (byAge, byBytes uint64) {
	rules := c.options.History
	now := c.clock.Now()
	old := now.Add(-rules.MinAge).UnixNano()

	byAge, byBytes = c.history.after, c.history.after
	for _, v := range c.history.events {
		if v.committed > now.UnixNano() {
			continue // the clock was ahead: take the event to be as old as the next one, or as now
		}
		if v.committed > old || v.revision+uint64(rules.MinRevisions) > c.history.last() {
			break
		}
		byAge = v.revision
	}
	if c.history.bytes > rules.MaxBytes {
		// An eighth more than necessary, because otherwise the next write would exceed the limit again.
		excess := c.history.bytes - rules.MaxBytes + rules.MaxBytes/8
		for _, v := range c.history.events {
			if excess <= 0 {
				break
			}
			excess -= v.weight(v.previous.Load())
			byBytes = v.revision
		}
	}
	return byAge, byBytes
}
