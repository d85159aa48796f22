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

	"github.com/annexapi/annex/internal/storage/mvcc/index"
)

// sharedEvents is the number of newest events of a resource whose encodings all watchers share. A watcher that is
// further behind encodes for itself.
const sharedEvents = 1024

// sharedEvent holds the objects that an event can deliver. They are created on demand.
type sharedEvent struct {
	position uint64
	store    *resourceStore
	current  atomic.Pointer[cacheable]
	replaced atomic.Pointer[cacheable]

	// The decoded objects, if they are not attached to their versions (see objectCache); nil until a watch needs them.
	now, before atomic.Pointer[decoded]

	// The index values of the two objects; nil until a watch needs them.
	currentValues  atomic.Pointer[index.Values]
	replacedValues atomic.Pointer[index.Values]
}

// sharedSlots holds the newest events by their positions.
type sharedSlots [sharedEvents]atomic.Pointer[sharedEvent]

// slot returns the slot of a position.
func (l *eventLog) slot(position uint64) *atomic.Pointer[sharedEvent] {
	slots := l.shared.Load()
	if slots == nil {
		l.shared.CompareAndSwap(nil, &sharedSlots{})
		slots = l.shared.Load()
	}
	return &slots[position%sharedEvents]
}

// sharedAt returns the shared event at a position. If the position is too far back, the returned event belongs to the
// caller alone.
func (l *eventLog) sharedAt(position uint64, s *resourceStore) *sharedEvent {
	slot := l.slot(position)
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

// forget drops the shared events before a position.
func (l *eventLog) forget(position uint64) {
	slots := l.shared.Load()
	if slots == nil {
		return
	}
	for i := range slots {
		if e := slots[i].Load(); e != nil && e.position < position {
			slots[i].CompareAndSwap(e, nil)
		}
	}
}

// cacheable is the object of a watch event. The first watch to encode it does so for all watches that need the same
// encoding.
//
// Its metadata is read through GetObjectMeta and is a copy: changing it does not affect the event.
type cacheable struct {
	object runtime.Object // shared, never changed
	store  *resourceStore

	encoding  sync.Mutex // held to add to encodings
	encodings atomic.Pointer[[]*cachedEncoding]
}

type cachedEncoding struct {
	identifier runtime.Identifier
	once       sync.Once
	data       []byte
	err        error
}

var (
	_ runtime.CacheableObject   = (*cacheable)(nil)
	_ metav1.ObjectMetaAccessor = (*cacheable)(nil)
)

// orMake returns the cacheable object in a slot of a shared event. It fills an empty slot.
func orMake(slot *atomic.Pointer[cacheable], s *resourceStore, object func() (runtime.Object, error)) (*cacheable, error) {
	if made := slot.Load(); made != nil {
		return made, nil
	}
	o, err := object()
	if err != nil {
		return nil, err
	}
	made := &cacheable{object: o, store: s}
	made.encodings.Store(&[]*cachedEncoding{})
	if slot.CompareAndSwap(nil, made) {
		return made, nil
	}
	return slot.Load(), nil
}

var errPanicked = errors.New("the object has not been encoded: encoding it panicked")

// CacheEncode implements runtime.CacheableObject. If an encoding panics, every other caller for the same encoding gets
// an error.
func (c *cacheable) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	e := c.encodingOf(id)
	e.once.Do(func() {
		var buffer bytes.Buffer
		e.err = errPanicked // stays if encode panics, which is not called again
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

func (c *cacheable) encodingOf(id runtime.Identifier) *cachedEncoding {
	if e := find(*c.encodings.Load(), id); e != nil {
		return e
	}
	c.encoding.Lock()
	defer c.encoding.Unlock()
	known := *c.encodings.Load()
	if e := find(known, id); e != nil {
		return e
	}
	e := &cachedEncoding{identifier: id}
	more := append(known[:len(known):len(known)], e)
	c.encodings.Store(&more)
	return e
}

func find(encodings []*cachedEncoding, id runtime.Identifier) *cachedEncoding {
	for _, e := range encodings {
		if e.identifier == id {
			return e
		}
	}
	return nil
}

// GetObject implements runtime.CacheableObject.
func (c *cacheable) GetObject() runtime.Object { return c.object.DeepCopyObject() }

// GetObjectKind implements runtime.Object. The returned kind is a copy, too.
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
