package mvcc_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newClock() *clocktesting.FakeClock { return clocktesting.NewFakeClock(epoch) }

// open opens a core above a journal, and the pods in it, until the test ends.
func open(t testing.TB, j journal.Journal, options mvcc.Options) (*mvcc.Core, storage.Interface) {
	t.Helper()
	core, err := mvcc.Open(context.Background(), j, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = core.Close() })
	return core, openPods(t, core)
}

func openPods(t testing.TB, core *mvcc.Core) storage.Interface {
	t.Helper()
	pods, err := core.Open(storetest.Pods("/pods"))
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

func key(name string) string { return "/pods/ns/" + name }

func samplePod(name string) *example.Pod {
	return &example.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "ns",
			Name:        name,
			Labels:      map[string]string{"app": "web", "tier": "front"},
			Annotations: map[string]string{"note": "an object of ordinary size has some text like this in it"},
		},
		Spec: example.PodSpec{NodeName: "node-1", RestartPolicy: "Always"},
	}
}

func create(t testing.TB, pods storage.Interface, name string) *example.Pod {
	t.Helper()
	return createFor(t, pods, name, 0)
}

// createFor creates an object with a time to live in seconds.
func createFor(t testing.TB, pods storage.Interface, name string, ttl uint64) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := pods.Create(context.Background(), key(name), samplePod(name), out, ttl); err != nil {
		t.Errorf("create %s: %v", name, err)
	}
	return out
}

// annotate sets an annotation of an object.
func annotate(t testing.TB, pods storage.Interface, name, note string) *example.Pod {
	t.Helper()
	out, err := tryAnnotate(context.Background(), pods, name, note)
	if err != nil {
		t.Errorf("update %s: %v", name, err)
	}
	return out
}

func tryAnnotate(ctx context.Context, pods storage.Interface, name, note string) (*example.Pod, error) {
	out := &example.Pod{}
	return out, pods.GuaranteedUpdate(ctx, key(name), out, false, nil,
		storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
			object.(*example.Pod).Annotations = map[string]string{"note": note}
			return object, nil
		}), nil)
}

func remove(t testing.TB, pods storage.Interface, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	err := pods.Delete(context.Background(), key(name), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	if err != nil {
		t.Errorf("delete %s: %v", name, err)
	}
	return out
}

func get(t testing.TB, pods storage.Interface, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	if err := pods.Get(context.Background(), key(name), storage.GetOptions{}, out); err != nil {
		t.Errorf("get %s: %v", name, err)
	}
	return out
}

// listAt lists the pods at a revision, 0 for the latest.
func listAt(pods storage.Interface, revision uint64, predicate storage.SelectionPredicate) (*example.PodList, error) {
	opts := storage.ListOptions{Recursive: true, Predicate: predicate}
	if revision > 0 {
		opts.ResourceVersion, opts.ResourceVersionMatch = rv(revision), metav1.ResourceVersionMatchExact
	}
	list := &example.PodList{}
	return list, pods.GetList(context.Background(), "/pods/", opts, list)
}

func rv(revision uint64) string { return strconv.FormatUint(revision, 10) }

func revisionOf(t testing.TB, object runtime.Object) uint64 {
	t.Helper()
	revision, err := storage.APIObjectVersioner{}.ObjectResourceVersion(object)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// selecting returns a predicate for a label selector.
func selecting(t testing.TB, selector string) storage.SelectionPredicate {
	t.Helper()
	parsed, err := labels.Parse(selector)
	if err != nil {
		t.Fatal(err)
	}
	return storage.SelectionPredicate{Label: parsed, GetAttrs: storage.DefaultNamespaceScopedAttr}
}

// watchFrom watches all pods after a revision until the test ends.
func watchFrom(t testing.TB, pods storage.Interface, revision uint64, predicate storage.SelectionPredicate) watch.Interface {
	t.Helper()
	return watchWith(t, pods, storage.ListOptions{ResourceVersion: rv(revision), Predicate: predicate})
}

func watchWith(t testing.TB, pods storage.Interface, opts storage.ListOptions) watch.Interface {
	t.Helper()
	opts.Recursive = true
	w, err := pods.Watch(context.Background(), "/pods/", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// patience bounds how long a test waits before it fails. No test needs it to pass.
const patience = testwait.Patience

// next receives the next event and unwraps its object.
func next(t testing.TB, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch has ended")
		}
		if cacheable, ok := event.Object.(runtime.CacheableObject); ok {
			event.Object = cacheable.GetObject()
		}
		return event
	case <-time.After(patience):
		t.Fatal("no event came")
	}
	return watch.Event{}
}

// describe returns an event in short: its type, the name and revision of its object, and its marks.
func describe(event watch.Event) string {
	switch object := event.Object.(type) {
	case *example.Pod:
		text := fmt.Sprintf("%s %s@%s", event.Type, object.Name, object.ResourceVersion)
		if object.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
			text += " end of initial events"
		}
		return text
	case *metav1.Status:
		return fmt.Sprintf("%s %s", event.Type, object.Reason)
	}
	return fmt.Sprintf("%s %T", event.Type, event.Object)
}

func expect(t testing.TB, w watch.Interface, want ...string) {
	t.Helper()
	for _, want := range want {
		if got := describe(next(t, w)); got != want {
			t.Fatalf("got event %q, want %q", got, want)
		}
	}
}

func expectEnd(t testing.TB, w watch.Interface) {
	t.Helper()
	select {
	case event, ok := <-w.ResultChan():
		if ok {
			t.Fatalf("got event %q, want the end", describe(event))
		}
	case <-time.After(patience):
		t.Fatal("the watch does not end")
	}
}
