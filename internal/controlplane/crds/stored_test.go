package crds

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/storage/custom"
)

// capturing gives upstream a codec to build on, and records the codecs built on it by the version of the objects.
type capturing struct {
	base  runtime.Codec
	built map[string]runtime.Codec
	empty map[string]func() runtime.Object
}

func (c capturing) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.Config{Codec: c.base}
	return generic.RESTOptions{
		StorageConfig: config.ForResource(resource), ResourcePrefix: "/" + resource.String(),
		Decorator: func(
			config *storagebackend.ConfigForResource, _ string, _ func(runtime.Object) (string, error), newFunc func() runtime.Object,
			_ func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			version := newFunc().GetObjectKind().GroupVersionKind().Version
			c.built[version], c.empty[version] = config.Codec, newFunc
			return nil, func() {}, nil
		},
	}, nil
}

// stillInformer is an informer that never runs.
type stillInformer struct{ cache.SharedIndexInformer }

func (d stillInformer) Informer() cache.SharedIndexInformer { return d }
func (d stillInformer) Lister() listers.CustomResourceDefinitionLister {
	return listers.NewCustomResourceDefinitionLister(d.GetIndexer())
}

func captured(t *testing.T, definition *apiextensionsv1.CustomResourceDefinition, base runtime.Codec) capturing {
	t.Helper()
	c := capturing{base, map[string]runtime.Codec{}, map[string]func() runtime.Object{}}
	informer := stillInformer{cache.NewSharedIndexInformer(&cache.ListWatch{}, definition, 0, cache.Indexers{})}
	if err := informer.GetIndexer().Add(definition); err != nil {
		t.Fatal(err)
	}
	handler, err := apiserver.NewCustomResourceDefinitionHandler(
		nil, nil, informer, http.NotFoundHandler(), c, nil, nil, nil, nil, 1, nil, time.Minute, time.Minute, nil, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := handler.GetCustomResourceListerCollectionDeleter(definition); err != nil {
		t.Fatal(err)
	}
	return c
}

const storedSchema = `{"type":"object","properties":{
	"metadata":{"type":"object","properties":{"name":{"type":"string","maxLength":20}}},
	"spec":{"type":"object","default":{"size":"small"},"properties":{
		"size":{"type":"string","default":"large"},
		"count":{"type":"integer","nullable":true,"default":3},
		"ratio":{"type":"number"},
		"either":{"x-kubernetes-int-or-string":true},
		"open":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{
			"known":{"type":"object","properties":{"a":{"type":"string","default":"b"}}}}},
		"pod":{"type":"object","x-kubernetes-embedded-resource":true,"properties":{
			"spec":{"type":"object","properties":{"a":{"type":"string"}}}}},
		"all":{"type":"object","additionalProperties":{"type":"object","properties":{"x":{"type":"string"},"y":{"type":"integer","default":7}}}},
		"list":{"type":"array","items":{"type":"object","properties":{"x":{"type":"string"},"y":{"type":"string","nullable":true}}}}
	}},
	"status":{"type":"object","properties":{"ready":{"type":"boolean"}}}}}`

func storedDefinition(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var props apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal([]byte(storedSchema), &props); err != nil {
		t.Fatal(err)
	}
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Singular: "thing", Kind: "Thing", ListKind: "ThingList"}
	open := true
	version := func(name string, stored bool, s *apiextensionsv1.JSONSchemaProps) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: stored, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: s},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things.example.com", UID: "1"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped, Names: names,
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				version("v1", true, &props), version("v2", false, &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open}),
			},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{AcceptedNames: names},
	}
}

type tree = map[string]any

// someThing returns a random stored object. Some are as servers store them, others have everything that may be odd.
func someThing(odd int) tree {
	chance := func(n int) bool { return rand.IntN(n) == 0 }
	strange := func() any {
		all := []any{nil, "", 1.5, int64(0), true, []any{}, tree{}, []any{nil, "a", tree{"b": nil}}, "0001-01-01T00:00:00Z"}
		return all[rand.IntN(len(all))]
	}
	metadata := tree{
		"name": "a", "namespace": "b", "uid": "c", "generation": 1 + rand.IntN(3), "creationTimestamp": "2026-01-02T03:04:05Z",
	}
	more := tree{
		"labels": tree{"a": "b<é", "c": ""}, "annotations": tree{"long": strings.Repeat("x\n", 20)},
		"finalizers":      []any{"example.com/f"},
		"ownerReferences": []any{tree{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": false}},
		"managedFields": []any{tree{
			"manager": "m", "operation": "Update", "apiVersion": "example.com/v1", "time": "2026-01-02T03:04:05Z", "fieldsType": "FieldsV1",
			"fieldsV1": tree{"f:spec": tree{".": tree{}, `k:{"a":1}`: tree{}}},
		}},
		"deletionTimestamp": "2026-01-02T03:04:06Z", "deletionGracePeriodSeconds": 0, "generateName": "a-",
		"selfLink": "/x", "resourceVersion": "7",
	}
	for key, value := range more {
		if chance(2) {
			metadata[key] = value
		}
	}
	spec := tree{}
	fields := tree{
		"size": "x", "count": 4, "ratio": 2.0, "either": "50%", "open": tree{"z": nil, "known": tree{}},
		"pod":  tree{"apiVersion": "v1", "kind": "Pod", "metadata": tree{"name": "p", "labels": tree{}}, "spec": tree{"b": 1}},
		"all":  tree{"one": tree{"x": "y"}, "two": nil},
		"list": []any{tree{"x": "1", "y": nil}, tree{"z": 1}, nil}, "unknown": 1,
	}
	for key, value := range fields {
		if chance(2) {
			spec[key] = value
		}
	}
	object := tree{"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata, "spec": spec, "status": tree{"ready": true}}
	for range odd {
		var at tree
		switch rand.IntN(5) {
		case 0:
			at = object
		case 1:
			at = spec
		case 2:
			for _, list := range []string{"ownerReferences", "managedFields"} {
				if l, ok := metadata[list].([]any); ok && len(l) > 0 {
					at, _ = l[0].(tree)
				}
			}
		default:
			at = metadata
		}
		for key := range at {
			switch rand.IntN(4) {
			case 0:
				delete(at, key)
			case 1:
				at[key+"X"] = strange()
			default:
				at[key] = strange()
			}
			break
		}
	}
	return object
}

// A stored custom resource is decoded by the short way, or by upstream's, with the same result.
func TestStoredCodec_randomObjects_decodesLikeUpstreams(t *testing.T) {
	definition := storedDefinition(t)
	theirs := captured(t, definition, unstructured.UnstructuredJSONScheme)
	below := &counting{Codec: unstructured.UnstructuredJSONScheme}
	ours := captured(t, definition, custom.Below(below))
	for version, codec := range ours.built {
		empty := ours.empty[version]
		codec = custom.Above(codec, empty().GetObjectKind().GroupVersionKind())
		for i := range 6000 {
			object := someThing(i % 3)
			if i%7 == 0 {
				object["apiVersion"] = "example.com/v2"
			}
			data, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			want, wantKind, wantErr := decodeRecovered(theirs.built[version], data, empty())
			before := below.decodes
			got, kind, err := decodeRecovered(codec, data, empty())
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || !reflect.DeepEqual(got, want) || !reflect.DeepEqual(kind, wantKind) {
				t.Fatalf("%s of %s:\n%v, %v, %v, want\n%v, %v, %v", version, data, got, kind, err, want, wantKind, wantErr)
			}
			if usual := i%3 == 0 && i%7 != 0 && version == "v1"; usual && below.decodes != before {
				t.Fatalf("%s of %s: upstream's codec has decoded it", version, data)
			}
		}
	}
}

// decodeRecovered decodes as storages do: upstream's codec panics without metadata.
func decodeRecovered(codec runtime.Codec, data []byte, into runtime.Object) (o runtime.Object, kind *schema.GroupVersionKind, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			o, kind, err = nil, nil, fmt.Errorf("panic: %v", reason)
		}
	}()
	return codec.Decode(data, nil, into)
}

// counting counts the objects that are decoded from bytes.
type counting struct {
	runtime.Codec
	decodes int
}

func (c *counting) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	c.decodes++
	return c.Codec.Decode(data, defaults, into)
}

func BenchmarkStoredCodec(b *testing.B) {
	t := &testing.T{}
	definition := storedDefinition(t)
	object := someThing(0)
	data, err := json.Marshal(object)
	if err != nil {
		b.Fatal(err)
	}
	upstreams := captured(t, definition, custom.Below(unstructured.UnstructuredJSONScheme))
	kind := upstreams.empty["v1"]().GetObjectKind().GroupVersionKind()
	for name, codec := range map[string]runtime.Codec{
		"upstream": upstreams.built["v1"], "annex": custom.Above(upstreams.built["v1"], kind),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(data)))
			for range b.N {
				if _, _, err := codec.Decode(data, nil, upstreams.empty["v1"]()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
