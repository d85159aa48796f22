package upstream

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// described returns definitions of types, whose descriptions have the given text.
func described(text string, types ...string) common.GetOpenAPIDefinitions {
	return func(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := map[string]common.OpenAPIDefinition{}
		for _, name := range types {
			all[name] = common.OpenAPIDefinition{Schema: spec.Schema{SchemaProps: spec.SchemaProps{Description: text}}}
		}
		return all
	}
}

func TestForeign_nil_hasNothing(t *testing.T) {
	t.Parallel()
	var none *Foreign
	if none.groups() != nil || none.group("") != nil || none.schemes() != nil || none.models() != nil {
		t.Error("there are groups")
	}
	if got := none.with(described("own", "a"))(nil); len(got) != 1 {
		t.Errorf("the definitions are %v", got)
	}
}

func TestForeign_definitions_ownOnesAreKept(t *testing.T) {
	t.Parallel()
	f := &Foreign{Types: NewForeignTypes(runtime.NewScheme(), described("foreign", "a", "b"))}
	got := f.with(described("own", "b", "c"))(nil)
	for name, want := range map[string]string{"a": "foreign", "b": "own", "c": "own"} {
		if got[name].Schema.Description != want {
			t.Errorf("%s is %q, want %q", name, got[name].Schema.Description, want)
		}
	}
	if len(got) != 3 {
		t.Errorf("there are %d definitions", len(got))
	}
}

func TestForeign_group_isFoundByItsName(t *testing.T) {
	t.Parallel()
	core := &server.APIGroupInfo{PrioritizedVersions: []schema.GroupVersion{corev1.SchemeGroupVersion}}
	f := &Foreign{Groups: []*server.APIGroupInfo{core}}
	if f.group("") != core || f.group("apps") != nil {
		t.Error("a group is not found by its name")
	}
}

// Lists, options and types of other groups have no field managers.
func TestForeignTypes_names_areThoseOfObjects(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	names := NewForeignTypes(scheme, described("foreign")).names([]string{"apps"})
	want := []string{"ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"}
	if len(names) != len(want) {
		t.Fatalf("%q, want %q", names, want)
	}
	for i, name := range names {
		if !strings.HasSuffix(name, "."+want[i]) {
			t.Errorf("%s, want %s", name, want[i])
		}
	}
}

func TestLazyTypes_madeOnce(t *testing.T) {
	t.Parallel()
	made := 0
	types := lazyTypes{made: sync.OnceValues(func() (managedfields.TypeConverter, error) {
		made++
		return managedfields.NewDeducedTypeConverter(), nil
	})}
	if made != 0 {
		t.Error("the converter is made before it is used")
	}
	for range 2 {
		pod := &corev1.Pod{}
		pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		value, err := types.ObjectToTyped(pod)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := types.TypedToObject(value); err != nil {
			t.Fatal(err)
		}
	}
	if made != 1 {
		t.Errorf("the converter is made %d times", made)
	}
	broken := errors.New("no schema")
	types = lazyTypes{made: func() (managedfields.TypeConverter, error) { return nil, broken }}
	if _, err := types.ObjectToTyped(&corev1.Pod{}); !errors.Is(err, broken) {
		t.Errorf("ObjectToTyped: %v", err)
	}
	if _, err := types.TypedToObject(nil); !errors.Is(err, broken) {
		t.Errorf("TypedToObject: %v", err)
	}
}

// single is the storage of one object.
type single struct {
	rest.Storage
	rest.Scoper
	obj runtime.Object
}

func (s *single) New() runtime.Object { return s.obj.DeepCopyObject() }

func (s *single) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return s.obj, nil
}

type scope bool

func (s scope) NamespaceScoped() bool { return bool(s) }

func TestForeign_Getter_findsStoragesByKind(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	f := &Foreign{Groups: []*server.APIGroupInfo{{
		Scheme: scheme, PrioritizedVersions: []schema.GroupVersion{corev1.SchemeGroupVersion},
		VersionedResourcesStorageMap: map[string]map[string]rest.Storage{"v1": {
			"pods": &single{Scoper: scope(true), obj: &corev1.Pod{}}, "pods/status": &single{Scoper: scope(true), obj: &corev1.Pod{}},
			"nodes": &single{Scoper: scope(false), obj: &corev1.Node{}},
		}},
	}}}
	for kind, want := range map[schema.GroupVersionKind]struct {
		resource   string
		namespaced bool
	}{
		corev1.SchemeGroupVersion.WithKind("Pod"):          {"pods", true},
		corev1.SchemeGroupVersion.WithKind("Node"):         {"nodes", false},
		corev1.SchemeGroupVersion.WithKind("Secret"):       {},
		{Group: "", Version: "v2", Kind: "Pod"}:            {},
		{Group: "example.com", Version: "v1", Kind: "Pod"}: {},
		appsv1.SchemeGroupVersion.WithKind("Deployment"):   {},
	} {
		resource, getter, namespaced := f.Getter(kind)
		if resource.Resource != want.resource || (getter != nil) != (want.resource != "") || namespaced != want.namespaced {
			t.Errorf("%s: %s, %v, namespaced %v", kind, resource, getter, namespaced)
		}
	}
	if _, getter, _ := (*Foreign)(nil).Getter(corev1.SchemeGroupVersion.WithKind("Pod")); getter != nil {
		t.Error("a server without foreign groups has one")
	}
}
