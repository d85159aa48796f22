package etcdtest_test

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/storetest"
)

// panickyCodec panics when it decodes a pod with a certain name.
type panickyCodec struct{ runtime.Codec }

func (c panickyCodec) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	object, kind, err := c.Codec.Decode(data, defaults, into)
	if pod, ok := object.(*example.Pod); ok && pod.Name == "panics" {
		panic("a mistake in a conversion")
	}
	return object, kind, err
}

func TestCodec_panic_isAnError(t *testing.T) {
	backend := open(t, startCluster(t, 1, nil), nil)
	direct := openPods(t, backend)
	resource := storetest.Pods("/pods")
	resource.Codec = panickyCodec{resource.Codec}
	pods, err := backend.Open(resource)
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the storage is ready", func(context.Context) error { return pods.ReadinessCheck() })
	mustCreate(t, direct, "panics")
	testwait.NoError(t, "the object is met", func(ctx context.Context) error {
		if err := pods.Get(ctx, key("panics"), storage.GetOptions{}, &example.Pod{}); err == nil {
			return errors.New("it can be read")
		}
		return nil
	})
	// The object can be seen and deleted in ways that need no conversion.
	if err := direct.Delete(
		t.Context(),
		key("panics"),
		&example.Pod{},
		nil,
		storage.ValidateAllObjectFunc,
		nil,
		storage.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the storage works again", func(ctx context.Context) error {
		return pods.GetList(ctx, "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &example.PodList{})
	})
}

func TestAttributes_panic_hidesObjectFromSelectors(t *testing.T) {
	backend := open(t, startCluster(t, 1, nil), nil)
	resource := storetest.Pods("/pods")
	attributes := resource.Attributes
	resource.Attributes = func(object runtime.Object) (labels.Set, fields.Set, error) {
		if object.(*example.Pod).Name == "panics" {
			panic("a mistake in a selectable field")
		}
		return attributes(object)
	}
	node := func(object runtime.Object) string {
		_, found, _ := resource.Attributes(object)
		return found["spec.nodeName"]
	}
	resource.Triggers = storage.IndexerFuncs{"spec.nodeName": node}
	resource.Indexers = &cache.Indexers{
		storage.FieldIndex("spec.nodeName"): func(object any) ([]string, error) {
			if pod := object.(*example.Pod); pod.Name == "fails" {
				return nil, errors.New("a mistake in an index")
			}
			return []string{node(object.(*example.Pod))}, nil
		},
	}
	pods, err := backend.Open(resource)
	if err != nil {
		t.Fatal(err)
	}
	testwait.NoError(t, "the storage is ready", func(context.Context) error { return pods.ReadinessCheck() })
	w := watchFrom(t, pods, mustCreate(t, pods, "before").ResourceVersion)
	mustCreate(t, pods, "panics")
	mustCreate(t, pods, "fails")
	mustCreate(t, pods, "after")
	expectAdded(t, w, "panics")
	expectAdded(t, w, "fails")
	expectAdded(t, w, "after")
}
