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
	used   atomic.Bool // since the cache last checked
	// written is set if the object was decoded because it was written; it may never be read.
	written bool
}

// objectCache bounds the decoded objects attached to the latest versions. It evicts the object that was attached
// longest ago and has not been used since the last check. When a version is superseded, its object is detached at once:
// only watches still need it, and they share it in the log of events.
type objectCache struct {
	budget int64

	mu    sync.Mutex
	queue []*version // attached longest ago first; may contain versions whose object is gone
	stale int        // number of versions in queue whose object is gone
	total int64
	// written is the number of objects attached because of a write since the last rest; lately is their number since
	// the last call of rest.
	written, lately int
}

// cachedState is the state of a version in objectCache.
type cachedState uint8

const (
	queued     cachedState = 1 << iota // the version is in the queue
	superseded                         // there is a later version, so no object may be attached
)

// mostSpared bounds how many recently used objects are skipped before one is evicted in spite of its use: a list may
// have just used all of them.
const mostSpared = 16

// attach keeps a decoded object with its version.
func (c *objectCache) attach(v *version, d *decoded) { c.keep(v, d, false) }

// attachIfRoom is like attach, but evicts no other object.
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

// restWrites is the number of writes between two calls of rest below which the core is at rest.
const restWrites = 100

// rest is called every second. If there were hardly any writes since the last call, it drops the objects that were
// attached by writes and not read since. Decoding them again costs little at that rate, and their small allocations are
// scattered over pages that can then be returned. With 200,000 objects of 2 KB, 25 MB of such objects held 270 MB of
// pages.
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

// detach permanently removes the object of a version that is superseded or was never visible. It returns the object, or
// nil.
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

// tidy removes versions without an object from the queue.
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

// estimate returns the estimated memory of a decoded object, as measured for typical objects: three times its encoded
// size, or six times if it is a tree of maps.
func (d *decoded) estimate(v *version) int64 {
	if d.store.resource.Unstructured {
		return 6 * int64(v.size)
	}
	return 3 * int64(v.size)
}

// object returns the object of a version, with its revision as the resource version. The object is shared: callers may
// hand out only copies.
func (s *resourceStore) object(ctx context.Context, v *version) (runtime.Object, error) {
	return s.objectFor(ctx, v, s.core.decoded.attach)
}

// objectFor is like object, but calls keep to cache a newly decoded object; nil does not cache it.
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

// decodeFor decodes the codec's output for a version. It calls keep with the object, unless keep is nil.
func (s *resourceStore) decodeFor(v *version, data []byte, keep func(*version, *decoded)) (runtime.Object, error) {
	object, err := s.decode(data, v.revision)
	if err == nil && keep != nil {
		keep(v, &decoded{object: object, store: s})
	}
	return object, err
}

// cached returns the object of a version if it is decoded already, and marks it as used.
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

// cacheDecoded decodes the codec's output for a version and attaches the object.
func (s *resourceStore) cacheDecoded(v *version, data []byte) (runtime.Object, error) {
	return s.cacheAs(v, data, false)
}

// cacheWritten is like cacheDecoded for a version that is being written. It does not attach a new object of a
// resource without watches: most reads need only its bytes, and thousands of such objects would enlarge the heap, and be
// marked by each garbage collection.
func (s *resourceStore) cacheWritten(v *version, data []byte) (runtime.Object, error) {
	if v.created() && s.keyspace.watches.count.Load() == 0 {
		return s.decode(data, v.revision)
	}
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

// verbatim returns a version in an encoding, if its value is known to match the encoding.
func (s *resourceStore) verbatim(encoding *verbatim.Encoding, v *version) (verbatim.Fragment, bool) {
	match := v.match.Load()
	if !match.BelongsTo(encoding) || !match.Exact() {
		return verbatim.Fragment{}, false
	}
	value, err := s.core.bytes(v)
	if err != nil {
		return verbatim.Fragment{}, false // a later decoding reports the error
	}
	return match.Fragment(value, v.revision), true
}

// compareVerbatim returns a version in an encoding, if its value matches the encoding. object is the version's decoded
// object.
func (s *resourceStore) compareVerbatim(encoding *verbatim.Encoding, v *version, object runtime.Object) (verbatim.Fragment, bool) {
	value := s.valueOf(v)
	match, _, err := s.matchOf(encoding, v, value, object)
	if err != nil || match == nil || !match.Exact() {
		return verbatim.Fragment{}, false
	}
	return match.Fragment(value.data, v.revision), true
}

// valueOf returns the value of a version, from the journal if it is not in memory. It returns nil if the value cannot
// be read, or if it is transformed and not in memory.
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

// matchOf determines whether the value of a version can be served verbatim in an encoding. object is the version's
// decoded object. match is nil if there is no value. whole is the encoded object, if this check needed it, else nil. The
// result is kept with the version, unless the value is transformed or stored in another version than the encoding's.
func (s *resourceStore) matchOf(
	encoding *verbatim.Encoding,
	v *version,
	value *stored,
	object runtime.Object,
) (match *verbatim.Match, whole []byte, err error) {
	if value == nil {
		return nil, nil, nil
	}
	if s.resource.Transformer != nil || !encoding.HasPrefix(value.data) {
		return encoding.Mismatch(), nil, nil
	}
	if match = v.match.Load(); !match.BelongsTo(encoding) {
		if match, whole, err = encoding.Compare(object, value.data, v.revision); err != nil {
			return nil, nil, err
		}
		v.match.Store(match)
	}
	return match, whole, nil
}

// GetEncoded returns the object of a key as the complete response in an encoding. It returns the empty fragment if the
// stored value does not match the encoding, if the object is large, and in case of any error; the caller then reads the
// object as usual.
func (s *resourceStore) GetEncoded(ctx context.Context, key string, encoding *verbatim.Encoding) verbatim.Fragment {
	prepared, err := s.key(key, false)
	if err != nil {
		return verbatim.Fragment{}
	}
	v, _ := s.core.get(prepared)
	if v.live() == 0 || v.size >= largeObject {
		return verbatim.Fragment{}
	}
	fragment, known := s.verbatim(encoding, v)
	if !known {
		object, err := s.object(ctx, v)
		if err != nil {
			return verbatim.Fragment{}
		}
		if fragment, known = s.compareVerbatim(encoding, v, object); !known {
			return verbatim.Fragment{}
		}
	}
	return fragment
}

// plain returns the codec's output for a version. stale is set if the value must be rewritten because the transformer
// now uses another key.
func (s *resourceStore) plain(ctx context.Context, v *version) (data []byte, stale bool, err error) {
	if data, err = s.core.bytes(v); err != nil {
		return nil, false, err
	}
	return s.plainOf(ctx, v, data)
}

// plainOf is like plain, for a value that has been read from the journal already.
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

// stored transforms the codec's output into the value for the journal.
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

// decode calls conversions and defaulting functions of users. It converts their panics into errors: a panic would end
// the process in a watcher, and leave a write unsettled forever.
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

// copy returns a copy of a shared object for one reader. Encoding may set the kind, so no two readers may share the
// struct. Readers never change anything below the struct.
func (s *resourceStore) copy(object runtime.Object) runtime.Object {
	if s.resource.Unstructured {
		return object.DeepCopyObject()
	}
	to := reflect.New(reflect.TypeOf(object).Elem())
	to.Elem().Set(reflect.ValueOf(object).Elem())
	return to.Interface().(runtime.Object)
}

// copyTo is like copy, into an object of the reader.
func (s *resourceStore) copyTo(out, object runtime.Object) error {
	if s.resource.Unstructured {
		object = object.DeepCopyObject()
	}
	return assignTo(out, object)
}

// assignTo sets the struct that out points to, and shares everything below it.
func assignTo(out, object runtime.Object) error {
	to, from := reflect.ValueOf(out), reflect.ValueOf(object)
	if to.Kind() != reflect.Pointer || to.IsNil() || to.Type() != from.Type() {
		return fmt.Errorf("cannot read a %T into a %T", object, out)
	}
	to.Elem().Set(from.Elem())
	return nil
}
