package convert

import (
	"bytes"
	"io"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/wire/verbatim"
)

// ListPiece is how many bytes of a list are written at once.
const ListPiece = 128 << 10

// listSerializer encodes lists as JSON item by item, and remembers how an item is
// encoded: nearly all that a long list costs is encoding what has not changed since the
// last one. For 10,000 objects that is 4 ms instead of 42 (BenchmarkLists). What a client
// gets is the same, byte for byte.
type listSerializer struct {
	runtime.NegotiatedSerializer
	lists map[reflect.Type]bool
	json  runtime.Identifier
	items *Items
}

// withLists is a serializer for whose lists of kinds with the storage of this server an
// item is known by its UID and resource version. Those of a kind that stores its objects
// by itself may be anything.
func (m *Machinery) withLists(s runtime.NegotiatedSerializer) runtime.NegotiatedSerializer {
	info, ok := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok || len(m.lists) == 0 {
		return s
	}
	return listSerializer{s, m.lists, info.Serializer.Identifier(), m.items}
}

// Items are what the lists of this server remember.
func (m *Machinery) Items() *Items { return m.items }

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s listSerializer) EncoderForVersion(encoder runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	codec := s.NegotiatedSerializer.EncoderForVersion(encoder, gv)
	if plain, ok := codec.(runtime.EncoderWithAllocator); ok && encoder.Identifier() == s.json {
		return listEncoder{plain, s.lists, s.items}
	}
	return codec
}

type listEncoder struct {
	runtime.EncoderWithAllocator
	lists map[reflect.Type]bool
	items *Items
}

// Encode implements runtime.Encoder.
func (e listEncoder) Encode(object runtime.Object, w io.Writer) error {
	return e.encode(object, w, e.EncoderWithAllocator.Encode)
}

// EncodeWithAllocator implements runtime.EncoderWithAllocator.
func (e listEncoder) EncodeWithAllocator(object runtime.Object, w io.Writer, memory runtime.MemoryAllocator) error {
	return e.encode(object, w, func(object runtime.Object, w io.Writer) error {
		return e.EncoderWithAllocator.EncodeWithAllocator(object, w, memory)
	})
}

func (e listEncoder) encode(object runtime.Object, w io.Writer, encode func(runtime.Object, io.Writer) error) error {
	if !e.lists[reflect.TypeOf(object)] {
		return encode(object, w)
	}
	list := reflect.ValueOf(object).Elem()
	items := list.FieldByName("Items")
	if items.Len() == 0 {
		return encode(object, w)
	}
	head, err := headOf(list, encode)
	if err != nil {
		return err
	}
	bare := reflect.New(list.Type()).Elem()
	bareHead, err := headOf(bare, encode)
	if err != nil {
		return err
	}
	if head == nil || bareHead == nil {
		return encode(object, w)
	}
	// All of them first: an item that cannot be encoded is an error instead of a list.
	var buffer bytes.Buffer
	objects := make([]metav1.Object, items.Len())
	for i := range objects {
		objects[i], _ = items.Index(i).Addr().Interface().(metav1.Object)
	}
	encoded, err := e.items.Encode(e.items.of(listKey{list.Type(), e.Identifier()}), objects, func(i int) ([]byte, error) {
		bare.FieldByName("Items").Set(items.Slice(i, i+1))
		buffer.Reset()
		if err := encode(bare.Addr().Interface().(runtime.Object), &buffer); err != nil {
			return nil, err
		}
		return bytes.Clone(buffer.Bytes()[len(bareHead) : buffer.Len()-len(listEnd)]), nil
	})
	if err != nil {
		return err
	}
	pieces := make(verbatim.Pieces, len(encoded))
	for i, item := range encoded {
		pieces[i] = verbatim.Encoded(item)
	}
	return WriteList(w, head, pieces, ",", []byte(listEnd), nil, true)
}

// listEnd is what comes after the last item.
const listEnd = "]}\n"

// headOf is the beginning of an encoded list, up to its first item; nil if lists of the
// type are not encoded with their items at the end.
func headOf(list reflect.Value, encode func(runtime.Object, io.Writer) error) ([]byte, error) {
	empty := reflect.New(list.Type())
	empty.Elem().Set(list)
	items := empty.Elem().FieldByName("Items")
	items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	var buffer bytes.Buffer
	if err := encode(empty.Interface().(runtime.Object), &buffer); err != nil {
		return nil, err
	}
	head, ok := bytes.CutSuffix(buffer.Bytes(), []byte(listEnd))
	if !ok || !bytes.HasSuffix(head, []byte(`"items":[`)) {
		return nil, nil
	}
	return head, nil
}

// WriteList writes a list: what comes before its items, these with a separator between them, and what comes after them. It writes
// in pieces, and if the list may be compressed, one byte first: by the size of that, the handler takes a list for one that is
// written in pieces, or for one that is too short to be compressed.
//
// Nothing has been written if an item fails that belongs into the first piece. The pieces are put together in room, if that is
// not nil, which must not be used again before w has no use for what was written.
func WriteList(w io.Writer, head []byte, items verbatim.Items, separator string, tail, room []byte, mayCompress bool) error {
	if room == nil {
		size := len(head) + len(tail)
		for i := 0; i < items.Len() && size < ListPiece; i++ {
			size += items.Size(i) + 1
		}
		room = make([]byte, 0, min(size, ListPiece))
	}
	var first []byte
	if mayCompress {
		first, head = head[:1], head[1:]
	}
	piece := append(room[:0], head...)
	write := func(p []byte) error {
		if first != nil {
			if _, err := w.Write(first); err != nil {
				return err
			}
			first = nil
		}
		_, err := w.Write(p)
		return err
	}
	for i := range items.Len() {
		before := len(piece)
		if i > 0 {
			piece = append(piece, separator...)
		}
		var err error
		if piece, err = items.Append(piece, i); err != nil {
			return err
		}
		if before > 0 && len(piece)+len(tail) > ListPiece {
			if err := write(piece[:before]); err != nil {
				return err
			}
			piece = append(piece[:0], piece[before:]...)
		}
	}
	return write(append(piece, tail...))
}

// listKey is what the encoding of an item depends on beside the item.
type listKey struct {
	list    reflect.Type
	encoder runtime.Identifier
}
