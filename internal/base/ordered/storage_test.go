package ordered_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/ordered"
)

var byNode = ordered.Field{
	Name:     "node",
	Type:     ordered.String,
	Sortable: true,
	Get:      func(o runtime.Object) any { return o.(*example.Pod).Spec.NodeName },
}

// plain is a storage that keeps no orders.
type plain struct {
	storage.Interface
	pods   []*example.Pod
	events *watch.FakeWatcher
	asked  storage.ListOptions
}

func (p *plain) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (p *plain) GetList(_ context.Context, _ string, opts storage.ListOptions, list runtime.Object) error {
	p.asked = opts
	for _, pod := range p.pods {
		list.(*example.PodList).Items = append(list.(*example.PodList).Items, *pod)
	}
	list.(*example.PodList).ResourceVersion = "7"
	return nil
}

func (p *plain) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	return p.events, nil
}

func pod(namespace, name, node string) *example.Pod {
	return &example.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)},
		Spec:       example.PodSpec{NodeName: node},
	}
}

func TestAnswering_list_storageWithoutOrders(t *testing.T) {
	p := &plain{pods: []*example.Pod{pod("a", "1", "x"), pod("a", "2", "z"), pod("b", "1", "y"), pod("c", "1", "x")}}
	s := ordered.Answering(p, p)
	r := &ordered.Request{
		Query: ordered.Query{By: byNode, Descending: true, Limit: 2, Namespaces: []string{"a", "c"}, Counted: []ordered.Field{byNode}},
	}
	list := &example.PodList{}
	opts := storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{Limit: 1, Continue: "x"}}
	if err := s.GetList(ordered.NewContext(t.Context(), r), "/pods", opts, list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range r.Page.Objects {
		got = append(got, o.(*example.Pod).Namespace+o.(*example.Pod).Name)
	}
	if !slices.Equal(got, []string{"a2", "c1"}) || r.Page.Total != 3 || !r.Page.More || r.Page.Revision != 7 || len(list.Items) != 0 ||
		p.asked.Predicate.Limit != 0 ||
		p.asked.Predicate.Continue != "" {
		t.Errorf("got %q, %+v, a list of %d asked for with %+v", got, r.Page, len(list.Items), p.asked)
	}
	if fmt.Sprint(r.Page.Counts) != fmt.Sprint([]map[ordered.Value]int{{ordered.Encode("x"): 2, ordered.Encode("z"): 1}}) {
		t.Errorf("counts %v", r.Page.Counts)
	}
}

func TestAnswering_watch_eventsWithoutOldObjects(t *testing.T) {
	for _, test := range []struct {
		initial bool
		want    []string
	}{
		{true, []string{"ADDED1", "DELETED1", "ADDED2", "MODIFIED2", "DELETED2", "BOOKMARK"}},
		{false, []string{"ADDED1", "DELETED1", "MODIFIED2", "MODIFIED2", "DELETED2", "DELETED4", "BOOKMARK"}},
	} {
		p := &plain{events: watch.NewFakeWithChanSize(20, false)}
		r := &ordered.Request{
			Query: ordered.Query{
				Namespaces: []string{"a"},
				Where:      []ordered.Condition{{Field: byNode, Set: ordered.Union(ordered.Exactly(ordered.Encode("x")))}},
			},
		}
		opts := storage.ListOptions{SendInitialEvents: &test.initial, Predicate: storage.SelectionPredicate{Field: fields.Everything()}}
		w, err := ordered.Answering(p, p).Watch(ordered.NewContext(t.Context(), r), "/pods", opts)
		if err != nil {
			t.Fatal(err)
		}
		p.events.Add(pod("a", "1", "x"))
		p.events.Add(pod("a", "2", "y"))
		p.events.Add(pod("b", "3", "x"))
		p.events.Modify(pod("b", "3", "y"))
		p.events.Modify(pod("b", "3", "x"))
		p.events.Delete(pod("b", "3", "x"))
		p.events.Modify(pod("a", "1", "y"))
		p.events.Modify(pod("a", "2", "x"))
		p.events.Modify(pod("a", "2", "x"))
		p.events.Delete(pod("a", "2", "x"))
		p.events.Delete(pod("a", "1", "y"))
		p.events.Add(pod("a", "4", "y"))
		p.events.Modify(pod("a", "4", "z"))
		p.events.Action(watch.Bookmark, &example.Pod{})
		p.events.Stop()
		var got []string
		for e := range w.ResultChan() {
			got = append(got, string(e.Type)+e.Object.(*example.Pod).Name)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("with initial events %v: got %q, want %q", test.initial, got, test.want)
		}
	}
}

func TestCount_mostValues(t *testing.T) {
	pods := make([]runtime.Object, ordered.MostValues+1)
	for i := range pods {
		pods[i] = pod("a", fmt.Sprint(i), fmt.Sprint(i))
	}
	q := &ordered.Query{By: byNode, Counted: []ordered.Field{byNode}}
	if page, err := ordered.PageOf(pods[1:], q); err != nil || len(page.Counts[0]) != ordered.MostValues || page.CountedBytes() < 1<<20 {
		t.Errorf("as many as there may be: %v", err)
	}
	if _, err := ordered.PageOf(pods, q); !apierrors.IsBadRequest(err) {
		t.Errorf("one more: %v", err)
	}
}
