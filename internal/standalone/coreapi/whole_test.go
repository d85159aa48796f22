package coreapi_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/api"
	shopv1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/embedded"
)

// startWhole runs a server as a user would define it, with a data directory and TLS, until the test ends or stop is
// called.
func startWhole(t *testing.T, dir string) (s *server, stop func()) {
	t.Helper()
	return startServer(t, annex.Server{Name: "shop", Groups: []annex.Group{{
		Name:  "shop.example.com",
		Kinds: []annex.Kind{annex.KindOf[shopv1.Widget, shopv1.WidgetList]("widgets", shopv1.API)},
	}}}, dir)
}

func startServer(t testing.TB, definition annex.Server, dir string) (s *server, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, definition, annex.Options{Storage: embedded.Dir(""), DataDir: dir, Listen: "127.0.0.1:0"})
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
	return &server{config: config, namespaces: core.Namespaces(), widgets: all.Resource(widgets)}, stop
}

func TestWholeServer(t *testing.T) {
	dir := t.TempDir()
	s, stop := startWhole(t, dir)
	s.createWidget(t, metav1.NamespaceDefault, widget("kept"))
	if err := s.namespaces.Delete(t.Context(), metav1.NamespaceDefault, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete of default: %v", err)
	}
	s.create(t, namespace("lab"))
	s.createWidget(t, "lab", widget("free"))
	s.createWidget(t, "lab", widget("held", "example.com/hold"))
	s.delete(t, "lab")
	s.await(t, "lab", func(ns *corev1.Namespace) bool { return len(ns.Status.Conditions) > 0 })
	stop()

	s, _ = startWhole(t, dir)
	if ns := s.get(t, "lab"); ns.Status.Phase != corev1.NamespaceTerminating {
		t.Errorf("after the restart the namespace is %s", ns.Status.Phase)
	}
	s.release(t, "lab", "held")
	s.await(t, "lab", gone)
	if n := s.countWidgets(t); n != 1 {
		t.Errorf("%d widgets left, want the one in default", n)
	}
}

func BenchmarkTwentyKinds(b *testing.B) {
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
	s, _ := startServer(b, annex.Server{Name: "shop", Groups: groups}, b.TempDir())
	all, err := dynamic.NewForConfig(s.config)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		s.create(b, namespace("lab"))
		var creating sync.WaitGroup
		for i := range groups {
			creating.Go(func() {
				resource := schema.GroupVersionResource{Group: groups[i].Name, Version: "v1", Resource: "widgets"}
				for j := range 50 {
					w := widget(fmt.Sprint("w", j))
					w.SetAPIVersion(resource.GroupVersion().String())
					if _, err := all.Resource(resource).Namespace("lab").Create(b.Context(), w, metav1.CreateOptions{}); err != nil {
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
