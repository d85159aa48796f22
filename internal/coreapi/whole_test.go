package coreapi_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/annexapi/annex"
	shopv1 "github.com/annexapi/annex/internal/shop/v1"
	"github.com/annexapi/annex/store/embedded"
)

// startWhole runs a server as a user makes it, on a data directory and over TLS,
// until the test or what is returned ends it.
func startWhole(t *testing.T, dir string) (s *server, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, annex.Server{Name: "shop", Groups: []annex.Group{{
		Name:  "shop.example.com",
		Kinds: []annex.Kind{annex.KindOf[shopv1.Widget, shopv1.WidgetList]("widgets", shopv1.API)},
	}}}, annex.Options{Storage: embedded.Dir(""), DataDir: dir, Listen: "127.0.0.1:0"})
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
