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
	// earlyBytes is the size of the part of a list that is encoded, or read from the journal, before the list is
	// written. A list within this size fails as a whole if one of its objects fails.
	earlyBytes = 4 << 20
	// keptBytes bounds the estimated memory of the decoded objects that a list leaves in the cache. A list of very many
	// objects would fill the cache without use: its end would evict the objects that the next list starts with.
	keptBytes = 16 << 20
	// listedBatch is the encoded size of the objects that a list decodes at once.
	listedBatch = 1 << 20
)

// shape describes the encoding of the items of a list.
type shape struct {
	encoding *verbatim.Encoding // of the stored values
	maker    *verbatim.Maker    // makes the items; nil if the items are the objects in the encoding
}

// early reports whether items are made while the list is read.
func (s shape) early() bool { return s.maker != nil && (s.maker.Eager || s.sized()) }

// sized reports whether the sizes of all items are known before the list is written.
func (s shape) sized() bool { return s.maker != nil && s.maker.Sizing != 0 }

// sizeOf returns the size of the item made from a version; false if the size is unknown.
func (s shape) sizeOf(v *version) (int32, bool) {
	if !s.sized() {
		return 0, false
	}
	return v.madeSize(s.maker.Sizing)
}

// listed is one object of a list that is to be written. It is as small as possible, because a list may be very long and
// many lists may be in flight.
type listed struct {
	version *version // nil if value is the finished item
	value   *stored  // nil if the value must be read from the journal, where a pin keeps it
}

// sizedItem is a listed object with the size of its item, if the shape is sized.
type sizedItem struct {
	listed
	size int32
}

// kept is the rule for caching the objects that a list decodes.
type kept struct {
	cache  *objectCache
	left   int64 // the unused part of keptBytes
	ifRoom bool  // do not evict other objects
}

// keep returns the function that caches objects of the given estimated size; nil if they must not be cached.
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

// estimated returns the estimated memory of the objects of those versions that are not decoded yet.
func (s *resourceStore) estimated(versions ...*version) int64 {
	bytes := int64(0)
	for _, v := range versions {
		if d := v.decoded.Load(); d == nil || d.store != s {
			bytes += (&decoded{store: s}).estimate(v)
		}
	}
	return bytes
}

// encodedItems are the items of a list that are encoded while they are written.
type encodedItems struct {
	shape
	ctx    context.Context // of the request
	store  *resourceStore
	listed []listed
	sizes  []int32 // nil unless the shape is sized
	kept   kept
	pin    *pinned // nil if no value is read from the journal
}

var _ verbatim.Items = (*encodedItems)(nil)

// Len implements verbatim.Items.
func (e *encodedItems) Len() int { return len(e.listed) }

// Size implements verbatim.Items.
func (e *encodedItems) Size(i int) int {
	const version = 50 // room for the resource version
	switch l := e.listed[i]; {
	case e.sizes != nil:
		return int(e.sizes[i])
	case l.value == nil:
		return int(l.version.size) + version
	default:
		return len(l.value.data) + version
	}
}

// Close implements io.Closer. It allows compaction of the values that the items are made from.
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
	if match := v.match.Load(); e.maker == nil && match.BelongsTo(e.encoding) && match.Exact() {
		return match.Fragment(value.data, v.revision).Append(to), nil
	}
	return e.appendMade(to, i, v, value)
}

// appendMade appends an item that is not known to be the stored bytes: it is made from them, or the version's match is
// not exact, is for another encoding meanwhile, or was not kept.
func (e *encodedItems) appendMade(to []byte, i int, v *version, value *stored) ([]byte, error) {
	match, object := v.match.Load(), runtime.Object(nil)
	if !match.BelongsTo(e.encoding) {
		var err error
		if object, err = e.readable(v, value); err != nil {
			return nil, err
		}
		if match, _, err = e.store.matchOf(e.encoding, v, value, object); err != nil {
			return nil, err
		}
	}
	if e.maker != nil {
		read := func() (_ runtime.Object, err error) { // may be called again
			if object == nil {
				object, err = e.readable(v, value)
			}
			return object, err
		}
		begin := len(to)
		to, err := e.maker.Row(to, read, match.Metadata(value.data, v.revision))
		if err == nil && e.sizes != nil && len(to)-begin != int(e.sizes[i]) {
			v.made.Store(0)
			return nil, fmt.Errorf("list %s: %w: %d bytes, and %d before", v.key, errAnotherSize, len(to)-begin, e.sizes[i])
		}
		return to, err
	}
	if match.Exact() {
		return match.Fragment(value.data, v.revision).Append(to), nil
	}
	if object == nil {
		var err error
		if object, err = e.readable(v, value); err != nil {
			return nil, err
		}
	}
	item, err := e.encoding.Item(object, nil)
	return append(to, item...), err
}

// errAnotherSize ends a list whose length has been announced to the client and no longer holds.
var errAnotherSize = errors.New("the same stored object is encoded to another size, by a conversion that does not depend on the " +
	"object alone")

// lost joins the reason why the pin was given up, if any, with an error of reading a value.
func (e *encodedItems) lost(err error) error {
	if e.pin != nil {
		if lost := e.pin.lost.load(); lost != nil {
			return errors.Join(lost, err)
		}
	}
	return err
}

// readable returns the object of a version whose value has been decoded successfully before.
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

// known returns the objects of a batch that need not be decoded before the list is written, and the versions of the
// other objects. known[i].version is nil for the latter.
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

// knownOne returns the listed object of a version if its match, and its size for a sized shape, are known. It returns
// false if the value cannot be read now; decoding it reports the error.
func (p *page) knownOne(v *version) (sizedItem, bool) {
	match := v.match.Load()
	if !match.BelongsTo(p.as.encoding) {
		return sizedItem{}, false
	}
	size, ok := p.as.sizeOf(v)
	if !ok && p.as.sized() {
		return sizedItem{}, false
	}
	if value := v.value.Load(); value != nil {
		return sizedItem{listed{v, value}, size}, true
	}
	if p.as.maker == nil && match.Exact() && p.early >= int64(v.size) {
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

// pinned reports whether the journal keeps the values of the list's revision while the list is written.
func (p *page) pinned() bool {
	if p.pin == nil {
		p.pin = p.store.core.pinList(p.revision)
	}
	return p.pin != nil
}

// listedOf returns the listed object of a version whose object has been read. It determines whether an item can be made
// from the stored value.
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
	match, whole, err := s.matchOf(as.encoding, v, value, object)
	if err != nil {
		return sizedItem{}, err
	}
	switch {
	case as.maker == nil && match.Exact() && (inMemory || p.takeEarly(len(value.data))):
		return sizedItem{listed: listed{v, value}}, nil
	case as.maker == nil && match.Exact():
		return p.later(v, nil, 0)
	case as.maker != nil && !as.sized() && (inMemory && !as.early() || p.early <= 0):
		return p.later(v, v.value.Load(), 0)
	}
	if size, ok := as.sizeOf(v); ok { // made before
		return p.later(v, v.value.Load(), size)
	}
	item, err := p.make(match, v, value, object, whole)
	if err != nil {
		return sizedItem{}, err
	}
	if match = v.match.Load(); match == nil {
		v.match.CompareAndSwap(nil, as.encoding.Mismatch())
	}
	if as.sized() {
		v.setMadeSize(as.maker.Sizing, len(item))
	}
	if p.takeEarly(len(item)) {
		return sizedItem{listed{value: &stored{data: slices.Clone(item)}}, int32(len(item))}, nil
	}
	return p.later(v, v.value.Load(), int32(len(item)))
}

// later returns a listed object whose item is made when the list is written. size is used if the shape is sized. If
// value is nil, it is read from the journal then.
func (p *page) later(v *version, value *stored, size int32) (sizedItem, error) {
	if value == nil && !p.pinned() {
		return sizedItem{}, errCompacted
	}
	return sizedItem{listed{v, value}, size}, nil
}

// takeEarly reports whether that many bytes may be kept until the list is written, and reserves them.
func (p *page) takeEarly(bytes int) bool {
	if p.early < int64(bytes) {
		p.early = 0
		return false
	}
	p.early -= int64(bytes)
	return true
}

// make returns an item. The item is valid until the next call.
func (p *page) make(match *verbatim.Match, v *version, value *stored, object runtime.Object, whole []byte) ([]byte, error) {
	if p.as.maker == nil {
		return p.as.encoding.Item(object, whole)
	}
	item, err := p.as.maker.Row(p.scratch[:0], func() (runtime.Object, error) { return object, nil }, match.Metadata(value.data, v.revision))
	if err == nil {
		p.scratch = item
	}
	return item, err
}
