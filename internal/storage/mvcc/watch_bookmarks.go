package mvcc

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/annexapi/annex/internal/base/await"
)

// lastBookmark is the time before its deadline at which a watch sends a last bookmark, so that the next watch can
// resume there.
const lastBookmark = 2 * time.Second

// requestProgress requests a bookmark from each watch that sends them on request.
func (s *watchSet) requestProgress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		if w.onRequest {
			w.progress.Store(true)
			await.Notify(w.signal)
		}
	}
}

// sendProgress delivers a bookmark: no event up to its revision is still to be delivered.
func (w *watcher) sendProgress() error {
	c := w.store.core
	c.mu.RLock()
	if w.position == w.store.keyspace.log.snapshot.Load().end() {
		w.done = max(w.done, c.published.Load())
	}
	c.mu.RUnlock()
	if err := w.sendBookmark(w.done); err != nil {
		return err
	}
	return w.flush()
}

func (w *watcher) sendBookmark(revision uint64, annotate ...func(runtime.Object) error) error {
	object := w.store.resource.New()
	if err := versioner.UpdateObject(object, revision); err != nil {
		return fmt.Errorf("make bookmark: %w", err)
	}
	for _, f := range annotate {
		if err := f(object); err != nil {
			return fmt.Errorf("make bookmark: %w", err)
		}
	}
	return w.send(watch.Event{Type: watch.Bookmark, Object: object}, false)
}

// untilBookmark returns the time until the next bookmark: the interval, or the time until lastBookmark before the
// deadline if that is sooner.
func (w *watcher) untilBookmark() time.Duration {
	interval := w.store.core.options.BookmarkInterval
	if w.deadline.IsZero() {
		return interval
	}
	if last := w.deadline.Add(-lastBookmark).Sub(w.store.core.clock.Now()); last > 0 {
		return min(interval, last)
	}
	return interval
}
