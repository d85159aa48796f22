package reads

import (
	"net/http"
	"net/url"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/client-go/kubernetes/scheme"
)

// FuzzForm answers one object in the media type that upstream negotiates, alone and without options.
func FuzzForm(f *testing.F) {
	for _, accept := range []string{
		"", "*/*", "application/json", "application/json, */*", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf," +
			"application/json", "application/json,application/vnd.kubernetes.protobuf",
		"application/json;pretty=1", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/yaml", "APPLICATION/JSON", "application/*",
		",", "application/json;q=0",
	} {
		f.Add(accept)
	}
	asJSON, asProtobuf := &form{mediaType: runtime.ContentTypeJSON}, &form{mediaType: runtime.ContentTypeProtobuf}
	f.Fuzz(func(t *testing.T, accept string) {
		for _, r := range []*resource{{json: asJSON, protobuf: asProtobuf}, {json: asJSON}} {
			var codecs runtime.NegotiatedSerializer = scheme.Codecs
			if r.protobuf == nil {
				codecs = withoutProtobuf{codecs}
			}
			form := r.form(accept)
			if form == nil {
				continue
			}
			wanted, info, err := negotiation.NegotiateOutputMediaType(
				&http.Request{Header: http.Header{"Accept": {accept}}, URL: &url.URL{}},
				codecs,
				negotiation.DefaultEndpointRestrictions,
			)
			if err != nil || info.MediaType != form.mediaType || info.Serializer != wanted.Accepted.Serializer || wanted.Convert != nil ||
				len(wanted.Unrecognized) > 0 {
				t.Errorf("%q is answered as %s; upstream's is %+v, %v", accept, form.mediaType, wanted, err)
			}
		}
	})
}

// withoutProtobuf is a serializer of a kind that has none.
type withoutProtobuf struct{ runtime.NegotiatedSerializer }

func (s withoutProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	var all []runtime.SerializerInfo
	for _, info := range s.NegotiatedSerializer.SupportedMediaTypes() {
		if info.MediaType != runtime.ContentTypeProtobuf {
			all = append(all, info)
		}
	}
	return all
}
