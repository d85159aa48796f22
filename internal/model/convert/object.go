package convert

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// ObjectEncoder encodes objects of a stored kind in a version and media type. As JSON, an object is a list item with
// the kind in front, so the cached list item suffices. Its methods may be called concurrently.
type ObjectEncoder struct {
	encoder  runtime.Encoder
	items    *Items // nil without a cache
	list     int
	head     []byte // the beginning of an encoded object, which an item lacks
	encoding *verbatim.Encoding
}

// ObjectEncoder returns an ObjectEncoder whose output equals that of encoder, an encoder of the version.
func (m *Machinery) ObjectEncoder(encoder runtime.Encoder, k *define.Kind, v *define.Version) *ObjectEncoder {
	e := &ObjectEncoder{encoder: encoder}
	if lists, ok := encoder.(listEncoder); ok && lists.lists[reflect.PointerTo(k.Hub().ListType)] {
		e.items, e.list = m.items, m.items.of(listKey{k.Hub().ListType, lists.Identifier()})
		e.head = fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, k.Name, v.GroupVersion)
		e.encoding = e.newEncoding()
	}
	return e
}

// Encoding returns the encoding of objects in lists; nil unless they are written as JSON of a stored kind.
func (e *ObjectEncoder) Encoding() *verbatim.Encoding { return e.encoding }

// objectEnd follows the last field of an encoded object.
const objectEnd = "}\n"

// Object returns an encoded object, which the caller must not modify. Encoding may set the object's kind.
func (e *ObjectEncoder) Object(object runtime.Object) ([]byte, error) {
	accessor, ok := object.(metav1.Object)
	if e.items == nil || !ok {
		return e.encode(object)
	}
	key := keyOf(e.list, accessor)
	if item := e.items.get(key); item != nil {
		whole := append(make([]byte, 0, len(e.head)+len(item)), e.head...)
		return append(append(whole, item[1:]...), '\n'), nil
	}
	whole, err := e.encode(object)
	if err != nil {
		return nil, err
	}
	if item, ok := e.item(whole); ok {
		e.items.put(key, item)
	}
	return whole, nil
}

// newEncoding returns the encoding of list items, which uses the stored bytes if possible.
func (e *ObjectEncoder) newEncoding() *verbatim.Encoding {
	whole := func(object runtime.Object) ([]byte, error) { return e.encode(Shallow(object)) }
	return verbatim.NewEncoding(e.head, len(e.head), whole, func(object runtime.Object, encoded []byte) ([]byte, error) {
		var key itemKey
		if accessor, ok := object.(metav1.Object); ok {
			key = keyOf(e.list, accessor)
		}
		if item := e.items.get(key); item != nil {
			return item, nil
		}
		if encoded == nil {
			var err error
			if encoded, err = whole(object); err != nil {
				return nil, err
			}
		}
		item, ok := e.item(encoded)
		if !ok {
			return nil, errNoItem
		}
		e.items.put(key, item)
		return item, nil
	})
}

// AppendItem appends an object as a JSON list item, from the cache if it contains the item. If remember is set, a
// newly encoded item is cached. It must not be called if Form returns nil.
func (e *ObjectEncoder) AppendItem(to []byte, object runtime.Object, remember bool) ([]byte, error) {
	var key itemKey
	if accessor, ok := object.(metav1.Object); ok {
		key = keyOf(e.list, accessor)
	}
	if item := e.items.get(key); item != nil {
		return append(to, item...), nil
	}
	begin := len(to)
	buffer := bytes.NewBuffer(to)
	if err := e.encoder.Encode(Shallow(object), buffer); err != nil {
		return nil, err
	}
	to = buffer.Bytes()
	rest, ok := bytes.CutPrefix(to[begin:], e.head)
	if !ok || !bytes.HasSuffix(rest, []byte(objectEnd)) {
		return nil, errNoItem
	}
	to[begin] = '{'
	to = append(to[:begin+1], rest[:len(rest)-1]...)
	if remember {
		e.items.put(key, bytes.Clone(to[begin:]))
	}
	return to, nil
}

// WriteObject writes an object like the encoder, which may set its kind, and may use memory until it returns.
func (e *ObjectEncoder) WriteObject(to io.Writer, object runtime.Object, memory runtime.MemoryAllocator) error {
	if encoder, ok := e.encoder.(runtime.EncoderWithAllocator); ok {
		return encoder.EncodeWithAllocator(object, to, memory)
	}
	return e.encoder.Encode(object, to)
}

var errNoItem = errors.New("an object is not encoded with its kind in front")

// item removes the kind from an encoded object.
func (e *ObjectEncoder) item(whole []byte) ([]byte, bool) {
	rest, ok := bytes.CutPrefix(whole, e.head)
	if !ok || !bytes.HasSuffix(rest, []byte(objectEnd)) {
		return nil, false
	}
	return append(append(make([]byte, 0, len(rest)), '{'), rest[:len(rest)-1]...), true
}

func (e *ObjectEncoder) encode(object runtime.Object) ([]byte, error) {
	var buffer bytes.Buffer
	err := e.encoder.Encode(object, &buffer)
	return buffer.Bytes(), err
}

// Shallow returns a shallow copy of an object for one encoding, which only sets the kind.
func Shallow(object runtime.Object) runtime.Object {
	to := reflect.New(reflect.TypeOf(object).Elem())
	to.Elem().Set(reflect.ValueOf(object).Elem())
	return to.Interface().(runtime.Object)
}
