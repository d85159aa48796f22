package mvcc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/wire/verbatim"
)

const (
	// earlyBytes is how much of a list is made, or read from the journal, before it is written, and kept until then. A list that
	// is not longer fails as a whole if one of its objects does.
	earlyBytes = 4 << 20
	// keptBytes is how much memory a list may take for decoded objects that it leaves in the cache, by an estimate. A list of very
	// many objects would fill the cache without use: the objects that the next one begins with would be let go for its end.
	keptBytes = 16 << 20
	// listedBatch is the encoded size of the objects that a list decodes at once.
	listedBatch = 1 << 20
)

// shape is what the objects of a list are to become.
type shape struct {
	form  *verbatim.Form  // of what is stored
	maker *verbatim.Maker // nil if they are to be as they are in the form
}

// early says whether items are made while the list is read.
func (s shape) early() bool { return s.maker != nil && (s.maker.Early || s.sized()) }

// sized says whether the sizes of all of them are known then.
func (s shape) sized() bool { return s.maker != nil && s.maker.Sizing != 0 }

// sizeOf returns the size of the item that is made of a version; false if that is not known.
func (s shape) sizeOf(v *version) (int32, bool) {
	if !s.sized() {
		return 0, false
	}
	return v.madeSize(s.maker.Sizing)
}

// listed is an object of a list that is to be written: as little as there can be of it, for there may be very many, and
// of many lists at once.
type listed struct {
	version *version // nil if value is the item
	value   *stored  // nil if it has to be read from the journal, in which a pin keeps it
}

// sizedItem is listed with the size of the item, if the shape is sized.
type sizedItem struct {
	listed
	size int32
}

// kept is how a list keeps the objects that it decodes.
type kept struct {
	cache  *objectCache
	left   int64 // of keptBytes
	ifRoom bool  // it lets go of nothing else for it
}

// keep returns what keeps objects of so many bytes, by an estimate; nil if they are not kept.
func (k *kept) keep(bytes int64) func(*version, *decoded) {
	switch {
	case k.left <= 0:
		return nil
	case k.ifRoom:
		k.left -= bytes
		return k.cache.attachIfRoom
	}
	k.left -= bytes
	return k.cache.attach
}

// estimated is what the decoded objects of versions take, of those that are not decoded yet.
func (s *resourceStore) estimated(versions ...*version) int64 {
	bytes := int64(0)
	for _, v := range versions {
		if d := v.decoded.Load(); d == nil || d.store != s {
			bytes += (&decoded{store: s}).estimate(v)
		}
	}
	return bytes
}

// encodedItems are the items of a list, encoded when they are written.
type encodedItems struct {
	shape
	ctx    context.Context // of the request
	store  *resourceStore
	listed []listed
	sizes  []int32 // nil unless the shape is sized
	kept   kept
	pin    *pinned // nil if nothing is read from the journal
}

var _ verbatim.Items = (*encodedItems)(nil)

// Len implements verbatim.Items.
func (e *encodedItems) Len() int { return len(e.listed) }

// Size implements verbatim.Items.
func (e *encodedItems) Size(i int) int {
	const version = 50 // the resource version
	switch l := e.listed[i]; {
	case e.sizes != nil:
		return int(e.sizes[i])
	case l.value == nil:
		return int(l.version.size) + version
	default:
		return len(l.value.data) + version
	}
}

// Close implements io.Closer: what the items are made of may go.
func (e *encodedItems) Close() error {
	if e.pin != nil {
		e.pin.Close()
	}
	return nil
}

// Append implements verbatim.Items.
func (e *encodedItems) Append(to []byte, i int) ([]byte, error) {
	v, value := e.listed[i].version, e.listed[i].value
	if v == nil {
		return append(to, value.data...), nil
	}
	if value == nil {
		data, err := e.store.core.bytes(v)
		if err != nil {
			return nil, e.lost(err)
		}
		value = &stored{data: data}
	}
	fit, object := v.fit.Load(), runtime.Object(nil)
	if !fit.Of(e.form) { // another form has come in between, or the object was decoded for this list
		var err error
		if object, err = e.readable(v, value); err != nil {
			return nil, err
		}
		if fit, _, err = e.store.fitOf(e.form, v, value, object); err != nil {
			return nil, err
		}
	}
	if e.maker != nil {
		read := func() (_ runtime.Object, err error) { // which may be called again
			if object == nil {
				object, err = e.readable(v, value)
			}
			return object, err
		}
		begin := len(to)
		to, err := e.maker.Row(to, read, fit.Metadata(value.data, v.revision))
		if err == nil && e.sizes != nil && len(to)-begin != int(e.sizes[i]) {
			v.made.Store(0)
			return nil, fmt.Errorf("list %s: %w: %d bytes, and %d before", v.key, errAnotherSize, len(to)-begin, e.sizes[i])
		}
		return to, err
	}
	if fit.Fits() {
		return fit.Piece(value.data, v.revision).Append(to), nil
	}
	if object == nil {
		var err error
		if object, err = e.readable(v, value); err != nil {
			return nil, err
		}
	}
	item, err := e.form.Item(object, nil)
	return append(to, item...), err
}

// errAnotherSize is what a list ends with that has told clients how long it is.
var errAnotherSize = errors.New("the same stored object is encoded to another size, by a conversion that does not depend on the " +
	"object alone")

// lost adds the reason why the pin was given up to an error of reading a value.
func (e *encodedItems) lost(err error) error {
	if e.pin != nil {
		if lost := e.pin.lost.load(); lost != nil {
			return errors.Join(lost, err)
		}
	}
	return err
}

// readable returns the object of a version whose value has been decoded before.
func (e *encodedItems) readable(v *version, value *stored) (runtime.Object, error) {
	s := e.store
	if object := s.cached(v); object != nil {
		return object, nil
	}
	data, _, err := s.plainOf(e.ctx, v, value.data)
	if err != nil {
		return nil, err
	}
	return s.decodeFor(v, data, e.kept.keep(s.estimated(v)))
}

// known returns those of a batch that need not be decoded before they are written, and the others.
func (p *page) known(batch []*version) ([]sizedItem, []*version) {
	if p.as == nil || p.selects || p.as.early() && !p.as.sized() && p.early > 0 {
		return nil, batch
	}
	known, unknown := make([]sizedItem, len(batch)), []*version(nil)
	for i, v := range batch {
		var ok bool
		if known[i], ok = p.knownOne(v); !ok {
			unknown = append(unknown, v)
		}
	}
	return known, unknown
}

// knownOne returns a version if an item was made of its value before. It is false if the value cannot be read now: decoding it
// reports why.
func (p *page) knownOne(v *version) (sizedItem, bool) {
	fit := v.fit.Load()
	if !fit.Of(p.as.form) {
		return sizedItem{}, false
	}
	size, ok := p.as.sizeOf(v)
	if !ok && p.as.sized() {
		return sizedItem{}, false
	}
	if value := v.value.Load(); value != nil {
		return sizedItem{listed{v, value}, size}, true
	}
	if p.as.maker == nil && fit.Fits() && p.early >= int64(v.size) {
		data, err := p.store.core.bytes(v)
		if err != nil {
			return sizedItem{}, false
		}
		p.early -= int64(len(data))
		return sizedItem{listed: listed{v, &stored{data: data}}}, true
	}
	if !p.pinned() {
		return sizedItem{}, false
	}
	return sizedItem{listed{version: v}, size}, true
}

// pinned says whether what there was at the list's revision is kept in the journal while it is written.
func (p *page) pinned() bool {
	if p.pin == nil {
		p.pin = p.store.core.pinList(p.revision)
	}
	return p.pin != nil
}

// listedOf returns a version, whose object has been read, and finds out whether an item can be made of its value.
func (p *page) listedOf(v *version, object runtime.Object) (sizedItem, error) {
	s, as, value := p.store, *p.as, v.value.Load()
	inMemory := value != nil
	if !inMemory {
		data, err := s.core.bytes(v)
		if err != nil {
			return sizedItem{}, err
		}
		value = &stored{data: data}
	}
	fit, whole, err := s.fitOf(as.form, v, value, object)
	if err != nil {
		return sizedItem{}, err
	}
	switch {
	case as.maker == nil && fit.Fits() && (inMemory || p.takeEarly(len(value.data))):
		return sizedItem{listed: listed{v, value}}, nil
	case as.maker == nil && fit.Fits():
		return p.later(v, nil, 0)
	case as.maker != nil && !as.sized() && (inMemory && !as.early() || p.early <= 0):
		return p.later(v, v.value.Load(), 0)
	}
	if size, ok := as.sizeOf(v); ok { // it has been made before
		return p.later(v, v.value.Load(), size)
	}
	item, err := p.make(fit, v, value, object, whole)
	if err != nil {
		return sizedItem{}, err
	}
	if fit = v.fit.Load(); fit == nil {
		v.fit.CompareAndSwap(nil, as.form.Unfit())
	}
	if as.sized() {
		v.setMadeSize(as.maker.Sizing, len(item))
	}
	if p.takeEarly(len(item)) {
		return sizedItem{listed{value: &stored{data: slices.Clone(item)}}, int32(len(item))}, nil
	}
	return p.later(v, v.value.Load(), int32(len(item)))
}

// later returns a version whose item, of a size if the shape is sized, is made when it is written.
func (p *page) later(v *version, value *stored, size int32) (sizedItem, error) {
	if value == nil && !p.pinned() {
		return sizedItem{}, errCompacted
	}
	return sizedItem{listed{v, value}, size}, nil
}

// takeEarly says whether there is room for so many bytes until the list is written.
func (p *page) takeEarly(bytes int) bool {
	if p.early < int64(bytes) {
		p.early = 0
		return false
	}
	p.early -= int64(bytes)
	return true
}

// make returns an item. It is valid until the next is made.
func (p *page) make(fit *verbatim.Fit, v *version, value *stored, object runtime.Object, whole []byte) ([]byte, error) {
	if p.as.maker == nil {
		return p.as.form.Item(object, whole)
	}
	item, err := p.as.maker.Row(p.scratch[:0], func() (runtime.Object, error) { return object, nil }, fit.Metadata(value.data, v.revision))
	if err == nil {
		p.scratch = item
	}
	return item, err
}
