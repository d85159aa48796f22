package mvcc_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
)

// Lists by labels return the selected objects, at the latest revision and at exact ones, page by page, during changes
// and compactions, whether or not an index decides the selector.
func TestGetList_labelSelectors(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{Idle: true, LabelObjects: 1})
	pods := openPods(t, core)
	r := rand.New(rand.NewPCG(1, 2))
	values := []string{"", "a", "b", "c", "d", "e", "f", "g", "h"}
	selectors := []string{
		"k",
		"k=",
		"k=a",
		"k==b",
		"k in (a,b)",
		"k in (a,)",
		"k in ()",
		"l",
		"l=a",
		"l in (c,d)",
		"k!=a",
		"!k",
		"k=a,l",
		"k in (a),k in (b)",
	}
	type at struct {
		rv  uint64
		all map[string]map[string]string
	}
	state := map[string]map[string]string{}
	var history []at
	put := func(i int) {
		name := fmt.Sprintf("pod-%03d", i)
		ns := []string{"ns", "other"}[i%2]
		k := "/pods/" + ns + "/" + name
		l := map[string]string{}
		if r.IntN(3) > 0 {
			l["k"] = values[r.IntN(len(values))]
		}
		if r.IntN(4) == 0 {
			l["l"] = values[r.IntN(len(values))]
		}
		out := &example.Pod{}
		_, exists := state[k]
		var err error
		switch {
		case !exists:
			p := samplePod(name)
			p.Namespace, p.Labels = ns, l
			err = pods.Create(t.Context(), k, p, out, 0)
			state[k] = l
		case r.IntN(4) == 0:
			err = pods.Delete(t.Context(), k, out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
			delete(state, k)
		default:
			l["x"] = fmt.Sprint(r.IntN(1000000))
			err = pods.GuaranteedUpdate(t.Context(), k, out, false, nil, storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
				o.(*example.Pod).Labels = l
				return o, nil
			}), nil)
			state[k] = l
		}
		if err != nil {
			t.Fatal(err)
		}
		c := map[string]map[string]string{}
		for a, b := range state {
			c[a] = b
		}
		history = append(history, at{revisionOf(t, out), c})
	}
	check := func(h at, exact bool, selector, prefix string, limit int64) {
		p := selecting(t, selector)
		p.Limit = limit
		var want, got []string
		for k, l := range h.all {
			if strings.HasPrefix(k, prefix) && p.Label.Matches(labels.Set(l)) {
				want = append(want, k)
			}
		}
		slices.Sort(want)
		opts := storage.ListOptions{Recursive: true, Predicate: p}
		if exact {
			opts.ResourceVersion, opts.ResourceVersionMatch = rv(h.rv), metav1.ResourceVersionMatchExact
		}
		for {
			list := &example.PodList{}
			if err := pods.GetList(t.Context(), prefix, opts, list); err != nil {
				t.Fatalf("%s: %v", selector, err)
			}
			if list.RemainingItemCount != nil {
				t.Errorf("remaining %d", *list.RemainingItemCount)
			}
			for _, i := range list.Items {
				got = append(got, "/pods/"+i.Namespace+"/"+i.Name)
			}
			if list.Continue == "" {
				break
			}
			opts.Predicate.Continue = list.Continue
			opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
			if r.IntN(4) == 0 {
				put(r.IntN(60))
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s in %s at %d (exact %v, limit %d): got %v, want %v", selector, prefix, h.rv, exact, limit, got, want)
		}
	}
	for i := range 300 {
		put(i % 60)
	}
	first := 0
	for n := range 1000 {
		for range r.IntN(3) {
			put(r.IntN(60))
		}
		h, exact := history[len(history)-1], false
		if r.IntN(2) == 0 {
			h, exact = history[max(first, len(history)-1-r.IntN(50))], true
		}
		check(
			h,
			exact,
			selectors[r.IntN(len(selectors))],
			[]string{"/pods/", "/pods/ns/", "/pods/other/"}[r.IntN(3)],
			[]int64{0, 0, 1, 3, 7}[r.IntN(5)],
		)
		if n%200 == 0 {
			first = len(history) - 20
			if err := core.Compact(t.Context(), history[first].rv); err != nil {
				t.Fatal(err)
			}
		}
	}
}
