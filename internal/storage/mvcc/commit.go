package mvcc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
)

// change is a requested change of one key.
type change struct {
	key string
	// seen is the revision of the object that the writer decided upon, 0 if there was none.
	seen   uint64
	delete bool
	value  []byte
	// ttl is in seconds, 0 for no expiry; nil keeps the object's expiry.
	ttl *uint64
	// user is the name of the user who writes, if the history of the key is kept.
	user string
	// within, unless it is nil, is the resource that the condition unchanged applies to.
	within    *keyspace
	unchanged store.Unchanged
}

// write is an appended change that is not yet visible.
type write struct {
	*version
	wait func() error // nil if the write is already durable
	done chan struct{}
	// alone is set if the write was not durable yet, and no other write was queued, when it was appended.
	alone bool
}

// finished returns a channel that is closed when the write has been published or has failed. It requires writing.
func (w *write) finished() <-chan struct{} {
	if w.done == nil {
		w.done = make(chan struct{})
	}
	return w.done
}

// errConflict reports that the writer saw another version than the latest one. When it is returned, the latest version
// is visible.
var errConflict = errors.New("object has changed since it was read")

// append assigns a revision to a change and passes it to the journal. Each successful call must be followed by
// awaitCommit.
func (c *Core) append(ctx context.Context, ch change) (*write, error) {
	if err := ctx.Err(); err != nil {
		return nil, tooLate(err)
	}
	for {
		w, conflicting, err := c.tryAppend(ch)
		if conflicting == nil {
			return w, err
		}
		// The result of the conflicting write is not durable yet, so it must not be shown.
		select {
		case <-conflicting:
		case <-ctx.Done():
			return nil, tooLate(ctx.Err())
		}
	}
}

// tryAppend is like append, but in a conflict with an unpublished write it returns a channel that is closed when that
// write has been settled.
func (c *Core) tryAppend(ch change) (_ *write, conflicting <-chan struct{}, _ error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.Health(); err != nil {
		return nil, nil, readOnly(err)
	}
	latest, unpublished := c.newest(ch.key)
	switch {
	case latest.live() == ch.seen:
	case unpublished != nil:
		return nil, unpublished.finished(), nil
	default:
		return nil, nil, errConflict
	}
	if ch.within != nil {
		if conflicting, err := c.unchanged(ch.within, ch.unchanged); conflicting != nil || err != nil {
			return nil, conflicting, err
		}
	}

	record := c.record(ch, c.assigned+1, latest)
	c.assigned++
	wait, err := c.journal().Append(record)
	if err != nil {
		c.fail(record.Revision, err)
		return nil, nil, outcomeUnknown(ch.key, err)
	}
	w := &write{version: newVersion(record, latest), wait: wait, alone: wait != nil && len(c.queue) == 0}
	c.pending[ch.key] = w
	c.queue = append(c.queue, w)
	c.writers.Add(1)
	return w, nil, nil
}

// unchanged checks a condition on a resource. If the outcome depends on an unpublished write, it returns a channel that
// is closed when that write has been settled. It requires writing.
func (c *Core) unchanged(s *keyspace, condition store.Unchanged) (conflicting <-chan struct{}, _ error) {
	for key, w := range c.pending {
		if (w.created() || condition.Updates) && strings.HasPrefix(key, s.prefix) {
			return w.finished(), nil
		}
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if s.created > condition.Since || condition.Updates && s.written > condition.Since {
		return nil, store.ErrConcurrentWrite
	}
	return nil, nil
}

// newest returns the latest version of a key, published or not, and its write if it is unpublished. It requires
// writing.
func (c *Core) newest(key string) (*version, *write) {
	if w := c.pending[key]; w != nil {
		return w.version, w
	}
	v, _ := c.get(key)
	return v, nil
}

func (c *Core) record(ch change, revision uint64, latest *version) journal.Record {
	now := c.clock.Now().UTC()
	record := journal.Record{
		Revision:  revision,
		Previous:  ch.seen,
		Deleted:   ch.delete,
		Key:       ch.key,
		Value:     ch.value,
		Committed: now,
		User:      ch.user,
	}
	switch {
	case ch.delete:
	case ch.ttl != nil:
		record.Expires = expiryTime(now, *ch.ttl)
	case ch.seen != 0:
		record.Expires = fromNano(latest.expires)
	}
	return record
}

// expiryTime converts a time to live in seconds into a time; 0 becomes the zero time, which never expires.
func expiryTime(now time.Time, ttl uint64) time.Time {
	const most = uint64(math.MaxInt64 / int64(time.Second) / 2) // about 146 years
	if ttl == 0 {
		return time.Time{}
	}
	return now.Add(time.Duration(min(ttl, most)) * time.Second)
}

// awaitCommit waits until a write is durable and visible. If it returns nil, the write and all writes before it are
// both.
func (c *Core) awaitCommit(w *write) error {
	defer c.writers.Done()
	if w.wait != nil {
		if err := w.wait(); err != nil {
			c.writing.Lock()
			c.fail(w.revision, err)
			c.writing.Unlock()
			return outcomeUnknown(w.key, err)
		}
	}
	if !c.publish(w.revision) {
		return outcomeUnknown(w.key, c.Health())
	}
	return nil
}

// fail makes the core read-only. Nothing from this revision on is published unless the journal is recovered, because
// the outcome of these writes is unknown. It requires writing.
func (c *Core) fail(revision uint64, err error) {
	if c.failure.load() == nil {
		// Other writers get this error too, so prefer the journal's own error: err names this revision only.
		c.failure.store(cmp.Or(c.journal().Err(), err))
	}
	if c.failedAt == 0 || revision < c.failedAt {
		c.failedAt = revision
	}
	keep := c.durable(c.failedAt - 1)
	c.release(c.queue[keep:])
	c.queue = c.queue[:keep]
}

// publish makes every write up to a durable revision visible, in order. It reports whether that revision is visible;
// after a failure it may never be.
func (c *Core) publish(through uint64) bool {
	if c.published.Load() < through {
		for _, s := range c.publishNow(through) {
			s.log.wakeAll()
		}
	}
	return c.published.Load() >= through
}

// publishNow publishes writes and returns the resources whose watchers must be woken.
func (c *Core) publishNow(through uint64) []*keyspace {
	c.publishing.Lock()
	defer c.publishing.Unlock()

	c.writing.Lock()
	n := c.durable(through)
	batch := c.queue[:n:n]
	c.queue = c.queue[n:]
	c.writing.Unlock()
	if n == 0 {
		return nil
	}
	touched := c.show(batch)
	c.writing.Lock()
	defer c.writing.Unlock()
	c.release(batch)
	return touched
}

// durable returns the number of queued writes at or below a revision. It requires writing.
func (c *Core) durable(through uint64) int {
	n := 0
	for n < len(c.queue) && c.queue[n].revision <= through {
		n++
	}
	return n
}

// release ends the waiting for writes that have been published or have failed. It requires writing.
func (c *Core) release(writes []*write) {
	for _, w := range writes {
		if c.pending[w.key] == w {
			delete(c.pending, w.key)
		}
		if w.done != nil {
			close(w.done)
		}
	}
}

// show makes writes visible and returns their resources.
func (c *Core) show(batch []*write) (touched []*keyspace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range batch {
		v := w.version
		replaced := c.latest.set(v)
		object := c.decoded.detach(replaced)
		c.history.append(v, c.options.HotBytes)
		if s := c.keyspaceOf(v.key); s != nil {
			s.add(v, replaced, object)
			if !slices.Contains(touched, s) {
				touched = append(touched, s)
			}
		}
		c.expiry.add(v)
		c.values.add(v, replaced)
		c.published.Store(v.revision)
	}
	c.cachedSnapshot = nil
	if c.history.bytes > c.options.History.MaxBytes {
		await.Notify(c.overweight)
	}
	return touched
}

// tooLate returns the error of a write that was given up before anything was written.
func tooLate(reason error) error {
	return apierrors.NewTimeoutError(fmt.Sprintf("nothing was written: %v", reason), 0)
}

// readOnly returns the error of a rejected write, of which nothing was written. Clients of the API machinery retry by
// themselves if the error holds a delay.
func readOnly(reason error) error {
	refused := apierrors.NewServiceUnavailable(fmt.Sprintf("the store takes no writes: %v%s", reason, outlook(reason)))
	if errors.Is(reason, journal.ErrTransient) {
		refused.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(recoveryInterval / time.Second)}
	}
	return refused
}

// outlook returns the condition under which the core recovers from a failure, empty if it is unknown.
func outlook(failure error) string {
	switch {
	case !errors.Is(failure, journal.ErrTransient):
		return ""
	case errors.Is(failure, syscall.ENOSPC), errors.Is(failure, syscall.EDQUOT):
		return " (recovers by itself when there is space)"
	case errors.Is(failure, syscall.EMFILE), errors.Is(failure, syscall.ENFILE):
		return " (recovers by itself when files can be opened)"
	}
	return ""
}

func outcomeUnknown(key string, reason error) error {
	return apierrors.NewInternalError(fmt.Errorf("the outcome of the write to %q is unknown: %w", key, reason))
}
