package convert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/model/structural"
)

// withZeros returns an encoder that writes the zeros of fields with defaults, which encoding/json omits. Without
// them, a reader would assume the default. Encoders of formats other than JSON and YAML are returned unchanged.
func withZeros(encoder runtime.Encoder, supported []runtime.SerializerInfo, shapes map[reflect.Type]*structural.Shape) runtime.Encoder {
	if len(shapes) == 0 {
		return encoder
	}
	plain, ok := runtime.SerializerInfoForMediaType(supported, runtime.ContentTypeJSON)
	if !ok {
		return encoder
	}
	finish := map[runtime.Identifier]func([]byte) ([]byte, error){
		plain.Serializer.Identifier(): func(data []byte) ([]byte, error) { return data, nil },
	}
	if plain.PrettySerializer != nil {
		finish[plain.PrettySerializer.Identifier()] = indent
	}
	if text, ok := runtime.SerializerInfoForMediaType(supported, runtime.ContentTypeYAML); ok {
		finish[text.Serializer.Identifier()] = yaml.JSONToYAML
	}
	format, ok := finish[encoder.Identifier()]
	if !ok {
		return encoder
	}
	return zerosEncoder{encoder, plain.Serializer, format, shapes}
}

type zerosEncoder struct {
	runtime.Encoder
	json   runtime.Encoder
	finish func([]byte) ([]byte, error)
	shapes map[reflect.Type]*structural.Shape
}

// Identifier implements runtime.Encoder.
func (e zerosEncoder) Identifier() runtime.Identifier {
	return "zeros(" + e.Encoder.Identifier() + ")"
}

// Encode implements runtime.Encoder.
func (e zerosEncoder) Encode(obj runtime.Object, w io.Writer) error {
	if cached, ok := obj.(runtime.CacheableObject); ok {
		return cached.CacheEncode(e.Identifier(), e.encode, w)
	}
	return e.encode(obj, w)
}

func (e zerosEncoder) encode(obj runtime.Object, w io.Writer) error {
	shape := e.shapes[reflect.TypeOf(obj)]
	if shape == nil {
		return e.Encoder.Encode(obj, w)
	}
	var buffer bytes.Buffer
	if err := e.json.Encode(obj, &buffer); err != nil {
		return err
	}
	data, err := e.finish(shape.WriteZeros(buffer.Bytes()))
	if err != nil {
		return fmt.Errorf("encode %T: %w", obj, err)
	}
	_, err = w.Write(data)
	return err
}

func indent(data []byte) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(data), "", "  "); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// DefaultingDecoder returns a decoder of JSON documents that fills in the markers' defaults of absent fields. It is for
// documents that do not come from clients.
func (m *Machinery) DefaultingDecoder(decoder runtime.Decoder) runtime.Decoder {
	return defaultingDecoder{decoder, m.structural}
}

// defaultingDecoder is a decoder of stored objects that fills in the defaults of absent fields. Protobuf messages have all
// fields.
type defaultingDecoder struct {
	runtime.Decoder
	versions map[schema.GroupVersionKind]*structural.Version
}

// Decode implements runtime.Decoder.
func (d defaultingDecoder) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := d.Decoder.Decode(data, defaults, into)
	if err == nil && kind != nil && d.versions[*kind] != nil && IsStoredJSON(data) {
		d.versions[*kind].FillStored(obj, data)
	}
	return obj, kind, err
}

// TypeConverter returns a converter whose typed values include the zeros of fields with defaults, as clients see
// them. Merged objects get the defaults of absent fields; validation rejects values that do not fit.
func (m *Machinery) TypeConverter(inner managedfields.TypeConverter) managedfields.TypeConverter {
	if len(m.structural) == 0 {
		return inner
	}
	return zerosConverter{inner, m.structural}
}

// HasZeros reports whether TypeConverter converts an object to a document because of its zeros.
func (m *Machinery) HasZeros(obj runtime.Object) bool {
	if len(m.shapes) == 0 {
		return false
	}
	v := m.structural[obj.GetObjectKind().GroupVersionKind()]
	return v != nil && exists(obj) && v.HasZeros(obj)
}

type zerosConverter struct {
	managedfields.TypeConverter
	versions map[schema.GroupVersionKind]*structural.Version
}

// ObjectToTyped implements managedfields.TypeConverter.
func (c zerosConverter) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	_, document := obj.(runtime.Unstructured)
	v := c.versions[obj.GetObjectKind().GroupVersionKind()]
	if document || v == nil || !exists(obj) || !v.HasZeros(obj) {
		return c.TypeConverter.ObjectToTyped(obj, options...)
	}
	plain, err := v.Plain(obj)
	if err != nil {
		return nil, err
	}
	return c.TypeConverter.ObjectToTyped(&unstructured.Unstructured{Object: plain}, options...)
}

// exists returns false for the empty object with which upstream starts a create; it has no fields, not even zeros.
func exists(obj runtime.Object) bool {
	m, err := meta.Accessor(obj)
	return err == nil && (m.GetName() != "" || m.GetGenerateName() != "")
}

// TypedToObject implements managedfields.TypeConverter.
func (c zerosConverter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	obj, err := c.TypeConverter.TypedToObject(value)
	if err != nil {
		return nil, err
	}
	document, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	v := c.versions[document.GroupVersionKind()]
	if v == nil {
		return obj, nil
	}
	return v.FillMerged(document.Object)
}

// Documents returns a convertor for objects that are encoded by encoding/json alone, such as objects in tables. It
// converts objects with zeros to documents, because encoding/json would omit the zeros.
func (m *Machinery) Documents() runtime.ObjectConvertor {
	if len(m.shapes) == 0 {
		return m.Scheme
	}
	return documents{m.Scheme, m.structural}
}

type documents struct {
	runtime.ObjectConvertor
	versions map[schema.GroupVersionKind]*structural.Version
}

// ConvertToVersion implements runtime.ObjectConvertor.
func (d documents) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	out, err := d.ObjectConvertor.ConvertToVersion(in, gv)
	if err != nil {
		return nil, err
	}
	v := d.versions[out.GetObjectKind().GroupVersionKind()]
	if v == nil || !v.HasZeros(out) {
		return out, nil
	}
	plain, err := v.Plain(out)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: plain}, nil
}
