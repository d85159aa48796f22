package mvcc_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
)

// selected lists pods by labels, and counts the objects that are read.
func selected(t *testing.T, pods storage.Interface, selector string) (found, looked int) {
	t.Helper()
	parsed, err := labels.Parse(selector)
	if err != nil {
		t.Fatal(err)
	}
	list, err := listAt(pods, 0, predicateOf(parsed, nil, &looked))
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items), looked
}

// wantLooked lists pods by labels and checks the counts.
func wantLooked(t *testing.T, what string, pods storage.Interface, selector string, found, looked int) {
	t.Helper()
	if f, l := selected(t, pods, selector); f != found || l != looked {
		t.Errorf("%s: %s finds %d of %d, want %d of %d", what, selector, f, l, found, looked)
	}
}

// startLabelled returns 1,000 pods of 100 colors, ten of which are marked, in a store with a stopped clock.
func startLabelled(t *testing.T, options mvcc.Options) (*mvcc.Core, storage.Interface, *clocktesting.FakeClock) {
	t.Helper()
	clock := newClock()
	options.Clock, options.Idle = clock, true
	core, pods := open(t, newLedger(), options)
	for i := range 1000 {
		pod := samplePod(fmt.Sprintf("pod-%04d", i))
		pod.Labels = map[string]string{"color": fmt.Sprint("color-", i%100)}
		if i < 10 {
			pod.Labels["marked"] = ""
		}
		if err := pods.Create(t.Context(), key(pod.Name), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	return core, pods, clock
}

func TestLabelIndexes_secondList_buildsIndex(t *testing.T) {
	core, pods, clock := startLabelled(t, mvcc.Options{})
	wantLooked(t, "the first list", pods, "color=color-7", 10, 1000)
	wantLooked(t, "the second list", pods, "color=color-7", 10, 0)
	wantLooked(t, "several values", pods, "color in (color-7,color-8,none)", 20, 0)
	wantLooked(t, "a value that none has", pods, "color=none", 0, 0)
	wantLooked(t, "what selects most", pods, "color!=color-7", 990, 1000)
	wantLooked(t, "another label for the first time", pods, "marked", 10, 1000)
	wantLooked(t, "another label", pods, "marked", 10, 0)
	wantLooked(t, "two labels", pods, "marked,color=color-7", 1, 10)
	wantLooked(t, "one that is not there", pods, "!marked", 990, 1000)

	annotate(t, pods, "pod-0003", "changed")
	wantLooked(t, "after a change", pods, "marked", 10, 0)
	if err := core.CompactHistory(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantLooked(t, "after a compaction", pods, "marked", 10, 0)
	clock.Step(11 * time.Minute)
	if err := core.CompactHistory(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantLooked(t, "built anew after a pause", pods, "marked", 10, 0)
}

func TestLabelIndexes_fewObjects_areNotIndexed(t *testing.T) {
	_, pods, _ := startLabelled(t, mvcc.Options{LabelObjects: 1001})
	for range 3 {
		wantLooked(t, "a list of few", pods, "color=color-7", 10, 1000)
	}
	if err := pods.Create(t.Context(), key("one-more"), samplePod("one-more"), nil, 0); err != nil {
		t.Fatal(err)
	}
	wantLooked(t, "the first list of many", pods, "color=color-7", 10, 1001)
	wantLooked(t, "the second list of many", pods, "color=color-7", 10, 0)
}

// The size of a list of a namespace is that of the namespace, however many other objects there are.
func TestLabelIndexes_smallNamespace_isNotIndexed(t *testing.T) {
	_, pods, _ := startLabelled(t, mvcc.Options{LabelObjects: 1000})
	looked := 0
	for range 3 {
		looked = 0
		list := &example.PodList{}
		opts := storage.ListOptions{
			Recursive: true,
			Predicate: predicateOf(labels.SelectorFromSet(labels.Set{"color": "color-7"}), nil, &looked),
		}
		if err := pods.GetList(t.Context(), "/pods/other/", opts, list); err != nil || len(list.Items) != 0 || looked != 0 {
			t.Fatalf("%d objects, %d looked at: %v", len(list.Items), looked, err)
		}
	}
	wantLooked(t, "the first list of all", pods, "color=color-7", 10, 1000)
}

func TestLabelIndexes_bounds(t *testing.T) {
	t.Run("in their entries", func(t *testing.T) {
		_, pods, clock := startLabelled(t, mvcc.Options{LabelEntries: 1005})
		selected(t, pods, "marked")
		wantLooked(t, "few entries", pods, "marked", 10, 0)
		selected(t, pods, "color=color-7")
		for range 3 {
			wantLooked(t, "too many entries", pods, "color=color-7", 10, 1000)
		}
		wantLooked(t, "few entries beside it", pods, "marked", 10, 0)
		clock.Step(2 * time.Minute)
		wantLooked(t, "after a while, still too many", pods, "color=color-7", 10, 1000)
	})
	t.Run("in their number", func(t *testing.T) {
		core, pods, clock := startLabelled(t, mvcc.Options{})
		for i := range 16 {
			selected(t, pods, fmt.Sprint("label-", i))
			wantLooked(t, "a label", pods, fmt.Sprint("label-", i), 0, 0)
		}
		for range 3 {
			wantLooked(t, "one too many", pods, "color=color-7", 10, 1000)
		}
		clock.Step(time.Minute)
		for i := 1; i < 16; i++ {
			wantLooked(t, "a label in use", pods, fmt.Sprint("label-", i), 0, 0)
		}
		wantLooked(t, "in place of one not in use, first", pods, "color=color-7", 10, 1000)
		wantLooked(t, "in place of one not in use", pods, "color=color-7", 10, 0)
		wantLooked(t, "that one", pods, "label-0", 0, 1000)
		if err := core.CompactHistory(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// Bounded indexes that exceed their bound are dropped, and lists stay complete.
func TestLabelIndexes_grownTooLarge_areDropped(t *testing.T) {
	_, pods, _ := startLabelled(t, mvcc.Options{LabelEntries: 1005})
	selected(t, pods, "color=color-7")
	wantLooked(t, "just within the bound", pods, "color=color-7", 10, 0)
	for i := range 10 {
		pod := samplePod(fmt.Sprint("more-", i))
		pod.Labels = map[string]string{"color": "color-7"}
		if err := pods.Create(t.Context(), key(pod.Name), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	wantLooked(t, "beyond it", pods, "color=color-7", 20, 1010)
	wantLooked(t, "and after it", pods, "color=color-7", 20, 1010)
}

// A list uses a declared index together with the index of an undeclared label.
func TestLabelIndexes_besideDeclaredIndex(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{Idle: true, Clock: newClock()})
	pods := openAs(t, core, indexedPods())
	for i := range 1000 {
		pod := samplePod(fmt.Sprintf("pod-%04d", i))
		pod.Labels = map[string]string{"color": fmt.Sprint("color-", i%4), "size": fmt.Sprint("size-", i%200)}
		if err := pods.Create(t.Context(), key(pod.Name), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	wantLooked(t, "by the declared one", pods, "color=color-1,size=size-1", 5, 250)
	wantLooked(t, "by the better one", pods, "color=color-1,size=size-1", 5, 5)
	looked := []int{}
	for range 3 {
		_, n := selected(t, pods, "a=1,b=1,c=1,d=1,e=1")
		looked = append(looked, n)
	}
	if !slices.Equal(looked, []int{1000, 0, 0}) {
		t.Errorf("a selector of many labels looks at %v", looked)
	}
}
