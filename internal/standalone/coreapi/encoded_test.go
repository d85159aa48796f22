package coreapi_test

import (
	"bytes"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/storage/registry"
)

// Encoded reads pass through the guard of namespaces and all other wrappers of a storage.
func TestGuard_encodedRead(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t, namespace("ns"))
	s.createWidget(t, "ns", widget("w"))
	want := s.request(t, "application/json", "/apis/"+widgets.GroupVersion().String()+"/namespaces/ns/widgets/w")
	definition := s.kind.Definition
	endpoint, ok := s.kind.Storage()[definition.Resource].(registry.EncodedGetter)
	if !ok {
		t.Fatal("the endpoint does not know objects as clients get them")
	}
	serializer := s.machinery.Serializer()
	info, _ := runtime.SerializerInfoForMediaType(serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	v := definition.Versions[0]
	encoding := s.machinery.ObjectEncoder(serializer.EncoderForVersion(info.Serializer, v.GroupVersion), definition, v).Encoding()
	in := request.WithNamespace(t.Context(), "ns")
	if got := endpoint.GetEncoded(in, "w", encoding); got.IsZero() || !bytes.Equal(bytes.TrimSpace(got.Whole()), want) {
		t.Errorf("it is read as it is not answered: %s", want)
	}
	for name, got := range map[string]bool{
		"another object":               endpoint.GetEncoded(in, "other", encoding).IsZero(),
		"another namespace":            endpoint.GetEncoded(request.WithNamespace(t.Context(), "other"), "w", encoding).IsZero(),
		"no namespace":                 endpoint.GetEncoded(t.Context(), "w", encoding).IsZero(),
		"what is not an object's name": endpoint.GetEncoded(in, "..", encoding).IsZero(),
	} {
		if !got {
			t.Errorf("%s is read, too", name)
		}
	}
}
