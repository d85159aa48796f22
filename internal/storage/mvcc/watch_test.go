package mvcc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

func withBookmarks(p storage.SelectionPredicate) storage.SelectionPredicate {
	p.AllowWatchBookmarks = true
	return p
}

func TestBookmark_followsWholeStore(t *testing.T) {
	clock := newClock()
	core, pods := open(t, memory.New(), mvcc.Options{Clock: clock})
	others, err := core.Open(storetest.Pods("/others"))
	if err != nil {
		t.Fatal(err)
	}
	create(t, pods, "a")
	w := watchFrom(t, pods, 2, withBookmarks(storage.Everything))
	plain := watchFrom(t, pods, 2, storage.Everything)
	for i := range 3 {
		if err := others.Create(t.Context(), fmt.Sprint("/others/", i), &example.Pod{}, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	clock.Step(time.Minute)
	expect(t, w, "BOOKMARK @5")
	create(t, pods, "b")
	expect(t, w, "ADDED b@6")
	clock.Step(59 * time.Second)
	annotate(t, pods, "b", "no bookmark in between")
	expect(t, w, "MODIFIED b@7")
	clock.Step(time.Second)
	expect(t, w, "BOOKMARK @7")
	expect(t, plain, "ADDED b@6", "MODIFIED b@7")
}

// A client has such a revision from before an older copy of the journal was restored.
func TestWatch_revisionAhead_hasExpired(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	now, future := watchFrom(t, pods, 2, storage.Everything), watchFrom(t, pods, 3, storage.Everything)
	create(t, pods, "b")
	create(t, pods, "c")
	expect(t, now, "ADDED b@3", "ADDED c@4")
	event := next(t, future)
	err := apierrors.FromObject(event.Object)
	want := "Too large resource version: 3, current: 2: the version belongs to another store, or to this store before an older copy was " +
		"restored; list again"
	if !apierrors.IsResourceExpired(err) || err.Error() != want {
		t.Errorf("a watch from the future: %v, want %s", event, want)
	}
	if _, err := listAt(pods, 100, storage.Everything); !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("a list from the future: %v", err)
	}
}

func TestRequestWatchProgress_oneResource(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	others, err := core.Open(storetest.Pods("/others"))
	if err != nil {
		t.Fatal(err)
	}
	asking := storage.ListOptions{ResourceVersion: "1", Recursive: true, ProgressNotify: true, Predicate: storage.Everything}
	w := watchWith(t, pods, asking)
	other, err := others.Watch(t.Context(), "/others/", asking)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Stop()
	if err := others.RequestWatchProgress(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, other, "BOOKMARK @1")
	create(t, pods, "a")
	expect(t, w, "ADDED a@2")
	if err := pods.RequestWatchProgress(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, w, "BOOKMARK @2")
	if watches := core.Stats().Watches; watches != 2 {
		t.Errorf("%d watches are counted, want 2", watches)
	}
}

func TestBookmark_beforeDeadline(t *testing.T) {
	clock := newClock()
	_, pods := open(t, memory.New(), mvcc.Options{Clock: clock})
	create(t, pods, "a")
	// The context's own timer must not fire; only its deadline counts.
	ctx := deadline{t.Context(), clock.Now().Add(30 * time.Second)}
	w, err := pods.Watch(ctx, "/pods/", storage.ListOptions{
		ResourceVersion: "2", Recursive: true, Predicate: withBookmarks(storage.Everything),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	clock.Step(27 * time.Second)
	annotate(t, pods, "a", "no bookmark yet")
	expect(t, w, "MODIFIED a@3")
	clock.Step(time.Second)
	expect(t, w, "BOOKMARK @3")
}

// deadline is a context with a deadline that never ends by itself.
type deadline struct {
	context.Context
	at time.Time
}

func (d deadline) Deadline() (time.Time, bool) { return d.at, true }

func TestRequestWatchProgress_sendsBookmark(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{Clock: newClock()})
	create(t, pods, "a")
	w := watchWith(t, pods, storage.ListOptions{ResourceVersion: "1", Predicate: storage.Everything, ProgressNotify: true})
	plain := watchFrom(t, pods, 1, withBookmarks(storage.Everything))
	expect(t, w, "ADDED a@2")
	if err := pods.RequestWatchProgress(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, w, "BOOKMARK @2")
	create(t, pods, "b")
	expect(t, plain, "ADDED a@2", "ADDED b@3")
}

func TestWatch_initialEvents(t *testing.T) {
	tests := []struct {
		name    string
		objects []string
		opts    storage.ListOptions
		want    []string
	}{
		{
			name: "an empty list has an end too",
			opts: storage.ListOptions{SendInitialEvents: ptr.To(true), Predicate: withBookmarks(storage.Everything)},
			want: []string{"BOOKMARK @1 end of initial events", "ADDED last@2"},
		},
		{
			name:    "objects come by key, then their end",
			objects: []string{"b", "a"},
			opts:    storage.ListOptions{SendInitialEvents: ptr.To(true), Predicate: withBookmarks(storage.Everything)},
			want:    []string{"ADDED a@3", "ADDED b@2", "BOOKMARK @3 end of initial events", "ADDED last@4"},
		},
		{
			name:    "without bookmarks there is no end",
			objects: []string{"a"},
			opts:    storage.ListOptions{SendInitialEvents: ptr.To(true), Predicate: storage.Everything},
			want:    []string{"ADDED a@2", "ADDED last@3"},
		},
		{
			name:    "at a revision they are as new or newer",
			objects: []string{"a", "b"},
			opts:    storage.ListOptions{ResourceVersion: "2", SendInitialEvents: ptr.To(true), Predicate: withBookmarks(storage.Everything)},
			want:    []string{"ADDED a@2", "ADDED b@3", "BOOKMARK @3 end of initial events", "ADDED last@4"},
		},
		{
			name:    "none are wanted",
			objects: []string{"a"},
			opts:    storage.ListOptions{SendInitialEvents: ptr.To(false), Predicate: withBookmarks(storage.Everything)},
			want:    []string{"ADDED last@3"},
		},
		{
			name:    "a revision to come is refused",
			objects: []string{"a"},
			opts:    storage.ListOptions{ResourceVersion: "3", SendInitialEvents: ptr.To(true), Predicate: storage.Everything},
			want:    []string{"ERROR Timeout"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, pods := open(t, memory.New(), mvcc.Options{Clock: newClock()})
			for _, name := range test.objects {
				create(t, pods, name)
			}
			w := watchWith(t, pods, test.opts)
			create(t, pods, "last")
			expect(t, w, test.want...)
		})
	}
}

func TestBookmark_laggingWatch(t *testing.T) {
	clock := newClock()
	_, pods := open(t, memory.New(), mvcc.Options{Clock: clock})
	w := watchFrom(t, pods, 1, withBookmarks(storage.Everything))
	create(t, pods, "a")
	const events = 1000 // several times watchBatch
	for i := range events - 1 {
		annotate(t, pods, "a", fmt.Sprint(i))
	}
	clock.Step(time.Minute)
	bookmarks := 0
	for last := uint64(1); last <= events || bookmarks == 0; {
		event := next(t, w)
		revision := revisionOf(t, event.Object)
		if event.Type == watch.Bookmark {
			bookmarks++
			if revision != last {
				t.Errorf("a bookmark at %d comes after revision %d", revision, last)
			}
			continue
		}
		if revision != last+1 {
			t.Fatalf("revision %d comes after %d", revision, last)
		}
		last = revision
	}
}

func TestWatch_slowClient_expires(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	slow := watchFrom(t, pods, 1, storage.Everything)
	create(t, pods, "a")
	expect(t, slow, "ADDED a@2")
	// More than the watcher buffers and takes at once, so that it blocks in between.
	for i := range 500 {
		annotate(t, pods, "a", fmt.Sprint(i))
	}
	if err := core.Compact(t.Context(), core.Revision()); err != nil {
		t.Fatal(err)
	}
	for revision := uint64(2); ; revision++ {
		event := next(t, slow)
		if event.Type == watch.Error {
			if got := describe(event); got != "ERROR Expired" {
				t.Errorf("got %s", got)
			}
			break
		}
		if got := revisionOf(t, event.Object); got != revision+1 {
			t.Fatalf("revision %d comes after %d", got, revision)
		}
	}
	expectEnd(t, slow)
}

// countingEncoder counts the actual encodings of an object.
type countingEncoder struct {
	runtime.Encoder
	id    runtime.Identifier
	count *atomic.Int64
}

func (e countingEncoder) Encode(object runtime.Object, w io.Writer) error {
	if cacheable, ok := object.(runtime.CacheableObject); ok {
		return cacheable.CacheEncode(e.id, e.encode, w)
	}
	return e.encode(object, w)
}

func (e countingEncoder) encode(object runtime.Object, w io.Writer) error {
	e.count.Add(1)
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Kind: string(e.id)}) // as encoders do
	return e.Encoder.Encode(object, w)
}

func TestCacheEncode_oncePerEncoding(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	annotate(t, pods, "a", "changed")
	remove(t, pods, "a")
	var count atomic.Int64
	outputs := map[string]int{}
	for range 10 {
		w := watchFrom(t, pods, 1, storage.Everything)
		for range 3 {
			event := <-w.ResultChan()
			for _, id := range []runtime.Identifier{"x", "y"} {
				var out bytes.Buffer
				if err := (countingEncoder{storetest.PodCodec(), id, &count}).Encode(event.Object, &out); err != nil {
					t.Fatal(err)
				}
				outputs[string(event.Type)+out.String()]++
			}
		}
	}
	if got := count.Load(); got != 6 {
		t.Errorf("encoded %d times, want once for each of 3 events and 2 encodings", got)
	}
	if list, err := listAt(pods, 2, storage.Everything); err != nil || list.Items[0].Kind != "" {
		t.Errorf("encoding has left its mark on the stored object: %v, %v", list.Items, err)
	}
	for output, n := range outputs {
		if n != 20 { // both encodings have the same output
			t.Errorf("%d times %s", n, output)
		}
	}
}

func TestCacheEncode_differentPredicates(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	all, some := watchFrom(t, pods, 1, storage.Everything), watchFrom(t, pods, 1, selecting(t, "tier=front"))
	if a, b := <-all.ResultChan(), <-some.ResultChan(); a.Object != b.Object {
		t.Error("two watchers got different objects for one event")
	}
}

func TestWatch_selectorTransitions(t *testing.T) {
	_, pods := open(t, memory.New(), mvcc.Options{HotBytes: -1}) // the replaced objects come from the journal
	w := watchFrom(t, pods, 1, selecting(t, "step in (2,3)"))
	create(t, pods, "a")
	for step := range 5 {
		err := pods.GuaranteedUpdate(t.Context(), key("a"), &example.Pod{}, false, nil,
			storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
				object.(*example.Pod).Labels["step"] = fmt.Sprint(step + 1)
				return object, nil
			}), nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []struct{ event, step string }{{"ADDED a@4", "2"}, {"MODIFIED a@5", "3"}, {"DELETED a@6", "3"}}
	for _, want := range want {
		event := next(t, w)
		if got := describe(event); got != want.event || event.Object.(*example.Pod).Labels["step"] != want.step {
			t.Errorf("got %s %v, want %s with step %s", got, event.Object.(*example.Pod).Labels, want.event, want.step)
		}
	}
}
