package index_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/storage/mvcc/index"
)

var byColor = ordered.Field{Name: "color", Type: ordered.String, Sortable: true, Get: func(o runtime.Object) any {
	if color, exists := o.(*example.Pod).Labels["color"]; exists {
		return color
	}
	return nil
}}

func (e *env) order(namespaced bool) index.Order[*podVersion] {
	e.t.Helper()
	order, err := e.indexes.Order(e.t.Context(), byColor, namespaced)
	if err != nil {
		e.t.Fatal(err)
	}
	return order
}

// names returns the names of entries.
func names(runs index.Runs[*podVersion]) string {
	var all []string
	for e := range runs.All() {
		all = append(all, strings.TrimPrefix(e.Version.key, "/pods/"))
	}
	return strings.Join(all, " ")
}

func TestOrder_afterChanges_holdsLatestVersions(t *testing.T) {
	e := newEnv(t, options{})
	e.source.put("a/1", "color=red")
	e.source.put("b/1", "color=blue")
	e.source.put("a/2")
	order := e.order(false)
	if got := names(order.Runs(nil, ordered.All(), false)); got != "a/2 b/1 a/1" || order.Revision() != 3 {
		t.Errorf("the order is %s at %d", got, order.Revision())
	}
	if got := names(e.order(true).Runs([]string{"a"}, ordered.All(), true)); got != "a/1 a/2" {
		t.Errorf("the order of a namespace from its end is %s", got)
	}
	e.resetReads()
	e.source.put("b/1", "color=yellow")
	e.source.put("a/1", "color=red")
	e.source.remove("a/2")
	e.source.revision++ // of another resource
	changed := e.order(false)
	if got := names(changed.Runs(nil, ordered.All(), false)); got != "a/1 b/1" || changed.Revision() != 7 {
		t.Errorf("after changes, the order is %s at %d", got, changed.Revision())
	}
	e.wantReads("two pods have changed", 2)
	for entry := range changed.Runs(nil, ordered.All(), false).All() {
		if latest, _ := e.source.Latest(entry.Key); entry.Version != latest {
			t.Errorf("%s has an old version", entry.Key)
		}
	}
	e.source.revision++
	if again := e.order(false); again.Revision() != 8 {
		t.Errorf("an order without changes is at revision %d, want 8", again.Revision())
	}
	if got := names(order.Runs(nil, ordered.All(), false)); got != "a/2 b/1 a/1" {
		t.Errorf("the first order has become %s", got)
	}
}

func TestOrder_slowBuild_isWaitedFor(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(10)
	e.source.setOnRead(func() { e.clock.Step(time.Minute) })
	if got := e.order(false).Runs(nil, ordered.All(), false).Size(); got != 10 {
		t.Errorf("the order has %d pods, want 10", got)
	}
	e.source.put("ns/pod-01")
	ctx, cancel := context.WithCancel(t.Context())
	e.source.setOnRead(cancel)
	if _, err := e.indexes.Order(ctx, byColor, false); !errors.Is(err, context.Canceled) {
		t.Errorf("when its context ends, a query gets %v", err)
	}
}

// TestOrder_valuesFromKeys_readNoObject: such an order has objects that cannot be read, too.
func TestOrder_valuesFromKeys_readNoObject(t *testing.T) {
	e := newEnv(t, options{})
	e.source.put("b/1", "color=red")
	e.source.put("a/2")
	e.source.put("a/1")
	e.source.setUnreadable("a/2", true)
	e.resetReads()
	byName := ordered.Field{Name: "name", Type: ordered.String, Sortable: true, FromKey: func(_, name string) any { return name }}
	for namespaced, want := range map[bool]string{false: "a/1 b/1 a/2", true: "a/1 a/2"} {
		order, err := e.indexes.Order(t.Context(), byName, namespaced)
		if err != nil {
			t.Fatal(err)
		}
		var of []string
		if namespaced {
			of = []string{"a"}
		}
		if got := names(order.Runs(of, ordered.All(), false)); got != want || len(order.Unreadable()) != 0 {
			t.Errorf("namespaced %v: the order is %s, want %s; unreadable are %v", namespaced, got, want, order.Unreadable())
		}
	}
	e.wantReads("the keys have the names", 0)
}

func TestOrder_unreadableValues_areReadAtEachCall(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(3)
	e.source.setUnreadable("ns/pod-01", true)
	for range 2 {
		e.resetReads()
		if got := e.order(false).Unreadable(); !slices.Equal(got, []string{"/pods/ns/pod-01"}) {
			t.Errorf("unreadable are %v", got)
		}
	}
	e.wantReads("the second call", 1)
	e.source.setUnreadable("ns/pod-01", false)
	order := e.order(false)
	if got := names(order.Runs(nil, ordered.All(), false)); got != "ns/pod-00 ns/pod-01 ns/pod-02" || len(order.Unreadable()) != 0 {
		t.Errorf("when it can be read, the order is %s, unreadable are %v", got, order.Unreadable())
	}
}

// Runs are compared with a sorted slice, for random sets of values, namespaces and positions.
func TestRuns_matchSortedSlice(t *testing.T) {
	e := newEnv(t, options{})
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		e.source.put(fmt.Sprintf("ns%d/pod-%03d", random.IntN(4), i), fmt.Sprint("color=", random.IntN(9)))
	}
	all, _ := e.source.Snapshot()
	for range 500 {
		descending := random.IntN(2) == 0
		var namespaces []string
		if random.IntN(2) == 0 {
			namespaces = [][]string{{}, {"ns1"}, {"ns0", "ns2", "none"}}[random.IntN(3)]
		}
		value := func() ordered.Value { return ordered.Encode(fmt.Sprint(random.IntN(9))) }
		set := []ordered.Set{
			ordered.All(),
			ordered.Not(value()),
			ordered.Union(ordered.From(value())),
			ordered.Union(ordered.Exactly(value()), ordered.Below(value())),
		}[random.IntN(4)]
		var want []index.Entry[*podVersion]
		for v := range all {
			namespace := v.pod.Namespace
			value := byColor.Value(v.pod)
			if (namespaces == nil || slices.Contains(namespaces, namespace)) && set.Has(value) {
				want = append(want, index.Entry[*podVersion]{Value: string(value), Key: v.key, Version: v})
			}
		}
		compare := func(a, b index.Entry[*podVersion]) int {
			if descending {
				a, b = b, a
			}
			return a.Compare(b)
		}
		slices.SortFunc(want, compare)
		runs := e.order(namespaces != nil).Runs(namespaces, set, descending)
		if runs.Size() != len(want) {
			t.Fatalf("%d entries, want %d", runs.Size(), len(want))
		}
		switch random.IntN(3) {
		case 0:
			n := random.IntN(310)
			runs.Drop(n)
			want = want[min(n, len(want)):]
		case 1:
			after := index.Entry[*podVersion]{Value: string(value()), Key: fmt.Sprintf("/pods/ns%d/pod-%03d", random.IntN(4), random.IntN(300))}
			runs.DropThrough(after)
			want = slices.DeleteFunc(want, func(e index.Entry[*podVersion]) bool { return compare(e, after) <= 0 })
		}
		if got := slices.Collect(runs.All()); !slices.Equal(got, want) || runs.Size() != len(want) {
			t.Fatalf("namespaces %v, set %v, descending %v:\n got %v\nwant %v", namespaces, set, descending, got, want)
		}
	}
}
