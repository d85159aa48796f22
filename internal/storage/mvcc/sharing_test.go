package mvcc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

// spoil changes an object in every way that its owner may.
func spoil(object runtime.Object) {
	pod := object.(*example.Pod)
	pod.Name, pod.ResourceVersion = "spoilt", "777"
	pod.SetGroupVersionKind(schema.GroupVersionKind{Kind: "Spoilt"})
	for key := range pod.Labels {
		pod.Labels[key] = "spoilt"
	}
}

func TestCallbacks_ownTheirObject(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	want := create(t, pods, "a")
	refused := fmt.Errorf("refused")
	for _, suggestion := range []runtime.Object{nil, get(t, pods, "a")} {
		err := pods.GuaranteedUpdate(t.Context(), key("a"), &example.Pod{}, false, nil,
			storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
				spoil(object)
				return nil, refused
			}), suggestion)
		if err != refused {
			t.Errorf("update: %v", err)
		}
		err = pods.Delete(t.Context(), key("a"), &example.Pod{}, nil,
			func(_ context.Context, object runtime.Object) error {
				spoil(object)
				return refused
			}, suggestion, storage.DeleteOptions{})
		if err != refused {
			t.Errorf("delete: %v", err)
		}
	}
	if diff := cmp.Diff(want, get(t, pods, "a")); diff != "" {
		t.Errorf("the object has changed (-want +got):\n%s", diff)
	}
	err := pods.Delete(t.Context(), key("a"), &example.Pod{}, nil,
		func(_ context.Context, object runtime.Object) error { spoil(object); return nil }, nil, storage.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want.ResourceVersion = "3"
	w := watchFrom(t, pods, 2, storage.Everything)
	if diff := cmp.Diff(want, next(t, w).Object); diff != "" {
		t.Errorf("the deleted object has changed (-want +got):\n%s", diff)
	}
}

func TestWrite_result_isOwnedByCaller(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	out := create(t, pods, "a")
	want := out.DeepCopy()
	spoil(out)
	if diff := cmp.Diff(want, get(t, pods, "a")); diff != "" {
		t.Errorf("the object has changed (-want +got):\n%s", diff)
	}
}

func TestDelete_unread_copiesNothing(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	want := create(t, pods, "a")
	ctx, refused, out := objects.WithDeletedUnread(t.Context()), fmt.Errorf("refused"), &example.Pod{}
	var shown []runtime.Object
	remove := func(name string, preconditions *storage.Preconditions, answer error) error {
		return pods.Delete(ctx, key(name), out, preconditions, func(_ context.Context, object runtime.Object) error {
			shown = append(shown, object)
			return answer
		}, nil, storage.DeleteOptions{})
	}
	if err := remove("b", nil, nil); !storage.IsNotFound(err) {
		t.Errorf("what is missing: %v", err)
	}
	if err := remove("a", storage.NewUIDPreconditions("other"), nil); !storage.IsInvalidObj(err) {
		t.Errorf("another UID: %v", err)
	}
	if err := remove("a", nil, refused); err != refused {
		t.Errorf("refused: %v", err)
	}
	if diff := cmp.Diff(want, get(t, pods, "a")); diff != "" {
		t.Errorf("the object has changed (-want +got):\n%s", diff)
	}
	if err := remove("a", nil, nil); err != nil {
		t.Fatal(err)
	}
	if len(shown) != 2 {
		t.Fatalf("shown were %v", shown)
	}
	first, second := shown[0].(*objects.Unread), shown[1].(*objects.Unread)
	if first.Name != "a" || first.UID != want.UID || first.Held || first.Object() != second.Object() {
		t.Errorf("shown were %v and %v, which are not the same one", first, second)
	}
	if diff := cmp.Diff(runtime.Object(want), second.DeepCopyObject()); diff != "" || second.DeepCopyObject() == second.Object() {
		t.Errorf("what was shown is no copy of it:\n%s", diff)
	}
	if diff := cmp.Diff(&example.Pod{}, out); diff != "" {
		t.Errorf("what nothing reads is set:\n%s", diff)
	}
	w := watchFrom(t, pods, 2, storage.Everything)
	want.ResourceVersion = "3"
	if diff := cmp.Diff(want, next(t, w).Object); diff != "" {
		t.Errorf("the deleted object has changed (-want +got):\n%s", diff)
	}
}

// setKind changes an object as an encoder does.
func setKind(object runtime.Object) {
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Kind: "Encoded"})
}

// TestRead_concurrentEncoding detects a shared object by the race detector.
func TestRead_concurrentEncoding(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	want := create(t, pods, "a")
	var reading sync.WaitGroup
	for range 8 {
		initial := watchWith(t, pods, storage.ListOptions{Predicate: storage.Everything})
		later := watchFrom(t, pods, 1, storage.Everything)
		reading.Go(func() {
			setKind((<-initial.ResultChan()).Object)
			event := (<-later.ResultChan()).Object
			setKind(event)
			setKind(event.(runtime.CacheableObject).GetObject())
			pod := &example.Pod{}
			if err := pods.Get(context.Background(), key("a"), storage.GetOptions{}, pod); err != nil {
				t.Error(err)
			}
			setKind(pod)
			list, err := listAt(pods, 0, storage.Everything)
			if err != nil {
				t.Error(err)
				return
			}
			setKind(&list.Items[0])
		})
	}
	reading.Wait()
	if diff := cmp.Diff(want, get(t, pods, "a")); diff != "" {
		t.Errorf("the object has changed (-want +got):\n%s", diff)
	}
}

func TestRead_unstructured_isCopied(t *testing.T) {
	core, _ := open(t, memory.New(), mvcc.Options{})
	widgets, err := core.Open(store.Resource{
		Resource:     schema.GroupResource{Group: "example.com", Resource: "widgets"},
		Prefix:       "/widgets",
		Codec:        unstructured.UnstructuredJSONScheme,
		New:          func() runtime.Object { return &unstructured.Unstructured{} },
		NewList:      func() runtime.Object { return &unstructured.UnstructuredList{} },
		Unstructured: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	content := func(resourceVersion string) map[string]any {
		metadata := map[string]any{"name": "a", "labels": map[string]any{"tier": "front"}}
		if resourceVersion != "" {
			metadata["resourceVersion"] = resourceVersion
		}
		return map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": map[string]any{"size": int64(1)}}
	}
	out := &unstructured.Unstructured{}
	if err := widgets.Create(t.Context(), "/widgets/a", &unstructured.Unstructured{Object: content("")}, out, 0); err != nil {
		t.Fatal(err)
	}
	check := func(what string, object runtime.Object, resourceVersion string) {
		t.Helper()
		got := object.(*unstructured.Unstructured)
		if diff := cmp.Diff(content(resourceVersion), got.Object); diff != "" {
			t.Errorf("%s is not as created (-want +got):\n%s", what, diff)
		}
		got.Object["spec"].(map[string]any)["size"] = int64(777)
		got.SetLabels(map[string]string{"tier": "spoilt"})
	}
	check("what create returned", out, "2")
	for range 2 {
		read := &unstructured.Unstructured{}
		if err := widgets.Get(t.Context(), "/widgets/a", storage.GetOptions{}, read); err != nil {
			t.Fatal(err)
		}
		check("what get returned", read, "2")
		list := &unstructured.UnstructuredList{}
		if err := widgets.GetList(
			t.Context(),
			"/widgets",
			storage.ListOptions{Recursive: true, Predicate: storage.Everything},
			list,
		); err != nil {
			t.Fatal(err)
		}
		check("what list returned", &list.Items[0], "2")
		w, err := widgets.Watch(t.Context(), "/widgets", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
		if err != nil {
			t.Fatal(err)
		}
		check("an initial event", (<-w.ResultChan()).Object, "2")
		w.Stop()
	}
	if err := widgets.Delete(t.Context(), "/widgets/a", out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	check("what delete returned", out, "3")
	for range 2 {
		w, err := widgets.Watch(
			t.Context(),
			"/widgets",
			storage.ListOptions{ResourceVersion: "1", Recursive: true, Predicate: storage.Everything},
		)
		if err != nil {
			t.Fatal(err)
		}
		check("an event", next(t, w).Object, "2")
		check("a deletion", next(t, w).Object, "3")
		w.Stop()
	}
}

func TestOpen_twoCodecs(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	raw, err := core.Open(store.Resource{
		Resource:     schema.GroupResource{Resource: "pods"},
		Prefix:       "/pods",
		Codec:        unstructured.UnstructuredJSONScheme,
		New:          func() runtime.Object { return &unstructured.Unstructured{} },
		NewList:      func() runtime.Object { return &unstructured.UnstructuredList{} },
		Unstructured: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	typed, untyped := watchFrom(t, pods, 1, storage.Everything), watchFrom(t, raw, 1, storage.Everything)
	for range 2 {
		get(t, pods, "a")
		object := &unstructured.Unstructured{}
		if err := raw.Get(t.Context(), key("a"), storage.GetOptions{}, object); err != nil {
			t.Fatal(err)
		}
		if object.GetKind() != "Pod" || object.GetName() != "a" {
			t.Errorf("got %v", object.Object)
		}
	}
	if object, ok := next(t, typed).Object.(*example.Pod); !ok {
		t.Errorf("the typed watch delivers %T", object)
	}
	if object, ok := next(t, untyped).Object.(*unstructured.Unstructured); !ok {
		t.Errorf("the untyped watch delivers %T", object)
	}
}

// countingCodec counts decoded objects.
type countingCodec struct {
	runtime.Codec
	decoded *int
}

func (c countingCodec) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	*c.decoded++
	return c.Codec.Decode(data, defaults, into)
}

func TestObjectCache_budget(t *testing.T) {
	const objects = 10
	tests := []struct {
		name   string
		budget int64
		again  int // objects decoded by a second list
	}{
		{"none", -1, objects},
		{"too little", 3000, objects - 3}, // a list uses cached objects before it decodes the others
		{"enough", 1 << 20, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{ObjectCacheBytes: test.budget})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = core.Close() }()
			decoded := 0
			resource := storetest.Pods("/pods")
			resource.Codec = countingCodec{resource.Codec, &decoded}
			pods, err := core.Open(resource)
			if err != nil {
				t.Fatal(err)
			}
			for i := range objects {
				create(t, pods, fmt.Sprint(i))
			}
			for i := range 4 {
				decoded = 0
				if list, err := listAt(pods, 0, storage.Everything); err != nil || len(list.Items) != objects {
					t.Fatalf("%d objects: %v", len(list.Items), err)
				}
				again := test.again
				if i == 0 { // creates without watches keep no objects
					again = objects
				}
				if decoded != again {
					t.Errorf("%d objects were decoded, want %d", decoded, again)
				}
			}
			if got := core.Stats().DecodedBytes; got > max(0, test.budget) {
				t.Errorf("%d bytes are kept, the budget is %d", got, test.budget)
			}
		})
	}
}

func TestCreate_watched_keepsObject(t *testing.T) {
	core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = core.Close() }()
	decoded := 0
	resource := storetest.Pods("/pods")
	resource.Codec = countingCodec{resource.Codec, &decoded}
	pods, err := core.Open(resource)
	if err != nil {
		t.Fatal(err)
	}
	create(t, pods, "unwatched")
	w := watchFrom(t, pods, core.Revision(), storage.Everything)
	decoded = 0
	create(t, pods, "watched")
	next(t, w)
	get(t, pods, "watched")
	if decoded != 1 {
		t.Errorf("the watched object was decoded %d times, want once, by its create", decoded)
	}
	get(t, pods, "unwatched")
	if decoded != 2 {
		t.Errorf("the unwatched object was decoded %d times, want once, by its get", decoded-1)
	}
}
