package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/store"
)

// manyValues is more than a backend is likely to read at once.
const manyValues = 1203

// CheckValues checks a backend's Values on an empty storage of pods, as Pods describes them with the prefix /pods. It
// leaves objects there.
func CheckValues(t *testing.T, backend store.Backend, pods storage.Interface) {
	t.Helper()
	reader, ok := backend.(store.ValueReader)
	if !ok {
		t.Fatalf("%T does not give what is stored", backend)
	}
	var want []string
	for i := range manyValues {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("pod-%04d", i)}}
		created := &example.Pod{}
		if err := pods.Create(t.Context(), podKey("ns", pod.Name), pod, created, 0); err != nil {
			t.Fatal(err)
		}
		if i%400 == 7 { // updates and deletions leave no traces
			if created = touch(t, pods, pod.Name); i > 700 {
				err := pods.Delete(
					t.Context(),
					podKey("ns", pod.Name),
					&example.Pod{},
					nil,
					storage.ValidateAllObjectFunc,
					nil,
					storage.DeleteOptions{},
				)
				if err != nil {
					t.Fatal(err)
				}
				continue
			}
		}
		want = append(want, podKey("ns", pod.Name)+"@"+created.ResourceVersion)
	}

	var got []string
	for stored, err := range reader.Values(t.Context(), "/pods") {
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := PodCodec().Decode(stored.Data, nil, &example.Pod{})
		if err != nil {
			t.Fatalf("%s: %v", stored.Key, err)
		}
		if pod := object.(*example.Pod); podKey(pod.Namespace, pod.Name) != stored.Key {
			t.Errorf("at %s there is %s", stored.Key, pod.Name)
		}
		if len(stored.Context.AuthenticatedData()) == 0 {
			t.Errorf("%s has nothing to authenticate", stored.Key)
		}
		got = append(got, fmt.Sprintf("%s@%d", stored.Key, stored.Revision))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d values, want %d: %.200v", len(got), len(want), got)
	}
	for range reader.Values(t.Context(), "/pod") {
		t.Fatal("a prefix is not a resource's name cut short")
	}

	ctx, cancel := context.WithCancel(t.Context())
	count := 0
	for _, err := range reader.Values(ctx, "/pods") {
		if count++; err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("after the context has ended: %v", err)
			}
			break
		}
		cancel()
	}
	cancel()
	if count >= len(want) {
		t.Error("it does not end with its context")
	}
}

func touch(t *testing.T, pods storage.Interface, name string) *example.Pod {
	t.Helper()
	out := &example.Pod{}
	err := pods.GuaranteedUpdate(t.Context(), podKey("ns", name), out, false, nil,
		storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
			object.(*example.Pod).Labels = map[string]string{"touched": "yes"}
			return object, nil
		}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
