package convert

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/annexapi/annex/internal/model/structural"
	"github.com/annexapi/annex/internal/wire/plainjson"
)

// NewStorageCodec is like Machinery.StorageCodec, for a scheme and its codecs.
func NewStorageCodec(scheme *runtime.Scheme, codecs serializer.CodecFactory, stored schema.GroupVersion, mediaType string) runtime.Codec {
	return newStorageCodec(scheme, codecs, stored, mediaType, plainjson.New(), nil, nil)
}

// NewStoredDecoder returns the decoder of a storage codec, for a scheme and its codecs. It decodes to the version of the data.
func NewStoredDecoder(scheme *runtime.Scheme, codecs serializer.CodecFactory) runtime.Decoder {
	return newStoredDecoder(scheme, codecs, plainjson.New())
}

func newStoredDecoder(scheme *runtime.Scheme, codecs serializer.CodecFactory, plans *plainjson.Plans) storedDecoder {
	library := json.NewSerializerWithOptions(storedMeta{}, scheme, scheme, json.SerializerOptions{})
	return storedDecoder{
		json:     plans.Decoder(library, kindOfStored, scheme, scheme),
		protobuf: protobuf.NewSerializer(scheme, scheme),
		other:    codecs.UniversalDeserializer(),
	}
}

func newStorageCodec(
	scheme *runtime.Scheme,
	codecs serializer.CodecFactory,
	stored schema.GroupVersion,
	mediaType string,
	plans *plainjson.Plans,
	versions map[schema.GroupVersionKind]*structural.Version,
	shapes map[reflect.Type]*structural.Shape,
) runtime.Codec {
	if mediaType == "" {
		mediaType = runtime.ContentTypeJSON
	}
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	var decoder runtime.Decoder = newStoredDecoder(scheme, codecs, plans)
	if len(versions) > 0 {
		decoder = defaultingDecoder{decoder, versions}
	}
	encoder := withZeros(planned(info.Serializer, codecs.SupportedMediaTypes(), plans), codecs.SupportedMediaTypes(), shapes)
	if mediaType != runtime.ContentTypeProtobuf {
		encoder = asProtobufKeeps(encoder)
	}
	return typeless{codecs.CodecForVersions(encoder, decoder, schema.GroupVersions{stored}, runtime.InternalGroupVersioner)}
}

type typeless struct{ runtime.Codec }

func (c typeless) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if err != nil {
		// The error is not wrapped: a stored object that cannot be decoded is not a bad request of a client.
		return nil, kind, errors.New(err.Error())
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return obj, kind, nil
}

// storedDecoder decodes the JSON of our own encoder in three quarters of upstream's time: upstream determines the
// kind by parsing the whole object a second time. If the data starts like protobuf, the protobuf decoder is used
// without trying the others first.
type storedDecoder struct{ json, protobuf, other runtime.Decoder }

// Decode implements runtime.Decoder.
func (d storedDecoder) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	switch {
	case bytes.HasPrefix(data, storedKind):
		return d.json.Decode(data, defaults, into)
	case bytes.HasPrefix(data, protobufPrefix):
		return d.protobuf.Decode(data, defaults, into)
	}
	return d.other.Decode(data, defaults, into)
}

// protobufPrefix is the prefix of upstream's protobuf serializer.
var protobufPrefix = []byte("k8s\x00")

// Our encoder writes these two fields first; their values need no escaping.
var (
	storedKind    = []byte(`{"kind":"`)
	storedVersion = []byte(`","apiVersion":"`)
)

// storedMeta reads the kind and version at the beginning of the data.
type storedMeta struct{}

// Interpret implements json.MetaFactory.
func (storedMeta) Interpret(data []byte) (*schema.GroupVersionKind, error) {
	kind, err := kindOf(data)
	if err != nil {
		return nil, err
	}
	return &kind, nil
}

// kindOf is like Interpret, without an allocation for the kind.
func kindOf(data []byte) (schema.GroupVersionKind, error) {
	if kind, ok := kindOfStored(data); ok {
		return kind, nil
	}
	kind, err := json.DefaultMetaFactory.Interpret(data)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return *kind, nil
}

func kindOfStored(data []byte) (schema.GroupVersionKind, bool) {
	kind, _, ok := kindAtBegin(data)
	return kind, ok
}

// kindAtBegin also returns the length of the bytes up to the kind and version.
func kindAtBegin(data []byte) (_ schema.GroupVersionKind, length int, ok bool) {
	rest, _ := bytes.CutPrefix(data, storedKind)
	kind, rest, ok := bytes.Cut(rest, storedVersion)
	if !ok || bytes.ContainsAny(kind, `"\\`) {
		return schema.GroupVersionKind{}, 0, false
	}
	version, rest, ok := bytes.Cut(rest, []byte(`"`))
	if !ok || bytes.ContainsRune(version, '\\') {
		return schema.GroupVersionKind{}, 0, false
	}
	gv, err := schema.ParseGroupVersion(string(version))
	return gv.WithKind(string(kind)), len(data) - len(rest), err == nil
}

// Form is the kind, version and media type of a stored object.
type Form struct {
	schema.GroupVersionKind
	MediaType string
}

// FormOf reads the form from the beginning of stored bytes. It returns false if they are not an encoded object.
func FormOf(data []byte) (Form, bool) {
	var r FormReader
	return r.FormOf(data)
}

// FormReader reads the forms of many objects. Most objects of a kind begin with the same bytes, which it parses once. The zero
// value is ready for use, by one goroutine at a time.
type FormReader struct {
	begin []byte // of the last object, up to its kind and version
	form  Form
}

// FormOf is like the function FormOf.
func (r *FormReader) FormOf(data []byte) (Form, bool) {
	if len(r.begin) > 0 && bytes.HasPrefix(data, r.begin) {
		return r.form, true
	}
	form, length, ok := formOf(data)
	if !ok {
		return Form{}, false
	}
	r.begin, r.form = append(r.begin[:0], data[:length]...), form
	return form, true
}

// formOf also returns the length of the beginning that names the form; 0 if only all of the data does.
func formOf(data []byte) (form Form, length int, ok bool) {
	if message, ok := bytes.CutPrefix(data, protobufPrefix); ok {
		kind, length, ok := envelopeKind(message)
		return Form{kind, runtime.ContentTypeProtobuf}, len(protobufPrefix) + length, ok
	}
	if kind, length, ok := kindAtBegin(data); ok {
		return Form{kind, runtime.ContentTypeJSON}, length, kind.Kind != "" && kind.Version != ""
	}
	kind, err := json.DefaultMetaFactory.Interpret(data)
	if err != nil || kind.Kind == "" || kind.Version == "" {
		return Form{}, 0, false
	}
	return Form{*kind, runtime.ContentTypeJSON}, 0, true
}

// envelopeKind reads the kind of a runtime.Unknown without parsing the contained object. Its length ends behind the kind.
func envelopeKind(message []byte) (_ schema.GroupVersionKind, length int, ok bool) {
	const typeMeta, apiVersion, kind = 1, 1, 2 // field numbers
	meta, length, ok := bytesField(message, typeMeta)
	if !ok {
		return schema.GroupVersionKind{}, 0, false
	}
	version, _, _ := bytesField(meta, apiVersion)
	name, _, ok := bytesField(meta, kind)
	gv, err := schema.ParseGroupVersion(string(version))
	return gv.WithKind(string(name)), length, ok && err == nil && len(name) > 0 && gv.Version != ""
}

// bytesField returns the first field with a number, which has to be of type bytes, and the length of the message to its end.
func bytesField(message []byte, number protowire.Number) (value []byte, end int, ok bool) {
	for end < len(message) {
		n, t, length := protowire.ConsumeTag(message[end:])
		if length < 0 {
			return nil, 0, false
		}
		end += length
		if n == number && t == protowire.BytesType {
			value, length := protowire.ConsumeBytes(message[end:])
			return value, end + length, length >= 0
		}
		if length = protowire.ConsumeFieldValue(n, t, message[end:]); length < 0 {
			return nil, 0, false
		}
		end += length
	}
	return nil, 0, false
}

// IsStoredJSON reports whether stored bytes are JSON.
func IsStoredJSON(data []byte) bool { return !bytes.HasPrefix(data, protobufPrefix) }

// StoredJSON converts stored bytes to JSON in the stored version, without filling in defaults.
func (m *Machinery) StoredJSON(data []byte) ([]byte, error) {
	if IsStoredJSON(data) {
		return data, nil
	}
	object, _, err := m.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	info, _ := runtime.SerializerInfoForMediaType(m.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	text, err := runtime.Encode(withZeros(info.Serializer, m.Codecs.SupportedMediaTypes(), m.shapes), object)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return text, nil
}
