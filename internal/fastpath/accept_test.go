package fastpath

import (
	"net/http"
	"net/url"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/client-go/kubernetes/scheme"
)

// FuzzAccept compares the media types of answers with upstream's negotiation.
func FuzzAccept(f *testing.F) {
	for accept := range accepts {
		f.Add(accept)
	}
	for _, accept := range []string{
		"application/json,application/vnd.kubernetes.protobuf", "application/json;pretty=1", "application/json;as=Table;v=v1;g=meta.k8s.io",
		"application/yaml", "APPLICATION/JSON", "application/*", ",", "application/json;q=0", "application/json;stream=x",
	} {
		f.Add(accept)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		for _, protobuf := range []bool{true, false} {
			for _, watch := range []bool{true, false} {
				compareAccept(t, accept, watch, protobuf)
			}
		}
	})
}

func compareAccept(t *testing.T, accept string, watch, protobuf bool) {
	media := negotiate(accept, watch, protobuf)
	if media == 0 {
		return
	}
	var codecs runtime.NegotiatedSerializer = scheme.Codecs
	if !protobuf {
		codecs = withoutProtobuf{codecs}
	}
	r := &http.Request{Header: http.Header{"Accept": {accept}}, URL: &url.URL{}}
	want := map[Media]string{JSON: runtime.ContentTypeJSON, Protobuf: runtime.ContentTypeProtobuf}[media]
	wanted, info, err := negotiation.NegotiateOutputMediaType(r, codecs, negotiation.DefaultEndpointRestrictions)
	if err != nil || info.MediaType != want || info.Serializer != wanted.Accepted.Serializer || wanted.Convert != nil ||
		wanted.Stream != "" && wanted.Stream != "watch" || len(wanted.Unrecognized) > 0 {
		t.Errorf("%q is answered as %s (watch: %t, protobuf: %t); upstream's is %+v, %v", accept, want, watch, protobuf, wanted, err)
	}
}

// withoutProtobuf is a serializer of a kind without protobuf.
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

// Kinds without protobuf answer clients that prefer it in JSON.
func TestNegotiate_withoutProtobuf(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]Media{
		"application/vnd.kubernetes.protobuf":                  0,
		"application/vnd.kubernetes.protobuf,application/json": JSON,
		"application/vnd.kubernetes.protobuf, */*":             JSON,
		"application/json":                                     JSON,
	} {
		if got := negotiate(accept, false, false); got != want {
			t.Errorf("%q: %d, want %d", accept, got, want)
		}
	}
}
