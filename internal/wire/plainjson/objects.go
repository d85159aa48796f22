package plainjson

import (
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// mostKept bounds the size of buffers that are reused.
const mostKept = 256 << 10

// Encoder returns an encoder with the output of the given serializer, which must be apimachinery's for compact JSON.
func (p *Plans) Encoder(serializer runtime.Encoder) runtime.Encoder {
	return objectEncoder{serializer, p}
}

type objectEncoder struct {
	runtime.Encoder
	plans *Plans
}

// Encode implements runtime.Encoder.
func (e objectEncoder) Encode(obj runtime.Object, w io.Writer) error {
	if _, ok := obj.(runtime.CacheableObject); ok {
		return e.Encoder.Encode(obj, w)
	}
	if _, ok := obj.(metav1.Object); !ok { // lists are written item by item elsewhere
		return e.Encoder.Encode(obj, w)
	}
	buffer, _ := e.plans.buffers.Get().(*[]byte)
	if buffer == nil {
		buffer = new([]byte)
	}
	encoded, ok := e.plans.Append((*buffer)[:0], obj)
	defer func() {
		if *buffer = encoded; cap(encoded) <= mostKept {
			e.plans.buffers.Put(buffer)
		}
	}()
	if !ok {
		return e.Encoder.Encode(obj, w)
	}
	_, err := w.Write(encoded)
	return err
}

// Kind returns the group, version and kind at the front of an object. It returns false if they are not there.
type Kind func(data []byte) (schema.GroupVersionKind, bool)

// Decoder returns a decoder with the results of the given serializer, which must be apimachinery's for JSON, strict or
// not. Data without a kind at its front is passed to the serializer.
func (p *Plans) Decoder(serializer runtime.Decoder, kind Kind, typer runtime.ObjectTyper, creater runtime.ObjectCreater) runtime.Decoder {
	return objectDecoder{serializer, p, kind, typer, creater}
}

type objectDecoder struct {
	runtime.Decoder
	plans   *Plans
	kind    Kind
	typer   runtime.ObjectTyper
	creater runtime.ObjectCreater
}

// Identifier returns the identifier of the serializer, empty if it has none. It differs between strict and lenient
// serializers.
func (d objectDecoder) Identifier() runtime.Identifier {
	if identified, ok := d.Decoder.(interface{ Identifier() runtime.Identifier }); ok {
		return identified.Identifier()
	}
	return ""
}

// Decode implements runtime.Decoder.
func (d objectDecoder) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if obj, kind, ok := d.decode(data, into); ok {
		return obj, &kind, nil
	}
	return d.Decoder.Decode(data, defaults, into)
}

func (d objectDecoder) decode(data []byte, into runtime.Object) (runtime.Object, schema.GroupVersionKind, bool) {
	kind, ok := d.kind(data)
	if !ok || kind.Kind == "" || kind.Version == "" {
		return nil, kind, false
	}
	switch into.(type) {
	case nil:
	case *runtime.Unknown, runtime.Unstructured:
		return nil, kind, false
	}
	obj, err := runtime.UseOrCreateObject(d.typer, d.creater, kind, into)
	return obj, kind, err == nil && d.plans.Decode(data, obj)
}
