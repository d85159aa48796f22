package mvcc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/storetest"
)

// Fields of pods: a color, which some pods lack, and the number of their node.
var (
	byColor = ordered.Field{Name: "color", Type: ordered.String, Sortable: true, Get: func(o runtime.Object) any {
		if color, ok := o.(*example.Pod).Labels["color"]; ok {
			return color
		}
		return nil
	}}
	byNode = ordered.Field{Name: "node", Type: ordered.Number, Sortable: true, Get: func(o runtime.Object) any {
		return nodeOf(o)
	}}
	byName = ordered.Field{Name: "name", Type: ordered.String, Sortable: true, Get: func(o runtime.Object) any {
		return o.(*example.Pod).Name
	}}
)

// digest has the name of the node as the text; that of node-5 is too long for an order.
var digest = ordered.NewDigest("digest", func(o runtime.Object) string {
	node := o.(*example.Pod).Spec.NodeName
	if node == "node-5" {
		node += strings.Repeat(" ", 4096)
	}
	return strings.ToUpper(node)
})

func nodeOf(o runtime.Object) int64 {
	n, _ := strconv.ParseInt(strings.TrimPrefix(o.(*example.Pod).Spec.NodeName, "node-"), 10, 64)
	return n - 3
}

// randomQuery returns a query of a random form.
func (c *comparison) randomQuery() *ordered.Query {
	fields := []ordered.Field{byColor, byNode, byName}
	q := &ordered.Query{By: fields[c.random.IntN(3)], Descending: c.random.IntN(2) == 0, Limit: c.random.IntN(12)}
	switch c.random.IntN(3) {
	case 0:
		q.Offset = c.random.IntN(70)
	case 1:
		q.After = &ordered.Position{Value: q.By.Value(&example.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: c.pick("pod-", 20), Labels: map[string]string{"color": c.pick("color-", 6)}},
			Spec:       example.PodSpec{NodeName: c.pick("node-", 8)},
		}), Namespace: c.pick("ns", 3), Name: c.pick("pod-", 20)}
	}
	for _, ns := range []string{"ns0", "ns1", "ns2"} {
		if c.random.IntN(3) == 0 {
			q.Namespaces = append(q.Namespaces, ns)
		}
	}
	node := ordered.Encode(int64(c.random.IntN(8) - 3))
	color := ordered.Encode(c.pick("color-", 6))
	sets := []ordered.Condition{
		{Field: byNode, Set: ordered.Union(ordered.Exactly(node))},
		{Field: byNode, Set: ordered.Union(ordered.After(node))},
		{Field: byNode, Set: ordered.Union(ordered.Below(node), ordered.Exactly(ordered.Encode(int64(4))))},
		{Field: byColor, Set: ordered.Not(color)},
		{Field: byColor, Set: ordered.Union(ordered.UpTo(color))},
		{Field: byColor, Set: ordered.Union(ordered.From(color)).And(ordered.Not(ordered.Encode("color-4")))},
	}
	for c.random.IntN(2) == 0 {
		q.Where = append(q.Where, sets[c.random.IntN(len(sets))])
	}
	if c.random.IntN(4) == 0 {
		q.Matches = func(o runtime.Object) bool { return nodeOf(o)%2 == 0 }
	}
	q.Search.Digest = digest
	if c.random.IntN(3) == 0 {
		q.Search.Words = []string{strconv.Itoa(c.random.IntN(8)), "node-"}
	}
	if c.random.IntN(3) == 0 {
		selector, err := labels.Parse([]string{"color", "color!=color-1", "color in (color-1,color-2)", "!color"}[c.random.IntN(4)])
		if err != nil {
			c.t.Fatal(err)
		}
		q.Search.Labels = selector
	}
	if c.random.IntN(4) == 0 {
		q.Counted = []ordered.Field{byColor, byNode}
	}
	if c.random.IntN(6) == 0 {
		q.Counted, q.Limit, q.Offset, q.After = []ordered.Field{ordered.LabelsField()}, 0, 0, nil
	}
	return q
}

// query compares a page with the result of the same query on a list of all objects.
func (c *comparison) query() {
	q, prefix := c.randomQuery(), "/pods/"
	reference := *q
	if c.random.IntN(4) == 0 {
		namespace := c.pick("ns", 3)
		prefix = prefix + namespace + "/"
		if q.Namespaces == nil || slices.Contains(q.Namespaces, namespace) {
			reference.Namespaces = []string{namespace}
		} else {
			reference.Namespaces = []string{}
		}
	}
	got, err := c.indexed.(ordered.Querier).Query(context.Background(), prefix, q)
	if err != nil {
		c.t.Fatal(err)
	}
	list := &example.PodList{}
	if err := c.plain.GetList(
		context.Background(),
		"/pods/",
		storage.ListOptions{Recursive: true, Predicate: storage.Everything},
		list,
	); err != nil {
		c.t.Fatal(err)
	}
	var all []runtime.Object
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	want, err := ordered.PageOf(all, &reference)
	if err != nil {
		c.t.Fatal(err)
	}
	if got, want := describePage(got), describePage(want); got != want {
		c.t.Errorf("query by %s, descending %v, %d after %v from %d in %v under %s where %d:\n got %s\nwant %s",
			q.By.Name, q.Descending, q.Limit, q.After, q.Offset, q.Namespaces, prefix, len(q.Where), got, want)
	}
	if got.Revision != c.core.Revision() {
		c.t.Errorf("a page of revision %d, want %d", got.Revision, c.core.Revision())
	}
}

func describePage(p *ordered.Page) string {
	var b strings.Builder
	for _, o := range p.Objects {
		fmt.Fprintf(&b, "%s/%s ", o.(*example.Pod).Namespace, describePod(o.(*example.Pod)))
	}
	fmt.Fprintf(&b, "%d %v", p.Total, p.More)
	if len(p.Objects) > 0 {
		fmt.Fprintf(&b, " %q", p.Last)
	}
	for _, counts := range p.Counts {
		fmt.Fprintf(&b, " %v", counts)
	}
	return b.String()
}

// TestQuery_matchesList makes random histories and compares queries with sorted lists. Set ANNEX_SEED to repeat a
// failure.
func TestQuery_matchesList(t *testing.T) {
	if testing.Short() {
		t.Skip("compares thousands of queries")
	}
	first, runs := uint64(time.Now().UnixNano()), 30
	if text := os.Getenv("ANNEX_SEED"); text != "" {
		first, runs = parse(t, text), 1
	}
	for i := range runs {
		seed := first + uint64(i)
		t.Run(fmt.Sprintf("ANNEX_SEED=%d", seed), func(t *testing.T) {
			c := &comparison{t: t, random: rand.New(rand.NewPCG(seed, 1)), ledger: newLedger()}
			c.open()
			defer func() { _ = c.core.Close() }()
			for range 300 {
				switch n := c.random.IntN(40); {
				case n < 20:
					c.write()
				case n < 37:
					c.query()
				case n < 38:
					if err := c.core.Compact(t.Context(), c.someRevision()); err != nil {
						t.Fatal(err)
					}
				case n < 39:
					c.restart()
				default:
					c.rest()
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

// TestQuery_cursor_duringWrites reads pages by cursor during writes and compactions: each object whose value does not
// change is returned exactly once.
func TestQuery_cursor_duringWrites(t *testing.T) {
	core, pods := open(t, newLedger(), mvcc.Options{})
	colored(t, pods, 600, 7) // these stay
	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for i := range 3 {
		writers.Go(func() {
			for n := 0; writing.Err() == nil; n++ {
				pod := samplePod(fmt.Sprintf("moving-%d-%d", i, n%50))
				pod.Labels = map[string]string{"color": fmt.Sprint("color-", n%9)}
				_ = pods.Create(writing, key(pod.Name), pod, nil, 0)
				_, _ = tryAnnotate(writing, pods, fmt.Sprintf("pod-%04d", n*7%600), fmt.Sprint(n))
				if n%3 == 0 {
					_ = pods.Delete(writing, key(pod.Name), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
				}
				if n%20 == 0 {
					_ = core.Compact(writing, core.Revision()-5)
				}
			}
		})
	}
	defer writers.Wait()
	defer stop()
	for walk := range 12 {
		seen := map[string]int{}
		q := &ordered.Query{By: byColor, Descending: walk%2 == 1, Limit: 5 + walk}
		if walk%3 == 0 {
			q.Namespaces = []string{"ns", "other"}
		}
		var previous ordered.Value
		for {
			page, err := pods.(ordered.Querier).Query(t.Context(), "/pods/", q)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range page.Objects {
				seen[o.(*example.Pod).Name]++
				value := byColor.Value(o)
				if previous != "" && value != previous && value > previous == q.Descending {
					t.Errorf("%q after %q", value, previous)
				}
				previous = value
			}
			if page.Total < 600 {
				t.Errorf("a total of %d, want at least the 600 that stay", page.Total)
			}
			if !page.More {
				break
			}
			q.After = &page.Last
		}
		for i := range 600 {
			if name := fmt.Sprintf("pod-%04d", i); seen[name] != 1 {
				t.Errorf("%s was seen %d times", name, seen[name])
			}
		}
	}
}

// TestQuery_noConditions_readsPageOnly counts decoded objects.
func TestQuery_noConditions_readsPageOnly(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{ObjectCacheBytes: -1})
	var decoded atomic.Int64
	resource := storetest.Pods("/pods")
	resource.Codec = parallelCountingCodec{resource.Codec, &decoded}
	pods := openAs(t, core, resource)
	colored(t, pods, 1000, 10)
	ask := func(q ordered.Query) *ordered.Page {
		t.Helper()
		decoded.Store(0)
		page, err := pods.(ordered.Querier).Query(t.Context(), "/pods/", &q)
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	ask(ordered.Query{By: byColor})
	for _, test := range []struct {
		query ordered.Query
		total int
		reads int64
	}{
		{ordered.Query{By: byColor, Limit: 7, Offset: 900}, 1000, 7},
		{ordered.Query{By: byColor, Limit: 0}, 1000, 0},
		{ordered.Query{By: byColor, Limit: 5,
			Where: []ordered.Condition{{Field: byColor, Set: ordered.Union(ordered.Exactly(ordered.Encode("color-3")))}}}, 100, 5},
	} {
		if page := ask(test.query); page.Total != test.total || decoded.Load() != test.reads {
			t.Errorf("a total of %d with %d objects decoded, want %d with %d", page.Total, decoded.Load(), test.total, test.reads)
		}
	}
	ask(ordered.Query{By: byName})
	where := []ordered.Condition{{Field: byColor, Set: ordered.Union(ordered.Exactly(ordered.Encode("color-3")))}}
	if page := ask(ordered.Query{By: byName, Limit: 5, Where: where}); page.Total != 100 || decoded.Load() != 105 {
		t.Errorf("an indexed condition found %d and decoded %d, want 100 and 105", page.Total, decoded.Load())
	}
}

// TestQuery_tooManyRuns queries more intervals than maxRuns.
func TestQuery_tooManyRuns(t *testing.T) {
	_, pods := open(t, newLedger(), mvcc.Options{})
	colored(t, pods, 300, 10)
	list := &example.PodList{}
	if err := pods.GetList(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
		t.Fatal(err)
	}
	var all []runtime.Object
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	namespaces := []string{list.Items[0].Namespace}
	for i := range 200 {
		namespaces = append(namespaces, fmt.Sprint("other-", i))
	}
	slices.Sort(namespaces)
	colors, names := make([]ordered.Interval, 100), make([]ordered.Interval, 100)
	for i := range colors {
		colors[i] = ordered.Exactly(ordered.Encode(fmt.Sprint("color-", 2*i)))
		names[i] = ordered.Exactly(ordered.Encode(list.Items[3*i].Name))
	}
	for _, by := range []ordered.Field{byColor, byName} {
		for _, offset := range []int{0, 9} {
			q := &ordered.Query{By: by, Namespaces: namespaces, Limit: 20, Offset: offset, Where: []ordered.Condition{
				{Field: byColor, Set: ordered.Union(colors...)}, {Field: byName, Set: ordered.Union(names...)},
			}}
			got, err := pods.(ordered.Querier).Query(t.Context(), "/pods/", q)
			if err != nil {
				t.Fatal(err)
			}
			want, err := ordered.PageOf(all, q)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := describePage(got), describePage(want); got != want || len(want) < 100 {
				t.Errorf("by %s from %d:\n got %s\nwant %s", by.Name, offset, got, want)
			}
		}
	}
}

// parallelCountingCodec is a countingCodec for concurrent use.
type parallelCountingCodec struct {
	runtime.Codec
	decoded *atomic.Int64
}

func (c parallelCountingCodec) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	c.decoded.Add(1)
	return c.Codec.Decode(data, defaults, into)
}

// TestQuery_unreadableObjects_fails: an object that cannot be decoded has no place in an order.
func TestQuery_unreadableObjects_fails(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{ObjectCacheBytes: -1})
	resource := storetest.Pods("/pods")
	broken := false
	resource.Codec = failingCodec{resource.Codec, &broken}
	pods := openAs(t, core, resource)
	colored(t, pods, 3, 3)
	broken = true
	q := &ordered.Query{By: byColor, Limit: 10}
	if page, err := pods.(ordered.Querier).Query(t.Context(), "/pods/", q); err == nil {
		t.Errorf("got %s, want an error", describePage(page))
	}
	broken = false
	page, err := pods.(ordered.Querier).Query(t.Context(), "/pods/", q)
	if err != nil || page.Total != 3 {
		t.Errorf("when they can be read again: %v, %v", page, err)
	}
}

type failingCodec struct {
	runtime.Codec
	broken *bool
}

func (c failingCodec) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if *c.broken {
		return nil, nil, fmt.Errorf("it is broken")
	}
	return c.Codec.Decode(data, defaults, into)
}

// TestQuery_contextEnds queries with a context that has ended.
func TestQuery_contextEnds(t *testing.T) {
	_, pods := open(t, newLedger(), mvcc.Options{})
	colored(t, pods, 10, 3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pods.(ordered.Querier).Query(ctx, "/pods/", &ordered.Query{By: byColor, Limit: 1}); err == nil {
		t.Error("a query without time was answered")
	}
}
