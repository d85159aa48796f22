package storetest

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
)

// broken is a store with one occasional fault.
type broken struct {
	storage.Interface
	count atomic.Int64
}

// now reports whether it is time for the fault.
func (b *broken) now() bool { return b.count.Add(1)%10 == 0 }

// staleReads answers gets with the previous state.
type staleReads struct {
	broken
	before [historyKeys]atomic.Pointer[example.Pod]
}

func (s *staleReads) Get(ctx context.Context, key string, opts storage.GetOptions, out apiruntime.Object) error {
	before := &s.before[key[len(key)-1]-'0']
	if old := before.Load(); old != nil && s.now() {
		*out.(*example.Pod) = *old.DeepCopy()
		return nil
	}
	err := s.Interface.Get(ctx, key, opts, out)
	if err == nil {
		before.Store(out.(*example.Pod).DeepCopy())
	}
	return err
}

// lostUpdates decides by one state of an object and overwrites a later one.
type lostUpdates struct{ broken }

func (s *lostUpdates) GuaranteedUpdate(
	ctx context.Context, key string, out apiruntime.Object, upsert bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, suggestion apiruntime.Object,
) error {
	current := &example.Pod{}
	if !s.now() || s.Get(ctx, key, storage.GetOptions{}, current) != nil {
		return s.Interface.GuaranteedUpdate(ctx, key, out, upsert, preconditions, update, suggestion)
	}
	next, _, err := update(current, storage.ResponseMeta{})
	if err != nil {
		return err
	}
	// Another client writes meanwhile.
	for range 5000 {
		now := &example.Pod{}
		if err := s.Get(ctx, key, storage.GetOptions{IgnoreNotFound: true}, now); err != nil || now.ResourceVersion != current.ResourceVersion {
			break
		}
		runtime.Gosched()
	}
	return s.Interface.GuaranteedUpdate(ctx, key, out, false, nil,
		storage.SimpleUpdate(func(latest apiruntime.Object) (apiruntime.Object, error) {
			pod := next.DeepCopyObject().(*example.Pod)
			pod.ResourceVersion = latest.(*example.Pod).ResourceVersion
			return pod, nil
		}), nil)
}

// tornLists reads a list's objects one after the other.
type tornLists struct{ broken }

func (s *tornLists) GetList(ctx context.Context, key string, opts storage.ListOptions, out apiruntime.Object) error {
	list := out.(*example.PodList)
	if err := s.Interface.GetList(ctx, key, opts, list); err != nil {
		return err
	}
	revision := list.ResourceVersion
	for i := range list.Items {
		for range 100 {
			_ = s.Get(ctx, "/pods/none/x", storage.GetOptions{IgnoreNotFound: true}, &example.Pod{})
		}
		pod := &list.Items[i]
		_ = s.Get(ctx, key+pod.Name, storage.GetOptions{}, pod)
	}
	list.ResourceVersion = revision
	return nil
}

// emptyDeletes acknowledges deletions that did not happen.
type emptyDeletes struct{ broken }

func (s *emptyDeletes) Delete(
	ctx context.Context, key string, out apiruntime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion apiruntime.Object, opts storage.DeleteOptions,
) error {
	if s.now() {
		return s.Get(ctx, key, storage.GetOptions{}, out)
	}
	return s.Interface.Delete(ctx, key, out, preconditions, validate, suggestion, opts)
}

// badWatches omits an event, or delivers it twice.
type badWatches struct {
	broken
	twice bool
}

func (s *badWatches) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := s.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		pod, ok := podOf(e)
		if !ok || pod.Name == lastPod || !s.now() {
			return e, true
		}
		if s.twice {
			e.Object = &example.Pod{ObjectMeta: pod.ObjectMeta}
			e.Object.(*example.Pod).ResourceVersion = "2"
		}
		return e, s.twice
	}), nil
}

// TestCheckHistory_brokenStores_areDetected runs the checker on faulty stores.
func TestCheckHistory_brokenStores_areDetected(t *testing.T) {
	start := StartAboveJournal(func(testing.TB, string) (journal.Journal, error) { return memory.New(), nil })
	for _, c := range []struct {
		name string
		make func(storage.Interface) storage.Interface
		want string
	}{
		{"a sound store", func(s storage.Interface) storage.Interface { return s }, ""},
		{"stale reads", func(s storage.Interface) storage.Interface { return &staleReads{broken: broken{Interface: s}} }, "no order"},
		{"lost updates", func(s storage.Interface) storage.Interface { return &lostUpdates{broken{Interface: s}} }, "no order"},
		{"torn lists", func(s storage.Interface) storage.Interface { return &tornLists{broken{Interface: s}} }, "the events make that"},
		{"deletions that did not happen", func(s storage.Interface) storage.Interface { return &emptyDeletes{broken{Interface: s}} }, "told"},
		{"watches that leave out events", func(s storage.Interface) storage.Interface { return &badWatches{broken{Interface: s}, false} },
			"event"},
		{"watches that go back", func(s storage.Interface) storage.Interface { return &badWatches{broken{Interface: s}, true} }, "event"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pods, stop := start(t)
			defer stop()
			var err error
			for n := 0; n < 50 && err == nil; n++ {
				h := &recorder{namespace: "ns" + strings.Repeat("x", n)}
				if err := h.begin(pods); err != nil {
					t.Fatal(err)
				}
				part := &clients{recorder: h, pods: c.make(pods), seed: rand.Uint64()}
				if err := part.finish(); err != nil {
					t.Fatal(err)
				}
				err = checkHistory(h.entries, false)
			}
			switch {
			case c.want == "" && err != nil:
				t.Errorf("a violation: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// TestCheckHistory checks hand-written histories.
func TestCheckHistory(t *testing.T) {
	call := func(client int, op operation) entry { return entry{Client: client, Call: &op} }
	told := func(client int, was outcome) entry { return entry{Client: client, Return: &was} }
	saw := func(e change) entry { return entry{Event: &e} }
	create := func(client int, content string) entry {
		return call(client, operation{Kind: "create", Content: content})
	}
	get := func(client int) entry { return call(client, operation{Kind: "get"}) }
	for _, c := range []struct {
		name    string
		history []entry
		want    string
	}{
		{"a write and a read", []entry{
			create(0, "a"), told(0, outcome{Revision: 5}), saw(change{5, 0, "a", false}),
			get(1), told(1, outcome{Revision: 5, Saw: "a"}),
		}, ""},
		{"a read beside the write may see it or not", []entry{
			create(0, "a"), get(1), get(2), told(2, outcome{Error: "notFound"}), told(1, outcome{Revision: 5, Saw: "a"}),
			told(0, outcome{Revision: 5}), saw(change{5, 0, "a", false}),
		}, ""},
		{"a read after a read that saw the write does not", []entry{
			create(0, "a"), get(1), told(1, outcome{Revision: 5, Saw: "a"}), get(2), told(2, outcome{Error: "notFound"}),
			told(0, outcome{Revision: 5}), saw(change{5, 0, "a", false}),
		}, "no order"},
		{"a write that was cut off happened later", []entry{
			create(0, "a"), get(1), told(1, outcome{Error: "notFound"}), saw(change{5, 0, "a", false}),
			get(2), told(2, outcome{Revision: 5, Saw: "a"}),
		}, ""},
		{"a write that was cut off never happened", []entry{
			create(0, "a"), create(1, "b"), told(1, outcome{Revision: 5}), saw(change{5, 0, "b", false}),
		}, ""},
		{"a write of unknown outcome is seen and then is not", []entry{
			create(0, "a"), told(0, outcome{Error: "unknown"}), get(1), told(1, outcome{Revision: 5, Saw: "a"}),
			get(2), told(2, outcome{Error: "notFound"}), saw(change{5, 0, "a", false}),
		}, "no order"},
		{"an acknowledged write is lost", []entry{
			create(0, "a"), told(0, outcome{Revision: 5}), create(1, "b"), told(1, outcome{Revision: 6}), saw(change{6, 0, "b", false}),
		}, "revision 5"},
		{"a revision is used twice", []entry{
			create(0, "a"), told(0, outcome{Revision: 5}), create(1, "b"), told(1, outcome{Revision: 5}), saw(change{5, 0, "b", false}),
		}, "revision 5"},
		{"a refused write happens all the same", []entry{
			create(0, "a"), told(0, outcome{Error: "refused"}), saw(change{5, 0, "a", false}),
		}, "no operation did"},
		{"revisions against the order of things", []entry{
			create(0, "a"), told(0, outcome{Revision: 6}),
			call(1, operation{Kind: "create", Key: 1, Content: "b"}), told(1, outcome{Revision: 5}),
			saw(change{5, 1, "b", false}), saw(change{6, 0, "a", false}),
		}, "no order"},
		{"a list that is older than its revision", []entry{
			create(0, "a"), told(0, outcome{Revision: 5}), saw(change{5, 0, "a", false}),
			call(1, operation{Kind: "list"}), told(1, outcome{Revision: 5}),
		}, "the events make that"},
		{"a list at an older revision", []entry{
			create(0, "a"), told(0, outcome{Revision: 5}), saw(change{5, 0, "a", false}),
			call(1, operation{Kind: "list"}), told(1, outcome{Revision: 4}),
		}, "no order"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := checkHistory(c.history, false)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
