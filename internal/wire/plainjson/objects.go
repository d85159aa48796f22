package plainjson

import (
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// mostKept bounds the buffers that are used anew.
const mostKept = 256 << 10

// Encoder returns an encoder that writes what apimachinery's serializer of JSON writes, that of compact JSON, which is given.
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
	if _, ok := obj.(metav1.Object); !ok { // lists are written piece by piece
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

// Kind reads the kind and version at the front of an object. It is false if they are not there.
type Kind func(data []byte) (schema.GroupVersionKind, bool)

// Decoder returns a decoder that reads what apimachinery's serializer of JSON reads, which is given, strict or not. Of what has
// no kind in front it asks that alone.
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

// Identifier is that of the serializer, empty if it has none. It holds whether that is strict.
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
