package storetest

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store"
)

// runViews checks that a view of a resource can be closed while others go on.
func runViews(t *testing.T, open OpenBackend) {
	backend := open(t, Needs{})
	t.Cleanup(func() { _ = backend.Close() })
	var views [2]storage.Interface
	var watches [2]watch.Interface
	for i := range views {
		var err error
		if views[i], err = backend.Open(Pods("/pods")); err != nil {
			t.Fatal(err)
		}
		testwait.NoError(t, "the storage is ready", func(context.Context) error { return views[i].ReadinessCheck() })
		if watches[i], err = views[i].Watch(
			t.Context(),
			"/pods",
			storage.ListOptions{Recursive: true, Predicate: storage.Everything},
		); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(watches[i].Stop)
	}
	closer, ok := views[0].(store.Closer)
	if !ok {
		t.Fatalf("%T is no store.Closer", views[0])
	}
	closer.Close()
	closer.Close()
	select {
	case event, more := <-watches[0].ResultChan():
		if more {
			t.Errorf("the watch of the closed view goes on: %v", event)
		}
	case <-time.After(receiveTimeout):
		t.Error("the watch of the closed view has not ended")
	}
	pod := &example.Pod{}
	pod.Namespace, pod.Name = "ns", "a"
	made := &example.Pod{}
	if err := views[1].Create(t.Context(), podKey("ns", "a"), pod, made, 0); err != nil {
		t.Fatal(err)
	}
	expect(t, watches[1], watch.Added, made)
}
