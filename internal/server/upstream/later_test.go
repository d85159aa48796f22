package upstream

import (
	"context"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/registry/rest"
)

// fullShelf has all that discovery shows of a storage.
type fullShelf struct{ *shelf }

func (fullShelf) NamespaceScoped() bool                             { return true }
func (fullShelf) Kind() string                                      { return "Drawer" }
func (fullShelf) Categories() []string                              { return []string{"all", "furniture"} }
func (fullShelf) NewList() runtime.Object                           { return &corev1.PodList{} }
func (fullShelf) StorageVersion() runtime.GroupVersioner            { return shopVersion }
func (fullShelf) ConnectMethods() []string                          { return []string{http.MethodPatch, http.MethodOptions} }
func (fullShelf) NewConnectOptions() (runtime.Object, bool, string) { return nil, false, "" }

func (fullShelf) List(context.Context, *metainternalversion.ListOptions) (runtime.Object, error) {
	return &corev1.PodList{}, nil
}

func (fullShelf) Connect(context.Context, string, runtime.Object, rest.Responder) (http.Handler, error) {
	return http.NotFoundHandler(), nil
}

// borrowed is a subresource with a message of another group.
type borrowed struct{ *shelf }

func (borrowed) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return shopVersion.WithKind("PodList")
}

func TestDiscovered_equalsUpstreams(t *testing.T) {
	t.Parallel()
	full := part("pods", &corev1.Pod{}, &corev1.PodList{})
	full.Storage["pods"] = fullShelf{full.Storage["pods"].(*shelf)}
	full.Storage["pods/loan"] = borrowed{&shelf{resource: "pods", empty: &corev1.Pod{}}}
	for _, part := range append(shopParts(), full) {
		container := restful.NewContainer()
		upstreams, _, err := part.InstallREST(container)
		if err != nil {
			t.Fatal(err)
		}
		var want metav1.APIResourceList
		if code := askHandler(t, container, http.MethodGet, rootPath(part), &want); code != http.StatusOK {
			t.Fatalf("status %d", code)
		}
		kinds := runtime.NewEquivalentResourceRegistry()
		part.EquivalentResourceRegistry = kinds
		got, err := discovered(part)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want.APIResources) {
			t.Errorf("%+v\nwant %+v", got, want.APIResources)
		}
		aggregated, err := genericapi.ConvertGroupVersionIntoToDiscovery(got)
		if err != nil || !reflect.DeepEqual(aggregated, upstreams) {
			t.Errorf("%v: %+v\nwant %+v", err, aggregated, upstreams)
		}
		for _, resource := range got {
			name, subresource, _ := strings.Cut(resource.Name, "/")
			if kinds.KindFor(shopVersion.WithResource(name), subresource).Empty() {
				t.Errorf("%s has no kind", resource.Name)
			}
		}
	}
}

func TestDiscovered_badStorage_fails(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*genericapi.APIGroupVersion){
		"resource secrets: no kind":                    func(v *genericapi.APIGroupVersion) { v.Typer = runtime.NewScheme() },
		"resource parent/child: parent must implement": func(v *genericapi.APIGroupVersion) { v.Storage["parent/child"] = v.Storage["secrets"] },
	} {
		broken := shopParts()[0]
		change(broken)
		if got, err := discovered(broken); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, %v; want %s", got, err, want)
		}
	}
}

func TestLaterRoutes_madeByTheFirstRequest(t *testing.T) {
	t.Parallel()
	front, later := restful.NewContainer(), newLaterRoutes(shopParts()[0].Serializer)
	parts := shopParts()
	counted := []*countedScheme{{ObjectTyper: parts[0].Typer}, {ObjectTyper: parts[1].Typer}}
	parts[0].Typer, parts[1].Typer = counted[0], counted[1]
	resources, err := discovered(parts...)
	if err != nil {
		t.Fatal(err)
	}
	later.add(front, resources, parts)
	before := []int{counted[0].asked, counted[1].asked}
	passed := 0
	handler := later.wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ }))
	for _, path := range []string{"/", "/apis", "/apis/shop.example.com", "/apis/shop.example.com/v10/secrets", "/apis//v1", "/api/v1/pods"} {
		var nothing any
		askHandler(t, handler, http.MethodGet, path, &nothing)
	}
	if passed != 6 {
		t.Errorf("%d requests passed on, want 6", passed)
	}
	if services := front.RegisteredWebServices(); len(services) != 1 || services[0].RootPath() != "/apis/shop.example.com/v1" {
		t.Errorf("%d services", len(services))
	}
	for path, want := range map[string]int{
		"/apis/shop.example.com/v1": http.StatusOK, "/apis/shop.example.com/v1/": http.StatusOK,
		"/apis/shop.example.com/v1/unknown": http.StatusNotFound, "/apis/shop.example.com/v1/namespaces/a/unknown/b": http.StatusNotFound,
	} {
		var list metav1.APIResourceList
		if code := askHandler(t, handler, http.MethodGet, path, &list); code != want || want == http.StatusOK && len(list.APIResources) != 2 {
			t.Errorf("%s: status %d, %+v; want %d", path, code, list, want)
		}
	}
	if counted[0].asked != before[0] || counted[1].asked != before[1] {
		t.Error("routes were made for discovery")
	}
	var status metav1.Status
	if code := askHandler(t, handler, http.MethodPut, "/apis/shop.example.com/v1/namespaces/a/secrets", &status); code !=
		http.StatusMethodNotAllowed || status.Reason != metav1.StatusReasonMethodNotAllowed {
		t.Errorf("PUT of a list: status %d, %+v", code, status)
	}
	var got metav1.PartialObjectMetadata
	if code := askHandler(t, handler, http.MethodGet, "/apis/shop.example.com/v1/namespaces/a/secrets/b", &got); code != http.StatusOK ||
		got.Kind != "Secret" || got.Name != "b" {
		t.Errorf("a secret: status %d, %+v", code, got)
	}
	if counted[0].asked == before[0] || counted[1].asked != before[1] {
		t.Error("the routes of the resource, and only those, are made for its request")
	}
	made, err := later.services(front.RegisteredWebServices())
	if err != nil || len(made) != 1 || len(made[0].Routes()) < 10 {
		t.Errorf("%d services, %v", len(made), err)
	}
}

func TestLaterRoutes_failure_isAnInternalError(t *testing.T) {
	t.Parallel()
	broken := shopParts()[0]
	later, front := newLaterRoutes(broken.Serializer), restful.NewContainer()
	broken.Typer = runtime.NewScheme()
	later.add(front, nil, []*genericapi.APIGroupVersion{broken})
	var status metav1.Status
	if code := askHandler(t, later.wrap(http.NotFoundHandler()), http.MethodGet, "/apis/shop.example.com/v1/secrets", &status); code !=
		http.StatusInternalServerError {
		t.Errorf("status %d", code)
	}
	made, err := later.services(front.RegisteredWebServices())
	if err == nil || !strings.Contains(err.Error(), "routes of /apis/shop.example.com/v1") {
		t.Errorf("%d services, %v", len(made), err)
	}
}

// countedScheme counts questions for kinds.
type countedScheme struct {
	runtime.ObjectTyper
	asked int
}

func (c *countedScheme) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	c.asked++
	return c.ObjectTyper.ObjectKinds(obj)
}
