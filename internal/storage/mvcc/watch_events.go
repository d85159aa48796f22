package mvcc

import (
	"errors"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/storage/mvcc/index"
)

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
	var matches, matched bool
	if !v.deleted {
		object, err := w.current(v)
		if err != nil {
			return "", err
		}
		matches = w.selects(object)
	}
	if !v.created() {
		object, err := w.replaced(v)
		if err != nil {
			return "", err
		}
		matched = w.selects(object)
	}
	switch {
	case matches && matched:
		return watch.Modified, nil
	case matches:
		return watch.Added, nil
	case matched:
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

// send delivers an event. shared is set if other watches deliver the same event.
func (w *watcher) send(event watch.Event, shared bool) error {
	if w.out != nil {
		return w.afterSend(w.out.Send(event, shared))
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

// afterSend handles the result of passing an event to the output.
func (w *watcher) afterSend(full bool, err error) error {
	if err != nil {
		return errStopped // the client is gone, or receives no more
	}
	w.unflushed = true
	if full {
		return w.flush()
	}
	return nil
}

// flush writes the sent events. The core may close meanwhile, so that a client that does not read delays nothing.
func (w *watcher) flush() error {
	if !w.unflushed {
		return nil
	}
	w.unflushed = false
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
