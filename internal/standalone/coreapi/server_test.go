package coreapi_test

import (
	"context"
	"net/http"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/registry/generic"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/identity/auth"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/loopback"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/standalone/coreapi"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/storage/registry"
	shopv1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
)

// widgets is the namespaced kind of the test server.
var widgets = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}

// server is an API server with namespaces and widgets, accessed through its loopback.
type server struct {
	config     *rest.Config
	namespaces corev1client.NamespaceInterface
	widgets    dynamic.NamespaceableResourceInterface
	core       *coreapi.Namespaces
	handler    http.Handler
	kind       *registry.Kind
	machinery  *convert.Machinery
}

// hooks are called on the way of a new widget to storage: before the guard, and between the guard and the write.
type hooks struct{ beforeGuard, beforeWrite func() }

func openBackend(t testing.TB) store.Backend {
	t.Helper()
	backend, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	return backend
}

func start(t testing.TB) *server { return startOn(t, openBackend(t), hooks{}) }

func startOn(t testing.TB, backend store.Backend, hooks hooks) *server {
	t.Helper()
	definition := &define.Server{Name: "shop", Groups: []define.Group{{Name: "shop.example.com", Kinds: []*define.Kind{{
		Resource: "widgets",
		Versions: []*define.Version{{
			Facts:    shopv1.API,
			Type:     reflect.TypeFor[shopv1.Widget](),
			ListType: reflect.TypeFor[shopv1.WidgetList](),
		}},
	}}}}}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(define.Check(definition))
	machinery, err := convert.New(definition, coreapi.AddToScheme)
	check(err)
	stores := registry.NewStores(
		func(schema.GroupResource) store.Backend { return backend },
		machinery,
		definition,
		map[schema.GroupResource]schema.GroupVersionKind{
			coreapi.Resource: corev1.SchemeGroupVersion.WithKind("Namespace"),
		},
	)
	namespaces, err := coreapi.NewNamespaces(coreapi.Config{Typer: machinery.Scheme, Storage: stores})
	check(err)
	kind, err := registry.NewKind(definition.Kinds()[0], registry.Options{
		Typer:       machinery.Scheme,
		RESTOptions: hooked{namespaces.Guard(hooked{stores, nil, hooks.beforeWrite}), hooks.beforeGuard, nil},
		Opened:      stores.Opened,
	})
	check(err)
	authorizer, _, err := auth.NewAuthorizer()
	check(err)
	inner := loopback.New()
	t.Cleanup(func() { inner.Close() })
	built, err := upstream.New(upstream.Config{
		Definition:     definition,
		Machinery:      machinery,
		Stores:         stores,
		Kinds:          []*registry.Kind{kind},
		BuiltIn:        map[schema.GroupVersion]map[string]registryrest.Storage{corev1.SchemeGroupVersion: namespaces.Storage()},
		OpenAPI:        convert.Definitions(definition, coreapi.OpenAPI),
		Authenticator:  auth.NewAuthenticator(auth.Credentials{Tokens: []authenticator.Token{auth.LoopbackTokens(inner.Token())}}),
		Authorizer:     authorizer,
		Admission:      admission.NewChainHandler(namespaces.Admission()),
		Loopback:       inner.Config(),
		Address:        "localhost:443",
		RequestTimeout: time.Minute,
	})
	check(err)
	t.Cleanup(built.Destroy)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	inner.Serve(built.Handler)
	built.Start(ctx)

	s := &server{config: inner.Config(), core: namespaces, handler: built.Handler, kind: kind, machinery: machinery}
	core, err := corev1client.NewForConfig(s.config)
	check(err)
	s.namespaces = core.Namespaces()
	all, err := dynamic.NewForConfig(s.config)
	check(err)
	s.widgets = all.Resource(widgets)
	return s
}

// runDeletion runs the deletion controller until the test ends or stop is called.
func (s *server) runDeletion(t testing.TB) (stop func()) {
	t.Helper()
	return s.runController(t, s.core.RunDeletion, onlyWidgets)
}

func onlyWidgets(context.Context) ([]schema.GroupVersionResource, error) {
	return []schema.GroupVersionResource{widgets}, nil
}

func (s *server) runController(
	t testing.TB,
	run func(context.Context, *rest.Config, coreapi.Content) error,
	content coreapi.Content,
) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, s.config, content)
	}()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	return stop
}

// hooked calls arrive before a create reaches the underlying storage, and write directly before that storage writes.
type hooked struct {
	generic.RESTOptionsGetter
	arrive, write func()
}

func (h hooked) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := h.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	open := options.Decorator
	options.Decorator = func(c *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error), one,
		list func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface,
		factory.DestroyFunc, error) {
		inner, destroy, err := open(c, prefix, key, one, list, attrs, triggers, indexers)
		return hookedStorage{inner, h}, destroy, err
	}
	return options, nil
}

type hookedStorage struct {
	storage.Interface
	hooks hooked
}

func (h hookedStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	call(h.hooks.arrive)
	call(h.hooks.write)
	return h.Interface.Create(ctx, key, obj, out, ttl)
}

func (h hookedStorage) GuaranteedUpdate(
	ctx context.Context,
	key string,
	out runtime.Object,
	ignoreNotFound bool,
	pre *storage.Preconditions,
	update storage.UpdateFunc,
	cached runtime.Object,
) error {
	if !ignoreNotFound {
		return h.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, pre, update, cached)
	}
	call(h.hooks.arrive)
	return h.Interface.GuaranteedUpdate(
		ctx,
		key,
		out,
		ignoreNotFound,
		pre,
		func(existing runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
			obj, ttl, err := update(existing, meta)
			if err == nil {
				call(h.hooks.write)
			}
			return obj, ttl, err
		},
		cached,
	)
}

func call(hook func()) {
	if hook != nil {
		hook()
	}
}
