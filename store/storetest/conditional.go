package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/store"
)

// runConditionalCreate checks what a backend promises of creates that depend on others.
func runConditionalCreate(t *testing.T, open OpenBackend, traits Traits) {
	if traits.NotConditional {
		if _, ok := openPods(t, open, Needs{}).Interface.(store.ConditionalCreator); ok {
			t.Error("it is a store.ConditionalCreator, which the traits deny")
		}
		return
	}
	if traits.NoConditionalCreates {
		s := openPods(t, open, Needs{})
		if err := s.Interface.(store.ConditionalCreator).CreateIfUnchangedSince(t.Context(), podKey("ns", "a"), &example.Pod{}, nil, s.listed(t)); err == nil {
			t.Error("it succeeded, which the traits deny")
		}
		if err := s.Get(t.Context(), podKey("ns", "a"), storage.GetOptions{}, &example.Pod{}); !storage.IsNotFound(err) {
			t.Errorf("it has written something: %v", err)
		}
		return
	}
	t.Run("Conditions", func(t *testing.T) { createAlone(t, openPods(t, open, Needs{})) })
	t.Run("AtMostTen", func(t *testing.T) { atMostTen(t, openPods(t, open, Needs{})) })
}

func createAlone(t *testing.T, s *pods) {
	ctx := t.Context()
	conditional := s.Interface.(store.ConditionalCreator)
	create := func(name string, since uint64) (*example.Pod, error) {
		made := &example.Pod{}
		pod := &example.Pod{}
		pod.Namespace, pod.Name = "ns", name
		return made, conditional.CreateIfUnchangedSince(ctx, podKey("ns", name), pod, made, since)
	}
	first, err := create("a", s.listed(t))
	if err != nil {
		t.Fatal(err)
	}
	if first.Name != "a" || first.ResourceVersion == "" {
		t.Errorf("created %s at revision %q", first.Name, first.ResourceVersion)
	}
	got := &example.Pod{}
	if err := conditional.Get(ctx, podKey("ns", "a"), storage.GetOptions{}, got); err != nil || got.ResourceVersion != first.ResourceVersion {
		t.Errorf("reads back at revision %q, not %q: %v", got.ResourceVersion, first.ResourceVersion, err)
	}
	s.checkStored(ctx, t, podKey("ns", "a"))

	before := revisionOf(t, first) - 1
	if _, err := create("b", before); !errors.Is(err, store.ErrConcurrentCreate) {
		t.Errorf("a create after another: %v, want ErrConcurrentCreate", err)
	}
	if _, err := create("a", s.listed(t)); !storage.IsExist(err) {
		t.Errorf("a create of what exists: %v", err)
	}
	if err := conditional.Get(ctx, podKey("ns", "b"), storage.GetOptions{}, got); !storage.IsNotFound(err) {
		t.Errorf("what was refused is there: %v", err)
	}

	// Neither writes of other resources count, nor updates, nor deletes.
	since := s.listed(t)
	s.increaseRevision(ctx, t)
	if err := conditional.GuaranteedUpdate(ctx, podKey("ns", "a"), got, false, nil, storage.SimpleUpdate(func(pod runtime.Object) (runtime.Object, error) {
		pod.(*example.Pod).Labels = map[string]string{"changed": "yes"}
		return pod, nil
	}), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := create("b", since); err != nil {
		t.Errorf("a create after an update: %v", err)
	}
	since = s.listed(t)
	if err := conditional.Delete(ctx, podKey("ns", "a"), got, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := create("c", since); err != nil {
		t.Errorf("a create after a delete: %v", err)
	}
	since = s.listed(t)
	if _, err := create("a", since); err != nil {
		t.Errorf("a create of what was deleted: %v", err)
	}
	if _, err := create("d", since); !errors.Is(err, store.ErrConcurrentCreate) {
		t.Errorf("a create after a name was taken anew: %v, want ErrConcurrentCreate", err)
	}
	if err := conditional.Create(ctx, podKey("ns", "d"), &example.Pod{}, nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := create("e", since); !errors.Is(err, store.ErrConcurrentCreate) {
		t.Errorf("a create after an ordinary one: %v, want ErrConcurrentCreate", err)
	}
	versioned := &example.Pod{}
	versioned.ResourceVersion = "7"
	if err := conditional.CreateIfUnchangedSince(ctx, podKey("ns", "f"), versioned, nil, s.listed(t)); !errors.Is(err, storage.ErrResourceVersionSetOnCreate) {
		t.Errorf("a create with a resource version: %v", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	if err := conditional.CreateIfUnchangedSince(ended, podKey("ns", "g"), &example.Pod{}, nil, s.listed(t)); err == nil {
		t.Error("a create after its context ended succeeded")
	}
}

// atMostTen is what the promise is for.
func atMostTen(t *testing.T, s *pods) {
	ctx := t.Context()
	conditional := s.Interface.(store.ConditionalCreator)
	var made, refused atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			key := podKey("ns", fmt.Sprint(i))
			for {
				list := &example.PodList{}
				if err := conditional.GetList(ctx, "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
					t.Error(err)
					return
				}
				if len(list.Items) >= 10 {
					refused.Add(1)
					return
				}
				since, err := conditional.Versioner().ParseResourceVersion(list.ResourceVersion)
				if err != nil {
					t.Error(err)
					return
				}
				pod := &example.Pod{}
				pod.Namespace, pod.Name = "ns", fmt.Sprint(i)
				err = conditional.CreateIfUnchangedSince(ctx, key, pod, nil, since)
				switch {
				case err == nil:
					made.Add(1)
					return
				case !errors.Is(err, store.ErrConcurrentCreate):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	list := &example.PodList{}
	if err := conditional.GetList(ctx, "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 10 || made.Load() != 10 || refused.Load() != 40 {
		t.Errorf("%d pods, %d made, %d refused; want 10, 10 and 40", len(list.Items), made.Load(), refused.Load())
	}
}

// listed returns the revision of a consistent list.
func (s *pods) listed(t *testing.T) uint64 {
	t.Helper()
	list := &example.PodList{}
	if err := s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
		t.Fatal(err)
	}
	revision, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}
