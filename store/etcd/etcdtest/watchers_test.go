package etcdtest_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// seen is an event of a watch.
type seen struct {
	kind    watch.EventType
	name    string
	version int64
}

// watcher follows all changes from a revision on, at one replica as long as that works. It resumes from the last
// revision that it has seen, and moves to another replica if the first one has no history back to it: a replica only
// has the history since its start.
type watcher struct {
	load    *load
	replica int

	mu      sync.Mutex
	last    int64
	events  []seen
	resumed int
	expired int
}

func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.load.until(ctx, func(context.Context, dynamic.ResourceInterface) bool {
			w.watch(ctx)
			return false
		})
	}
}

// watch follows one connection to its end.
func (w *watcher) watch(ctx context.Context) {
	w.mu.Lock()
	replica, from := w.replica, w.last
	w.resumed++
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := w.load.replicas[replica].Watch(ctx, metav1.ListOptions{ResourceVersion: fmt.Sprint(from), AllowWatchBookmarks: true})
	if err != nil {
		if ctx.Err() == nil {
			w.failed(err)
		}
		return
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		if event.Type == watch.Error {
			w.failed(apierrors.FromObject(event.Object))
			return
		}
		w.see(event)
	}
}

// failed moves to the next replica if the current one cannot help.
func (w *watcher) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replica = (w.replica + 1) % len(w.load.replicas)
	if status, ok := err.(apierrors.APIStatus); ok && status.Status().Code == http.StatusGone {
		w.expired++
		return
	}
	w.load.retryable("watch", err)
}

func (w *watcher) see(event watch.Event) {
	object := event.Object.(*unstructured.Unstructured)
	w.mu.Lock()
	defer w.mu.Unlock()
	version := versionOf(object)
	if event.Type == watch.Bookmark {
		w.last = max(w.last, version)
		return
	}
	if version <= w.last {
		w.load.mistake("a watch got version %d of %s after %d", version, object.GetName(), w.last)
	}
	w.last = version
	w.events = append(w.events, seen{event.Type, object.GetName(), version})
}

// reached returns an error unless the watch has seen a revision.
func (w *watcher) reached(version int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last < version {
		return fmt.Errorf("a watch at replica %d is at %d, not yet at %d", w.replica, w.last, version)
	}
	return nil
}

// check compares the seen events with the acknowledged writes, and looks for changes that do not follow from those
// before. It returns the number of missed events.
func (w *watcher) check(versions map[string][]int64) (missed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	there, exists := map[string][]int64{}, map[string]bool{}
	for n := range counters { // made before the watches began
		exists[counterName(n)] = true
	}
	for _, event := range w.events {
		there[event.name] = append(there[event.name], event.version)
		if exists[event.name] != (event.kind != watch.Added) {
			w.load.mistake("a watch got %s %s, which did exist: %v", event.kind, event.name, exists[event.name])
			missed++
		}
		exists[event.name] = event.kind != watch.Deleted
	}
	for name, acknowledged := range versions {
		for _, version := range acknowledged {
			if !slices.Contains(there[name], version) {
				w.load.mistake("a watch has not got version %d of %s", version, name)
				missed++
			}
		}
	}
	return missed
}

// informer is client-go's informer, at one replica.
type informer struct {
	load  *load
	store cache.Store

	mu     sync.Mutex
	events int
}

// startInformer runs an informer until the context ends.
func startInformer(ctx context.Context, running *sync.WaitGroup, l *load, replica dynamic.ResourceInterface) *informer {
	i := &informer{load: l}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (apiruntime.Object, error) {
			return replica.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return replica.Watch(ctx, options)
		},
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &unstructured.Unstructured{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { i.saw() },
			UpdateFunc: func(before, after any) {
				old, now := before.(*unstructured.Unstructured), after.(*unstructured.Unstructured)
				if old.GetUID() == now.GetUID() && versionOf(now) < versionOf(old) {
					l.mistake("an informer went from version %s of %s back to %s", old.GetResourceVersion(), old.GetName(), now.GetResourceVersion())
				}
				i.saw()
			},
			DeleteFunc: func(any) { i.saw() },
		},
	})
	i.store = store
	running.Go(func() { controller.RunWithContext(ctx) })
	return i
}

func (i *informer) saw() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.events++
}

// equals compares the informer's objects with the stored ones.
func (i *informer) equals(stored map[string]int64) error {
	held := map[string]int64{}
	for _, object := range i.store.List() {
		u := object.(*unstructured.Unstructured)
		held[u.GetName()] = versionOf(u)
	}
	for name, version := range stored {
		if held[name] != version {
			return fmt.Errorf("an informer has %s at version %d, stored is %d", name, held[name], version)
		}
	}
	if len(held) != len(stored) {
		return fmt.Errorf("an informer has %d objects, stored are %d", len(held), len(stored))
	}
	return nil
}

// identical compares the events of two watches from the same revision on.
func identical(t testing.TB, one, other *watcher) {
	t.Helper()
	a, b := one.events, other.events
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Errorf("event %d is %v at one watch and %v at another", i, a[i], b[i])
			return
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d events at one watch and %d at another", len(a), len(b))
	}
}
