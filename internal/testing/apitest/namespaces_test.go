package apitest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/api"
	shopv1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/embedded"
)

// namespaced is a server as a user would define it, with a data directory and TLS, and its clients.
type namespaced struct {
	config     *rest.Config
	namespaces corev1client.NamespaceInterface
	all        dynamic.Interface
}

// startNamespaced runs it until the test ends or stop is called.
func startNamespaced(t testing.TB, dir string, groups ...annex.Group) (s *namespaced, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, annex.Server{Name: "shop", Groups: groups}, annex.Options{Storage: embedded.Dir(""), DataDir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("ended before it was ready: %v", err)
	}
	config, err := instance.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	all, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &namespaced{config: config, namespaces: core.Namespaces(), all: all}, stop
}

func (s *namespaced) create(t testing.TB, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := s.namespaces.Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *namespaced) delete(t testing.TB, name string) {
	t.Helper()
	if err := s.namespaces.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createWidget creates a widget of a group, with finalizers.
func (s *namespaced) createWidget(ctx context.Context, group, namespace, name string, finalizers ...string) error {
	w := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1", "kind": "Widget", "spec": map[string]any{"size": "small"},
	}}
	w.SetName(name)
	w.SetFinalizers(finalizers)
	_, err := s.widgets(group).Namespace(namespace).Create(ctx, w, metav1.CreateOptions{})
	return err
}

func (s *namespaced) widgets(group string) dynamic.NamespaceableResourceInterface {
	return s.all.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"})
}

// await watches a namespace until done returns true. A removed namespace is passed as nil.
func (s *namespaced) await(t testing.TB, name string, done func(*corev1.Namespace) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	one := metav1.SingleObject(metav1.ObjectMeta{Name: name})
	list, err := s.namespaces.List(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	var last *corev1.Namespace
	if len(list.Items) == 1 {
		last = &list.Items[0]
	}
	if done(last) {
		return
	}
	one.ResourceVersion = list.ResourceVersion
	watcher, err := s.namespaces.Watch(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		ns, ok := event.Object.(*corev1.Namespace)
		if !ok {
			t.Fatalf("watch: %v", event.Object)
		}
		if last = ns; event.Type == watch.Deleted {
			last = nil
		}
		if done(last) {
			return
		}
	}
	t.Fatalf("the watch ended with %+v", last)
}

func gone(namespace *corev1.Namespace) bool { return namespace == nil }

// The deletion of a namespace goes on after a restart.
func TestNamespaces_deletion_survivesRestart(t *testing.T) {
	t.Parallel()
	const group = "shop.example.com"
	shop := annex.Group{Name: group, Kinds: []annex.Kind{annex.KindOf[shopv1.Widget, shopv1.WidgetList]("widgets", shopv1.API)}}
	dir := t.TempDir()
	s, stop := startNamespaced(t, dir, shop)
	if err := s.namespaces.Delete(t.Context(), metav1.NamespaceDefault, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete of default: %v", err)
	}
	s.create(t, "lab")
	for _, err := range []error{
		s.createWidget(t.Context(), group, metav1.NamespaceDefault, "kept"),
		s.createWidget(t.Context(), group, "lab", "free"),
		s.createWidget(t.Context(), group, "lab", "held", "example.com/hold"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.delete(t, "lab")
	s.await(t, "lab", func(ns *corev1.Namespace) bool { return len(ns.Status.Conditions) > 0 })
	stop()

	s, _ = startNamespaced(t, dir, shop)
	ns, err := s.namespaces.Get(t.Context(), "lab", metav1.GetOptions{})
	if err != nil || ns.Status.Phase != corev1.NamespaceTerminating {
		t.Fatalf("after the restart the namespace is %+v, %v", ns, err)
	}
	_, err = s.widgets(group).Namespace("lab").Patch(t.Context(), "held", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.await(t, "lab", gone)
	left, err := s.widgets(group).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 1 {
		t.Errorf("%v widgets left, want the one in default: %v", left, err)
	}
}

// The deletion of a namespace with 50 objects of each of 20 kinds.
func BenchmarkNamespaces_delete(b *testing.B) {
	var groups []annex.Group
	for i := range 20 {
		name := fmt.Sprintf("g%d.example.com", i)
		facts := func() api.Facts {
			f := shopv1.API()
			f.GroupVersion.Group = name
			f.AddToScheme = func(scheme *runtime.Scheme) error {
				scheme.AddKnownTypes(f.GroupVersion, &shopv1.Widget{}, &shopv1.WidgetList{})
				metav1.AddToGroupVersion(scheme, f.GroupVersion)
				return nil
			}
			return f
		}
		groups = append(groups, annex.Group{Name: name, Kinds: []annex.Kind{annex.KindOf[shopv1.Widget, shopv1.WidgetList]("widgets", facts)}})
	}
	s, _ := startNamespaced(b, b.TempDir(), groups...)
	for b.Loop() {
		b.StopTimer()
		s.create(b, "lab")
		var creating sync.WaitGroup
		for i := range groups {
			creating.Go(func() {
				for j := range 50 {
					if err := s.createWidget(b.Context(), groups[i].Name, "lab", fmt.Sprint("w", j)); err != nil {
						b.Error(err)
					}
				}
			})
		}
		creating.Wait()
		b.StartTimer()
		s.delete(b, "lab")
		s.await(b, "lab", gone)
	}
}
