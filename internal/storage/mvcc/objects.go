package mvcc

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/internal/wire/verbatim"
)

// decoded is the object of a version as one resourceStore decodes it. It is never changed.
type decoded struct {
	object runtime.Object
	store  *resourceStore
	used   atomic.Bool // since the cache last looked
	// written says that it was decoded because it was written, and may never be asked for.
	written bool
}

// objectCache bounds the decoded objects attached to the latest versions. It lets go
// what was attached longest ago and has not been used since it last looked, and at
// once what belongs to a version that is superseded: only watches still want that,
// and they share it in the log of events.
type objectCache struct {
	budget int64

	mu    sync.Mutex
	queue []*version // longest ago first; those that have been let go may be among them
	stale int        // how many of them
	total int64
	// written is how many were attached because they were written since the cache was last at rest, lately since it was last
	// asked whether it is.
	written, lately int
}

// cachedState is what objectCache knows of a version.
type cachedState uint8

const (
	queued     cachedState = 1 << iota // it is in the queue
	superseded                         // there is a later one, so nothing is attached any more
)

// mostSpared bounds how many objects that are in use are passed over before one
// is let go all the same: a list may just have used them all.
const mostSpared = 16

// attach keeps a decoded object with its version.
func (c *objectCache) attach(v *version, d *decoded) { c.keep(v, d, false) }

// attachIfRoom is attach, but lets go of no other object for it.
func (c *objectCache) attachIfRoom(v *version, d *decoded) { c.keep(v, d, true) }

func (c *objectCache) keep(v *version, d *decoded, ifRoom bool) {
	bytes := d.estimate(v)
	if bytes > c.budget {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.cached&superseded != 0 || ifRoom && c.total+bytes > c.budget {
		return
	}
	if d.written {
		c.written++
		c.lately++
	}
	before := v.decoded.Swap(d)
	if before != nil {
		c.total -= before.estimate(v)
	}
	c.total += bytes
	switch {
	case v.cached&queued == 0:
		v.cached |= queued
		c.queue = append(c.queue, v)
	case before == nil:
		c.stale--
	}
	for spared := 0; c.total > c.budget; {
		oldest := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		d := oldest.decoded.Load()
		if d == nil {
			c.stale--
			oldest.cached &^= queued
			continue
		}
		if d.used.Swap(false) && spared < mostSpared {
			c.queue = append(c.queue, oldest)
			spared++
			continue
		}
		oldest.cached &^= queued
		oldest.decoded.Store(nil)
		c.total -= d.estimate(oldest)
	}
}

// restWrites is how many objects may have been written since the last look in a core that is at rest.
const restWrites = 100

// rest is called every second. When hardly anything is written any more, it lets go of what was written and not read since:
// decoding it again costs little at that rate, and small pieces of it lie in pages that can be given back then. With 200,000
// objects of 2 KB, 25 MB of such pieces held 270 MB.
func (c *objectCache) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	rests := c.lately < restWrites
	c.lately = 0
	if !rests || c.written == 0 {
		return
	}
	c.written = 0
	for _, v := range c.queue {
		if d := v.decoded.Load(); d != nil && d.written && !d.used.Load() {
			v.decoded.Store(nil)
			c.total -= d.estimate(v)
			c.stale++
		}
	}
	c.tidy()
}

// detach lets go of the object of a version that is superseded, or was never shown,
// for good. It returns what there was, or nil.
func (c *objectCache) detach(v *version) *decoded {
	if v == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.cached |= superseded
	d := v.decoded.Swap(nil)
	if d == nil {
		return nil
	}
	c.total -= d.estimate(v)
	if c.stale++; c.stale > len(c.queue)/2+1024 {
		c.tidy()
	}
	return d
}

// tidy leaves out what has been let go.
func (c *objectCache) tidy() {
	queue := make([]*version, 0, len(c.queue)-c.stale)
	for _, v := range c.queue {
		if v.decoded.Load() != nil {
			queue = append(queue, v)
		} else {
			v.cached &^= queued
		}
	}
	c.queue, c.stale = queue, 0
}

func (c *objectCache) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// estimate is the memory that a decoded object takes, by what was measured for
// typical objects: thrice its encoded size, six times as a tree of maps.
func (d *decoded) estimate(v *version) int64 {
	if d.store.resource.Unstructured {
		return 6 * int64(v.size)
	}
	return 3 * int64(v.size)
}

// object returns the object of a version, with its revision as the resource
// version. It is shared: only a copy may be handed out.
func (s *resourceStore) object(ctx context.Context, v *version) (runtime.Object, error) {
	return s.objectFor(ctx, v, s.core.decoded.attach)
}

// objectFor is object with another way to keep the decoded object; it is not kept if keep is nil.
func (s *resourceStore) objectFor(ctx context.Context, v *version, keep func(*version, *decoded)) (runtime.Object, error) {
	if object := s.cached(v); object != nil {
		return object, nil
	}
	data, _, err := s.plain(ctx, v)
	if err != nil {
		return nil, err
	}
	return s.decodeFor(v, data, keep)
}

// decodeFor decodes what the codec wrote for a version, and has the object kept, unless keep is nil.
func (s *resourceStore) decodeFor(v *version, data []byte, keep func(*version, *decoded)) (runtime.Object, error) {
	object, err := s.decode(data, v.revision)
	if err == nil && keep != nil {
		keep(v, &decoded{object: object, store: s})
	}
	return object, err
}

// cached returns the object of a version if it is decoded already.
func (s *resourceStore) cached(v *version) runtime.Object {
	d := v.decoded.Load()
	if d == nil || d.store != s {
		return nil
	}
	if !d.used.Load() {
		d.used.Store(true)
	}
	return d.object
}

// cacheDecoded decodes what the codec wrote for a version and keeps the object.
func (s *resourceStore) cacheDecoded(v *version, data []byte) (runtime.Object, error) {
	return s.cacheAs(v, data, false)
}

// cacheWritten is cacheDecoded for a version that is just being written.
func (s *resourceStore) cacheWritten(v *version, data []byte) (runtime.Object, error) {
	return s.cacheAs(v, data, true)
}

func (s *resourceStore) cacheAs(v *version, data []byte, written bool) (runtime.Object, error) {
	object, err := s.decode(data, v.revision)
	if err != nil {
		return nil, err
	}
	s.core.decoded.attach(v, &decoded{object: object, store: s, written: written})
	return object, nil
}

// verbatim returns a version in a form, if its value is known to be that.
func (s *resourceStore) verbatim(form *verbatim.Form, v *version) (verbatim.Piece, bool) {
	fit := v.fit.Load()
	if !fit.Of(form) || !fit.Fits() {
		return verbatim.Piece{}, false
	}
	value, err := s.core.bytes(v)
	if err != nil {
		return verbatim.Piece{}, false // decoding it says why
	}
	return fit.Piece(value, v.revision), true
}

// look returns a version, whose object has been read, in a form, if its value is that.
func (s *resourceStore) look(form *verbatim.Form, v *version, object runtime.Object) (verbatim.Piece, bool) {
	value := s.valueOf(v)
	fit, _, err := s.fitOf(form, v, value, object)
	if err != nil || fit == nil || !fit.Fits() {
		return verbatim.Piece{}, false
	}
	return fit.Piece(value.data, v.revision), true
}

// valueOf returns the value of a version, from the journal if it is not in memory; nil if it cannot be read.
func (s *resourceStore) valueOf(v *version) *stored {
	if value := v.value.Load(); value != nil || s.resource.Transformer != nil {
		return value
	}
	data, err := s.core.bytes(v)
	if err != nil {
		return nil
	}
	return &stored{data: data}
}

// fitOf finds out whether the value of a version, whose object has been read, is what clients get in a form. The fit is nil
// if there is no value, and not remembered if the value is of another version. The object as it was encoded for that comes back,
// too; nil if it was not.
func (s *resourceStore) fitOf(
	form *verbatim.Form,
	v *version,
	value *stored,
	object runtime.Object,
) (fit *verbatim.Fit, whole []byte, err error) {
	if value == nil {
		return nil, nil, nil
	}
	if s.resource.Transformer != nil || !form.Begins(value.data) {
		return form.Unfit(), nil, nil
	}
	if fit = v.fit.Load(); !fit.Of(form) {
		if fit, whole, err = form.Look(object, value.data, v.revision); err != nil {
			return nil, nil, err
		}
		v.fit.Store(fit)
	}
	return fit, whole, nil
}

// GetEncoded returns an object as clients get it in a form by itself; nothing if the form is not that of what is stored, and
// if there is anything else to say.
func (s *resourceStore) GetEncoded(ctx context.Context, key string, form *verbatim.Form) verbatim.Piece {
	prepared, err := s.key(key, false)
	if err != nil {
		return verbatim.Piece{}
	}
	v, _ := s.core.get(prepared)
	if v.live() == 0 || v.size >= largeObject {
		return verbatim.Piece{}
	}
	piece, known := s.verbatim(form, v)
	if !known {
		object, err := s.object(ctx, v)
		if err != nil {
			return verbatim.Piece{}
		}
		if piece, known = s.look(form, v, object); !known {
			return verbatim.Piece{}
		}
	}
	return piece
}

// plain returns what the codec wrote for a version, and whether it should be
// written anew because the transformer has moved on.
func (s *resourceStore) plain(ctx context.Context, v *version) (data []byte, stale bool, err error) {
	if data, err = s.core.bytes(v); err != nil {
		return nil, false, err
	}
	return s.plainOf(ctx, v, data)
}

// plainOf is plain for what the journal holds of a version.
func (s *resourceStore) plainOf(ctx context.Context, v *version, data []byte) (plain []byte, stale bool, err error) {
	if s.resource.Transformer == nil {
		return data, false, nil
	}
	data, stale, err = s.resource.Transformer.TransformFromStorage(ctx, data, value.DefaultContext(v.key))
	if err != nil {
		return nil, false, s.untransformable(v.revision, err)
	}
	return data, stale, nil
}

// stored turns what the codec wrote into what the journal holds.
func (s *resourceStore) stored(ctx context.Context, key string, data []byte) ([]byte, error) {
	if s.resource.Transformer == nil {
		return data, nil
	}
	data, err := s.resource.Transformer.TransformToStorage(ctx, data, value.DefaultContext(key))
	if err != nil {
		return nil, storage.NewInternalError(err)
	}
	return data, nil
}

// decode runs users' conversions and defaults, where a panic must not go on: in a
// watcher it would end the process, and in a write leave it unsettled for ever.
func (s *resourceStore) decode(data []byte, revision uint64) (object runtime.Object, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			object, err = nil, s.undecodable(revision, fmt.Errorf("panic: %v", reason))
		}
	}()
	object, _, err = s.resource.Codec.Decode(data, nil, s.resource.New())
	if err != nil {
		return nil, s.undecodable(revision, err)
	}
	if err := versioner.UpdateObject(object, revision); err != nil {
		return nil, fmt.Errorf("set resource version %d: %w", revision, err)
	}
	return object, nil
}

// copy returns a copy of a shared object for one reader. Encoding may set its
// kind, so not even two readers can share one; anything deeper they leave alone.
func (s *resourceStore) copy(object runtime.Object) runtime.Object {
	if s.resource.Unstructured {
		return object.DeepCopyObject()
	}
	to := reflect.New(reflect.TypeOf(object).Elem())
	to.Elem().Set(reflect.ValueOf(object).Elem())
	return to.Interface().(runtime.Object)
}

// copyTo is copy into an object that the reader made.
func (s *resourceStore) copyTo(out, object runtime.Object) error {
	if s.resource.Unstructured {
		object = object.DeepCopyObject()
	}
	return assignTo(out, object)
}

// assignTo sets what out points to, and leaves everything deeper shared.
func assignTo(out, object runtime.Object) error {
	to, from := reflect.ValueOf(out), reflect.ValueOf(object)
	if to.Kind() != reflect.Pointer || to.IsNil() || to.Type() != from.Type() {
		return fmt.Errorf("cannot read a %T into a %T", object, out)
	}
	to.Elem().Set(from.Elem())
	return nil
}
