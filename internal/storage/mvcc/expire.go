package mvcc

import (
	"container/heap"
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
)

const (
	// expiryInterval bounds how late an object may expire.
	expiryInterval = time.Second
	// expiryRetry is the delay before another attempt to delete an expired object after a failure.
	expiryRetry = 10 * time.Second
	// expiryBatch bounds how many objects are deleted with one wait for the disk.
	expiryBatch = 256
)

// expiry is the time at which an object is to be deleted if it is still at this revision.
type expiry struct {
	at       int64 // Unix nanoseconds
	key      string
	revision uint64
}

// expiryHeap has the next expiry on top. Entries of changed or deleted objects stay until their time. The core's mu
// guards it.
type expiryHeap []expiry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *expiryHeap) Push(x any)        { *h = append(*h, x.(expiry)) }
func (h *expiryHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// add adds a version, if it expires.
func (h *expiryHeap) add(v *version) {
	if v.expires != 0 {
		heap.Push(h, expiry{at: v.expires, key: v.key, revision: v.revision})
	}
}

// due removes and returns up to limit expiries that are not after now.
func (h *expiryHeap) due(now time.Time, limit int) []expiry {
	var due []expiry
	for len(*h) > 0 && len(due) < limit && (*h)[0].at <= now.UnixNano() {
		due = append(due, heap.Pop(h).(expiry))
	}
	return due
}

// deleteExpired deletes objects when their time has come, until ctx ends.
func (c *Core) deleteExpired(ctx context.Context) {
	ticker := c.clock.NewTicker(expiryInterval)
	defer ticker.Stop()
	for {
		for c.deleteDue(ctx) {
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// deleteDue deletes one batch of expired objects. It reports whether there may be more.
func (c *Core) deleteDue(ctx context.Context) bool {
	c.mu.Lock()
	due := c.expiry.due(c.clock.Now(), expiryBatch)
	c.mu.Unlock()

	var writes []*write
	for _, e := range due {
		w, err := c.append(ctx, change{key: e.key, seen: e.revision, delete: true})
		switch {
		case err == nil:
			writes = append(writes, w)
		case errors.Is(err, errConflict):
			// The object has changed meanwhile, and the new version has its own expiry.
		default:
			c.postpone(e)
		}
	}
	for _, w := range writes {
		if err := c.awaitCommit(w); err != nil {
			klog.ErrorS(err, "Deleting an expired object failed", "key", w.key)
		}
	}
	return len(due) > 0 && ctx.Err() == nil
}

// postpone schedules another attempt, for example after the store was read-only.
func (c *Core) postpone(e expiry) {
	e.at = c.clock.Now().Add(expiryRetry).UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	heap.Push(&c.expiry, e)
}
