package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/journal"
)

// background starts a write and returns the channel of its error.
func background(write func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- write() }()
	return done
}

func createInBackground(pods storage.Interface, name string) <-chan error {
	return background(func() error {
		return pods.Create(context.Background(), key(name), samplePod(name), &example.Pod{}, 0)
	})
}

func annotateInBackground(pods storage.Interface, name, note string) <-chan error {
	return background(func() error {
		_, err := tryAnnotate(context.Background(), pods, name, note)
		return err
	})
}

func TestPublish_notDurable_isInvisible(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{})
	create(t, pods, "a") // revision 2
	w := watchFrom(t, pods, 2, storage.Everything)
	j.hold()
	created := createInBackground(pods, "b")
	j.waitAppended(t, 3)
	updated := annotateInBackground(pods, "a", "changed")
	j.waitAppended(t, 4)

	if core.Revision() != 2 {
		t.Errorf("revision %d while nothing since 2 is durable", core.Revision())
	}
	if err := pods.Get(t.Context(), key("b"), storage.GetOptions{}, &example.Pod{}); !storage.IsNotFound(err) {
		t.Errorf("get of an object that is not durable: %v", err)
	}
	if pod := get(t, pods, "a"); pod.Annotations["note"] == "changed" {
		t.Error("get shows a change that is not durable")
	}
	if list, err := listAt(pods, 0, storage.Everything); err != nil || len(list.Items) != 1 || list.ResourceVersion != "2" {
		t.Errorf("list shows %d objects at %s: %v", len(list.Items), list.ResourceVersion, err)
	}
	if _, err := listAt(pods, 3, storage.Everything); !storage.IsTooLargeResourceVersion(err) {
		t.Errorf("list at an unpublished revision: %v", err)
	}
	select {
	case event := <-w.ResultChan():
		t.Errorf("watch shows %s", describe(event))
	case err := <-created:
		t.Errorf("create has returned: %v", err)
	case err := <-updated:
		t.Errorf("update has returned: %v", err)
	default:
	}

	j.sync(0)
	if err := errors.Join(<-created, <-updated); err != nil {
		t.Fatal(err)
	}
	expect(t, w, "ADDED b@3", "MODIFIED a@4")
}

func TestGuaranteedUpdate_unpublishedWrite_isAwaited(t *testing.T) {
	j := newLedger()
	_, pods := open(t, j, mvcc.Options{})
	create(t, pods, "a")
	j.hold()
	first := annotateInBackground(pods, "a", "first")
	j.waitAppended(t, 3)
	seen := make(chan string, 10)
	second := background(func() error {
		return pods.GuaranteedUpdate(context.Background(), key("a"), &example.Pod{}, false, nil,
			storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
				pod := object.(*example.Pod)
				seen <- pod.Annotations["note"]
				pod.Annotations["note"] = "second"
				return pod, nil
			}), nil)
	})
	if note := <-seen; note == "first" {
		t.Error("the update saw a change that is not durable")
	}
	j.sync(0)
	j.waitAppended(t, 4)
	if note := <-seen; note != "first" {
		t.Errorf("the update decided on %q", note)
	}
	j.sync(0)
	if err := errors.Join(<-first, <-second); err != nil {
		t.Fatal(err)
	}
	if note := get(t, pods, "a").Annotations["note"]; note != "second" {
		t.Errorf("the object says %q", note)
	}
}

// TestWrite_journalFails fails the append or the sync of one of several revisions.
func TestWrite_journalFails(t *testing.T) {
	tests := []struct {
		name    string
		arrange func(j *ledger)
		syncs   uint64 // the first revision whose sync fails, 0 for none
		acked   int    // acknowledged creates of revisions 3, 4 and 5
	}{
		{"the first append fails", func(j *ledger) { j.failAppend = 3 }, 0, 0},
		{"a later append fails", func(j *ledger) { j.failAppend = 5 }, 0, 2},
		{"the first sync fails", func(*ledger) {}, 3, 0},
		{"a sync fails in the middle", func(*ledger) {}, 4, 1},
		{"the last sync fails", func(*ledger) {}, 5, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			j := newLedger()
			core, pods := open(t, j, mvcc.Options{})
			create(t, pods, "old")
			w := watchFrom(t, pods, 2, storage.Everything)
			test.arrange(j)
			j.hold()
			var writes []<-chan error
			for revision := uint64(3); revision <= 5; revision++ {
				write := createInBackground(pods, fmt.Sprint("new-", revision))
				if revision == j.failAppend {
					checkUnknown(t, <-write)
					break
				}
				j.waitAppended(t, revision)
				writes = append(writes, write)
			}
			// A writer that waits for a write of unknown outcome must not learn the outcome.
			behind := createInBackground(pods, "new-5")
			j.sync(test.syncs)

			for i, write := range writes {
				switch err := <-write; {
				case i >= test.acked:
					checkUnknown(t, err)
				case err != nil:
					t.Errorf("create at revision %d: %v", i+3, err)
				}
			}
			checkStatus(t, <-behind, http.StatusServiceUnavailable, errDisk.Error())
			checkReadOnly(t, core, pods)

			var want, names []string
			for i := range test.acked {
				want = append(want, fmt.Sprintf("ADDED new-%d@%d", i+3, i+3))
				names = append(names, fmt.Sprint("new-", i+3))
			}
			expect(t, w, want...)
			if got := core.Revision(); got != uint64(2+test.acked) {
				t.Errorf("revision %d, want %d", got, 2+test.acked)
			}
			list, err := listAt(pods, 0, storage.Everything)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, pod := range list.Items {
				got = append(got, pod.Name)
			}
			if want := append(names, "old"); !slices.Equal(got, want) {
				t.Errorf("list shows %v, want %v", got, want)
			}
			select {
			case event, open := <-w.ResultChan():
				t.Errorf("watch delivers %s, open: %v", describe(event), open)
			default:
			}
		})
	}
}

func checkUnknown(t *testing.T, err error) {
	t.Helper()
	checkStatus(t, err, http.StatusInternalServerError, "unknown")
	if err != nil && !strings.Contains(err.Error(), errDisk.Error()) {
		t.Errorf("the error does not say why: %v", err)
	}
}

func checkStatus(t *testing.T, err error, code int32, text string) {
	t.Helper()
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		t.Errorf("got %T %v, want a status", err, err)
		return
	}
	if got := status.Status(); got.Code != code || !strings.Contains(got.Message, text) {
		t.Errorf("got status %d %q, want %d with %q", got.Code, got.Message, code, text)
	}
}

func checkReadOnly(t *testing.T, core *mvcc.Core, pods storage.Interface) {
	t.Helper()
	if err := core.Health(); !errors.Is(err, errDisk) {
		t.Errorf("health: %v", err)
	}
	if err := pods.ReadinessCheck(); !errors.Is(err, errDisk) {
		t.Errorf("readiness: %v", err)
	}
	_, err := tryAnnotate(context.Background(), pods, "old", "changed")
	checkStatus(t, err, http.StatusServiceUnavailable, errDisk.Error())
	err = pods.Delete(context.Background(), key("old"), &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	checkStatus(t, err, http.StatusServiceUnavailable, errDisk.Error())
	if pod := get(t, pods, "old"); pod.ResourceVersion != "2" {
		t.Errorf("reads show %s", pod.ResourceVersion)
	}
	w := watchWith(t, pods, storage.ListOptions{Predicate: storage.Everything})
	if event := next(t, w); event.Type != watch.Added {
		t.Errorf("a new watch starts with %s", describe(event))
	}
}

func TestHealth_journalError_isReadOnly(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{})
	create(t, pods, "old")
	j.mu.Lock()
	j.err = errDisk
	j.mu.Unlock()
	checkReadOnly(t, core, pods)
}

func TestWrite_contextEnds(t *testing.T) {
	j := newLedger()
	_, pods := open(t, j, mvcc.Options{})
	create(t, pods, "a")
	j.hold()
	first := annotateInBackground(pods, "a", "first")
	j.waitAppended(t, 3)
	ctx, cancel := context.WithCancel(t.Context())
	second := background(func() error {
		_, err := tryAnnotate(ctx, pods, "a", "second")
		return err
	})
	cancel()
	checkStatus(t, <-second, http.StatusGatewayTimeout, "nothing was written")
	j.sync(0)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if note := get(t, pods, "a").Annotations["note"]; note != "first" {
		t.Errorf("the object says %q", note)
	}
}

func TestClose_pendingWritesAndWatches(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{})
	w := watchFrom(t, pods, 1, storage.Everything)
	j.hold()
	created := createInBackground(pods, "a")
	j.waitAppended(t, 2)
	closed := background(core.Close)
	expectEnd(t, w)
	select {
	case err := <-closed:
		t.Errorf("Close has returned while a write is under way: %v", err)
	default:
	}
	j.sync(0)
	if err := errors.Join(<-created, <-closed); err != nil {
		t.Error(err)
	}
	err := pods.Create(context.Background(), key("b"), samplePod("b"), &example.Pod{}, 0)
	checkStatus(t, err, http.StatusServiceUnavailable, journal.ErrClosed.Error())
	_, err = pods.Watch(context.Background(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything})
	checkStatus(t, err, http.StatusServiceUnavailable, "closed")
	if err := core.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}

// TestWatch_manyWriters checks that every watcher, whenever it started, receives every write once, in order, and as it
// was written.
func TestWatch_manyWriters(t *testing.T) {
	const writers, writes, names = 8, 150, 5
	core, pods := open(t, newLedger(), mvcc.Options{HotBytes: 2000, ObjectCacheBytes: 20_000})
	var mu sync.Mutex
	written := map[string]string{} // by revision
	wrote := func(kind watch.EventType, pod *example.Pod, err error) {
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		event := describe(watch.Event{Type: kind, Object: pod}) + " " + pod.Annotations["note"]
		if other, ok := written[pod.ResourceVersion]; ok {
			t.Errorf("%s and %s have the same revision", event, other)
		}
		written[pod.ResourceVersion] = event
	}

	var writing, watching sync.WaitGroup
	streams := make([][]string, 2*writers)
	for i := range writers {
		writing.Go(func() {
			for n := range writes + 1 {
				name := fmt.Sprint("pod-", (i+n)%names)
				pod := samplePod(name)
				out := &example.Pod{}
				switch n % 3 {
				case 0:
					wrote(watch.Added, out, pods.Create(context.Background(), key(name), pod, out, 0))
				case 1:
					out, err := tryAnnotate(context.Background(), pods, name, fmt.Sprintf("%d by %d", n, i))
					wrote(watch.Modified, out, err)
				case 2:
					err := pods.Delete(context.Background(), key(name), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
					wrote(watch.Deleted, out, err)
				}
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	for i := range streams {
		watching.Go(func() {
			w, err := pods.Watch(ctx, "/pods/", storage.ListOptions{ResourceVersion: "1", Recursive: true, Predicate: storage.Everything})
			if err != nil {
				t.Error(err)
				return
			}
			for event := range w.ResultChan() {
				pod := event.Object.(interface{ GetObject() runtime.Object }).GetObject().(*example.Pod)
				if pod.Name == "last" {
					return
				}
				streams[i] = append(streams[i], describe(watch.Event{Type: event.Type, Object: pod})+" "+pod.Annotations["note"])
			}
		})
	}
	writing.Wait()
	create(t, pods, "last")
	watching.Wait()
	cancel()

	var want []string
	for revision := uint64(2); revision < core.Revision(); revision++ {
		event, ok := written[rv(revision)]
		if !ok {
			t.Fatalf("revision %d was published, and no client wrote it", revision)
		}
		want = append(want, event)
	}
	for i, got := range streams {
		if !slices.Equal(got, want) {
			t.Errorf("watcher %d saw %d events, not the %d written, or in another order", i, len(got), len(want))
		}
	}
}

// TestGetList_exact_duringCompaction lists at recent revisions during writes and a compaction. Each list is complete or
// has expired.
func TestGetList_exact_duringCompaction(t *testing.T) {
	const writers, writes, names = 4, 300, 10
	core, pods := open(t, newLedger(), mvcc.Options{HotBytes: 5000, ObjectCacheBytes: 30_000})
	var mu sync.Mutex
	written := map[uint64]modelEvent{}
	wrote := func(pod *example.Pod, deleted bool, err error) {
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		written[revisionOf(t, pod)] = modelEvent{name: pod.Name, deleted: deleted, color: pod.Labels["app"], note: pod.Annotations["note"]}
	}
	var writing, reading sync.WaitGroup
	for i := range writers {
		writing.Go(func() {
			for n := range writes {
				name, out := fmt.Sprint("pod-", (7*i+n)%names), &example.Pod{}
				switch n % 5 {
				case 0:
					pod := samplePod(name)
					wrote(out, false, pods.Create(context.Background(), key(name), pod, out, 0))
				case 1:
					err := pods.Delete(context.Background(), key(name), out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
					wrote(out, true, err)
				default:
					out, err := tryAnnotate(context.Background(), pods, name, fmt.Sprintf("%d by %d", n, i))
					wrote(out, false, err)
				}
			}
		})
	}
	done := make(chan struct{})
	reading.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if revision := core.Revision(); revision > 100 {
					if err := core.Compact(context.Background(), revision-100); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
	lists := make([]map[uint64][]string, 2)
	expired := make([]int, len(lists))
	for i := range lists {
		lists[i] = map[uint64][]string{}
		reading.Go(func() {
			for n := uint64(0); ; n++ {
				select {
				case <-done:
					return
				default:
				}
				revision := core.Revision()
				revision -= min(revision-1, n*37%120)
				list, err := listAt(pods, revision, storage.Everything)
				switch {
				case err == nil:
					lists[i][revision] = summaries(list.Items)
				case apierrors.IsResourceExpired(err):
					expired[i]++
				default:
					t.Errorf("list at %d: %v", revision, err)
				}
			}
		})
	}
	writing.Wait()
	close(done)
	reading.Wait()

	m := &model{}
	for revision := uint64(2); revision <= core.Revision(); revision++ {
		m.events = append(m.events, written[revision])
	}
	checked := 0
	for _, lists := range lists {
		for revision, got := range lists {
			checked++
			var want []string
			for _, object := range m.state(revision, labels.Everything()) {
				// The model's color is the label app here, which summary does not print.
				want = append(want, strings.Replace(object, " web ", "  ", 1))
			}
			if !slices.Equal(got, want) {
				t.Fatalf("list at %d:\n got %q\nwant %q", revision, got, want)
			}
		}
	}
	t.Logf("%d lists were checked, %v had expired", checked, expired)
}

// hungJournal blocks in Append until it is released.
type hungJournal struct {
	*ledger
	hangs  chan struct{}
	answer chan struct{}
}

func (j *hungJournal) Append(r journal.Record) (func() error, error) {
	close(j.hangs)
	<-j.answer
	return j.ledger.Append(r)
}

func TestHealth_writeHangs(t *testing.T) {
	j := &hungJournal{newLedger(), make(chan struct{}), make(chan struct{})}
	core, pods := open(t, j, mvcc.Options{})
	written := make(chan error, 1)
	go func() { written <- pods.Create(context.Background(), key("a"), samplePod("a"), nil, 0) }()
	<-j.hangs
	told := make(chan error, 1)
	go func() {
		core.Stats()
		told <- core.Health()
	}()
	select {
	case err := <-told:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("no answer within 20 s")
	}
	close(j.answer)
	if err := <-written; err != nil {
		t.Error(err)
	}
}
