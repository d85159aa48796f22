package mvcc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/storage/mvcc/index"
	"github.com/annexapi/annex/internal/wire/push"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

const (
	// watchBuffer is the number of events that a client may be behind its watcher.
	watchBuffer = 100
	// watchBatch is the number of events that a watcher takes from the log at once.
	watchBatch = 64
	// lastBookmark is the time before its deadline at which a watch sends a last bookmark, so that the next watch can
	// resume there.
	lastBookmark = 2 * time.Second
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
	sent       bool                 // there is output to flush
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

// initialEvents reports whether a watch begins with the existing objects: wanted if the options request it, legacy
// because a watch without a revision always begins this way.
func initialEvents(revision uint64, opts storage.ListOptions) (wanted, legacy bool) {
	if opts.SendInitialEvents == nil {
		return false, revision == 0
	}
	return *opts.SendInitialEvents, false
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
	w.unwatch = context.AfterFunc(w.ctx, w.ended)
	if w.out == nil {
		w.use.begin()
		go w.run()
	}
	return nil
}

// ended notifies the goroutine of a watch of the end of its context. A watch whose goroutine never started is released
// here.
func (w *watcher) ended() {
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

// stopWatchers ends every watch, waits for them, and rejects new ones.
func (c *Core) stopWatchers() {
	c.mu.Lock()
	c.watchesEnded = true
	keyspaces := slices.Clone(c.keyspaces)
	c.mu.Unlock()
	for _, s := range keyspaces {
		s.watches.close()
	}
	c.watching.Wait()
}

// watchSet is the set of watches of one resource.
type watchSet struct {
	count atomic.Int64 // length of all

	mu     sync.Mutex
	all    map[*watcher]struct{}
	closed bool
}

// add adds a watch and counts it. It returns false if the set is closed.
func (s *watchSet) add(w *watcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.all == nil {
		s.all = map[*watcher]struct{}{}
	}
	s.all[w] = struct{}{}
	if w.store.open.Err() != nil { // closeOf may have run already
		w.cancel()
	}
	s.count.Store(int64(len(s.all)))
	w.use.running.Add(1)
	return true
}

// remove returns the number of remaining watches.
func (s *watchSet) remove(w *watcher) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, w)
	s.count.Store(int64(len(s.all)))
	return len(s.all)
}

// close cancels all watches and rejects new ones.
func (s *watchSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for w := range s.all {
		w.cancel()
		w.use.forgo()
	}
}

// closeOf cancels the watches of a closed store.
func (s *watchSet) closeOf(store *resourceStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		if w.store == store {
			w.cancel()
		}
	}
}

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

// sendInitial delivers the objects that exist at the start. A watch with an output encodes each event at once: memory
// is held while a large object is encoded, but never while the client reads. Without an output, decoded objects wait
// for the client in the channel.
func (w *watcher) sendInitial() error {
	account := budget.From(w.ctx)
	defer account.Close()
	if w.out == nil {
		if err := account.Send(w.ctx); err != nil {
			return apierr.NoMemory(err)
		}
	}
	keep := kept{&w.store.core.decoded, keptBytes, w.selectAll}
	var read int64 // bytes of the objects that had to be decoded
	for v := range w.initialObjects() {
		if w.out != nil {
			if err := holdObject(w.ctx, v, false); err != nil {
				return err
			}
		}
		if stored, err := w.sendStored(v); err != nil {
			return err
		} else if stored {
			continue
		}
		takes := w.store.estimated(v)
		if takes > 0 {
			if read += int64(v.size); read > longList {
				account.CollectOften()
			}
		}
		object, err := w.store.objectFor(w.ctx, v, keep.keep(takes))
		if err != nil {
			return err
		}
		if !w.selects(object) {
			continue
		}
		if err := w.sendObject(v, object); err != nil {
			return err
		}
	}
	w.initial = nil
	if w.endInitial {
		if err := w.sendBookmark(w.start, storage.AnnotateInitialEventsEndBookmark); err != nil {
			return err
		}
	}
	return w.flush()
}

// storedForm returns the form in which stored objects may be sent verbatim; nil if none may.
func (w *watcher) storedForm() *verbatim.Encoding {
	if w.out == nil || !w.selectAll {
		return nil
	}
	return w.out.Encoding()
}

// sendStored sends an object whose stored value is known to fit the requested form. It returns false for other objects.
func (w *watcher) sendStored(v *version) (bool, error) {
	form := w.storedForm()
	if form == nil {
		return false, nil
	}
	piece, ok := w.store.verbatim(form, v)
	if !ok {
		return false, nil
	}
	return true, w.sendPiece(piece)
}

// sendObject sends a decoded object. If its stored value fits the requested form, the value is sent instead, so that no
// encoding is remembered.
func (w *watcher) sendObject(v *version, object runtime.Object) error {
	if form := w.storedForm(); form != nil {
		if piece, ok := w.store.look(form, v, object); ok {
			return w.sendPiece(piece)
		}
	}
	return w.send(watch.Event{Type: watch.Added, Object: w.wrap(object)}, false)
}

// initialObjects yields the objects that exist at the start. Where an index applies, it may leave out objects that are
// not selected.
func (w *watcher) initialObjects() iter.Seq[*version] {
	if w.recursive {
		objects, _ := w.store.candidates(w.plan, w.initial, w.key, w.key, w.start)
		return objects
	}
	return w.initial.only(w.key, w.start)
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

// sendEvent delivers the event that a version is for this watch, if any.
func (w *watcher) sendEvent(v *version) error {
	if v.revision <= w.start || !w.covers(v.key) || !w.mayConcern(v) {
		return nil
	}
	kind, err := w.kind(v)
	if kind == "" || err != nil {
		return err
	}
	object, err := w.eventObject(v, kind)
	if err != nil {
		return err
	}
	return w.send(watch.Event{Type: kind, Object: object}, true)
}

func (w *watcher) covers(key string) bool {
	if w.recursive {
		return strings.HasPrefix(key, w.key)
	}
	return key == w.key
}

// mayConcern returns false if the indexes exclude that the object of an event or its predecessor is selected. The index
// values are computed once for all watches.
func (w *watcher) mayConcern(v *version) bool {
	if len(w.lookups) == 0 {
		return true
	}
	shared := w.shared()
	if w.lookups.MayMatch(w.indexValues(&shared.currentValues, v, w.current)) {
		return true
	}
	if v.created() {
		return false
	}
	previous := v.previous.Load()
	return previous == nil || w.lookups.MayMatch(w.indexValues(&shared.replacedValues, previous, w.before))
}

// indexValues returns the index values of a version from a slot of a shared event. It fills an empty slot.
func (w *watcher) indexValues(
	slot *atomic.Pointer[index.Values],
	v *version,
	read func(*version) (runtime.Object, error),
) index.Values {
	if values := slot.Load(); values != nil {
		return *values
	}
	values := w.store.indexes.Values(v, read)
	slot.Store(&values)
	return values
}

func (w *watcher) selects(object runtime.Object) bool {
	if w.selectAll {
		return true
	}
	matches, err := w.predicate.Matches(object)
	return err == nil && matches
}

// kind returns the type of an event for a client that sees only the selected objects. An object that starts matching
// becomes ADDED; an object that stops matching becomes DELETED. The type is empty if the client must not see the event.
func (w *watcher) kind(v *version) (watch.EventType, error) {
	if w.selectAll {
		switch {
		case v.deleted:
			return watch.Deleted, nil
		case v.created():
			return watch.Added, nil
		}
		return watch.Modified, nil
	}
	var is, was bool
	if !v.deleted {
		object, err := w.current(v)
		if err != nil {
			return "", err
		}
		is = w.selects(object)
	}
	if !v.created() {
		object, err := w.replaced(v)
		if err != nil {
			return "", err
		}
		was = w.selects(object)
	}
	switch {
	case is && was:
		return watch.Modified, nil
	case is:
		return watch.Added, nil
	case was:
		return watch.Deleted, nil
	}
	return "", nil
}

// shared returns the shared state of the event at the watch's position.
func (w *watcher) shared() *sharedEvent { return w.store.keyspace.log.sharedAt(w.position, w.store) }

// decode returns the object of a version. If the object cannot be attached to its version, decode keeps it in the
// shared event for the other watches.
func (w *watcher) decode(v *version, slot func(*sharedEvent) *atomic.Pointer[decoded]) (runtime.Object, error) {
	if object := w.store.cached(v); object != nil {
		return object, nil
	}
	shared := slot(w.shared())
	if d := shared.Load(); d != nil {
		return d.object, nil
	}
	object, err := w.store.object(w.ctx, v)
	if err == nil {
		shared.Store(&decoded{object: object, store: w.store})
	}
	return object, err
}

// current returns the new object of an event.
func (w *watcher) current(v *version) (runtime.Object, error) {
	return w.decode(v, func(e *sharedEvent) *atomic.Pointer[decoded] { return &e.now })
}

// before returns the object of the version that an event replaced or deleted.
func (w *watcher) before(previous *version) (runtime.Object, error) {
	return w.decode(previous, func(e *sharedEvent) *atomic.Pointer[decoded] { return &e.before })
}

// replaced returns the object that an event replaced or deleted.
func (w *watcher) replaced(v *version) (runtime.Object, error) {
	previous := v.previous.Load()
	if previous == nil {
		return nil, errCompacted
	}
	object, err := w.before(previous)
	if corrupt := (*corruptError)(nil); v.deleted && errors.As(err, &corrupt) {
		return nil, &deletedCorrupt{corrupt}
	}
	return object, err
}

// eventObject returns the object to deliver. For a deletion this is the previous object with the revision of the event.
func (w *watcher) eventObject(v *version, kind watch.EventType) (runtime.Object, error) {
	shared := w.shared()
	if kind != watch.Deleted {
		return orMake(&shared.current, w.store, func() (runtime.Object, error) { return w.current(v) })
	}
	return orMake(&shared.replaced, w.store, func() (runtime.Object, error) {
		object, err := w.replaced(v)
		if err != nil {
			return nil, err
		}
		object = w.store.copy(object)
		return object, versioner.UpdateObject(object, v.revision)
	})
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

// send delivers an event. shared is set if other watches deliver the same event.
func (w *watcher) send(event watch.Event, shared bool) error {
	if w.out != nil {
		return w.sentTo(w.out.Send(event, shared))
	}
	select {
	case w.result <- event:
		return nil
	default:
	}
	if w.initial != nil {
		utilflowcontrol.WatchInitialized(w.ctx)
	}
	select {
	case w.result <- event:
		return nil
	case <-w.ctx.Done():
		return errStopped
	}
}

// sendPiece writes the stored value of an initial object to the output.
func (w *watcher) sendPiece(piece verbatim.Fragment) error { return w.sentTo(w.out.SendStored(piece)) }

// sentTo handles the result of passing an event to the output.
func (w *watcher) sentTo(full bool, err error) error {
	if err != nil {
		return errStopped // the client is gone, or receives no more
	}
	w.sent = true
	if full {
		return w.flush()
	}
	return nil
}

// flush writes the sent events. The core may close meanwhile, so that a client that does not read delays nothing.
func (w *watcher) flush() error {
	if !w.sent {
		return nil
	}
	w.sent = false
	if w.initial != nil { // the objects are encoded: from here on, only the client determines the time that the initial events take
		budget.From(w.ctx).GiveBack()
		utilflowcontrol.WatchInitialized(w.ctx)
	}
	w.pause()
	err := w.out.Flush()
	if !w.resume() || err != nil {
		return errStopped
	}
	return nil
}

// pause lets the core close while the watch waits. The core still waits for goroutines of its own.
func (w *watcher) pause() {
	if w.out == nil {
		return
	}
	w.use.pause()
	if w.ctx.Err() != nil {
		w.use.forgo()
	}
}

// resume returns false if the watch must end.
func (w *watcher) resume() bool {
	return (w.out == nil || w.use.resume()) && w.ctx.Err() == nil
}

// hold makes the watch's connection buffer its writes until release.
func (w *watcher) hold() {
	if w.out != nil && w.held.CompareAndSwap(false, true) {
		w.out.Hold()
	}
}

// release writes the buffered output; the core does not wait for that. It returns false if the watch must end.
func (w *watcher) release() bool {
	if w.out == nil || !w.held.CompareAndSwap(true, false) {
		return true
	}
	w.pause()
	w.out.Release()
	return w.resume()
}

// use is the state of a watch's use of the core. Before the core closes, it waits for the watches that are using it.
type use struct {
	state   atomic.Int32
	running *sync.WaitGroup
}

const (
	notBegun = iota
	using
	paused // the watch waits, or its client reads
	over
	forgone // ended while paused; the core no longer waits for the watch
)

// begin returns true for its first caller only.
func (u *use) begin() bool { return u.state.CompareAndSwap(notBegun, using) }

func (u *use) pause() { u.state.CompareAndSwap(using, paused) }

// resume returns false if the core has closed.
func (u *use) resume() bool { return u.state.CompareAndSwap(paused, using) }

// forgo ends a use that is paused. A use that is not paused ends at its next pause or at its end.
func (u *use) forgo() {
	if u.state.CompareAndSwap(paused, forgone) {
		u.running.Done()
	}
}

// end must be called exactly once, by the goroutine whose begin returned true.
func (u *use) end() {
	if u.state.Swap(over) != forgone {
		u.running.Done()
	}
}
