package index_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

func TestPlan_best_isTheSmallestBelowTheLimit(t *testing.T) {
	e := newEnv(t, options{})
	e.putColors(10)
	plan, err := e.indexes.Plan(t.Context(), "/pods/", e.predicate("color in (1,2),color=1,color in (1,2,3)"))
	if err != nil {
		t.Fatal(err)
	}
	best, objects := plan.Best(1000)
	if best == nil || objects != 2 || best.Revision() != 10 || best.Exact() {
		t.Errorf("the best result is %v with %d objects, want one of 2 at revision 10", best, objects)
	}
	if best, objects := plan.Best(2); best != nil || objects != 2 {
		t.Errorf("below 2 objects, the best result is %v with %d", best, objects)
	}
}

func TestResult_keys_areOrderedAndLimited(t *testing.T) {
	e := newEnv(t, options{})
	for _, name := range []string{"a/1", "a/3", "a/5", "b/2", "b/4"} {
		e.source.put(name, "color=red")
	}
	e.source.put("a/4", "color=blue")
	best := e.plan("color in (red,blue)")
	for _, test := range []struct {
		prefix, from string
		others, want []string
	}{
		{"/pods/", "/pods/", nil, []string{"/pods/a/1", "/pods/a/3", "/pods/a/4", "/pods/a/5", "/pods/b/2", "/pods/b/4"}},
		{"/pods/a/", "/pods/a/3", nil, []string{"/pods/a/3", "/pods/a/4", "/pods/a/5"}},
		{
			"/pods/a/",
			"/pods/a/",
			[]string{"/pods/a/0", "/pods/a/3", "/pods/a/3", "/pods/a/9", "/pods/b/1"},
			[]string{"/pods/a/0", "/pods/a/1", "/pods/a/3", "/pods/a/4", "/pods/a/5", "/pods/a/9"},
		},
		{"/pods/b/", "/pods/b/5", []string{"/pods/b/1"}, nil},
	} {
		if got := slices.Collect(best.Keys(test.prefix, test.from, test.others)); !slices.Equal(got, test.want) {
			t.Errorf("keys with %s from %s and %v:\n got %q\nwant %q", test.prefix, test.from, test.others, got, test.want)
		}
	}
}

func TestLookups_mayMatch(t *testing.T) {
	e := newEnv(t, options{})
	e.source.put("ns/red", "color=red")
	e.source.put("ns/none")
	e.source.put("ns/gone")
	e.source.remove("ns/gone")
	e.source.put("ns/broken")
	e.source.setUnreadable("ns/broken", true)
	read := func(v *podVersion) (runtime.Object, error) { return e.source.Object(t.Context(), v) }
	for _, test := range []struct {
		selector, name string
		want           bool
	}{
		{"color=red", "ns/red", true},
		{"color in (red,blue)", "ns/red", true},
		{"color=blue", "ns/red", false},
		{"color=red,color=blue", "ns/red", false},
		{"color!=red", "ns/red", true},
		{"size=1", "ns/red", true},
		{"color=red", "ns/none", false},
		{"color=red", "ns/gone", false},
		{"color=red", "ns/broken", true},
	} {
		v, _ := e.source.Latest("/pods/" + test.name)
		if got := e.indexes.Lookups(e.predicate(test.selector)).MayMatch(e.indexes.Values(v, read)); got != test.want {
			t.Errorf("%s may match %s: %v, want %v", test.selector, test.name, got, test.want)
		}
	}
	if lookups := e.indexes.Lookups(storage.Everything); len(lookups) != 0 {
		t.Errorf("the predicate of all objects has the lookups %v", lookups)
	}
}
