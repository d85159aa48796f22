package convert

import (
	"bytes"
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// NewStorageCodec returns Machinery.StorageCodec for a scheme and its codecs.
func NewStorageCodec(scheme *runtime.Scheme, codecs serializer.CodecFactory, stored schema.GroupVersion) runtime.Codec {
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	decoder := storedDecoder{
		json:  json.NewSerializerWithOptions(storedMeta{}, scheme, scheme, json.SerializerOptions{}),
		other: codecs.UniversalDeserializer(),
	}
	return typeless{codecs.CodecForVersions(info.Serializer, decoder, schema.GroupVersions{stored}, runtime.InternalGroupVersioner)}
}

type typeless struct{ runtime.Codec }

func (c typeless) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if err != nil {
		// Not wrapped: what is wrong in storage is no client's bad request.
		return nil, kind, errors.New(err.Error())
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return obj, kind, nil
}

// storedDecoder decodes JSON as our own encoder writes it in three quarters of the
// time. Upstream's finds out the kind of an object by parsing all of it once more.
type storedDecoder struct{ json, other runtime.Decoder }

// Decode implements runtime.Decoder.
func (d storedDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if bytes.HasPrefix(data, storedKind) {
		return d.json.Decode(data, defaults, into)
	}
	return d.other.Decode(data, defaults, into)
}

// Our encoder begins with these two fields; their values need no escapes.
var (
	storedKind    = []byte(`{"kind":"`)
	storedVersion = []byte(`","apiVersion":"`)
)

// storedMeta reads the kind and version at the front of the data.
type storedMeta struct{}

// Interpret implements json.MetaFactory.
func (storedMeta) Interpret(data []byte) (*schema.GroupVersionKind, error) {
	rest, _ := bytes.CutPrefix(data, storedKind)
	kind, rest, ok := bytes.Cut(rest, storedVersion)
	if !ok || bytes.ContainsAny(kind, `"\\`) {
		return json.DefaultMetaFactory.Interpret(data)
	}
	version, _, ok := bytes.Cut(rest, []byte(`"`))
	if !ok || bytes.ContainsRune(version, '\\') {
		return json.DefaultMetaFactory.Interpret(data)
	}
	gv, err := schema.ParseGroupVersion(string(version))
	if err != nil {
		return nil, err
	}
	found := gv.WithKind(string(kind))
	return &found, nil
}
