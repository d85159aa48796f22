package convert

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/model/structural"
	"github.com/annexapi/annex/internal/wire/plainjson"
)

// Serializer returns Codecs for the objects of clients. Omitted fields get the defaults of the kubebuilder markers,
// and values that the markers do not allow are left to validation. So its objects must be validated together with the
// request body: see structural.CaptureBody. It caches the encoding of list items. Encoded objects always contain the
// fields with defaults.
func (m *Machinery) Serializer() runtime.NegotiatedSerializer {
	if len(m.structural) == 0 {
		return m.withOperations(m.withLists(plannedSerializer{m.Codecs, m.plans}))
	}
	return m.withOperations(m.withLists(markedSerializer{plannedSerializer{m.Codecs, m.plans}, m.structural, m.shapes}))
}

// plannedSerializer encodes objects as compact JSON by plans.
type plannedSerializer struct {
	runtime.NegotiatedSerializer
	plans *plainjson.Plans
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s plannedSerializer) EncoderForVersion(encoder runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return s.NegotiatedSerializer.EncoderForVersion(planned(encoder, s.SupportedMediaTypes(), s.plans), gv)
}

// planned returns an equivalent encoder that uses plans, if encoder is the supported one for compact JSON. It returns
// other encoders unchanged.
func planned(encoder runtime.Encoder, supported []runtime.SerializerInfo, plans *plainjson.Plans) runtime.Encoder {
	if plain, ok := runtime.SerializerInfoForMediaType(supported, runtime.ContentTypeJSON); !ok || encoder != plain.Serializer {
		return encoder
	}
	return plans.Encoder(encoder)
}

type markedSerializer struct {
	runtime.NegotiatedSerializer
	versions map[schema.GroupVersionKind]*structural.Version
	shapes   map[reflect.Type]*structural.Shape
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s markedSerializer) EncoderForVersion(encoder runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return s.NegotiatedSerializer.EncoderForVersion(withZeros(encoder, s.SupportedMediaTypes(), s.shapes), gv)
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (s markedSerializer) DecoderToVersion(decoder runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return s.NegotiatedSerializer.DecoderToVersion(markedDecoder{decoder, s.versions, isStrict(decoder)}, gv)
}

// isStrict reports whether a decoder rejects unknown fields. The identifiers of the JSON and YAML decoders contain
// their options.
func isStrict(decoder runtime.Decoder) bool {
	identified, ok := decoder.(interface{ Identifier() runtime.Identifier })
	return ok && strings.Contains(string(identified.Identifier()), `"strict":"true"`)
}

// markedDecoder decodes to the version of the data.
type markedDecoder struct {
	runtime.Decoder
	versions map[schema.GroupVersionKind]*structural.Version
	strict   bool
}

// Decode implements runtime.Decoder.
func (d markedDecoder) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := d.decode(data, defaults, into)
	if d.strict && kind != nil && d.versions[*kind] != nil && (err == nil || runtime.IsStrictDecodingError(err)) {
		err = d.versions[*kind].Strict(data, err)
	}
	return obj, kind, err
}

func (d markedDecoder) decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := d.Decoder.Decode(data, defaults, into)
	if kind == nil || d.versions[*kind] == nil {
		return obj, kind, err
	}
	if runtime.IsStrictDecodingError(err) {
		completed, failure := d.versions[*kind].Decode(data, obj, into, nil)
		if failure != nil {
			return nil, kind, failure
		}
		return completed, kind, err
	}
	if err == nil {
		obj, err = d.versions[*kind].Decode(data, obj, into, nil)
		return obj, kind, err
	}
	if obj, err = d.versions[*kind].Decode(data, nil, into, err); err != nil {
		return obj, kind, err
	}
	// The decoder stopped at a value that validation will reject, so it has not reported the unknown fields.
	if _, _, strict := d.Decoder.Decode(d.versions[*kind].Fitting(data), defaults, nil); runtime.IsStrictDecodingError(strict) {
		err = strict
	}
	if d.strict {
		err = d.versions[*kind].Unknown(data, err)
	}
	return obj, kind, err
}
