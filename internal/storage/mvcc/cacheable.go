package mvcc

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// sharedEvents is how many of a resource's newest events have their encodings
// shared by all watchers. A watcher further behind encodes for itself.
const sharedEvents = 1024

// sharedEvent holds the objects that an event can deliver. They are made when
// first needed.
type sharedEvent struct {
	position uint64
	store    *resourceStore
	current  atomic.Pointer[cacheable]
	replaced atomic.Pointer[cacheable]

	// The decoded objects, where they are not attached to their versions (see
	// objectCache); nil until a watch has asked, or needed to.
	now, before atomic.Pointer[decoded]

	// What the indexes say of the two objects; nil until a watch has asked.
	currentValues  atomic.Pointer[map[string][]string]
	replacedValues atomic.Pointer[map[string][]string]
}

// sharedAt returns the event's shared objects; ones for the caller alone if the
// position is too far back.
func (l *eventLog) sharedAt(position uint64, s *resourceStore) *sharedEvent {
	slot := &l.shared[position%sharedEvents]
	for {
		found := slot.Load()
		if found != nil && found.position == position && found.store == s {
			return found
		}
		made := &sharedEvent{position: position, store: s}
		if found != nil && found.position >= position {
			return made
		}
		if slot.CompareAndSwap(found, made) {
			return made
		}
	}
}

// forget lets go of the events before a position.
func (l *eventLog) forget(position uint64) {
	for i := range l.shared {
		if e := l.shared[i].Load(); e != nil && e.position < position {
			l.shared[i].CompareAndSwap(e, nil)
		}
	}
}

// cacheable is the object of a watch event. The first watch to encode it does so for
// every watcher that wants the same encoding.
//
// Its metadata is read through GetObjectMeta and is a copy: changing it has no
// effect on the event.
type cacheable struct {
	object runtime.Object // shared, never changed
	store  *resourceStore

	encoding  sync.Mutex // held to add to encodings
	encodings atomic.Pointer[[]*encoding]
}

type encoding struct {
	identifier runtime.Identifier
	once       sync.Once
	data       []byte
	err        error
}

var (
	_ runtime.CacheableObject   = (*cacheable)(nil)
	_ metav1.ObjectMetaAccessor = (*cacheable)(nil)
)

// orMake returns the cacheable object in a slot of a shared event, or puts one
// there.
func orMake(slot *atomic.Pointer[cacheable], s *resourceStore, object func() (runtime.Object, error)) (*cacheable, error) {
	if made := slot.Load(); made != nil {
		return made, nil
	}
	o, err := object()
	if err != nil {
		return nil, err
	}
	made := &cacheable{object: o, store: s}
	made.encodings.Store(&[]*encoding{})
	if slot.CompareAndSwap(nil, made) {
		return made, nil
	}
	return slot.Load(), nil
}

var errPanicked = errors.New("the object has not been encoded: encoding it panicked")

// CacheEncode implements runtime.CacheableObject. An encoding that panics is an error for all others that want it.
func (c *cacheable) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	e := c.encodingOf(id)
	e.once.Do(func() {
		var buffer bytes.Buffer
		e.err = errPanicked // if what follows does, it is not done again
		e.err = encode(c.store.copy(c.object), &buffer)
		e.data = buffer.Bytes()
	})
	if e.err != nil {
		return e.err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(e.data)
		return nil
	}
	_, err := w.Write(e.data)
	return err
}

func (c *cacheable) encodingOf(id runtime.Identifier) *encoding {
	if e := find(*c.encodings.Load(), id); e != nil {
		return e
	}
	c.encoding.Lock()
	defer c.encoding.Unlock()
	known := *c.encodings.Load()
	if e := find(known, id); e != nil {
		return e
	}
	e := &encoding{identifier: id}
	more := append(known[:len(known):len(known)], e)
	c.encodings.Store(&more)
	return e
}

func find(encodings []*encoding, id runtime.Identifier) *encoding {
	for _, e := range encodings {
		if e.identifier == id {
			return e
		}
	}
	return nil
}

// GetObject implements runtime.CacheableObject.
func (c *cacheable) GetObject() runtime.Object { return c.object.DeepCopyObject() }

// GetObjectKind implements runtime.Object. It is a copy too.
func (c *cacheable) GetObjectKind() schema.ObjectKind {
	kind := &metav1.TypeMeta{}
	kind.SetGroupVersionKind(c.object.GetObjectKind().GroupVersionKind())
	return kind
}

// DeepCopyObject implements runtime.Object.
func (c *cacheable) DeepCopyObject() runtime.Object { return c.GetObject() }

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (c *cacheable) GetObjectMeta() metav1.Object {
	accessor, err := meta.Accessor(c.store.copy(c.object))
	if err != nil {
		return nil
	}
	return accessor
}
