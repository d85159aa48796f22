package upstream

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

var shopVersion = schema.GroupVersion{Group: "shop.example.com", Version: "v1"}

// shelf stores objects of one type, which all are empty but for their names.
type shelf struct {
	rest.TableConvertor
	resource string
	empty    runtime.Object
}

func (s *shelf) New() runtime.Object     { return s.empty.DeepCopyObject() }
func (s *shelf) Destroy()                {}
func (s *shelf) NamespaceScoped() bool   { return true }
func (s *shelf) GetSingularName() string { return strings.TrimSuffix(s.resource, "s") }
func (s *shelf) ShortNames() []string    { return []string{s.resource[:2]} }
func (s *shelf) named(name string) runtime.Object {
	obj := s.New()
	if accessor, err := meta.Accessor(obj); err == nil {
		accessor.SetName(name)
	}
	return obj
}

func (s *shelf) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return s.named(name), nil
}

func (s *shelf) Create(_ context.Context, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	return obj, nil
}

func (s *shelf) Update(
	_ context.Context, name string, _ rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc, _ rest.ValidateObjectUpdateFunc, _ bool,
	_ *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return s.named(name), false, nil
}

func (s *shelf) Delete(
	_ context.Context, name string, _ rest.ValidateObjectFunc, _ *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	return s.named(name), true, nil
}

// part returns a version with one resource and a scheme of its own, which has only the types of that resource.
func part(resource string, types ...runtime.Object) *genericapi.APIGroupVersion {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(shopVersion, types...)
	scheme.AddKnownTypes(schema.GroupVersion{Group: shopVersion.Group, Version: runtime.APIVersionInternal}, types...)
	metav1.AddToGroupVersion(scheme, shopVersion)
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	return &genericapi.APIGroupVersion{
		Root: "/apis", GroupVersion: shopVersion,
		Storage:                     map[string]rest.Storage{resource: &shelf{resource: resource, empty: types[0]}},
		AllServedVersionsByResource: map[string][]string{resource: {shopVersion.String()}},
		Serializer:                  serializer.NewCodecFactory(scheme), ParameterCodec: runtime.NewParameterCodec(scheme),
		Typer: scheme, Creater: scheme, Convertor: scheme, ConvertabilityChecker: scheme, Defaulter: scheme,
		Namer: runtime.Namer(meta.NewAccessor()), UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme),
		TypeConverter: managedfields.NewDeducedTypeConverter(), EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(),
		MaxRequestBodyBytes: 1 << 20,
	}
}

func shopParts() []*genericapi.APIGroupVersion {
	return []*genericapi.APIGroupVersion{
		part("secrets", &corev1.Secret{}, &corev1.SecretList{}), part("configmaps", &corev1.ConfigMap{}, &corev1.ConfigMapList{}),
	}
}

// askHandler sends a request to a handler, as the filters of a server would. An empty answer is not decoded.
func askHandler(t *testing.T, handler http.Handler, method, url string, into any) int {
	t.Helper()
	r := httptest.NewRequest(method, url, nil)
	r.Header.Set("Accept", runtime.ContentTypeJSON)
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis")}
	info, err := resolver.NewRequestInfo(r)
	if err != nil {
		t.Fatal(err)
	}
	ctx := request.WithNamespace(request.WithRequestInfo(r.Context(), info), info.Namespace)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r.WithContext(ctx))
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil && w.Body.Len() > 0 {
		t.Errorf("%s %s: %v: %s", method, url, err, w.Body)
	}
	return w.Code
}

func mustInstall(t *testing.T, container *restful.Container, parts ...*genericapi.APIGroupVersion) {
	t.Helper()
	resources, err := discovered(parts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := installVersion(container, resources, parts...); err != nil {
		t.Fatal(err)
	}
}

func TestInstallVersion_twoSchemes_oneService(t *testing.T) {
	t.Parallel()
	container := restful.NewContainer()
	mustInstall(t, container, shopParts()...)
	if services := container.RegisteredWebServices(); len(services) != 1 || services[0].RootPath() != "/apis/shop.example.com/v1" {
		t.Errorf("%d services", len(services))
	}
	var list metav1.APIResourceList
	if code := askHandler(t, container, http.MethodGet, "/apis/shop.example.com/v1", &list); code != http.StatusOK {
		t.Errorf("discovery: status %d", code)
	}
	if len(list.APIResources) != 2 || list.APIResources[0].Name != "configmaps" || list.APIResources[1].Name != "secrets" ||
		list.APIResources[1].Kind != "Secret" || list.GroupVersion != shopVersion.String() {
		t.Errorf("discovery: %+v", list)
	}
	for resource, kind := range map[string]string{"configmaps": "ConfigMap", "secrets": "Secret"} {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			var got metav1.PartialObjectMetadata
			code := askHandler(t, container, method, "/apis/shop.example.com/v1/namespaces/a/"+resource+"/b", &got)
			if code != http.StatusOK || got.Kind != kind || got.APIVersion != shopVersion.String() || got.Name != "b" {
				t.Errorf("%s of %s: status %d, %+v", method, resource, code, got)
			}
		}
	}
}

// The documents of OpenAPI come from the routes.
func TestInstallVersion_joinedRoutes_areTheOnesOfEachPart(t *testing.T) {
	t.Parallel()
	container := restful.NewContainer()
	mustInstall(t, container, shopParts()...)
	joined := map[string]restful.Route{}
	for _, r := range container.RegisteredWebServices()[0].Routes() {
		joined[r.Method+" "+path.Clean(r.Path)] = r
	}
	compared := 0
	for _, part := range shopParts() {
		alone := restful.NewContainer()
		mustInstall(t, alone, part)
		for _, want := range alone.RegisteredWebServices()[0].Routes() {
			key := want.Method + " " + path.Clean(want.Path)
			got, ok := joined[key]
			if !ok {
				t.Errorf("%s is missing", key)
				continue
			}
			sameRoute(t, key, got, want)
			compared++
		}
	}
	if compared != len(joined)+1 { // each part has discovery
		t.Errorf("%d routes of the parts, %d joined ones", compared, len(joined))
	}
}

// sameRoute compares what a route has for documents.
func sameRoute(t *testing.T, key string, got, want restful.Route) {
	t.Helper()
	if path.Clean(want.Path) != "/apis/shop.example.com/v1" && got.Path != want.Path {
		t.Errorf("%s: path %s, want %s", key, got.Path, want.Path)
	}
	type documents struct {
		produces, consumes    []string
		doc, notes, operation string
		read                  any
		writes                []any
		metadata, extensions  map[string]any
		deprecated            bool
		errors                map[int]restful.ResponseError
		filters, conditions   int
		parameters            []restful.ParameterData
	}
	of := func(r restful.Route) documents {
		d := documents{
			produces: r.Produces, consumes: r.Consumes, doc: r.Doc, notes: r.Notes, operation: r.Operation, read: r.ReadSample,
			writes: r.WriteSamples, metadata: r.Metadata, extensions: r.Extensions, deprecated: r.Deprecated, errors: r.ResponseErrors,
			filters: len(r.Filters), conditions: len(r.If),
		}
		for _, p := range r.ParameterDocs {
			d.parameters = append(d.parameters, p.Data())
		}
		return d
	}
	g, w := reflect.ValueOf(of(got)), reflect.ValueOf(of(want))
	if reflect.DeepEqual(of(got), of(want)) {
		return
	}
	for i := range g.NumField() {
		t.Logf("%s: %s: %+v, want %+v", key, g.Type().Field(i).Name, g.Field(i), w.Field(i))
	}
	t.Errorf("%s differs", key)
}

func TestCopyRoute_keepsAll(t *testing.T) {
	t.Parallel()
	const root = "/apis/shop.example.com/v1"
	called := 0
	from := new(restful.WebService)
	from.Path(root)
	b := from.Method(http.MethodDelete).Path("/things/{name}").To(func(*restful.Request, *restful.Response) { called++ }).
		Doc("deletes a thing").Notes("for ever").Operation("deleteThing").
		Produces("application/json", "application/yaml").Consumes("*/*").
		Param(from.PathParameter("name", "name of the thing").DataType("string")).
		Param(from.QueryParameter("dryRun", "changes nothing").DataType("string").AllowMultiple(true)).
		Reads(metav1.DeleteOptions{}, "how to delete").
		Param(from.QueryParameter("pretty", "indents").DataType("boolean").DefaultValue("false")).
		Writes(metav1.Status{}).
		Returns(http.StatusOK, "OK", metav1.Status{}).Returns(http.StatusAccepted, "Accepted", nil).
		Metadata("x-kubernetes-action", "delete").AddExtension("x-order", 1).Deprecate().
		Filter(func(r *restful.Request, w *restful.Response, chain *restful.FilterChain) {
			called += 10
			chain.ProcessFilter(r, w)
		}).If(func(r *http.Request) bool { return r.Header.Get("X-Not") == "" })
	b.ParameterNamed("body").Required(false)
	from.Route(b)
	want := from.Routes()[0]
	to := new(restful.WebService)
	to.Path(root)
	copyRoute(to, root, want)
	copyRoute(to, root, restful.Route{Method: http.MethodGet, Path: root + "/things", Function: want.Function, Operation: "listThings"})
	got := to.Routes()
	if len(got) != 2 {
		t.Fatalf("%d routes", len(got))
	}
	sameRoute(t, "DELETE", got[0], want)
	if bare := got[1]; bare.Path != root+"/things" || bare.ReadSample != nil || len(bare.ParameterDocs) > 0 || bare.Operation != "listThings" {
		t.Errorf("a bare route: %+v", bare)
	}
	container := restful.NewContainer()
	container.Add(to)
	w := httptest.NewRecorder()
	container.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, root+"/things/a", nil))
	if called != 11 {
		t.Errorf("status %d; the filter and the function count %d, want 11", w.Code, called)
	}
	r := httptest.NewRequest(http.MethodDelete, root+"/things/a", nil)
	r.Header.Set("X-Not", "1")
	container.ServeHTTP(httptest.NewRecorder(), r)
	if called != 11 {
		t.Error("the route ignores its condition")
	}
}

func TestInstallVersion_brokenPart_fails(t *testing.T) {
	t.Parallel()
	parts := shopParts()
	parts[1].Typer = runtime.NewScheme()
	container := restful.NewContainer()
	if err := installVersion(container, nil, parts...); err == nil || len(container.RegisteredWebServices()) > 0 {
		t.Errorf("%v, %d services", err, len(container.RegisteredWebServices()))
	}
}
