package convert

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// ItemEncoder returns a function that encodes stored objects of a kind as JSON of a version, each with its kind. If
// stored is set, objects are identified by UID and resource version, and recent results are cached. The caller must
// not modify the results. The function does not modify the objects and may be called concurrently.
func (m *Machinery) ItemEncoder(kind schema.GroupVersionKind, stored bool) (func(objects []runtime.Object) ([][]byte, error), error) {
	group := m.Of(kind.Group)
	info, ok := runtime.SerializerInfoForMediaType(group.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, fmt.Errorf("encode %s: there is no JSON", kind)
	}
	codec := group.Codecs.EncoderForVersion(info.Serializer, kind.GroupVersion())
	number := m.items.Number()
	return func(objects []runtime.Object) ([][]byte, error) {
		known := make([]metav1.Object, len(objects))
		for i := range objects {
			if stored {
				known[i], _ = objects[i].(metav1.Object)
			}
		}
		return m.items.Encode(number, known, func(i int) ([]byte, error) {
			// Encoding sets the kind, but the object is shared with other readers.
			copied := reflect.New(reflect.TypeOf(objects[i]).Elem())
			copied.Elem().Set(reflect.ValueOf(objects[i]).Elem())
			var item bytes.Buffer
			if err := codec.Encode(copied.Interface().(runtime.Object), &item); err != nil {
				return nil, err
			}
			return bytes.Clone(bytes.TrimSuffix(item.Bytes(), []byte("\n"))), nil
		})
	}, nil
}

// itemKey is an object at a resource version, in lists of one form.
type itemKey struct {
	list    int
	uid     types.UID
	version string
}

// rememberedBytes is the default bound of the cached items of a server.
const rememberedBytes = 64 << 20

// Items caches encoded items of lists. When it is full, it evicts random items, and prefers items that have not been
// requested again. Lists are read from beginning to end. With LRU eviction, a list slightly larger than the cache
// would lose each item before its next use. Its methods may be called concurrently.
type Items struct {
	mu     sync.Mutex
	budget int64
	lists  map[listKey]int // number of each form
	last   int             // the last assigned number
	bytes  int64
	cached []cachedItem
	index  map[itemKey]int // index in cached
}

type cachedItem struct {
	key  itemKey
	item []byte
	used bool // requested since the last eviction attempt
}

// Bytes returns the estimated size of the cache and its bound, in bytes.
func (r *Items) Bytes() (used, limit int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes, r.budget
}

// Bound sets the maximum size of the cache, of all lists together, in bytes. It evicts items that exceed it.
func (r *Items) Bound(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.budget = bytes
	r.shrink(0)
}

// Number returns a new form of lists, which shares no items with other forms.
func (r *Items) Number() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	return r.last
}

// of returns the number of the lists with a key.
func (r *Items) of(list listKey) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lists == nil {
		r.lists = map[listKey]int{}
	}
	number, known := r.lists[list]
	if !known {
		r.last++
		number = r.last
		r.lists[list] = number
	}
	return number
}

// Encode returns the encoded items of a list in the form with a number. The caller must not modify them. Items that
// are not cached are encoded one by one; a nil item is never cached.
func (r *Items) Encode(list int, items []metav1.Object, encode func(i int) ([]byte, error)) ([][]byte, error) {
	encoded, keys := r.find(list, items)
	for i, key := range keys {
		if encoded[i] != nil {
			continue
		}
		item, err := encode(i)
		if err != nil {
			return nil, err
		}
		encoded[i] = item
		r.put(key, item)
	}
	return encoded, nil
}

func keyOf(list int, object metav1.Object) itemKey {
	return itemKey{list, object.GetUID(), object.GetResourceVersion()}
}

func (r *Items) get(key itemKey) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known(key)
}

func (r *Items) put(key itemKey, item []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(key, item)
}

// known returns a cached item, or nil. The caller holds mu.
func (r *Items) known(key itemKey) []byte {
	at, ok := r.index[key]
	if !ok {
		return nil
	}
	r.cached[at].used = true
	return r.cached[at].item
}

// find returns the cached items of a list, nil for items that are not cached, and their keys.
func (r *Items) find(list int, items []metav1.Object) ([][]byte, []itemKey) {
	encoded, keys := make([][]byte, len(items)), make([]itemKey, len(items))
	for i, item := range items {
		if item != nil {
			keys[i] = keyOf(list, item)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, key := range keys {
		encoded[i] = r.known(key)
	}
	return encoded, keys
}

// keep adds an encoded item to the cache. The caller holds mu.
func (r *Items) keep(key itemKey, item []byte) {
	if _, known := r.index[key]; known || key.uid == "" || key.version == "" || sizeOf(item) > r.budget {
		return // a concurrent request may have added it
	}
	r.shrink(sizeOf(item))
	if r.index == nil {
		r.index = map[itemKey]int{}
	}
	r.index[key] = len(r.cached)
	r.cached = append(r.cached, cachedItem{key: key, item: item})
	r.bytes += sizeOf(item)
}

// sizeOf estimates the size of a cached item with its key, in bytes.
func sizeOf(item []byte) int64 {
	const entry = 190
	return int64(len(item) + entry)
}

// shrink evicts items until there is room for so many bytes. The caller holds mu.
func (r *Items) shrink(room int64) {
	for r.bytes+room > r.budget && len(r.cached) > 0 {
		at := rand.IntN(len(r.cached))
		// The bound on attempts evicts an item even if all have been requested again.
		for range 8 {
			if !r.cached[at].used {
				break
			}
			r.cached[at].used = false
			at = rand.IntN(len(r.cached))
		}
		gone, last := r.cached[at], len(r.cached)-1
		r.cached[at] = r.cached[last]
		r.index[r.cached[at].key] = at
		delete(r.index, gone.key)
		r.cached[last] = cachedItem{}
		r.cached = r.cached[:last]
		r.bytes -= sizeOf(gone.item)
	}
}
