package serve

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
)

func TestAsStored(t *testing.T) {
	definition := func(strategy apiextensionsv1.ConversionStrategyType) *apiextensionsv1.CustomResourceDefinition {
		d := &apiextensionsv1.CustomResourceDefinition{}
		d.Spec.Group, d.Spec.Names.Kind = "example.com", "Widget"
		d.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}
		if strategy != "" {
			d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: strategy}
		}
		return d
	}
	const first = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"unknown":null}}` + "\n"
	const second = `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"a"},"spec":{"unknown":null}}` + "\n"
	const unsorted = `{"kind":"Widget","apiVersion":"example.com/v2", "spec":{}}`
	for _, test := range []struct {
		name         string
		form         convert.Form
		stored, want string
	}{
		{"versions that differ by name", storedForm(definition("")), first, second},
		{"the strategy None", storedForm(definition(apiextensionsv1.NoneConverter)), first, second},
		{"versions that a webhook converts", storedForm(definition(apiextensionsv1.WebhookConverter)), first, first},
		{"the stored version", storedForm(definition("")), second, second},
		{"another order", storedForm(definition("")), unsorted, unsorted},
		{"a definition without versions", storedForm(&apiextensionsv1.CustomResourceDefinition{}), first, first},
	} {
		t.Run(test.name, func(t *testing.T) {
			codec, into := asStored{test.form}, &storedObject{}
			if _, _, err := codec.Decode([]byte(test.stored), nil, into); err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := codec.Encode(into.DeepCopyObject(), &got); err != nil || got.String() != test.want {
				t.Errorf("%s, %v, not %s", &got, err, test.want)
			}
		})
	}
	if _, _, err := (asStored{}).Decode([]byte("garbage"), nil, &storedObject{}); err == nil || err.Error() != "the stored value is not "+
		"an object" {
		t.Errorf("what is not an object: %v", err)
	}
}

func TestCustom_unreadableDefinition_isReportedBesideTheOthers(t *testing.T) {
	core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	prefix := registry.KeyPrefix(definitions)
	for name, data := range map[string]string{
		"cats.example.com": `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","spec":{"group":"example.com",` +
			`"names":{"plural":"cats","kind":"Cat"},"versions":[{"name":"v1","storage":true}]}}`,
		"dogs.example.com": "garbage",
	} {
		if _, err := core.Put(t.Context(), store.Value{Key: prefix + "/" + name, Data: []byte(data)}, 0); err != nil {
			t.Fatal(err)
		}
	}
	found, err := custom{nil}.resources(t.Context(), "memory", core)
	unreadable := (*maintenance.UnreadableDefinition)(nil)
	if !errors.As(err, &unreadable) || unreadable.Key != prefix+"/dogs.example.com" {
		t.Errorf("got %v", err)
	}
	var names []string
	for _, r := range found {
		names = append(names, r.Resource.Resource)
	}
	if want := []string{"cats", "customresourcedefinitions"}; !slices.Equal(names, want) {
		t.Errorf("beside it: %v, want %v", names, want)
	}
}
