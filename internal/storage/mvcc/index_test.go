package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/wire/verbatim"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/storetest"
)

// indexedPods returns pods that are indexed by a label and a field.
func indexedPods() store.Resource {
	resource := storetest.Pods("/pods")
	resource.Indexers = &cache.Indexers{
		storage.LabelIndex("color"):         func(object any) ([]string, error) { return labelValues(object, "color"), nil },
		storage.FieldIndex("spec.nodeName"): func(object any) ([]string, error) { return []string{object.(*example.Pod).Spec.NodeName}, nil },
	}
	return resource
}

func labelValues(object any, label string) []string {
	if value, ok := object.(*example.Pod).Labels[label]; ok {
		return []string{value}
	}
	return nil
}

func openAs(t testing.TB, core *mvcc.Core, resource store.Resource) storage.Interface {
	t.Helper()
	pods, err := core.Open(resource)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// TestIndexes_matchScan makes random histories and compares two stores of the same objects, one of which has indexes.
// Set ANNEX_SEED to repeat a failure.
func TestIndexes_matchScan(t *testing.T) {
	if testing.Short() {
		t.Skip("compares thousands of lists")
	}
	var looked, scanned int
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
			for range 250 {
				switch n := c.random.IntN(21); {
				case n < 11:
					c.write()
				case n < 13:
					c.compare(0, 0)
				case n < 15:
					c.compare(0, 1+c.random.Int64N(7))
				case n < 17:
					c.compare(c.someRevision(), 0)
				case n < 18:
					c.compareInitialEvents()
				case n < 19:
					if err := c.core.Compact(t.Context(), c.someRevision()); err != nil {
						t.Fatal(err)
					}
				case n < 20:
					c.restart()
				default:
					c.rest()
				}
				if t.Failed() {
					return
				}
			}
			looked, scanned = looked+c.looked, scanned+c.scanned
		})
	}
	if t.Logf("looked at %d objects with indexes, %d without", looked, scanned); looked > scanned*3/4 {
		t.Error("the indexes were hardly used")
	}
}

type comparison struct {
	t       *testing.T
	random  *rand.Rand
	ledger  *ledger
	core    *mvcc.Core
	clock   *clocktesting.FakeClock
	indexed storage.Interface
	plain   storage.Interface

	encoding        *verbatim.Encoding
	looked, scanned int
}

func (c *comparison) open() {
	c.clock = newClock()
	core, err := mvcc.Open(c.t.Context(), c.ledger, mvcc.Options{
		Clock:            c.clock,
		LabelObjects:     1,
		LabelEntries:     []int64{0, 20}[c.random.IntN(2)],
		HotBytes:         []int64{-1, 1, 0}[c.random.IntN(3)],
		ValueBytes:       []int64{-1, 3000, 0}[c.random.IntN(3)],
		ObjectCacheBytes: []int64{-1, 3000, 0}[c.random.IntN(3)],
	})
	if err != nil {
		c.t.Fatal(err)
	}
	indexed := indexedPods()
	indexed.Unstructured = c.random.IntN(2) == 0
	c.core, c.indexed, c.plain, c.encoding = core, openAs(c.t, core, indexed), openPods(c.t, core), podEncoding()
}

// rest makes the core drop unused indexes.
func (c *comparison) rest() {
	c.clock.Step(11 * time.Minute)
	if err := c.core.CompactHistory(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *comparison) restart() {
	if err := c.core.Close(); err != nil {
		c.t.Fatal(err)
	}
	c.ledger = c.ledger.reopen()
	c.open()
}

func (c *comparison) pick(what string, n int) string { return fmt.Sprint(what, c.random.IntN(n)) }

// write changes a random object through one of the stores.
func (c *comparison) write() {
	pods := c.indexed
	if c.random.IntN(3) == 0 {
		pods = c.plain
	}
	namespace, name := c.pick("ns", 3), c.pick("pod-", 20)
	path := "/pods/" + namespace + "/" + name
	change := func(pod *example.Pod) {
		pod.Labels = map[string]string{"color": c.pick("color-", 6), "size": c.pick("size-", 4), c.pick("other-", 20): ""}
		if c.random.IntN(5) == 0 {
			pod.Labels = nil
		}
		pod.Spec.NodeName = c.pick("node-", 8)
	}
	var err error
	switch c.random.IntN(5) {
	case 0:
		err = pods.Delete(context.Background(), path, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	case 1:
		err = pods.GuaranteedUpdate(
			context.Background(),
			path,
			&example.Pod{},
			false,
			nil,
			storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
				change(object.(*example.Pod))
				return object, nil
			}),
			nil,
		)
	default:
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		change(pod)
		err = pods.Create(context.Background(), path, pod, nil, 0)
	}
	if err != nil && !storage.IsNotFound(err) && !storage.IsExist(err) {
		c.t.Fatal(err)
	}
}

func (c *comparison) someRevision() uint64 {
	oldest, newest := max(1, c.core.CompactedRevision()), c.core.Revision()
	return oldest + c.random.Uint64N(newest-oldest+1)
}

// selector returns the labels and fields of a random predicate.
func (c *comparison) selector() (labels.Selector, fields.Selector) {
	texts := []string{
		"",
		"",
		"color=" + c.pick("color-", 6),
		"color==" + c.pick("color-", 6),
		"color=",
		fmt.Sprintf("color in (%s, %s, none)", c.pick("color-", 6), c.pick("color-", 6)),
		"color!=" + c.pick("color-", 6),
		"!color",
		fmt.Sprintf("color notin (%s)", c.pick("color-", 6)),
		fmt.Sprintf("color,color in (%s)", c.pick("color-", 6)),
		"size=" + c.pick("size-", 4),
		fmt.Sprintf("size in (%s, %s)", c.pick("size-", 4), c.pick("size-", 4)),
		"size!=" + c.pick("size-", 4),
		c.pick(
			"other-",
			20,
		),
		c.pick("other-", 20) + "=",
		"!" + c.pick("other-", 20),
		fmt.Sprintf("%s,size=%s", c.pick("other-", 20), c.pick("size-", 4)),
		fmt.Sprintf("color=%s,size=%s", c.pick("color-", 6), c.pick("size-", 4)),
	}
	label, err := labels.Parse(texts[c.random.IntN(len(texts))])
	if err != nil {
		c.t.Fatal(err)
	}
	return label, fields.ParseSelectorOrDie([]string{
		"", "", "spec.nodeName=" + c.pick("node-", 8), "spec.nodeName!=" + c.pick("node-", 8), "metadata.name=" + c.pick("pod-", 20),
		"spec.nodeName=" + c.pick("node-", 8) + ",metadata.namespace=" + c.pick("ns", 3),
	}[c.random.IntN(6)])
}

// predicateOf returns a predicate that counts the objects it is called with.
func predicateOf(label labels.Selector, field fields.Selector, count *int) storage.SelectionPredicate {
	attributes := storetest.Pods("/pods").Attributes
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: func(object runtime.Object) (labels.Set, fields.Set, error) {
		*count++
		return attributes(object)
	}}
}

func (c *comparison) compare(revision uint64, limit int64) {
	label, field := c.selector()
	prefix := "/pods/"
	if c.random.IntN(3) == 0 {
		prefix += c.pick("ns", 3) + "/"
	}
	var got, want []string
	opts := storage.ListOptions{Recursive: true}
	if revision > 0 {
		opts.ResourceVersion, opts.ResourceVersionMatch = rv(revision), metav1.ResourceVersionMatchExact
	}
	opts.Predicate = predicateOf(opaque{label}, field, &c.scanned)
	plain, opts2 := &example.PodList{}, opts
	if err := c.plain.GetList(context.Background(), prefix, opts, plain); err != nil {
		c.t.Fatal(err)
	}
	for _, pod := range plain.Items {
		want = append(want, pod.Namespace+"/"+describePod(&pod))
	}
	c.compareEncoded(prefix, opts, label, plain.Items)
	opts2.Predicate = predicateOf(label, field, &c.looked)
	opts2.Predicate.Limit = limit
	for {
		page := &example.PodList{}
		err := c.indexed.GetList(context.Background(), prefix, opts2, page)
		if apierrors.IsResourceExpired(err) && opts2.Predicate.Continue != "" {
			return
		}
		if err != nil {
			c.t.Fatal(err)
		}
		if page.ResourceVersion != plain.ResourceVersion {
			c.t.Fatalf("list %s %s: revision %s, want %s", label, field, page.ResourceVersion, plain.ResourceVersion)
		}
		for _, pod := range page.Items {
			got = append(got, pod.Namespace+"/"+describePod(&pod))
		}
		if opts2.Predicate.Continue = page.Continue; page.Continue == "" {
			break
		}
		c.write() // pages belong to the revision of the first page
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("list %q %q under %s at %d, limit %d:\n got %q\nwant %q", label, field, prefix, revision, limit, got, want)
	}
}

// compareEncoded compares an encoded list with its objects.
func (c *comparison) compareEncoded(prefix string, opts storage.ListOptions, label labels.Selector, want []example.Pod) {
	opts.Predicate.Label = label
	fragments, err := c.indexed.(encodedLister).ListEncoded(context.Background(), prefix, opts, &example.PodList{}, c.encoding, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if fragments.Len() != len(want) {
		c.t.Fatalf("%d objects are written, want %d", fragments.Len(), len(want))
	}
	rows, err := c.indexed.(encodedLister).ListEncoded(
		context.Background(),
		prefix,
		opts,
		&example.PodList{},
		c.encoding,
		&verbatim.Maker{Row: podRow},
	)
	if err != nil || rows.Len() != len(want) {
		c.t.Fatalf("%d rows, want %d: %v", rows.Len(), len(want), err)
	}
	for i := range want {
		item := encodedPod(c.t, &want[i])
		if written, err := fragments.Append(nil, i); err != nil || string(written) != item {
			c.t.Errorf("written as %s, want %s; %v", written, item, err)
		}
		row, err := rows.Append([]byte("> "), i)
		says, metadata, _ := strings.Cut(string(row), " with ")
		if err != nil || says != "> "+want[i].Name+" at "+want[i].ResourceVersion ||
			metadata != "" && !strings.HasPrefix(item, `{"metadata":`+metadata+`,"spec"`) {
			c.t.Errorf("row %s of %s: %v", row, item, err)
		}
		name := "/pods/" + want[i].Namespace + "/" + want[i].Name
		if fragment := c.indexed.(encodedLister).GetEncoded(
			context.Background(),
			name,
			c.encoding,
		); opts.ResourceVersion == "" && !fragment.IsZero() &&
			string(fragment.Whole()) != podHead+encodedPod(c.t, &want[i])[1:]+"\n" {
			c.t.Errorf("one is written as %s", fragment.Whole())
		}
	}
}

// podRow makes a table row of a pod: its name, its resource version, and its metadata if they are known.
func podRow(to []byte, object func() (runtime.Object, error), metadata verbatim.Fragment) ([]byte, error) {
	read, err := object()
	if err != nil {
		return nil, err
	}
	pod := read.(*example.Pod)
	to = fmt.Appendf(to, "%s at %s", pod.Name, pod.ResourceVersion)
	if !metadata.IsZero() {
		to = metadata.Append(append(to, " with "...))
	}
	return to, nil
}

type encodedLister interface {
	GetEncoded(ctx context.Context, key string, encoding *verbatim.Encoding) verbatim.Fragment
	ListEncoded(
		ctx context.Context,
		key string,
		opts storage.ListOptions,
		listObj runtime.Object,
		encoding *verbatim.Encoding,
		maker *verbatim.Maker,
	) (verbatim.Items, error)
}

const podHead = `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1",`

// podEncoding returns the encoding of pods in their stored version.
func podEncoding() *verbatim.Encoding {
	encode := func(object runtime.Object) ([]byte, error) {
		return runtime.Encode(storetest.PodCodec(), object.DeepCopyObject())
	}
	return verbatim.NewEncoding([]byte(podHead), len(podHead), encode, func(object runtime.Object, _ []byte) ([]byte, error) {
		whole, err := encode(object)
		return []byte("{" + strings.TrimSuffix(strings.TrimPrefix(string(whole), podHead), "\n")), err
	})
}

func encodedPod(t testing.TB, pod *example.Pod) string {
	t.Helper()
	whole, err := runtime.Encode(storetest.PodCodec(), pod.DeepCopy())
	if err != nil || !strings.HasPrefix(string(whole), podHead) {
		t.Fatalf("%s: %v", whole, err)
	}
	return "{" + strings.TrimSuffix(strings.TrimPrefix(string(whole), podHead), "\n")
}

// opaque is a selector that no index can support.
type opaque struct{ labels.Selector }

func (opaque) Requirements() (labels.Requirements, bool) { return nil, false }

func describePod(pod *example.Pod) string {
	return fmt.Sprintf("%s@%s %s %s", pod.Name, pod.ResourceVersion, pod.Labels, pod.Spec.NodeName)
}

func (c *comparison) compareInitialEvents() {
	label, field := c.selector()
	var got, want []string
	for _, side := range []struct {
		pods storage.Interface
		seen *[]string
	}{{c.indexed, &got}, {c.plain, &want}} {
		opts := storage.ListOptions{Predicate: predicateOf(label, field, new(int)), SendInitialEvents: new(true)}
		if side.pods == c.plain {
			opts.Predicate.Label = opaque{label}
		}
		opts.Predicate.AllowWatchBookmarks = true
		w := watchWith(c.t, side.pods, opts)
		for {
			event := next(c.t, w)
			pod := event.Object.(*example.Pod)
			*side.seen = append(*side.seen, string(event.Type)+" "+describePod(pod))
			if event.Type != "ADDED" {
				break
			}
		}
		w.Stop()
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("initial events of %q %q:\n got %q\nwant %q", label, field, got, want)
	}
}

// colored creates pods with a number of different colors.
func colored(t testing.TB, pods storage.Interface, count, colors int) {
	t.Helper()
	for i := range count {
		pod := samplePod(fmt.Sprintf("pod-%04d", i))
		pod.Labels = map[string]string{"color": fmt.Sprint("color-", i%colors)}
		if err := pods.Create(t.Context(), key(pod.Name), pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIndexes_readSelectedOnly(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{})
	pods := openAs(t, core, indexedPods())
	colored(t, pods, 1000, 100)
	looked := 0
	list := func(revision uint64, limit int64) *example.PodList {
		t.Helper()
		looked = 0
		p := predicateOf(labels.SelectorFromSet(labels.Set{"color": "color-7"}), nil, &looked)
		p.Limit = limit
		list, err := listAt(pods, revision, p)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := list(0, 0); len(got.Items) != 10 || looked != 10 {
		t.Errorf("%d objects listed, %d looked at, want 10 and 10", len(got.Items), looked)
	}
	if got := list(0, 4); len(got.Items) != 4 || looked != 4 || got.Continue == "" || got.RemainingItemCount != nil {
		t.Errorf("a page of %d, %d looked at, continue %q, remaining %v", len(got.Items), looked, got.Continue, got.RemainingItemCount)
	}
	revision := core.Revision()
	for i := range 5 {
		annotate(t, pods, fmt.Sprintf("pod-%04d", i), "changed")
	}
	if got := list(revision, 0); len(got.Items) != 10 || looked != 15 {
		t.Errorf("%d objects listed at the revision before 5 changes, %d looked at, want 10 and 15", len(got.Items), looked)
	}
	looked = 0
	p := predicateOf(labels.SelectorFromSet(labels.Set{"color": "none"}), nil, &looked)
	if none, err := listAt(pods, 0, p); err != nil || len(none.Items) != 0 || looked != 0 {
		t.Errorf("%d objects of no color, %d looked at: %v", len(none.Items), looked, err)
	}
}

// counted counts the calls of the index function of pods that are indexed by color.
type counted struct {
	t     *testing.T
	core  *mvcc.Core
	clock *clocktesting.FakeClock
	pods  storage.Interface
	calls int
}

// startCounted returns 15 pods of 5 colors, few enough for one goroutine.
func startCounted(t *testing.T, unstructured bool) *counted {
	c := &counted{t: t, clock: newClock()}
	c.core, _ = open(t, newLedger(), mvcc.Options{Clock: c.clock, Idle: true, History: mvcc.History{MinRevisions: -1}})
	resource := indexedPods()
	resource.Unstructured = unstructured
	resource.Indexers = &cache.Indexers{storage.LabelIndex("color"): func(object any) ([]string, error) {
		c.calls++
		return labelValues(object, "color"), nil
	}}
	c.pods = openAs(t, c.core, resource)
	colored(t, c.pods, 15, 5)
	return c
}

// list expects three pods and a number of calls of the index function.
func (c *counted) list(what string, values int) {
	c.t.Helper()
	c.calls = 0
	if list, err := listAt(c.pods, 0, selecting(c.t, "color=color-1")); err != nil || len(list.Items) != 3 {
		c.t.Fatalf("%s: %d objects: %v", what, len(list.Items), err)
	}
	if c.calls != values {
		c.t.Errorf("%s: %d values were asked for, want %d", what, c.calls, values)
	}
}

// compact compacts the whole history and expects a number of calls of the index function.
func (c *counted) compact(what string, values int) {
	c.t.Helper()
	c.calls = 0
	if err := c.core.Compact(c.t.Context(), c.core.Revision()); err != nil {
		c.t.Fatal(err)
	}
	if c.calls != values {
		c.t.Errorf("%s: %d values were asked for, want %d", what, c.calls, values)
	}
}

func TestIndexes_compaction_keepsThem(t *testing.T) {
	c := startCounted(t, false)
	c.compact("a compaction before any list", 0)
	c.list("the first list", 15)
	annotate(t, c.pods, "pod-0003", "changed")
	c.compact("a compaction beyond the indexes", 1)
	c.list("a list after it", 0)
	annotate(t, c.pods, "pod-0003", "changed again")
	c.list("a list that sees a change", 1)
	annotate(t, c.pods, "pod-0003", "changed once more")
	if c.calls = 0; c.core.Compact(t.Context(), c.core.Revision()-1) != nil || c.calls != 0 {
		t.Errorf("a compaction of what the indexes know asks for %d values", c.calls)
	}
	c.list("a list that sees the last change", 1)
	c.compact("a compaction up to the indexes", 0)
	c.list("a list after that", 0)
}

// Decoding unstructured objects may call a webhook.
func TestCompact_unstructured_isNotDecoded(t *testing.T) {
	c := startCounted(t, true)
	c.list("the first list", 15)
	c.compact("a compaction of what the indexes know", 0)
	c.list("a list after it", 0)
	annotate(t, c.pods, "pod-0003", "changed")
	c.compact("a compaction beyond the indexes", 0)
	c.list("a list after that", 15)
}

// hangingCodec blocks until leave while it hangs.
type hangingCodec struct {
	runtime.Codec
	hangs          *atomic.Bool
	entered, leave chan struct{}
}

func (c hangingCodec) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if c.hangs.Load() {
		c.entered <- struct{}{}
		<-c.leave
	}
	return c.Codec.Decode(data, defaults, into)
}

func TestCompact_unstructured_doesNotWait(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{ObjectCacheBytes: -1})
	resource := indexedPods()
	resource.Unstructured = true
	codec := hangingCodec{resource.Codec, &atomic.Bool{}, make(chan struct{}), make(chan struct{})}
	resource.Codec = codec
	pods := openAs(t, core, resource)
	colored(t, pods, 10, 5)
	list := func() {
		if list, err := listAt(pods, 0, selecting(t, "color=color-1")); err != nil || len(list.Items) != 2 {
			t.Errorf("%d objects: %v", len(list.Items), err)
		}
	}
	list()
	if err := pods.Create(t.Context(), key("other"), samplePod("other"), nil, 0); err != nil {
		t.Fatal(err)
	}
	codec.hangs.Store(true)
	var listing sync.WaitGroup
	listing.Go(list)
	<-codec.entered
	if err := core.Compact(t.Context(), core.Revision()); err != nil {
		t.Fatal(err)
	}
	codec.hangs.Store(false)
	close(codec.leave)
	listing.Wait()
	list()
}

func TestIndexes_unused_areDropped(t *testing.T) {
	c := startCounted(t, false)
	c.list("the first list", 15)
	pass := func(after time.Duration) {
		t.Helper()
		c.clock.Step(after)
		if err := c.core.CompactHistory(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pass(9 * time.Minute)
	c.list("a list in time", 0)
	pass(9 * time.Minute)
	annotate(t, c.pods, "pod-0003", "changed")
	c.list("another list in time", 1)
	pass(11 * time.Minute)
	c.compact("a compaction of indexes that are gone", 0)
	c.list("a list after a pause", 15)
}

// slowCodec takes a second for each object, while it is slow.
type slowCodec struct {
	runtime.Codec
	slow  *atomic.Bool
	clock *clocktesting.FakeClock
}

func (c slowCodec) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if c.slow.Load() {
		c.clock.Step(time.Second)
	}
	return c.Codec.Decode(data, defaults, into)
}

func TestIndexes_slowUpdate_listScans(t *testing.T) {
	clock, slow, looked := newClock(), &atomic.Bool{}, 0
	core, _ := open(t, newLedger(), mvcc.Options{Clock: clock, Idle: true, ObjectCacheBytes: -1})
	resource := indexedPods()
	resource.Codec = slowCodec{resource.Codec, slow, clock}
	pods := openAs(t, core, resource)
	colored(t, pods, 15, 5)
	list := func(want int) {
		t.Helper()
		looked = 0
		list, err := listAt(pods, 0, predicateOf(labels.SelectorFromSet(labels.Set{"color": "color-1"}), nil, &looked))
		if err != nil || len(list.Items) != 3 || looked != want {
			t.Errorf("%d objects, %d looked at, want 3 and %d: %v", len(list.Items), looked, want, err)
		}
	}
	slow.Store(true)
	list(3) // the build takes long, and so would a scan
	slow.Store(false)
	list(3)
	annotate(t, pods, "pod-0000", "changed")
	list(3)
	slow.Store(true)
	for i := range 8 {
		annotate(t, pods, fmt.Sprintf("pod-%04d", i), "changed again")
	}
	list(15) // eight of fifteen objects have changed, and the update of the indexes takes too long
	slow.Store(false)
	list(3)
}

// brokenCodec cannot decode objects with a certain label.
type brokenCodec struct {
	runtime.Codec
	broken *atomic.Bool
}

var errBroken = errors.New("broken")

func (c brokenCodec) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	object, kind, err := c.Codec.Decode(data, defaults, into)
	if err == nil && c.broken.Load() && object.(*example.Pod).Name == "pod-0003" {
		return nil, nil, errBroken
	}
	return object, kind, err
}

func TestIndexes_undecodable_isReported(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{ObjectCacheBytes: -1})
	broken := &atomic.Bool{}
	resource := indexedPods()
	resource.Codec = brokenCodec{resource.Codec, broken}
	pods := openAs(t, core, resource)
	colored(t, pods, 20, 5)
	broken.Store(true)
	if err := pods.Create(t.Context(), key("pod-0020"), samplePod("pod-0020"), nil, 0); err != nil {
		t.Fatal("a write is refused because of another object:", err)
	}
	_, scan := listAt(pods, 0, selecting(t, "color!=color-1"))
	_, indexed := listAt(pods, 0, selecting(t, "color=color-1"))
	if scan == nil || fmt.Sprint(scan) != fmt.Sprint(indexed) {
		t.Errorf("a scan says %v, an indexed list %v", scan, indexed)
	}
	broken.Store(false)
	if list, err := listAt(pods, 0, selecting(t, "color=color-3")); err != nil || len(list.Items) != 4 {
		t.Errorf("%d objects are found when all are readable again: %v", len(list.Items), err)
	}
	looked := 0
	if list, err := listAt(
		pods,
		0,
		predicateOf(labels.SelectorFromSet(labels.Set{"color": "color-1"}), nil, &looked),
	); err != nil || len(list.Items) != 4 ||
		looked != 4 {
		t.Errorf("%d objects are found then, %d looked at, want 4 and 4: %v", len(list.Items), looked, err)
	}
}

func TestIndexes_panic_isContained(t *testing.T) {
	core, _ := open(t, newLedger(), mvcc.Options{})
	resource := indexedPods()
	resource.Indexers = &cache.Indexers{storage.LabelIndex("color"): func(object any) ([]string, error) {
		if object.(*example.Pod).Name == "pod-0003" {
			panic("a user's mistake")
		}
		return labelValues(object, "color"), nil
	}}
	pods := openAs(t, core, resource)
	colored(t, pods, 40, 10)
	if list, err := listAt(pods, 0, selecting(t, "color=color-3")); err != nil || len(list.Items) != 4 {
		t.Errorf("%d objects: %v", len(list.Items), err)
	}
}

func TestIndexes_concurrentWriters(t *testing.T) {
	core, plain := open(t, newLedger(), mvcc.Options{})
	pods := openAs(t, core, indexedPods())
	colored(t, pods, 200, 10)
	ctx, stop := context.WithCancel(t.Context())
	var writing, reading sync.WaitGroup
	var compared atomic.Int64
	for writer := range 2 {
		writing.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("pod-%04d", (i*7+writer)%200)
				_ = pods.GuaranteedUpdate(
					ctx,
					key(name),
					&example.Pod{},
					false,
					nil,
					storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
						object.(*example.Pod).Labels = map[string]string{"color": fmt.Sprint("color-", i%10)}
						return object, nil
					}),
					nil,
				)
				if i%50 == 0 {
					_ = core.Compact(ctx, core.Revision()-min(core.Revision(), 300))
				}
			}
		})
	}
	for reader := range 3 {
		reading.Go(func() {
			for i := range 60 {
				selector := selecting(t, fmt.Sprint("color=color-", (i+reader)%10))
				indexed, err := listAt(pods, 0, selector)
				if apierrors.IsResourceExpired(err) {
					continue // the history is short, and a list may have to wait
				}
				if err != nil {
					t.Error(err)
					return
				}
				revision := parse(t, indexed.ResourceVersion)
				scan, err := listAt(plain, revision, selector)
				if apierrors.IsResourceExpired(err) {
					continue
				}
				compared.Add(1)
				if got, want := summaries(indexed.Items), summaries(scan.Items); !slices.Equal(got, want) {
					t.Errorf("%s at %d:\n got %q\nwant %q", selector.Label, revision, got, want)
				}
			}
		})
	}
	reading.Wait()
	stop()
	writing.Wait()
	if compared.Load() == 0 {
		t.Error("nothing was compared")
	}
}
