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
	"github.com/annexapi/annex/internal/wire/push"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

const (
	// watchBuffer is how many events a client may be behind its watcher.
	watchBuffer = 100
	// watchBatch is how many events a watcher takes from the log at once.
	watchBatch = 64
	// lastBookmark is how long before its deadline a watch gets a bookmark, so
	// that the next one can resume from there.
	lastBookmark = 2 * time.Second
)

// watcher is one watch. It reads the log of its resource at its own pace.
type watcher struct {
	store     *resourceStore
	key       string // ends with a slash if recursive
	recursive bool
	predicate storage.SelectionPredicate
	selectAll bool
	lookups   []lookup // what the indexes can tell of the predicate

	ctx    context.Context
	cancel context.CancelFunc
	// unwatch is called when the watch ends by itself: it need not be told of the end of its context any more.
	unwatch func() bool
	result  chan watch.Event
	// out is where events go instead of result, by the goroutine that asks for that; nil for
	// a watch with a goroutine of its own.
	out push.Output
	use use

	initial *snapshot // its objects come first; nil for none
	// wrap returns what an initial event has of a shared object.
	wrap       func(runtime.Object) runtime.Object
	plan       plan   // to find them by
	endInitial bool   // a bookmark tells their end
	startErr   error  // all that it delivers, if it is not nil
	sent       bool   // there is something to flush
	start      uint64 // events up to this revision are not delivered
	position   uint64 // of the next event in the log
	done       uint64 // no event up to this revision is still to come

	signal chan struct{} // tells that there may be something to do
	// What the log of the resource guards, while the watch waits for the next event.
	waits          bool
	previous, next *watcher
	held           atomic.Bool // its connection keeps back what is written

	onRequest bool        // it gets bookmarks on request
	progress  atomic.Bool // a bookmark was asked for
	bookmarks clock.Timer // nil if it gets none
	due       atomic.Bool // one of these is
	deadline  time.Time   // of the request, zero if it has none
}

var _ watch.Interface = (*watcher)(nil)

// WatchShared is Watch for callers that only read: an initial event has what wrap returns of its
// object, which is shared and must not be changed. wrap must not block.
func (s *resourceStore) WatchShared(
	ctx context.Context,
	key string,
	opts storage.ListOptions,
	wrap func(runtime.Object) runtime.Object,
) (watch.Interface, error) {
	return s.watch(ctx, key, opts, wrap, nil)
}

// WatchInto is WatchShared for a watch that writes its events to out: the goroutine that calls
// ResultChan does so until the watch has ended, and what it returns is closed.
func (s *resourceStore) WatchInto(
	ctx context.Context,
	key string,
	opts storage.ListOptions,
	wrap func(runtime.Object) runtime.Object,
	out push.Output,
) (watch.Interface, error) {
	return s.watch(ctx, key, opts, wrap, out)
}

// Watch implements storage.Interface. What is delivered first is settled when it
// returns: a write that is acknowledged afterwards is seen as an event.
//
// A revision that has never been shown is one of another store: of this one before an
// older copy was put back, or in another process. A watch from there has expired, so that
// clients list again; one with initial events is told to try again, as lists are. Upstream's
// watch cache delivers nothing until the revision is reached, which a client with a stale cache
// would wait for without knowing.
// Errors that depend on the revision arrive as an ERROR event.
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
	if s.indexes != nil && !w.selectAll {
		w.lookups = s.indexes.lookups(opts.Predicate)
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if (opts.ProgressNotify || opts.Predicate.AllowWatchBookmarks) && s.core.options.BookmarkInterval > 0 {
		w.deadline, _ = ctx.Deadline()
		// A timer's channel to select from would cost more than all else about waiting for an event.
		w.bookmarks = s.core.clock.AfterFunc(w.untilBookmark(), func() {
			w.due.Store(true)
			await.Notify(w.signal)
		})
	}
	if wanted, legacy := initialEvents(revision, opts); w.recursive && (wanted || legacy) {
		if w.plan, err = s.plan(ctx, key, opts.Predicate); err != nil {
			w.end()
			return nil, err
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

// initialEvents tells whether a watch begins with the objects that exist, be it
// because it is wanted or because it always was so without a revision.
func initialEvents(revision uint64, opts storage.ListOptions) (wanted, legacy bool) {
	if opts.SendInitialEvents == nil {
		return false, revision == 0
	}
	return *opts.SendInitialEvents, false
}

// startAt settles where the watch begins.
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

// watch runs a watcher until its context or the core ends. If it cannot start,
// all it delivers is the error.
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

// ended tells the goroutine of a watch that its context has ended. One that never had any leaves its
// place.
func (w *watcher) ended() {
	await.Notify(w.signal)
	if w.out != nil && w.use.begin() {
		w.leave()
	}
}

// leave gives back what the store holds for a watch.
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

// stopWatchers ends every watch and lets no new one begin.
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

// watchSet is the watches of one resource.
type watchSet struct {
	count atomic.Int64 // as of the last change

	mu     sync.Mutex
	all    map[*watcher]struct{}
	closed bool
}

// add takes a watch, and counts it; false if the set is closed.
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
	if w.store.open.Err() != nil { // it is too late for closeOf
		w.cancel()
	}
	s.count.Store(int64(len(s.all)))
	w.use.running.Add(1)
	return true
}

// remove returns how many are left.
func (s *watchSet) remove(w *watcher) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, w)
	s.count.Store(int64(len(s.all)))
	return len(s.all)
}

// close cancels all watches and lets no new one begin.
func (s *watchSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for w := range s.all {
		w.cancel()
		w.use.forgo()
	}
}

// closeOf cancels the watches of a store that is closed.
func (s *watchSet) closeOf(store *resourceStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.all {
		if w.store == store {
			w.cancel()
		}
	}
}

// requestProgress asks the watches for a bookmark.
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

// ResultChan implements watch.Interface. The events of a watch with an output are written before it
// returns; it may be called once then.
func (w *watcher) ResultChan() <-chan watch.Event {
	if w.out == nil {
		return w.result
	}
	if w.use.begin() {
		w.run()
	}
	return nothing
}

// nothing is what is received of a watch that has ended.
var nothing = func() <-chan watch.Event {
	c := make(chan watch.Event)
	close(c)
	return c
}()

// Stop implements watch.Interface. Events that have been buffered can still be
// received.
func (w *watcher) Stop() { w.cancel() }

// end releases what the watcher holds.
func (w *watcher) end() {
	w.cancel()
	if w.bookmarks != nil {
		w.bookmarks.Stop()
	}
}

// errStopped ends a watcher whose client or core has gone.
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

// deeply sends what is sent seldom, with a stack that is not kept until the next event.
func (w *watcher) deeply(send func() error) (err error) {
	if w.out == nil {
		return w.guard(send)
	}
	w.out.Deeply(func() { err = w.guard(send) })
	return err
}

// guard makes an error of a panic, which would end the process: the predicate runs
// users' functions on every object.
func (w *watcher) guard(send func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic while delivering: %v", reason)
		}
	}()
	return send()
}

// sendInitial delivers the objects that exist at the start. An output encodes each event at once: memory is held while a
// large object is encoded, and never while the client reads. Otherwise decoded objects wait for the client in the channel, on the wire.
func (w *watcher) sendInitial() error {
	account := budget.From(w.ctx)
	defer account.Close()
	if w.out == nil {
		if err := account.Send(w.ctx); err != nil {
			return apierr.NoMemory(err)
		}
	}
	keep := kept{&w.store.core.decoded, keptBytes, w.selectAll}
	var read int64 // bytes of objects that were decoded
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

// storedForm is that of objects which are sent as they are stored; nil if none are.
func (w *watcher) storedForm() *verbatim.Form {
	if w.out == nil || !w.selectAll {
		return nil
	}
	return w.out.Form()
}

// sendStored sends an object of which is known that it is stored as clients get it; false for others.
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

// sendObject sends an object that has been decoded, as it is stored if that is what clients get: its encoding is not remembered then.
func (w *watcher) sendObject(v *version, object runtime.Object) error {
	if form := w.storedForm(); form != nil {
		if piece, ok := w.store.look(form, v, object); ok {
			return w.sendPiece(piece)
		}
	}
	return w.send(watch.Event{Type: watch.Added, Object: w.wrap(object)}, false)
}

// initialObjects yields the objects that exist at the start, or those that may be
// selected of them.
func (w *watcher) initialObjects() iter.Seq[*version] {
	if w.recursive {
		objects, _ := w.store.candidates(w.plan, w.initial, w.key, w.key, w.start)
		return objects
	}
	return w.initial.only(w.key, w.start)
}

// sendNext delivers the next events, and waits for some if there are none.
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
	due := w.due.Swap(false) // while events never end, too
	if due {
		select {
		case <-w.bookmarks.C(): // of a clock that is not the system's
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

// wait waits for the next event, the end, or a bookmark that is due or asked for.
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

// sendEvent delivers what an event means to this watch, if anything.
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

// mayConcern is false if the indexes tell that neither the object of an event nor the
// one before it is selected. They are asked once for all watches.
func (w *watcher) mayConcern(v *version) bool {
	if len(w.lookups) == 0 {
		return true
	}
	x := w.store.indexes
	shared := w.shared()
	if mayAnswer(w.lookups, x.cachedValues(&shared.currentValues, v, w.current)) {
		return true
	}
	if v.created() {
		return false
	}
	previous := v.previous.Load()
	return previous == nil || mayAnswer(w.lookups, x.cachedValues(&shared.replacedValues, previous, w.before))
}

func (w *watcher) selects(object runtime.Object) bool {
	if w.selectAll {
		return true
	}
	matches, err := w.predicate.Matches(object)
	return err == nil && matches
}

// kind tells what an event is to a client that sees only the selected objects;
// empty if it is nothing.
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

// shared returns what the watches share of the event that this one is at.
func (w *watcher) shared() *sharedEvent { return w.store.keyspace.log.sharedAt(w.position, w.store) }

// decode returns the object of a version, which it keeps for the other watches if it
// is not attached to its version.
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

// current returns the object that an event made.
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

// eventObject returns the object to deliver: for a deletion the one before it,
// with the revision of the event.
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

// sendProgress delivers a bookmark: no event up to its revision is still to come.
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

// untilBookmark is the time until the next bookmark: the interval, or what is
// left until shortly before the deadline.
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

// send delivers an event; one that is shared is delivered by other watches, too.
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

// sendPiece delivers an object that was there before the watch to its output.
func (w *watcher) sendPiece(piece verbatim.Piece) error { return w.sentTo(w.out.SendStored(piece)) }

// sentTo goes on after an event has been given to the output.
func (w *watcher) sentTo(full bool, err error) error {
	if err != nil {
		return errStopped // the client has gone, or gets no more
	}
	w.sent = true
	if full {
		return w.flush()
	}
	return nil
}

// flush writes what has been sent. Meanwhile, the core may close: a client that does not read holds
// nothing up.
func (w *watcher) flush() error {
	if !w.sent {
		return nil
	}
	w.sent = false
	if w.initial != nil { // the objects have been encoded: the rest of the initial events depends on the client
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

// pause lets the core close while the watch waits. The core waits for goroutines of its own all the same.
func (w *watcher) pause() {
	if w.out == nil {
		return
	}
	w.use.pause()
	if w.ctx.Err() != nil {
		w.use.forgo()
	}
}

// resume is false if the watch has to end.
func (w *watcher) resume() bool {
	return (w.out == nil || w.use.resume()) && w.ctx.Err() == nil
}

// hold has what is written to the watch's connection kept back, until release.
func (w *watcher) hold() {
	if w.out != nil && w.held.CompareAndSwap(false, true) {
		w.out.Hold()
	}
}

// release is false if the watch has to end. What was kept back is written meanwhile, for which the core does not wait.
func (w *watcher) release() bool {
	if w.out == nil || !w.held.CompareAndSwap(true, false) {
		return true
	}
	w.pause()
	w.out.Release()
	return w.resume()
}

// use says whether a watch uses the core. The core waits for those that do before it closes.
type use struct {
	state   atomic.Int32
	running *sync.WaitGroup
}

const (
	notBegun = iota
	using
	paused // it waits, or its client reads
	over
	forgone // while it was not using the core, which waits for it no more
)

// begin is true for the first one that calls it.
func (u *use) begin() bool { return u.state.CompareAndSwap(notBegun, using) }

func (u *use) pause() { u.state.CompareAndSwap(using, paused) }

// resume is false if the core has closed.
func (u *use) resume() bool { return u.state.CompareAndSwap(paused, using) }

// forgo ends a use that is paused. One that is not ends itself when it is next.
func (u *use) forgo() {
	if u.state.CompareAndSwap(paused, forgone) {
		u.running.Done()
	}
}

// end is called once by who began.
func (u *use) end() {
	if u.state.Swap(over) != forgone {
		u.running.Done()
	}
}
