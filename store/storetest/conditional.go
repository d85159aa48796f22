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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/store"
)

// runConditionalWrites checks a backend's guarantees for conditional writes.
func runConditionalWrites(t *testing.T, open OpenBackend, traits Traits) {
	if traits.NotConditional {
		if _, ok := openPods(t, open, Needs{}).Interface.(store.ConditionalWriter); ok {
			t.Error("it is a store.ConditionalWriter, which the traits deny")
		}
		return
	}
	if traits.NoConditionalWrites {
		s := openPods(t, open, Needs{})
		if err := s.Interface.(store.ConditionalWriter).CreateIf(
			t.Context(),
			podKey("ns", "a"),
			&example.Pod{},
			nil,
			store.Unchanged{Since: s.listed(t)},
		); err == nil {
			t.Error("it succeeded, which the traits deny")
		}
		if err := s.Get(t.Context(), podKey("ns", "a"), storage.GetOptions{}, &example.Pod{}); !storage.IsNotFound(err) {
			t.Errorf("it has written something: %v", err)
		}
		return
	}
	t.Run("Conditions", func(t *testing.T) { createAlone(t, openPods(t, open, Needs{})) })
	t.Run("Updates", func(t *testing.T) { updateAlone(t, openPods(t, open, Needs{})) })
	t.Run("UpdatesOfWhatExpires", func(t *testing.T) { updateKeepsTimeToLive(t, openPods(t, open, Needs{})) })
	t.Run("TenInAll", func(t *testing.T) { tenInAll(t, openPods(t, open, Needs{})) })
	t.Run("AtMostTen", func(t *testing.T) { atMostTen(t, openPods(t, open, Needs{})) })
}

// label updates a pod of the namespace ns in the ordinary way.
func (s *pods) label(t *testing.T, name, changed string) {
	t.Helper()
	update := storage.SimpleUpdate(func(pod runtime.Object) (runtime.Object, error) {
		pod.(*example.Pod).Labels = map[string]string{"changed": changed}
		return pod, nil
	})
	if err := s.Interface.GuaranteedUpdate(t.Context(), podKey("ns", name), &example.Pod{}, false, nil, update, nil); err != nil {
		t.Fatal(err)
	}
}

func createAlone(t *testing.T, s *pods) {
	ctx := t.Context()
	conditional := s.Interface.(store.ConditionalWriter)
	create := func(name string, since uint64) (*example.Pod, error) {
		made := &example.Pod{}
		pod := &example.Pod{}
		pod.Namespace, pod.Name = "ns", name
		return made, conditional.CreateIf(ctx, podKey("ns", name), pod, made, store.Unchanged{Since: since})
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
	if _, err := create("b", before); !errors.Is(err, store.ErrConcurrentWrite) {
		t.Errorf("a create after another: %v, want ErrConcurrentWrite", err)
	}
	if _, err := create("a", s.listed(t)); !storage.IsExist(err) {
		t.Errorf("a create of what exists: %v", err)
	}
	if err := conditional.Get(ctx, podKey("ns", "b"), storage.GetOptions{}, got); !storage.IsNotFound(err) {
		t.Errorf("what was refused is there: %v", err)
	}

	// Writes of other resources do not count, nor do updates or deletions.
	since := s.listed(t)
	s.increaseRevision(ctx, t)
	s.label(t, "a", "yes")
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
	if _, err := create("d", since); !errors.Is(err, store.ErrConcurrentWrite) {
		t.Errorf("a create after a name was taken anew: %v, want ErrConcurrentWrite", err)
	}
	if err := conditional.Create(ctx, podKey("ns", "d"), &example.Pod{}, nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := create("e", since); !errors.Is(err, store.ErrConcurrentWrite) {
		t.Errorf("a create after an ordinary one: %v, want ErrConcurrentWrite", err)
	}
	versioned := &example.Pod{}
	versioned.ResourceVersion = "7"
	if err := conditional.CreateIf(
		ctx,
		podKey("ns", "f"),
		versioned,
		nil,
		store.Unchanged{Since: s.listed(t)},
	); !errors.Is(
		err,
		storage.ErrResourceVersionSetOnCreate,
	) {
		t.Errorf("a create with a resource version: %v", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	if err := conditional.CreateIf(ended, podKey("ns", "g"), &example.Pod{}, nil, store.Unchanged{Since: s.listed(t)}); err == nil {
		t.Error("a create after its context ended succeeded")
	}
}

func updateAlone(t *testing.T, s *pods) {
	ctx := t.Context()
	conditional := s.Interface.(store.ConditionalWriter)
	labelled := func(value string, since uint64) store.ConditionalUpdate {
		return func(pod runtime.Object, _ storage.ResponseMeta) (runtime.Object, uint64, error) {
			pod.(*example.Pod).Labels = map[string]string{"changed": value}
			return pod, since, nil
		}
	}
	update := func(name, value string, since uint64) (*example.Pod, error) {
		made := &example.Pod{}
		return made, conditional.UpdateIf(ctx, podKey("ns", name), made, nil, labelled(value, since))
	}
	for _, name := range []string{"a", "b", "c"} {
		pod := &example.Pod{}
		pod.Namespace, pod.Name = "ns", name
		if err := conditional.Create(ctx, podKey("ns", name), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	since := s.listed(t)
	s.increaseRevision(ctx, t) // writes of other resources do not count
	first, err := update("a", "1", since)
	if err != nil {
		t.Fatal(err)
	}
	got := &example.Pod{}
	if err := conditional.Get(
		ctx,
		podKey("ns", "a"),
		storage.GetOptions{},
		got,
	); err != nil || got.Labels["changed"] != "1" || got.ResourceVersion != first.ResourceVersion ||
		revisionOf(t, first) <= since {
		t.Errorf("reads back %v at revision %s, not that of %s: %v", got.Labels, got.ResourceVersion, first.ResourceVersion, err)
	}
	s.checkStored(ctx, t, podKey("ns", "a"))
	for _, name := range []string{"a", "b"} {
		if _, err := update(name, "2", since); !errors.Is(err, store.ErrConcurrentWrite) {
			t.Errorf("an update of %s after one of a: %v, want ErrConcurrentWrite", name, err)
		}
	}
	if same, err := update("a", "1", s.listed(t)); err != nil || same.ResourceVersion != first.ResourceVersion {
		t.Errorf("an update that changes nothing is at revision %s, not %s: %v", same.ResourceVersion, first.ResourceVersion, err)
	}

	since = s.listed(t)
	pod := &example.Pod{}
	pod.Namespace, pod.Name = "ns", "d"
	if err := conditional.Create(ctx, podKey("ns", "d"), pod, nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := update("b", "2", since); !errors.Is(err, store.ErrConcurrentWrite) {
		t.Errorf("an update after a create: %v, want ErrConcurrentWrite", err)
	}
	since = s.listed(t)
	s.label(t, "c", "3")
	if _, err := update("b", "2", since); !errors.Is(err, store.ErrConcurrentWrite) {
		t.Errorf("an update after an ordinary one: %v, want ErrConcurrentWrite", err)
	}
	other := &example.Pod{}
	other.Namespace, other.Name = "ns", "e"
	if err := conditional.CreateIf(
		ctx,
		podKey("ns", "e"),
		other,
		nil,
		store.Unchanged{Since: since, Updates: true},
	); !errors.Is(
		err,
		store.ErrConcurrentWrite,
	) {
		t.Errorf("a create after an update: %v, want ErrConcurrentWrite", err)
	}
	if err := conditional.Get(ctx, podKey("ns", "b"), storage.GetOptions{}, got); err != nil || got.Labels != nil {
		t.Errorf("what was refused is stored: %v, %v", got.Labels, err)
	}
	if _, err := update("missing", "1", s.listed(t)); !storage.IsNotFound(err) {
		t.Errorf("an update of what does not exist: %v", err)
	}
	wrong := storage.NewUIDPreconditions("another")
	if err := conditional.UpdateIf(ctx, podKey("ns", "b"), got, wrong, labelled("4", s.listed(t))); !storage.IsInvalidObj(err) {
		t.Errorf("an update with a wrong precondition: %v", err)
	}
	if err := conditional.UpdateIf(
		ctx,
		podKey("ns", "b"),
		got,
		nil,
		func(pod runtime.Object, _ storage.ResponseMeta) (runtime.Object, uint64, error) {
			if err := conditional.GuaranteedUpdate(
				ctx,
				podKey("ns", "b"),
				&example.Pod{},
				false,
				nil,
				storage.SimpleUpdate(func(pod runtime.Object) (runtime.Object, error) {
					pod.(*example.Pod).Labels = map[string]string{"changed": "meanwhile"}
					return pod, nil
				}),
				nil,
			); err != nil {
				t.Error(err)
			}
			pod.(*example.Pod).Labels = map[string]string{"changed": "5"}
			return pod, s.listed(t), nil
		},
	); !errors.Is(
		err,
		store.ErrConcurrentWrite,
	) {
		t.Errorf("an update of what has changed since it was read: %v, want ErrConcurrentWrite", err)
	}
	refusal := errors.New("no")
	if err := conditional.UpdateIf(
		ctx,
		podKey("ns", "b"),
		got,
		nil,
		func(runtime.Object, storage.ResponseMeta) (runtime.Object, uint64, error) {
			return nil, 0, refusal
		},
	); !errors.Is(
		err,
		refusal,
	) {
		t.Errorf("an update that its function refuses: %v", err)
	}
}

// updateKeepsTimeToLive updates an object with a time to live.
func updateKeepsTimeToLive(t *testing.T, s *pods) {
	conditional := s.Interface.(store.ConditionalWriter)
	key, pod := ithPod(0)
	if err := conditional.Create(t.Context(), key, pod, nil, 3); err != nil {
		t.Fatal(err)
	}
	updated := &example.Pod{}
	if err := conditional.UpdateIf(
		t.Context(),
		key,
		updated,
		nil,
		func(pod runtime.Object, _ storage.ResponseMeta) (runtime.Object, uint64, error) {
			pod.(*example.Pod).Labels = map[string]string{"changed": "once"}
			return pod, s.listed(t), nil
		},
	); err != nil {
		t.Fatal(err)
	}
	w, err := conditional.Watch(
		t.Context(),
		key,
		storage.ListOptions{ResourceVersion: updated.ResourceVersion, Predicate: storage.Everything},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if event := receive(t, w); event.Type != watch.Deleted {
		t.Errorf("after the update: %v, want its deletion", event)
	}
}

// tenInAll tests the purpose of conditional updates: fifty writers each want to label a pod, and ten succeed.
func tenInAll(t *testing.T, s *pods) {
	conditional := s.Interface.(store.ConditionalWriter)
	for i := range 50 {
		key, pod := ithPod(i)
		if err := conditional.Create(t.Context(), key, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	labels := func(list *example.PodList) (count int) {
		for _, pod := range list.Items {
			count += len(pod.Labels)
		}
		return count
	}
	tenOfFifty(t, conditional, labels, func(i int, since uint64) error {
		key, _ := ithPod(i)
		return conditional.UpdateIf(
			t.Context(),
			key,
			&example.Pod{},
			nil,
			func(pod runtime.Object, _ storage.ResponseMeta) (runtime.Object, uint64, error) {
				pod.(*example.Pod).Labels = map[string]string{"has": "one"}
				return pod, since, nil
			},
		)
	})
}

// atMostTen tests the purpose of conditional creates: fifty writers each want to create a pod, and ten succeed.
func atMostTen(t *testing.T, s *pods) {
	conditional := s.Interface.(store.ConditionalWriter)
	made := func(list *example.PodList) int { return len(list.Items) }
	tenOfFifty(t, conditional, made, func(i int, since uint64) error {
		key, pod := ithPod(i)
		return conditional.CreateIf(t.Context(), key, pod, nil, store.Unchanged{Since: since})
	})
}

// ithPod returns the pod of the i-th of fifty writers, and its key.
func ithPod(i int) (key string, pod *example.Pod) {
	pod = &example.Pod{}
	pod.Namespace, pod.Name = "ns", fmt.Sprint(i)
	return podKey("ns", pod.Name), pod
}

// tenOfFifty lets fifty writers count the listed objects and write on the condition that the list is still current,
// until there are ten; the others give up.
func tenOfFifty(t *testing.T, s storage.Interface, count func(*example.PodList) int, write func(i int, since uint64) error) {
	counted := func() (n int, since uint64, err error) {
		list := &example.PodList{}
		if err := s.GetList(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
			return 0, 0, err
		}
		since, err = s.Versioner().ParseResourceVersion(list.ResourceVersion)
		return count(list), since, err
	}
	var written, refused atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for {
				n, since, err := counted()
				if err == nil && n >= 10 {
					refused.Add(1)
					return
				}
				if err == nil {
					err = write(i, since)
				}
				switch {
				case err == nil:
					written.Add(1)
					return
				case !errors.Is(err, store.ErrConcurrentWrite):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if n, _, err := counted(); err != nil || n != 10 || written.Load() != 10 || refused.Load() != 40 {
		t.Errorf("%d counted, %d written, %d refused; want 10, 10 and 40: %v", n, written.Load(), refused.Load(), err)
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
