package garbage_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/controlplane/garbage"
	"github.com/annexapi/annex/internal/identity/auth"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/loopback"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/standalone/coreapi"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/storage/registry"
	legacyv1 "github.com/annexapi/annex/internal/testing/shop/legacy/v1"
	shopv1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
)

var (
	widgets = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}
	shelves = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "shelves"} // cluster-scoped
	gizmos  = schema.GroupVersionResource{Group: "legacy.example.com", Version: "v1", Resource: "gizmos"}
	names   = map[schema.GroupVersionResource]string{widgets: "Widget", shelves: "Shelf", gizmos: "Gizmo"}
)

// server is an API server whose set of kinds changes.
type server struct {
	config   *rest.Config
	objects  dynamic.Interface
	loopback *loopback.Loopback
	backend  store.Backend
	handler  atomic.Pointer[http.Handler]
	// refused is a path that is answered with 500, for all methods.
	refused atomic.Pointer[string]
	// events receives created events. The server itself has no events.
	events chan corev1.Event
	// asked counts requests, except for discovery.
	asked   atomic.Int64
	changed chan struct{}
}

func start(t testing.TB) *server {
	t.Helper()
	backend, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{})
	check(t, err)
	t.Cleanup(func() { check(t, backend.Close()) })
	inner := loopback.New()
	t.Cleanup(func() { check(t, inner.Close()) })
	s := &server{
		config:   inner.Config(),
		loopback: inner,
		backend:  backend,
		changed:  make(chan struct{}, 1),
		events:   make(chan corev1.Event, 10),
	}
	s.objects, err = dynamic.NewForConfig(s.config)
	check(t, err)
	s.serve(t, widgets, shelves, gizmos)
	inner.Serve(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/api" && req.URL.Path != "/apis" {
			s.asked.Add(1)
		}
		if refused := s.refused.Load(); refused != nil && strings.HasPrefix(req.URL.Path, *refused) {
			http.Error(w, "the conversion webhook is down", http.StatusInternalServerError)
			return
		}
		if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/events") {
			var event corev1.Event
			if body, err := io.ReadAll(req.Body); err != nil || runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), body, &event) != nil {
				t.Errorf("no event: %v, %q", err, body)
			}
			s.events <- event
		}
		(*s.handler.Load()).ServeHTTP(w, req)
	}))
	for _, name := range []string{"red", "blue"} {
		_, err := s.objects.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).
			Create(t.Context(), object("v1", "Namespace", name), metav1.CreateOptions{})
		check(t, err)
	}
	return s
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve replaces the kinds that the server serves.
func (s *server) serve(t testing.TB, kinds ...schema.GroupVersionResource) {
	t.Helper()
	definition := &define.Server{Name: "shop"}
	groups := map[string]int{}
	for _, kind := range kinds {
		i, known := groups[kind.Group]
		if !known {
			i = len(definition.Groups)
			groups[kind.Group] = i
			definition.Groups = append(definition.Groups, define.Group{Name: kind.Group})
		}
		definition.Groups[i].Kinds = append(definition.Groups[i].Kinds, kindOf(kind))
	}
	check(t, define.Check(definition))
	machinery, err := convert.New(definition, coreapi.AddToScheme)
	check(t, err)
	stores := registry.NewStores(
		func(schema.GroupResource) store.Backend { return s.backend },
		machinery,
		definition,
		map[schema.GroupResource]schema.GroupVersionKind{
			coreapi.Resource: corev1.SchemeGroupVersion.WithKind("Namespace"),
		},
	)
	namespaces, err := coreapi.NewNamespaces(coreapi.Config{Typer: machinery.Scheme, Storage: stores, GarbageCollected: true})
	check(t, err)
	var served []*registry.Kind
	for _, kind := range definition.Kinds() {
		scheme := machinery.Of(kind.Group).Scheme
		k, err := registry.NewKind(
			kind,
			registry.Options{Typer: scheme, Convertor: scheme, RESTOptions: namespaces.Guard(stores), GarbageCollected: true},
		)
		check(t, err)
		served = append(served, k)
	}
	authorizer, _, err := auth.NewAuthorizer()
	check(t, err)
	built, err := upstream.New(upstream.Config{
		Definition:     definition,
		Machinery:      machinery,
		Stores:         stores,
		Kinds:          served,
		BuiltIn:        map[schema.GroupVersion]map[string]registryrest.Storage{corev1.SchemeGroupVersion: namespaces.Storage()},
		OpenAPI:        convert.Definitions(definition, coreapi.OpenAPI),
		Authenticator:  auth.NewAuthenticator(auth.Credentials{Tokens: []authenticator.Token{auth.LoopbackTokens(s.loopback.Token())}}),
		Authorizer:     authorizer,
		Admission:      admission.NewChainHandler(namespaces.Admission()),
		Loopback:       s.config,
		Address:        "localhost:443",
		RequestTimeout: time.Minute,
	})
	check(t, err)
	t.Cleanup(built.Destroy)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	built.Start(ctx)
	handler := built.Handler
	s.handler.Store(&handler)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func kindOf(resource schema.GroupVersionResource) *define.Kind {
	switch resource {
	case widgets:
		return &define.Kind{Resource: "widgets", Versions: []*define.Version{
			{Facts: shopv1.API, Type: reflect.TypeFor[shopv1.Widget](), ListType: reflect.TypeFor[shopv1.WidgetList]()},
			{
				Facts: v1beta1.API, Type: reflect.TypeFor[v1beta1.Widget](),
				ToHub: func(in, hub runtime.Object) error {
					return v1beta1.WidgetToHub(in.(*v1beta1.Widget), hub.(*shopv1.Widget))
				},
				FromHub: func(hub, out runtime.Object) error {
					return v1beta1.WidgetFromHub(hub.(*shopv1.Widget), out.(*v1beta1.Widget))
				},
			},
		}}
	case shelves:
		return &define.Kind{Resource: "shelves", ClusterScoped: true, Versions: []*define.Version{
			{Facts: shopv1.API, Type: reflect.TypeFor[shopv1.Shelf](), ListType: reflect.TypeFor[shopv1.ShelfList]()},
		}}
	default:
		return &define.Kind{Resource: "gizmos", Versions: []*define.Version{
			{Facts: legacyv1.API, Type: reflect.TypeFor[legacyv1.Gizmo](), ListType: reflect.TypeFor[legacyv1.GizmoList]()},
		}}
	}
}

// collect runs a collector until the test ends or stop is called.
func (s *server) collect(t testing.TB) (stop func()) {
	t.Helper()
	collector, err := garbage.New(s.config, garbage.Options{Changed: s.changed})
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- collector.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func object(apiVersion, kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}},
	}
}

// owned describes an object to create.
type owned struct {
	namespace, name string
	owners          []metav1.OwnerReference
	finalizers      []string
}

func (s *server) in(resource schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	return s.objects.Resource(resource).Namespace(namespace)
}

// create creates an object and returns a reference to it.
func (s *server) create(t testing.TB, resource schema.GroupVersionResource, o owned) metav1.OwnerReference {
	t.Helper()
	made := object(resource.GroupVersion().String(), names[resource], o.name)
	made.SetOwnerReferences(o.owners)
	made.SetFinalizers(o.finalizers)
	made, err := s.in(resource, o.namespace).Create(t.Context(), made, metav1.CreateOptions{})
	check(t, err)
	return metav1.OwnerReference{APIVersion: made.GetAPIVersion(), Kind: made.GetKind(), Name: made.GetName(), UID: made.GetUID()}
}

func (s *server) get(t testing.TB, resource schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	obj, err := s.in(resource, namespace).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	check(t, err)
	return obj
}

func (s *server) delete(t testing.TB, resource schema.GroupVersionResource, namespace, name string, policy metav1.DeletionPropagation) {
	t.Helper()
	options := metav1.DeleteOptions{}
	if policy != "" {
		options.PropagationPolicy = &policy
	}
	check(t, s.in(resource, namespace).Delete(t.Context(), name, options))
}

func (s *server) awaitGone(t testing.TB, resource schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	testwait.Until(t, name+" goes", func() bool { return s.get(t, resource, namespace, name) == nil })
}

// awaitProbe returns when the collector has handled an owner that is created now.
func (s *server) awaitProbe(t testing.TB) {
	t.Helper()
	probe := s.create(t, widgets, owned{namespace: "blue", name: "probe"})
	s.create(t, widgets, owned{namespace: "blue", name: "probed", owners: []metav1.OwnerReference{probe}})
	s.delete(t, widgets, "blue", "probe", "")
	s.awaitGone(t, widgets, "blue", "probed")
}

// release removes the finalizers of clients from an object.
func (s *server) release(t testing.TB, resource schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	obj := s.get(t, resource, namespace, name)
	obj.SetFinalizers(slices.DeleteFunc(obj.GetFinalizers(), func(f string) bool { return f == hold }))
	_, err := s.in(resource, namespace).Update(t.Context(), obj, metav1.UpdateOptions{})
	check(t, err)
}

const hold = "example.com/hold"

func blocking(reference metav1.OwnerReference) metav1.OwnerReference {
	reference.BlockOwnerDeletion = new(true)
	return reference
}

func TestCollector_deletesDependents(t *testing.T) {
	for policy, wants := range map[metav1.DeletionPropagation]bool{
		"":                                 true,
		metav1.DeletePropagationBackground: true,
		metav1.DeletePropagationForeground: true,
		metav1.DeletePropagationOrphan:     false,
	} {
		t.Run("policy "+string(policy), func(t *testing.T) {
			s := start(t)
			s.collect(t)
			root := s.create(t, shelves, owned{name: "root"})
			child := s.create(t, widgets, owned{namespace: "red", name: "child", owners: []metav1.OwnerReference{blocking(root)}})
			s.create(t, gizmos, owned{namespace: "red", name: "grandchild", owners: []metav1.OwnerReference{child}})
			s.delete(t, shelves, "", "root", policy)
			s.awaitGone(t, shelves, "", "root")
			if wants {
				s.awaitGone(t, widgets, "red", "child")
				s.awaitGone(t, gizmos, "red", "grandchild")
				return
			}
			s.awaitProbe(t)
			left := s.get(t, widgets, "red", "child")
			if left == nil || len(left.GetOwnerReferences()) != 0 || left.GetDeletionTimestamp() != nil {
				t.Errorf("the orphan is %v", left)
			}
			if s.get(t, gizmos, "red", "grandchild") == nil {
				t.Error("the orphan's dependent is gone")
			}
		})
	}
}

// An object is only deleted because of its owners.
func TestCollector_references(t *testing.T) {
	type reference = metav1.OwnerReference
	for name, test := range map[string]struct {
		change    func(owner reference) []reference
		of        schema.GroupVersionResource
		namespace string
		collected bool
	}{
		"to an owner that is there":       {func(o reference) []reference { return []reference{o} }, widgets, "red", false},
		"in another version of the group": {func(o reference) []reference { o.APIVersion = "shop.example.com/v1beta1"; return []reference{o} }, widgets, "red", false},
		"in a version that is not served": {func(o reference) []reference { o.APIVersion = "shop.example.com/v0"; return []reference{o} },
			widgets, "red", false},
		"with another UID": {func(o reference) []reference { o.UID = "another"; return []reference{o} }, widgets, "red", true},
		"with another UID, in a version that is not served": {func(o reference) []reference {
			o.APIVersion, o.UID = "shop.example.com/v0", "another"
			return []reference{o}
		}, widgets, "red", true},
		"with another name": {func(o reference) []reference { o.Name = "another"; return []reference{o} }, widgets, "red",
			true},
		"with another kind of the UID":     {func(o reference) []reference { o.Kind = "Shelf"; return []reference{o} }, widgets, "red", true},
		"to an owner in another namespace": {func(o reference) []reference { return []reference{o} }, widgets, "blue", true},
		"from outside of namespaces":       {func(o reference) []reference { return []reference{o} }, shelves, "", false},
		"to a kind that is not served": {func(o reference) []reference { o.Kind = "Nothing"; return []reference{o} }, widgets, "red",
			false},
		"to a group that is not served": {func(o reference) []reference { o.APIVersion = "nowhere.example.com/v1"; return []reference{o} },
			widgets, "red", false},
		"to what is there, and to what is not": {func(o reference) []reference { gone := o; gone.UID = "gone"; return []reference{gone, o} },
			widgets, "red", false},
		"to what is not there, and to the unknown": {func(o reference) []reference {
			gone := o
			gone.UID, o.Kind = "gone", "Nothing"
			return []reference{gone, o}
		}, widgets, "red", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.collect(t)
			owner := s.create(t, widgets, owned{namespace: "red", name: "owner"})
			s.create(t, test.of, owned{namespace: test.namespace, name: "owned", owners: test.change(owner)})
			if test.collected {
				s.awaitGone(t, test.of, test.namespace, "owned")
				return
			}
			s.awaitProbe(t)
			if s.get(t, test.of, test.namespace, "owned") == nil {
				t.Error("it has been deleted")
			}
			if s.get(t, widgets, "red", "owner") == nil {
				t.Error("the owner has been deleted")
			}
		})
	}
}

func TestCollector_ownerInOtherNamespace_isReported(t *testing.T) {
	s := start(t)
	s.collect(t)
	owner := s.create(t, widgets, owned{}.named("owner"))
	s.awaitProbe(t)
	for name, test := range map[string]struct {
		of              schema.GroupVersionResource
		namespace, said string
	}{
		"in another namespace": {gizmos, "blue", `namespace: blue, name: owner, uid: %s] does not exist in namespace "blue"`},
		"from outside":         {shelves, "", `namespace: , name: owner, uid: %s] does not exist in namespace ""`},
	} {
		t.Run(name, func(t *testing.T) {
			s.create(t, test.of, owned{namespace: test.namespace, name: "owned", owners: []metav1.OwnerReference{owner}})
			event := <-s.events
			if want := "ownerRef [shop.example.com/v1/Widget, " + fmt.Sprintf(
				test.said,
				owner.UID,
			); event.Message != want || event.Reason != "OwnerRefInvalidNamespace" ||
				event.Type != "Warning" {
				t.Errorf("%s %s: got %s, want %s", event.Type, event.Reason, event.Message, want)
			}
			if o := event.InvolvedObject; o.Name != "owned" || o.Kind != names[test.of] || o.Namespace != test.namespace {
				t.Errorf("it is about %v", o)
			}
		})
	}
}

func TestCollector_removesDeadReferences(t *testing.T) {
	s := start(t)
	s.collect(t)
	first := s.create(t, widgets, owned{namespace: "red", name: "first"})
	second := s.create(t, shelves, owned{name: "second"})
	s.create(t, gizmos, owned{namespace: "red", name: "owned", owners: []metav1.OwnerReference{first, second}})
	s.delete(t, widgets, "red", "first", "")
	testwait.Until(t, "the reference goes", func() bool {
		references := s.get(t, gizmos, "red", "owned").GetOwnerReferences()
		return len(references) == 1 && references[0].UID == second.UID
	})
	s.delete(t, shelves, "", "second", "")
	s.awaitGone(t, gizmos, "red", "owned")
}

func TestForegroundDeletion_waitsForBlockers(t *testing.T) {
	s := start(t)
	s.collect(t)
	root := s.create(t, widgets, owned{namespace: "red", name: "root"})
	child := s.create(t, widgets, owned{namespace: "red", name: "child", owners: []metav1.OwnerReference{blocking(root)}})
	s.create(t, gizmos, owned{namespace: "red", name: "leaf", owners: []metav1.OwnerReference{blocking(child)}, finalizers: []string{hold}})
	s.create(t, gizmos, owned{namespace: "red", name: "free", owners: []metav1.OwnerReference{root}, finalizers: []string{hold}})
	s.awaitProbe(t)
	s.delete(t, widgets, "red", "root", metav1.DeletePropagationForeground)
	testwait.Until(t, "the leaf is deleted", func() bool { return s.get(t, gizmos, "red", "leaf").GetDeletionTimestamp() != nil })
	testwait.Until(
		t,
		"what does not block is deleted, too",
		func() bool { return s.get(t, gizmos, "red", "free").GetDeletionTimestamp() != nil },
	)
	s.awaitProbe(t)
	for _, name := range []string{"root", "child"} {
		if left := s.get(t, widgets, "red", name); left == nil || !slices.Contains(left.GetFinalizers(), metav1.FinalizerDeleteDependents) {
			t.Errorf("%s does not wait: %v", name, left)
		}
	}
	s.release(t, gizmos, "red", "leaf")
	s.awaitGone(t, widgets, "red", "child")
	s.awaitGone(t, widgets, "red", "root")
	if s.get(t, gizmos, "red", "free") == nil {
		t.Error("what was held is gone")
	}
}

// A dependent with another owner stays, and does not block the deletion.
func TestForegroundDeletion_sharedDependent_stays(t *testing.T) {
	s := start(t)
	s.collect(t)
	root := s.create(t, widgets, owned{namespace: "red", name: "root"})
	other := s.create(t, widgets, owned{namespace: "red", name: "other"})
	s.create(t, gizmos, owned{namespace: "red", name: "shared", owners: []metav1.OwnerReference{blocking(root), other}})
	s.awaitProbe(t)
	s.delete(t, widgets, "red", "root", metav1.DeletePropagationForeground)
	s.awaitGone(t, widgets, "red", "root")
	if references := s.get(t, gizmos, "red", "shared").GetOwnerReferences(); len(references) != 1 || references[0].UID != other.UID {
		t.Errorf("the owners are %v", references)
	}
}

func TestForegroundDeletion_cycle(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s := start(t)
			s.collect(t)
			var references []metav1.OwnerReference
			for i := range size {
				o := owned{namespace: "red", name: fmt.Sprint("w", i)}
				if i > 0 {
					o.owners = []metav1.OwnerReference{blocking(references[i-1])}
				}
				references = append(references, s.create(t, widgets, o))
			}
			first := s.get(t, widgets, "red", "w0")
			first.SetOwnerReferences([]metav1.OwnerReference{blocking(references[size-1])})
			_, err := s.in(widgets, "red").Update(t.Context(), first, metav1.UpdateOptions{})
			check(t, err)
			s.awaitProbe(t)
			if s.get(t, widgets, "red", "w0") == nil {
				t.Fatal("a circle of owners is no garbage")
			}
			s.delete(t, widgets, "red", "w0", metav1.DeletePropagationForeground)
			for i := range size {
				s.awaitGone(t, widgets, "red", fmt.Sprint("w", i))
			}
		})
	}
}

func TestCollector_changingKinds(t *testing.T) {
	s := start(t)
	s.serve(t, widgets)
	s.collect(t)
	s.awaitProbe(t)
	s.serve(t, widgets, shelves, gizmos)
	shelf := s.create(t, shelves, owned{name: "shelf"})
	s.create(t, gizmos, owned{}.named("collected", shelf))
	s.delete(t, shelves, "", "shelf", "")
	s.awaitGone(t, gizmos, "red", "collected")

	// The state of owners is unknown while their kind is not served.
	shelf = s.create(t, shelves, owned{name: "shelf"})
	s.create(t, gizmos, owned{}.named("waits", shelf))
	s.create(t, widgets, owned{}.named("stays", shelf))
	s.awaitProbe(t)
	s.serve(t, widgets, gizmos)
	s.awaitProbe(t)
	late := s.create(t, gizmos, owned{}.named("late", shelf))
	never := shelf
	never.UID = "never"
	s.create(t, gizmos, owned{}.named("fatherless", never))
	s.awaitProbe(t)
	for _, name := range []string{"waits", "late", "fatherless"} {
		if s.get(t, gizmos, "red", name) == nil {
			t.Errorf("%s has been deleted while the kind of its owner was not served", name)
		}
	}
	s.serve(t, widgets, shelves, gizmos)
	s.awaitGone(t, gizmos, "red", "fatherless")
	s.awaitProbe(t)
	if s.get(t, gizmos, "red", late.Name) == nil || s.get(t, gizmos, "red", "waits") == nil {
		t.Error("what the shelf owns is gone, and the shelf is there")
	}
	s.delete(t, shelves, "", "shelf", "")
	s.awaitGone(t, gizmos, "red", "late")
	s.awaitGone(t, gizmos, "red", "waits")
	s.awaitGone(t, widgets, "red", "stays")
}

// named returns an object in the namespace red.
func (o owned) named(name string, owners ...metav1.OwnerReference) owned {
	o.namespace, o.name, o.owners = "red", name, owners
	return o
}

func TestCollector_failingKind_blocksNoOther(t *testing.T) {
	s := start(t)
	owner := s.create(t, widgets, owned{}.named("owner"))
	s.create(t, gizmos, owned{}.named("failing", owner))
	refused := "/apis/legacy.example.com/v1/gizmos"
	s.refused.Store(&refused)
	s.collect(t)
	shelf := s.create(t, shelves, owned{name: "shelf"})
	s.create(t, widgets, owned{}.named("collected", shelf))
	s.delete(t, shelves, "", "shelf", "")
	s.awaitGone(t, widgets, "red", "collected")
	s.delete(t, widgets, "red", "owner", "")
	s.refused.Store(nil)
	s.awaitGone(t, gizmos, "red", "failing")
}

func TestCollector_failedRequests_areRetried(t *testing.T) {
	s := start(t)
	s.collect(t)
	owner := s.create(t, widgets, owned{}.named("owner"))
	s.create(t, gizmos, owned{}.named("owned", owner))
	s.awaitProbe(t)
	refused := "/apis/legacy.example.com/v1/namespaces/red/gizmos/owned"
	s.refused.Store(&refused)
	s.delete(t, widgets, "red", "owner", "")
	before := s.asked.Load()
	testwait.Until(t, "it is tried again", func() bool { return s.asked.Load() > before+6 })
	s.refused.Store(nil)
	s.awaitGone(t, gizmos, "red", "owned")
}

// A new collector finds objects that were created, deleted or left incomplete while no collector ran.
func TestCollector_restart(t *testing.T) {
	s := start(t)
	owner := s.create(t, widgets, owned{}.named("owner"))
	waits := s.create(t, widgets, owned{}.named("waits"))
	keeps := s.create(t, widgets, owned{}.named("keeps"))
	s.create(t, gizmos, owned{}.named("orphaned", keeps))
	s.create(t, gizmos, owned{}.named("collected", owner))
	s.create(t, gizmos, owned{}.named("blocks", blocking(waits)))
	s.delete(t, widgets, "red", "owner", "")
	s.delete(t, widgets, "red", "waits", metav1.DeletePropagationForeground)
	s.delete(t, widgets, "red", "keeps", metav1.DeletePropagationOrphan)
	stop := s.collect(t)
	s.awaitGone(t, gizmos, "red", "collected")
	s.awaitGone(t, gizmos, "red", "blocks")
	s.awaitGone(t, widgets, "red", "waits")
	s.awaitGone(t, widgets, "red", "keeps")
	if left := s.get(t, gizmos, "red", "orphaned"); left == nil || len(left.GetOwnerReferences()) != 0 {
		t.Errorf("the orphan is %v", left)
	}
	stop()
	owner = s.create(t, widgets, owned{}.named("owner"))
	s.create(t, gizmos, owned{}.named("collected", owner))
	s.delete(t, widgets, "red", "owner", "")
	s.collect(t)
	s.awaitGone(t, gizmos, "red", "collected")
}

// A constantly modified object is deleted nevertheless.
func TestCollector_busyObject(t *testing.T) {
	s := start(t)
	s.collect(t)
	owner := s.create(t, widgets, owned{}.named("owner"))
	s.create(t, gizmos, owned{}.named("busy", owner))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			body := fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, i)
			_, err := s.in(gizmos, "red").Patch(ctx, "busy", types.MergePatchType, []byte(body), metav1.PatchOptions{})
			if apierrors.IsNotFound(err) {
				return
			}
		}
	}()
	s.delete(t, widgets, "red", "owner", "")
	s.awaitGone(t, gizmos, "red", "busy")
	cancel()
	<-done
}

// While nothing changes, only discovery requests are sent.
func TestCollector_atRest_sendsNothing(t *testing.T) {
	s := start(t)
	owner := s.create(t, shelves, owned{name: "owner"})
	for i := range 100 {
		s.create(t, widgets, owned{}.named(fmt.Sprint("w", i), owner))
	}
	s.collect(t)
	s.awaitProbe(t)
	before := s.asked.Load()
	for range 5 {
		s.changed <- struct{}{} // sent when the previous one has been received
	}
	if asked := s.asked.Load() - before; asked > 3 { // requests for the end of the probe
		t.Errorf("%d requests at rest", asked)
	}
}

// At rest, a collector costs only its discovery requests.
func BenchmarkAtRest(b *testing.B) {
	s := start(b)
	owner := s.create(b, shelves, owned{name: "owner"})
	for i := range 10_000 {
		s.create(b, widgets, owned{}.named(fmt.Sprint("w", i), owner))
	}
	s.collect(b)
	s.awaitProbe(b)
	debug.FreeOSMemory()
	before := used(b)
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(100*float64(used(b)-before)/float64(b.Elapsed()), "%cpu")
}

// used returns the processor time of the process.
func used(t testing.TB) time.Duration {
	var usage syscall.Rusage
	check(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func BenchmarkCascade(b *testing.B) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
		metav1.DeletePropagationOrphan} {
		b.Run(string(policy), func(b *testing.B) {
			s := start(b)
			s.collect(b)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				owner := s.create(b, shelves, owned{name: fmt.Sprint("owner", i)})
				for j := range 1000 {
					s.create(b, widgets, owned{}.named(fmt.Sprint("w", i, "-", j), blocking(owner)))
				}
				s.awaitProbe(b)
				b.StartTimer()
				s.delete(b, shelves, "", owner.Name, policy)
				s.awaitGone(b, shelves, "", owner.Name)
				if policy != metav1.DeletePropagationOrphan {
					s.awaitGone(b, widgets, "red", fmt.Sprint("w", i, "-", 999))
				}
			}
		})
	}
}
