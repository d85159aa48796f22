package mvcc_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
)

// model is a naive store: the list of all events.
type model struct {
	events    []modelEvent // from revision 2
	compacted uint64
}

type modelEvent struct {
	name    string
	deleted bool
	color   string // a label for selectors
	note    string
}

func (m *model) revision() uint64 { return uint64(len(m.events)) + 1 }

// state returns the objects at a revision, as "name@revision color note".
func (m *model) state(revision uint64, selector labels.Selector) []string {
	objects := map[string]string{}
	for i, e := range m.events[:revision-1] {
		if e.deleted || !selector.Matches(labels.Set{"color": e.color}) {
			delete(objects, e.name)
		} else {
			objects[e.name] = fmt.Sprintf("%s@%d %s %s", e.name, i+2, e.color, e.note)
		}
	}
	var state []string
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		state = append(state, objects[name])
	}
	return state
}

// before returns the previous event of an object, nil if it did not exist.
func (m *model) before(revision uint64, name string) *modelEvent {
	for i := int(revision) - 3; i >= 0; i-- {
		if e := m.events[i]; e.name == name {
			if e.deleted {
				return nil
			}
			return &e
		}
	}
	return nil
}

// watch returns the events of a watch with a selector after a revision.
func (m *model) watch(after uint64, selector labels.Selector) []string {
	var seen []string
	for revision := after + 1; revision <= m.revision(); revision++ {
		e := m.events[revision-2]
		before := m.before(revision, e.name)
		was := before != nil && selector.Matches(labels.Set{"color": before.color})
		is := !e.deleted && selector.Matches(labels.Set{"color": e.color})
		kind, shown := watch.Modified, e
		switch {
		case is && !was:
			kind = watch.Added
		case was && !is:
			kind, shown = watch.Deleted, *before
		case !was && !is:
			continue
		}
		seen = append(seen, fmt.Sprintf("%s %s@%d %s %s", kind, e.name, revision, shown.color, shown.note))
	}
	return seen
}

// run is one random history of a store and of the model.
type run struct {
	model
	t      *testing.T
	random *rand.Rand
	ledger *ledger
	core   *mvcc.Core
	pods   storage.Interface
}

var (
	modelNames  = []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	modelColors = []string{"red", "green", "blue"}
)

// TestModel_randomHistories repeats a failure with ANNEX_SEED, and runs more histories with ANNEX_RUNS.
func TestModel_randomHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("compares thousands of histories")
	}
	seed, runs := uint64(time.Now().UnixNano()), 40
	if text := os.Getenv("ANNEX_SEED"); text != "" {
		seed, runs = parse(t, text), 1
	}
	if text := os.Getenv("ANNEX_RUNS"); text != "" {
		runs = int(parse(t, text))
	}
	for i := range runs {
		seed := seed + uint64(i)
		if !t.Run(fmt.Sprintf("ANNEX_SEED=%d", seed), func(t *testing.T) { randomHistory(t, seed) }) {
			return
		}
	}
}

func parse(t *testing.T, text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func randomHistory(t *testing.T, seed uint64) {
	r := &run{t: t, random: rand.New(rand.NewPCG(seed, 0)), ledger: newLedger()}
	r.open()
	defer func() { _ = r.core.Close() }()
	for range 300 {
		switch n := r.random.IntN(100); {
		case n < 55:
			r.write()
		case n < 65:
			r.list(r.anyRevision())
		case n < 70:
			r.list(0)
		case n < 76:
			r.listInPages()
		case n < 84:
			r.watchFrom(r.anyRevision())
		case n < 88:
			r.watchInitial()
		case n < 92:
			r.get()
		case n < 97:
			r.compact()
		case n < 99:
			r.restart()
		default:
			r.kill()
		}
		if t.Failed() {
			return
		}
	}
}

// open opens the store, often with less memory than it would use.
func (r *run) open() {
	small := []int64{-1, 1, 600, 3000, 0}
	core, err := mvcc.Open(context.Background(), r.ledger, mvcc.Options{
		Clock:            newClock(),
		HotBytes:         small[r.random.IntN(len(small))],
		ValueBytes:       append(small, 20_000)[r.random.IntN(len(small)+1)],
		LargeValue:       []int64{0, -1, 100, 300}[r.random.IntN(4)],
		ObjectCacheBytes: 3 * small[r.random.IntN(len(small))],
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.core, r.pods = core, openPods(r.t, core)
	if r.random.IntN(2) == 0 {
		r.pods = openAs(r.t, core, indexedPods())
	}
	if got := core.Revision(); got != r.revision() {
		r.t.Fatalf("revision %d, want %d", got, r.revision())
	}
	if got := core.CompactedRevision(); got != r.compacted {
		r.t.Fatalf("compacted revision %d, want %d", got, r.compacted)
	}
}

func (r *run) restart() {
	if err := r.core.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.ledger = r.ledger.reopen()
	r.open()
}

// kill reopens the store during a write whose response is lost. The write is durable or lost.
func (r *run) kill() {
	a := r.attempt()
	for !a.possible || a.unchanged {
		a = r.attempt()
	}
	r.ledger.hold()
	answered := make(chan error, 1)
	go func() { answered <- a.write() }()
	revision := r.revision() + 1
	r.ledger.waitAppended(r.t, revision)
	found := r.ledger.reopen()
	if r.random.IntN(3) == 0 {
		delete(found.records, revision)
	} else {
		r.events = append(r.events, a.modelEvent)
	}
	r.ledger.sync(revision)
	if err := <-answered; err == nil {
		r.t.Fatalf("write %+v was answered, though it was not durable", a.modelEvent)
	}
	_ = r.core.Close() // the journal has failed
	r.ledger = found
	r.open()
}

// anyRevision returns a random revision that can be read.
func (r *run) anyRevision() uint64 {
	oldest := max(1, r.compacted)
	return oldest + r.random.Uint64N(r.revision()-oldest+1)
}

func (r *run) selector() labels.Selector {
	if r.random.IntN(3) == 0 {
		return labels.Everything()
	}
	return labels.SelectorFromSet(labels.Set{"color": modelColors[r.random.IntN(len(modelColors))]})
}

func predicate(selector labels.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: selector, GetAttrs: storage.DefaultNamespaceScopedAttr}
}

// attempt is a change that may be impossible, or change nothing.
type attempt struct {
	modelEvent
	write               func() error
	refused             func(error) bool
	possible, unchanged bool
}

// write makes a random change.
func (r *run) write() {
	a := r.attempt()
	if err := a.write(); err != nil || !a.unchanged {
		r.did(a.modelEvent, err, a.refused, a.possible)
	}
}

func (r *run) attempt() attempt {
	name := modelNames[r.random.IntN(len(modelNames))]
	e := modelEvent{
		name:  name,
		color: modelColors[r.random.IntN(len(modelColors))],
		note:  strings.Repeat("x", r.random.IntN(200)),
	}
	before := r.before(r.revision()+1, name)
	pods := r.pods
	switch r.random.IntN(4) {
	case 0:
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		e.apply(pod)
		return attempt{modelEvent: e, refused: storage.IsExist, possible: before == nil, write: func() error {
			return pods.Create(context.Background(), key(name), pod, nil, 0)
		}}
	case 1:
		e.deleted = true
		return attempt{modelEvent: e, refused: storage.IsNotFound, possible: before != nil, write: func() error {
			return pods.Delete(context.Background(), key(name), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		}}
	}
	unchanged := before != nil && *before == e
	return attempt{modelEvent: e, refused: storage.IsNotFound, possible: before != nil, unchanged: unchanged, write: func() error {
		return pods.GuaranteedUpdate(context.Background(), key(name), &example.Pod{}, false, nil,
			storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
				e.apply(object.(*example.Pod))
				return object, nil
			}), nil)
	}}
}

func (e modelEvent) apply(pod *example.Pod) {
	pod.Labels = labels.Set{"color": e.color}
	pod.Annotations = map[string]string{"note": e.note}
}

// did adds an event to the model if it must have happened.
func (r *run) did(e modelEvent, err error, refused func(error) bool, possible bool) {
	r.t.Helper()
	switch {
	case possible && err == nil:
		r.events = append(r.events, e)
	case possible || !refused(err):
		r.t.Fatalf("write %+v, possible: %v: %v", e, possible, err)
	}
	if got := r.core.Revision(); got != r.revision() {
		r.t.Fatalf("revision %d, want %d", got, r.revision())
	}
}

func (r *run) list(revision uint64) {
	r.t.Helper()
	selector := r.selector()
	list, err := listAt(r.pods, revision, predicate(selector))
	if err != nil {
		r.t.Fatalf("list at %d: %v", revision, err)
	}
	if revision == 0 {
		revision = r.revision()
	}
	r.check(fmt.Sprintf("list %s at %d", selector, revision), summaries(list.Items), r.state(revision, selector))
	if list.ResourceVersion != rv(revision) {
		r.t.Errorf("list at %d says %s", revision, list.ResourceVersion)
	}
}

// listInPages reads pages during writes. All pages are at one revision, unless that is compacted meanwhile.
func (r *run) listInPages() {
	selector, revision := r.selector(), r.revision()
	want := r.state(revision, selector)
	p := predicate(selector)
	p.Limit = 1 + r.random.Int64N(3)
	var got []string
	for {
		list, err := listAt(r.pods, 0, p)
		if r.compacted > revision && apierrors.IsResourceExpired(err) {
			return
		}
		if err != nil {
			r.t.Fatalf("page of list at %d: %v", revision, err)
		}
		got = append(got, summaries(list.Items)...)
		if left := list.RemainingItemCount; left != nil && int(*left) != len(want)-len(got) {
			r.t.Errorf("%d of %d objects read, but %d remain", len(got), len(want), *left)
		}
		if p.Continue = list.Continue; p.Continue == "" {
			break
		}
		if r.random.IntN(4) > 0 {
			r.write()
		} else {
			r.compact()
		}
	}
	r.check(fmt.Sprintf("paged list %s at %d", selector, revision), got, want)
}

func (r *run) watchFrom(revision uint64) {
	selector := r.selector()
	w := watchFrom(r.t, r.pods, revision, predicate(selector))
	defer w.Stop()
	r.checkWatch(fmt.Sprintf("watch %s from %d", selector, revision), w, r.watch(revision, selector), selector)
}

func (r *run) watchInitial() {
	selector := r.selector()
	w := watchWith(r.t, r.pods, storage.ListOptions{Predicate: predicate(selector)})
	defer w.Stop()
	var want []string
	for _, object := range r.state(r.revision(), selector) {
		want = append(want, "ADDED "+object)
	}
	r.checkWatch(fmt.Sprintf("watch %s", selector), w, want, selector)
}

// checkWatch checks the events that a watch delivers now and after one more write.
func (r *run) checkWatch(what string, w watch.Interface, want []string, selector labels.Selector) {
	r.t.Helper()
	before := r.revision()
	r.write()
	want = append(want, r.watch(before, selector)...)
	var got []string
	for range want {
		event := next(r.t, w)
		pod, ok := event.Object.(*example.Pod)
		if !ok {
			r.t.Fatalf("%s: got %s %v", what, event.Type, event.Object)
		}
		got = append(got, string(event.Type)+" "+summary(pod))
	}
	r.check(what, got, want)
	select {
	case event := <-w.ResultChan():
		r.t.Errorf("%s: got %s beyond %v", what, describe(event), want)
	default:
	}
}

func (r *run) get() {
	name := modelNames[r.random.IntN(len(modelNames))]
	var want []string
	for _, object := range r.state(r.revision(), labels.Everything()) {
		if strings.HasPrefix(object, name+"@") {
			want = []string{object}
		}
	}
	pod := &example.Pod{}
	err := r.pods.Get(context.Background(), key(name), storage.GetOptions{}, pod)
	switch {
	case err == nil:
		r.check("get "+name, []string{summary(pod)}, want)
	case want != nil || !storage.IsNotFound(err):
		r.t.Errorf("get %s: %v, want %v", name, err, want)
	}
}

// compact compacts up to a random revision and checks the boundary.
func (r *run) compact() {
	r.compacted = max(r.compacted, r.anyRevision())
	if err := r.core.Compact(context.Background(), r.compacted); err != nil {
		r.t.Fatal(err)
	}
	if r.compacted <= 2 {
		return
	}
	if _, err := listAt(r.pods, r.compacted-1, storage.Everything); !apierrors.IsResourceExpired(err) {
		r.t.Errorf("list before compacted revision %d: %v", r.compacted, err)
	}
	expect(r.t, watchFrom(r.t, r.pods, r.compacted-1, storage.Everything), "ERROR Expired")
	r.checkRecords()
}

// checkRecords checks that the journal holds exactly the needed records.
func (r *run) checkRecords() {
	var want []uint64
	objects := r.state(r.compacted, labels.Everything())
	for revision := uint64(2); revision <= r.revision(); revision++ {
		name := r.events[revision-2].name
		needed := func(object string) bool { return strings.HasPrefix(object, fmt.Sprintf("%s@%d ", name, revision)) }
		if revision > r.compacted || slices.ContainsFunc(objects, needed) {
			want = append(want, revision)
		}
	}
	if got := r.ledger.revisions(); !slices.Equal(got, want) {
		r.t.Errorf("compacted at %d, the journal holds %v, want %v", r.compacted, got, want)
	}
}

func (r *run) check(what string, got, want []string) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

func summaries(pods []example.Pod) []string {
	var all []string
	for i := range pods {
		all = append(all, summary(&pods[i]))
	}
	return all
}

func summary(pod *example.Pod) string {
	return fmt.Sprintf("%s@%s %s %s", pod.Name, pod.ResourceVersion, pod.Labels["color"], pod.Annotations["note"])
}

// A write whose response was lost in a kill may have happened. Then it has a revision, and a watch with a selector that
// resumes before this revision delivers the object there, and not only when it is selected again.
func TestSelectorWatch_resumedAfterKill(t *testing.T) {
	t.Parallel()
	r := &run{t: t, random: rand.New(rand.NewPCG(1, 0)), ledger: newLedger()}
	r.open()
	defer func() { _ = r.core.Close() }()
	paint := func(color string) error {
		return r.pods.GuaranteedUpdate(context.Background(), key("a"), &example.Pod{}, true, nil,
			storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
				pod := object.(*example.Pod)
				pod.Namespace, pod.Name = "ns", "a"
				(&modelEvent{color: color}).apply(pod)
				return pod, nil
			}), nil)
	}
	if err := paint("green"); err != nil { // revision 2
		t.Fatal(err)
	}
	r.ledger.hold()
	answered := make(chan error, 1)
	go func() { answered <- paint("red") }() // revision 3
	r.ledger.waitAppended(t, 3)
	found := r.ledger.reopen()
	r.ledger.sync(3)
	if err := <-answered; err == nil {
		t.Fatal("a write was answered that was not durable")
	}
	_ = r.core.Close() // the journal has failed
	r.events = []modelEvent{{name: "a", color: "green"}, {name: "a", color: "red"}}
	r.ledger = found
	r.open()
	for _, color := range []string{"blue", "red"} { // revisions 4 and 5
		if err := paint(color); err != nil {
			t.Fatal(err)
		}
	}
	red := labels.SelectorFromSet(labels.Set{"color": "red"})
	for after, want := range map[uint64][]string{
		2: {"ADDED a@3 red ", "DELETED a@4 red ", "ADDED a@5 red "},
		3: {"DELETED a@4 red ", "ADDED a@5 red "},
		4: {"ADDED a@5 red "},
	} {
		w := watchFrom(t, r.pods, after, predicate(red))
		for _, event := range want {
			got := next(t, w)
			pod, ok := got.Object.(*example.Pod)
			if !ok || string(got.Type)+" "+summary(pod) != event {
				t.Errorf("from %d: got %s, want %s", after, describe(got), event)
			}
		}
		w.Stop()
	}
}
