package etcdtest_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/store/etcd"
)

var widgets = schema.GroupVersionResource{Group: "shop.example.com", Version: "v1", Resource: "widgets"}

// replica starts a whole server on the given etcd.
func replica(t *testing.T, members []*member) dynamic.ResourceInterface {
	t.Helper()
	config := annextest.StartWith(t, shop(), annex.Options{Storage: etcd.Cluster(etcd.Options{Endpoints: endpoints(members)})})
	return dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("default")
}

func newWidget(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name},
	}}
}

func TestReplicas_shareObjects(t *testing.T) {
	members := startCluster(t, 1, nil)
	one, other := replica(t, members), replica(t, members)
	ctx := t.Context()

	w, err := other.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	created, err := one.Create(ctx, newWidget("w"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if event := <-w.ResultChan(); event.Type != watch.Added || event.Object.(*unstructured.Unstructured).GetUID() != created.GetUID() {
		t.Errorf("the other replica saw %v", event)
	}

	mine, err := other.Get(ctx, "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mine.SetLabels(map[string]string{"by": "other"})
	if _, err := other.Update(ctx, mine, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := one.List(ctx, metav1.ListOptions{LabelSelector: "by=other"})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 {
		t.Errorf("one replica does not see what the other wrote: %v", list.Items)
	}
}
