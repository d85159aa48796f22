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

// ItemEncoder returns what encodes objects of a kind, as they are stored, as JSON of a version, each
// with its kind. What it returns must not be changed. It remembers what lately was encoded, if
// stored says that an object is known by its UID and resource version. It does not change the
// objects, and may be called concurrently.
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
			// Encoding sets the kind, which readers share.
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

// itemKey is an object as it was at some time, in lists of a kind and version.
type itemKey struct {
	list    int
	uid     types.UID
	version string
}

// rememberedBytes bounds the encoded items that the lists of a server remember, unless it says another bound.
const rememberedBytes = 64 << 20

// Items are encoded items of lists. If there are more than there is room for, those that were asked for
// again are kept rather than others, and which of the others go is left to chance: lists are read from their beginning
// to their end, so that by letting go of what was used longest ago a list that is a little too long would lose each item
// before it is asked for again. Its methods may be called concurrently.
type Items struct {
	mu     sync.Mutex
	budget int64
	lists  map[listKey]int // numbers them
	last   int             // number
	bytes  int64
	kept   []keptItem
	at     map[itemKey]int // in kept
}

type keptItem struct {
	key   itemKey
	item  []byte
	again bool // it was asked for since it was last looked at to be let go
}

// Bytes are how many bytes are remembered, by an estimate, and how many may be.
func (r *Items) Bytes() (used, limit int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes, r.budget
}

// Bound says how many bytes may be remembered, of all lists together, from now on.
func (r *Items) Bound(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.budget = bytes
	r.shrink(0)
}

// Number returns the number of one more form of lists. What is remembered of it is of no other.
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

// Encode returns the encoded items of a list in the form with a number. The caller must not
// change them. Those that are not remembered are encoded one by one; nil is an item that is
// never remembered.
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

// known returns an encoded item that is remembered, or nil. It needs mu.
func (r *Items) known(key itemKey) []byte {
	at, ok := r.at[key]
	if !ok {
		return nil
	}
	r.kept[at].again = true
	return r.kept[at].item
}

// find returns the encoded items of a list, nil for those that are not remembered, and
// what they are known by.
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

// keep remembers an encoded item. It needs mu.
func (r *Items) keep(key itemKey, item []byte) {
	if _, known := r.at[key]; known || key.uid == "" || key.version == "" || sizeOf(item) > r.budget {
		return // another request may have encoded it meanwhile
	}
	r.shrink(sizeOf(item))
	if r.at == nil {
		r.at = map[itemKey]int{}
	}
	r.at[key] = len(r.kept)
	r.kept = append(r.kept, keptItem{key: key, item: item})
	r.bytes += sizeOf(item)
}

// sizeOf is about what an item takes with what it is known by.
func sizeOf(item []byte) int64 {
	const entry = 190
	return int64(len(item) + entry)
}

// shrink lets go of items until there is room for so many bytes. It needs mu.
func (r *Items) shrink(room int64) {
	for r.bytes+room > r.budget && len(r.kept) > 0 {
		at := rand.IntN(len(r.kept))
		// Where all have been asked for again, one of them has to go.
		for range 8 {
			if !r.kept[at].again {
				break
			}
			r.kept[at].again = false
			at = rand.IntN(len(r.kept))
		}
		gone, last := r.kept[at], len(r.kept)-1
		r.kept[at] = r.kept[last]
		r.at[r.kept[at].key] = at
		delete(r.at, gone.key)
		r.kept[last] = keptItem{}
		r.kept = r.kept[:last]
		r.bytes -= sizeOf(gone.item)
	}
}
