package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/journal"
)

// Disk is a disk that a test can let fail, with a journal on it. Its functions may be called at any time, by one
// goroutine.
type Disk struct {
	// Open opens the journal, which is not open.
	Open func() (journal.Journal, error)
	// Fail lets changes fail with a transient error from the n-th on, until Heal.
	Fail func(n int)
	Heal func()
}

const (
	recoveryWriters  = 8
	recoveryWatchers = 3
	recoveryHistory  = 5000
)

// RunRecovery lets the disk of a journal fail at random moments under writers and watchers, ANNEX_RECOVERIES times,
// and heals it. The store must continue without being opened again: no acknowledged write is lost, no rejected write
// is seen, and every watch continues with the next revision.
func RunRecovery(t *testing.T, disk Disk, faults *Faults) {
	r := &recoveries{
		faults:  faults,
		clock:   clocktesting.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
		acked:   map[uint64]fact{},
		refused: map[string]bool{},
		events:  make([]map[uint64]fact, recoveryWatchers),
		reached: make([]uint64, recoveryWatchers),
	}
	r.changed.L = &r.mu
	rng := Seeded(t)
	r.start(t, disk)
	for range Trials(t, "ANNEX_RECOVERIES", 20) {
		r.trial(t, disk, rng)
		if t.Failed() {
			break
		}
	}
	r.stop()
	r.verify(t, disk)
	t.Logf("%d recoveries, %d revisions, %d acknowledged writes, %d refused, %d of unknown outcome",
		r.core.Stats().Recoveries, r.core.Revision(), len(r.acked), len(r.refused), r.unknown)
}

// recoveries is a store whose disk fails, with all responses and events that clients received.
type recoveries struct {
	faults *Faults
	clock  *clocktesting.FakeClock
	core   *mvcc.Core
	pods   storage.Interface
	stop   func()

	mu      sync.Mutex
	changed sync.Cond
	trials  int
	stopped bool
	acked   map[uint64]fact
	refused map[string]bool // contents that were not written
	unknown int
	events  []map[uint64]fact // by watcher
	reached []uint64
}

func (r *recoveries) start(t *testing.T, disk Disk) {
	t.Helper()
	j, err := disk.Open()
	if err != nil {
		t.Fatal(err)
	}
	r.core, err = mvcc.Open(t.Context(), j, mvcc.Options{
		Clock: r.clock,
		// Older values are read from the journal.
		HotBytes: 100 << 10,
		History:  mvcc.History{MinAge: -1, MinRevisions: recoveryHistory},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.pods, err = r.core.Open(Pods("/pods")); err != nil {
		t.Fatal(err)
	}
	var writing, watching sync.WaitGroup
	for i := range recoveryWatchers {
		w, err := r.pods.Watch(context.Background(), "/pods/", storage.ListOptions{
			ResourceVersion: "1", Recursive: true, Predicate: storage.Everything,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.events[i] = map[uint64]fact{}
		r.reached[i] = 1
		watching.Go(func() { r.follow(t, i, w) })
	}
	for i := range recoveryWriters {
		rng := rand.New(rand.NewPCG(uint64(i), 0))
		writing.Go(func() { r.write(t, i, rng) })
	}
	r.stop = sync.OnceFunc(func() {
		r.mu.Lock()
		r.stopped = true
		r.mu.Unlock()
		r.changed.Broadcast()
		disk.Heal()
		writing.Wait()
		if !t.Failed() {
			r.await(t, "a watch does not see the end", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return !slices.ContainsFunc(r.reached, func(revision uint64) bool { return revision < r.core.Revision() })
			})
		}
		if err := r.core.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		watching.Wait()
	})
	t.Cleanup(func() { r.stop() })
}

// trial lets the disk fail once, or again while the store recovers.
func (r *recoveries) trial(t *testing.T, disk Disk, rng *rand.Rand) {
	t.Helper()
	r.faults.Injected()
	disk.Fail(rng.IntN(300))
	r.await(t, "the failure is noticed", func() bool { return r.core.Health() != nil })
	r.readOn(t)
	if rng.IntN(2) == 0 {
		for range rng.IntN(4) {
			disk.Heal()
			disk.Fail(rng.IntN(100))
			for range rng.IntN(200) {
				r.clock.Step(time.Second)
				runtime.Gosched()
			}
		}
		r.readOn(t)
	}
	disk.Heal()
	r.await(t, "the store recovers", func() bool {
		r.clock.Step(time.Second)
		return r.core.Health() == nil
	})
	r.mu.Lock()
	r.trials++
	r.mu.Unlock()
	r.changed.Broadcast()
	r.await(t, "the watches go on", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, revision := range r.reached {
			if revision+recoveryHistory/2 < r.core.Revision() {
				return false
			}
		}
		return true
	})
}

func (r *recoveries) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testwait.NoError(t, what, func(context.Context) error {
		if holds() {
			return nil
		}
		return fmt.Errorf("health: %v", r.core.Health())
	})
}

// readOn checks that reads still succeed, including reads of past revisions.
func (r *recoveries) readOn(t *testing.T) {
	t.Helper()
	current := r.core.Revision()
	for _, revision := range []uint64{current, current - min(current-2, 500)} {
		list := &example.PodList{}
		err := r.pods.GetList(context.Background(), "/pods/", storage.ListOptions{
			ResourceVersion: strconv.FormatUint(revision, 10), ResourceVersionMatch: metav1.ResourceVersionMatchExact,
			Recursive: true, Predicate: storage.Everything,
		}, list)
		if err != nil && !apierrors.IsResourceExpired(err) {
			t.Errorf("list at revision %d while the disk fails: %v", revision, err)
		}
	}
}

// write changes random objects. After a failed write it waits for the next trial.
func (r *recoveries) write(t *testing.T, writer int, rng *rand.Rand) {
	for n := 0; ; n++ {
		r.mu.Lock()
		stopped, trial := r.stopped, r.trials
		r.mu.Unlock()
		if stopped {
			return
		}
		key := fmt.Sprintf("/pods/ns/pod-%d", rng.IntN(24))
		if rng.IntN(2) == 0 {
			key = fmt.Sprintf("/pods/ns/pod-of-%d", writer)
		}
		content := fmt.Sprintf("[[%d-%d]]", writer, n)
		revision, deleted, err := r.change(key, content, rng)
		if storage.IsNotFound(err) || storage.IsConflict(err) || storage.IsExist(err) {
			continue
		}
		r.mu.Lock()
		switch {
		case err == nil && deleted:
			r.acked[revision] = fact{key, deletedContent}
		case err == nil:
			r.acked[revision] = fact{key, content}
		case apierrors.IsServiceUnavailable(err):
			r.refused[content] = true
		case apierrors.IsInternalError(err) && strings.Contains(err.Error(), "unknown"):
			r.unknown++
		default:
			t.Errorf("write %s: %v", key, err)
			r.stopped = true
		}
		// A journal may reject a write without having failed.
		waits := err != nil && (!apierrors.IsServiceUnavailable(err) || r.core.Health() != nil)
		for waits && !r.stopped && r.trials == trial {
			r.changed.Wait()
		}
		r.mu.Unlock()
	}
}

func (r *recoveries) change(key, content string, rng *rand.Rand) (revision uint64, deleted bool, err error) {
	ctx, out := context.Background(), &example.Pod{}
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: strings.TrimPrefix(key, "/pods/ns/"),
		Annotations: map[string]string{"content": content, "padding": strings.Repeat("x", rng.IntN(1000))},
	}}
	switch rng.IntN(6) {
	case 0:
		deleted = true
		err = r.pods.Delete(ctx, key, out, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	case 1:
		err = r.pods.Create(ctx, key, pod, out, 0)
	default:
		err = r.pods.GuaranteedUpdate(ctx, key, out, true, nil, storage.SimpleUpdate(func(current apiruntime.Object) (apiruntime.Object, error) {
			next := pod.DeepCopy()
			next.ResourceVersion = current.(*example.Pod).ResourceVersion
			return next, nil
		}), nil)
	}
	if err != nil {
		return 0, false, err
	}
	revision, err = strconv.ParseUint(out.ResourceVersion, 10, 64)
	return revision, deleted, err
}

// follow processes the events of a watch, which must be one for each revision.
func (r *recoveries) follow(t *testing.T, i int, w watch.Interface) {
	for event := range w.ResultChan() {
		pod, ok := podOf(event)
		if !ok {
			t.Errorf("watch %d: %s %v", i, event.Type, event.Object)
			return
		}
		revision, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if err != nil {
			t.Error(err)
		}
		f := fact{keyOfPod(pod), contentOf(pod)}
		if event.Type == watch.Deleted {
			f.content = deletedContent
		}
		r.mu.Lock()
		if revision != r.reached[i]+1 {
			r.faults.Corrupted(t, "watch %d: revision %d came after %d", i, revision, r.reached[i])
		}
		r.events[i][revision] = f
		r.reached[i] = revision
		r.mu.Unlock()
	}
}

func podOf(event watch.Event) (*example.Pod, bool) {
	object := event.Object
	if cacheable, ok := object.(apiruntime.CacheableObject); ok {
		object = cacheable.GetObject()
	}
	pod, ok := object.(*example.Pod)
	return pod, ok
}

// verify compares the responses of all clients with each other and with the final content of the journal. It needs a
// closed core.
func (r *recoveries) verify(t *testing.T, disk Disk) {
	t.Helper()
	for i, events := range r.events {
		for revision, f := range r.acked {
			if revision > r.reached[i] {
				continue // the watch was stopped before
			}
			if events[revision] != f {
				r.faults.Lost(t, 1, "revision %d was acknowledged as %v, watch %d saw %v", revision, f, i, events[revision])
			}
		}
		for revision, f := range events {
			if r.refused[f.content] {
				r.faults.Corrupted(t, "revision %d is %v, a write that was refused", revision, f)
			}
			if other := r.events[0][revision]; r.reached[0] >= revision && other != f {
				r.faults.Corrupted(t, "revision %d is %v to watch %d and %v to the first", revision, f, i, other)
			}
		}
	}
	j, err := disk.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	last := uint64(1)
	stored := map[string]string{}
	compacted, err := j.Replay(t.Context(), func(record journal.Record) error {
		last = record.Revision
		told, known := r.events[0][record.Revision]
		if f := factOf(record); known && f != told {
			r.faults.Corrupted(t, "revision %d is stored as %v, was told as %v", record.Revision, f, told)
		}
		if stored[record.Key] = factOf(record).content; record.Deleted {
			delete(stored, record.Key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for revision, f := range r.acked {
		if revision > max(last, compacted) {
			r.faults.Lost(t, 1, "revision %d, %v, is not stored", revision, f)
		}
	}
	// The stored objects are the result of the first watch's events.
	told := map[string]string{}
	for _, revision := range slices.Sorted(maps.Keys(r.events[0])) {
		f := r.events[0][revision]
		if told[f.key] = f.content; f.content == deletedContent {
			delete(told, f.key)
		}
	}
	for key := range told {
		if stored[key] != told[key] {
			r.faults.Lost(t, 1, "%s is stored as %q, was told as %q", key, stored[key], told[key])
		}
	}
	for key, content := range stored {
		if _, known := told[key]; !known {
			r.faults.Corrupted(t, "%s is stored as %q, and should not exist", key, content)
		}
	}
	if errors.Is(r.core.Health(), journal.ErrTransient) {
		t.Errorf("the store was closed while it had failed: %v", r.core.Health())
	}
}
