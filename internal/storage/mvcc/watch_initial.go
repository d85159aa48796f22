package mvcc

import (
	"iter"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// initialEvents reports whether a watch begins with the existing objects: wanted if the options request it, legacy
// because a watch without a revision always begins this way.
func initialEvents(revision uint64, opts storage.ListOptions) (wanted, legacy bool) {
	if opts.SendInitialEvents == nil {
		return false, revision == 0
	}
	return *opts.SendInitialEvents, false
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

// initialObjects yields the objects that exist at the start. Where an index applies, it may leave out objects that are
// not selected.
func (w *watcher) initialObjects() iter.Seq[*version] {
	if w.recursive {
		objects, _ := w.store.candidates(w.plan, w.initial, w.key, w.key, w.start)
		return objects
	}
	return w.initial.only(w.key, w.start)
}

// storedEncoding returns the encoding in which stored objects may be sent verbatim; nil if none may.
func (w *watcher) storedEncoding() *verbatim.Encoding {
	if w.out == nil || !w.selectAll {
		return nil
	}
	return w.out.Encoding()
}

// sendStored sends an object whose stored value is known to match the requested encoding. It returns false for other
// objects.
func (w *watcher) sendStored(v *version) (bool, error) {
	encoding := w.storedEncoding()
	if encoding == nil {
		return false, nil
	}
	fragment, ok := w.store.verbatim(encoding, v)
	if !ok {
		return false, nil
	}
	return true, w.sendFragment(fragment)
}

// sendObject sends a decoded object. If its stored value matches the requested encoding, the value is sent instead, so
// that no encoding is remembered.
func (w *watcher) sendObject(v *version, object runtime.Object) error {
	if encoding := w.storedEncoding(); encoding != nil {
		if fragment, ok := w.store.compareVerbatim(encoding, v, object); ok {
			return w.sendFragment(fragment)
		}
	}
	return w.send(watch.Event{Type: watch.Added, Object: w.wrap(object)}, false)
}

// sendFragment writes the stored value of an initial object to the output.
func (w *watcher) sendFragment(fragment verbatim.Fragment) error {
	return w.afterSend(w.out.SendStored(fragment))
}
