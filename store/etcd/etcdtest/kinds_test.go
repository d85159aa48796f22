package etcdtest_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	legacyv1 "github.com/annexapi/annex/internal/testing/shop/legacy/v1"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/etcd"
)

var (
	gizmos     = schema.GroupVersionResource{Group: "legacy.example.com", Version: "v1", Resource: "gizmos"}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

func newGizmo(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "legacy.example.com/v1", "kind": "Gizmo", "metadata": map[string]any{"name": name},
	}}
}

// Namespaces are in the data directory, their objects are in etcd.
func TestStoredIn_kindInEtcd_namespacesElsewhere(t *testing.T) {
	members := startCluster(t, 1, nil)
	server := annex.Server{Name: "shop", Groups: []annex.Group{{
		Name:  "shop.example.com",
		Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).StoredIn(etcd.Cluster(etcd.Options{}))},
	}}}
	client := dynamic.NewForConfigOrDie(annextest.StartWith(t, server, annex.Options{
		Storage: embedded.Dir(""),
		DataDir: t.TempDir(), Drivers: []annex.Storage{etcd.Cluster(etcd.Options{Endpoints: endpoints(members)})},
	}))
	ctx := t.Context()
	for _, name := range []string{"one", "two", "three"} {
		namespace := &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}},
		}
		if _, err := client.Resource(namespaces).Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		objects := client.Resource(widgets).Namespace(name)
		if _, err := objects.Create(ctx, newWidget("first"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		refused := make(chan error, 1)
		go func() {
			for {
				w := newWidget("")
				w.SetGenerateName("w")
				if _, err := objects.Create(ctx, w, metav1.CreateOptions{}); err != nil {
					refused <- err
					return
				}
			}
		}()
		if err := client.Resource(namespaces).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-refused; !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
			t.Errorf("the create that was refused: %v", err)
		}
		testwait.Until(t, "namespace "+name+" is gone", func() bool {
			_, err := client.Resource(namespaces).Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		left, err := objects.List(ctx, metav1.ListOptions{})
		if err != nil || len(left.Items) > 0 {
			t.Errorf("left in %s: %v, %v", name, left.Items, err)
		}
	}
}

// While replicas are replaced one by one, servers from before and after the move of a kind work on the same objects.
func TestStoredIn_rollingMove_sharesEtcd(t *testing.T) {
	members := startCluster(t, 1, nil)
	client := func(server annex.Server) dynamic.Interface {
		return dynamic.NewForConfigOrDie(
			annextest.StartWith(t, server, annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)})}),
		)
	}
	before := client(annex.Server{Name: "shop", Groups: []annex.Group{{
		Name:  "legacy.example.com",
		Kinds: []annex.Kind{annex.KindOf[legacyv1.Gizmo, legacyv1.GizmoList]("gizmos", legacyv1.API)},
	}}}).Resource(gizmos).Namespace("default")
	after := client(annex.Server{Name: "shop", Groups: []annex.Group{{
		Name: "shop.example.com",
		Kinds: []annex.Kind{annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
			AlsoServedAs("legacy.example.com", "gizmos", annex.Version(legacyv1.API, legacyv1.GizmoToHub, legacyv1.GizmoFromHub)).
			StoredUnder("legacy.example.com", "gizmos").
			StoredAs("legacy.example.com/v1")},
	}}})
	asWidgets, asGizmos := after.Resource(widgets).Namespace("default"), after.Resource(gizmos).Namespace("default")
	ctx := t.Context()

	var watches []watch.Interface
	for _, objects := range []dynamic.ResourceInterface{before, asWidgets, asGizmos} {
		w, err := objects.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches = append(watches, w)
	}
	seen := func(want watch.EventType, version string) {
		t.Helper()
		for i, w := range watches {
			event := <-w.ResultChan()
			if got, ok := event.Object.(*unstructured.Unstructured); !ok || event.Type != want || got.GetResourceVersion() != version {
				t.Errorf("watch %d saw %v, want %s at %s", i, event, want, version)
			}
		}
	}
	made, err := before.Create(ctx, newGizmo("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen(watch.Added, made.GetResourceVersion())
	for _, objects := range []dynamic.ResourceInterface{asWidgets, before, asGizmos, before} {
		patched, err := objects.Patch(
			ctx,
			"a",
			types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"n":"`+made.GetResourceVersion()+`"}}}`),
			metav1.PatchOptions{},
		)
		if err != nil {
			t.Fatal(err)
		}
		if patched.GetUID() != made.GetUID() {
			t.Errorf("uid %s, was %s", patched.GetUID(), made.GetUID())
		}
		made = patched
		seen(watch.Modified, patched.GetResourceVersion())
	}
	made, err = asWidgets.Create(ctx, newWidget("b"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen(watch.Added, made.GetResourceVersion())
	if err := before.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, w := range watches {
		if event := <-w.ResultChan(); event.Type != watch.Deleted {
			t.Errorf("watch %d saw %v", i, event)
		}
	}
}
