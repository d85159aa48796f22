package mvcc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/storage/mvcc/index"
	"github.com/annexapi/annex/internal/wire/push"
)

const (
	// watchBuffer is the number of events that a client may be behind its watcher.
	watchBuffer = 100
	// watchBatch is the number of events that a watcher takes from the log at once.
	watchBatch = 64
)

// watcher is one watch. It reads the log of its resource at its own pace.
type watcher struct {
	store     *resourceStore
	key       string // ends with a slash if recursive
	recursive bool
	predicate storage.SelectionPredicate
	selectAll bool
	lookups   index.Lookups // that follow from the predicate

	ctx    context.Context
	cancel context.CancelFunc
	// unwatch cancels the notification of the end of ctx, once the watch ends by itself.
	unwatch func() bool
	result  chan watch.Event
	// out receives the events instead of result, from the goroutine that calls ResultChan; nil for a watch with a
	// goroutine of its own.
	out push.Output
	use use

	initial *snapshot // holds the initial objects, which are sent first; nil for none
	// wrap returns the object of an initial event for a shared object.
	wrap       func(runtime.Object) runtime.Object
	plan       index.Plan[*version] // for the initial objects
	endInitial bool                 // a bookmark marks the end of the initial events
	startErr   error                // if not nil, the watch delivers only this error
	unflushed  bool                 // there is output to flush
	start      uint64               // events up to this revision are not delivered
	position   uint64               // of the next event in the log
	done       uint64               // no event up to this revision is still to be delivered

	signal chan struct{} // signals that there may be work
	// Guarded by the waiting mutex of the resource's log, while the watch waits for the next event.
	waits          bool
	previous, next *watcher
	held           atomic.Bool // its connection buffers writes until release

	onRequest bool        // it sends bookmarks on request
	progress  atomic.Bool // a bookmark has been requested
	bookmarks clock.Timer // nil if it sends no periodic bookmarks
	due       atomic.Bool // a periodic bookmark is due
	deadline  time.Time   // of the request, zero if it has none
}

var _ watch.Interface = (*watcher)(nil)

// WatchShared is like Watch for callers that only read. The object of an initial event is the result of wrap for the
// shared object, which must not be changed. wrap must not block.
func (s *resourceStore) WatchShared(
	ctx context.Context,
	key string,
	opts storage.ListOptions,
	wrap func(runtime.Object) runtime.Object,
) (watch.Interface, error) {
	return s.watch(ctx, key, opts, wrap, nil)
}

// WatchInto is like WatchShared for a watch that writes its events to out. The goroutine that calls ResultChan writes
// them and returns when the watch has ended; the returned channel is closed.
func (s *resourceStore) WatchInto(
	ctx context.Context,
	key string,
	opts storage.ListOptions,
	wrap func(runtime.Object) runtime.Object,
	out push.Output,
) (watch.Interface, error) {
	return s.watch(ctx, key, opts, wrap, out)
}

// Watch implements storage.Interface. The start of the watch is fixed when Watch returns: a write that is acknowledged
// afterwards is delivered as an event. Errors that depend on the revision arrive as an ERROR event.
//
// A revision above the published one belongs to another store: to this store before an older copy was restored, or to
// another process. A watch from such a revision is expired, so that clients list again. A watch with initial events
// gets the same retryable error as a list. The watch cache of k8s.io/apiserver delivers nothing until the revision is
// reached, and a client with a stale cache would wait without knowing.
func (s *resourceStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	return s.watch(ctx, key, opts, s.copy, nil)
}

func (s *resourceStore) watch(
	ctx context.Context,
	key string,
	opts storage.ListOptions,
	wrap func(runtime.Object) runtime.Object,
	out push.Output,
) (watch.Interface, error) {
	key, err := s.key(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	revision, err := versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	w := &watcher{
		store:     s,
		key:       key,
		recursive: opts.Recursive,
		predicate: opts.Predicate,
		selectAll: opts.Predicate.Empty(),
		wrap:      wrap,
		out:       out,
		signal:    make(chan struct{}, 1),
		onRequest: opts.ProgressNotify,
	}
	if out == nil {
		w.result = make(chan watch.Event, watchBuffer)
	}
	if !w.selectAll {
		w.lookups = s.indexes.Lookups(opts.Predicate)
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if (opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks) && s.core.options.BookmarkInterval > 0 {
		w.deadline, _ = ctx.Deadline()
		// AfterFunc, because selecting from a timer's channel would cost more than everything else in waiting for an
		// event.
		w.bookmarks = s.core.clock.AfterFunc(w.untilBookmark(), func() {
			w.due.Store(true)
			await.Notify(w.signal)
		})
	}
	if wanted, legacy := initialEvents(revision, opts); w.recursive && (wanted || legacy) {
		if w.plan, err = s.indexes.Plan(ctx, key, opts.Predicate); err != nil {
			w.end()
			return nil, tooSlow(s.keyspace.prefix)
		}
	}
	startErr := w.startAt(revision, opts)
	if w.initial != nil && out == nil {
		if err := holdInitial(ctx, w.initialObjects()); err != nil {
			w.end()
			return nil, err
		}
	}
	if err := s.core.watch(w, startErr); err != nil {
		w.end()
		return nil, err
	}
	return w, nil
}

// startAt fixes the start of the watch.
func (w *watcher) startAt(revision uint64, opts storage.ListOptions) error {
	wanted, legacy := initialEvents(revision, opts)
	w.endInitial = wanted && opts.Predicate.AllowWatchBookmarks

	c := w.store.core
	c.mu.Lock()
	defer c.mu.Unlock()
	current := c.published.Load()
	switch {
	case wanted && revision > current:
		return storage.NewTooLargeResourceVersionError(revision, current, 1+rand.IntN(3))
	case wanted || legacy:
		w.initial = c.snapshotLocked()
		revision = current
	case revision == 0:
		revision = current
	case revision > current:
		return &aheadError{revision, current}
	case revision < c.compacted.Load():
		return errCompacted
	}
	w.start, w.done = revision, revision
	w.position = w.store.keyspace.log.position(revision)
	return nil
}

// watch runs a watcher until its context or the core ends. If startErr is not nil, the watcher delivers only that
// error.
func (c *Core) watch(w *watcher, startErr error) error {
	w.startErr = startErr
	w.use.running = &c.watching
	if !w.store.keyspace.watches.add(w) {
		return readOnly(errors.New("the store is closed"))
	}
	w.unwatch = context.AfterFunc(w.ctx, w.onContextEnd)
	if w.out == nil {
		w.use.begin()
		go w.run()
	}
	return nil
}

// onContextEnd notifies the goroutine of a watch of the end of its context. A watch whose goroutine never started is
// released here.
func (w *watcher) onContextEnd() {
	await.Notify(w.signal)
	if w.out != nil && w.use.begin() {
		w.leave()
	}
}

// leave releases the resources that the store holds for a watch.
func (w *watcher) leave() {
	w.end()
	s := w.store.keyspace
	s.log.leave(w)
	w.release()
	if s.watches.remove(w) == 0 {
		s.log.forget(s.log.snapshot.Load().end())
	}
	w.use.end()
}

// ResultChan implements watch.Interface. For a watch with an output it writes all events before it returns, and may be
// called only once.
func (w *watcher) ResultChan() <-chan watch.Event {
	if w.out == nil {
		return w.result
	}
	if w.use.begin() {
		w.run()
	}
	return nothing
}

// nothing is the closed channel that ResultChan returns for a watch with an output.
var nothing = func() <-chan watch.Event {
	c := make(chan watch.Event)
	close(c)
	return c
}()

// Stop implements watch.Interface. Buffered events can still be received.
func (w *watcher) Stop() { w.cancel() }

// end releases the context and the timer of the watcher.
func (w *watcher) end() {
	w.cancel()
	if w.bookmarks != nil {
		w.bookmarks.Stop()
	}
}

// errStopped ends a watcher whose client or core is gone.
var errStopped = errors.New("watch stopped")

func (w *watcher) run() {
	if w.out == nil {
		defer close(w.result)
	}
	defer w.leave()
	defer w.unwatch()
	err := w.startErr
	if err == nil && w.initial != nil {
		err = w.deeply(w.sendInitial)
	}
	utilflowcontrol.WatchInitialized(w.ctx)
	for err == nil {
		err = w.guard(w.sendNext)
	}
	if w.ctx.Err() == nil && !errors.Is(err, errStopped) {
		_ = w.send(watch.Event{Type: watch.Error, Object: watchStatus(err)}, false)
		_ = w.flush()
	}
}

// deeply sends rare events through Deeply, so that their deep stack is not kept until the next event.
func (w *watcher) deeply(send func() error) (err error) {
	if w.out == nil {
		return w.guard(send)
	}
	w.out.Deeply(func() { err = w.guard(send) })
	return err
}

// guard converts a panic into an error, because a panic would end the process: the predicate calls functions of users
// on every object.
func (w *watcher) guard(send func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic while delivering: %v", reason)
		}
	}()
	return send()
}

// sendNext delivers the next events, and waits if there are none.
func (w *watcher) sendNext() error {
	events, err := w.store.keyspace.log.next(w, watchBatch)
	if err != nil {
		return err
	}
	if len(events) > 0 {
		w.hold()
	}
	for _, v := range events {
		if err := w.sendEvent(v); err != nil {
			return err
		}
		w.position++
		w.done = max(w.done, v.revision)
	}
	if err := w.flush(); err != nil {
		return err
	}
	if !w.release() {
		return errStopped
	}
	if len(events) == 0 {
		if err := w.wait(); err != nil {
			return err
		}
	}
	due := w.due.Swap(false) // checked also while events never end
	if due {
		select {
		case <-w.bookmarks.C(): // for a clock that is not the system clock
		default:
		}
		w.bookmarks.Reset(w.untilBookmark())
	}
	if w.progress.Swap(false) || due {
		return w.deeply(w.sendProgress)
	}
	if w.ctx.Err() != nil {
		return errStopped
	}
	return nil
}

// wait waits for the next event, the end of the watch, or a bookmark that is due or requested.
func (w *watcher) wait() error {
	if !w.store.keyspace.log.await(w) {
		return nil
	}
	w.pause()
	<-w.signal
	if !w.resume() {
		return errStopped
	}
	return nil
}
