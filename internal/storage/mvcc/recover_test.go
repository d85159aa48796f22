package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/journal"
)

var errFull = journal.Transient(fmt.Errorf("%w: it is full", errDisk))

// upTo returns a ledger with the records of this one up to a revision.
func (l *ledger) upTo(revision uint64) *ledger {
	again := l.reopen()
	for r := range again.records {
		if r > revision {
			delete(again.records, r)
		}
	}
	again.last, again.durable = revision, revision
	return again
}

// untilDamaged advances the clock until the core gives up the journal.
func untilDamaged(t *testing.T, core *mvcc.Core, clock *clocktesting.FakeClock) {
	t.Helper()
	testwait.NoError(t, "the journal is given up", func(context.Context) error {
		clock.Step(time.Second)
		if err := core.Health(); !errors.Is(err, journal.ErrDamaged) {
			return fmt.Errorf("health: %w", err)
		}
		return nil
	})
}

// untilHealthy advances the clock until the core accepts writes.
func untilHealthy(t *testing.T, core *mvcc.Core, clock *clocktesting.FakeClock) {
	t.Helper()
	testwait.NoError(t, "the core recovers", func(context.Context) error {
		clock.Step(time.Second)
		return core.Health()
	})
}

// failing returns a core with the object "old" at revision 2. Its journal has failed to sync revisions 3 to 5, each of
// which creates an object.
func failing(
	t *testing.T,
	clock *clocktesting.FakeClock,
	recover func(j *ledger) (journal.Journal, error),
) (*mvcc.Core, storage.Interface, *ledger) {
	t.Helper()
	j := newLedger()
	j.failWith = errFull
	j.recover = func() (journal.Journal, error) { return recover(j) }
	core, pods := open(t, recoverable{j}, mvcc.Options{Clock: clock})
	create(t, pods, "old")
	j.hold()
	var writes []<-chan error
	for revision := uint64(3); revision <= 5; revision++ {
		writes = append(writes, createInBackground(pods, fmt.Sprint("new-", revision)))
		j.waitAppended(t, revision)
	}
	j.sync(3)
	for _, write := range writes {
		checkUnknown(t, <-write)
	}
	return core, pods, j
}

func TestRecovery_durableTail_isPublished(t *testing.T) {
	for _, survives := range []uint64{2, 3, 5} {
		t.Run(fmt.Sprintf("revisions up to %d", survives), func(t *testing.T) {
			clock := newClock()
			var full atomic.Bool
			full.Store(true)
			core, pods, j := failing(t, clock, func(j *ledger) (journal.Journal, error) {
				if full.Load() {
					return nil, errFull
				}
				return recoverable{j.upTo(survives)}, nil
			})
			w := watchFrom(t, pods, 1, storage.Everything)
			expect(t, w, "ADDED old@2")
			checkReadOnly(t, core, pods)
			if err := core.Health(); !errors.Is(err, journal.ErrTransient) {
				t.Errorf("health: %v", err)
			}
			full.Store(false)
			untilHealthy(t, core, clock)

			if got := core.Revision(); got != survives {
				t.Errorf("revision %d, want %d", got, survives)
			}
			create(t, pods, "later")
			var want, names []string
			for revision := uint64(3); revision <= survives; revision++ {
				want = append(want, fmt.Sprintf("ADDED new-%d@%d", revision, revision))
				names = append(names, fmt.Sprint("new-", revision))
			}
			expect(t, w, append(want, fmt.Sprintf("ADDED later@%d", survives+1))...)
			list, err := listAt(pods, 0, storage.Everything)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, pod := range list.Items {
				got = append(got, pod.Name)
			}
			if want := append([]string{"later"}, append(names, "old")...); !slices.Equal(got, want) {
				t.Errorf("list shows %v, want %v", got, want)
			}
			if stats := core.Stats(); stats.ReadOnly || stats.Recoveries != 1 {
				t.Errorf("stats: %+v", stats)
			}
			if !j.closed {
				t.Error("the failed journal stays open")
			}
		})
	}
}

// A server logs nothing below warnings by default.
func TestRecovery_isLoggedOnceAsAWarning(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	state := klog.CaptureState()
	defer state.Restore()
	klog.SetLoggerWithOptions(logr.Discard(), klog.WriteKlogBuffer(func(line []byte) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(string(line), "takes writes again") {
			lines = append(lines, string(line))
		}
	}))
	clock := newClock()
	var full atomic.Bool
	full.Store(true)
	core, pods, _ := failing(t, clock, func(j *ledger) (journal.Journal, error) {
		if full.Load() {
			return nil, errFull
		}
		return recoverable{j.upTo(2)}, nil
	})
	checkReadOnly(t, core, pods)
	full.Store(false)
	untilHealthy(t, core, clock)
	create(t, pods, "later")
	mu.Lock()
	defer mu.Unlock()
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "W") {
		t.Errorf("logged %q", lines)
	}
}

// mend repairs a failed ledger, which keeps its records up to a revision.
func (l *ledger) mend(survives uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range l.records {
		if r > survives {
			delete(l.records, r)
		}
	}
	l.err, l.failWait, l.held = nil, 0, false
	l.last, l.durable = survives, survives
}

func TestRecovery_sameJournal(t *testing.T) {
	clock := newClock()
	core, pods, j := failing(t, clock, func(j *ledger) (journal.Journal, error) {
		j.mend(4)
		return recoverable{j}, nil
	})
	w := watchFrom(t, pods, 1, storage.Everything)
	untilHealthy(t, core, clock)
	create(t, pods, "later")
	expect(t, w, "ADDED old@2", "ADDED new-3@3", "ADDED new-4@4", "ADDED later@5")
	if j.closed {
		t.Error("it was closed")
	}
	if err := core.Close(); err != nil || !j.closed {
		t.Errorf("closed: %v, %v", j.closed, err)
	}
}

func TestRecovery_sameJournalLostRecords_isDamaged(t *testing.T) {
	clock := newClock()
	core, pods, j := failing(t, clock, func(j *ledger) (journal.Journal, error) {
		j.mend(1)
		return recoverable{j}, nil
	})
	untilDamaged(t, core, clock)
	_, err := tryAnnotate(t.Context(), pods, "old", "changed")
	checkStatus(t, err, http.StatusServiceUnavailable, "damaged")
	if get(t, pods, "old").ResourceVersion != "2" || j.closed {
		t.Errorf("closed: %v", j.closed)
	}
}

func TestReadOnly_transientFailure_hasRetryAfter(t *testing.T) {
	for _, hope := range []bool{true, false} {
		j := newLedger()
		j.failAppend = 3
		if hope {
			j.failWith = errFull
		}
		_, pods := open(t, j, mvcc.Options{})
		create(t, pods, "old")
		_, err := tryAnnotate(t.Context(), pods, "old", "first")
		checkUnknown(t, err)
		_, err = tryAnnotate(t.Context(), pods, "old", "second")
		checkStatus(t, err, http.StatusServiceUnavailable, errDisk.Error())
		if strings.Contains(err.Error(), "revision") {
			t.Errorf("the error speaks of another's revision: %v", err)
		}
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok != hope || hope && seconds != 1 {
			t.Errorf("with hope %v: try again after %d s, %v", hope, seconds, ok)
		}
	}
}

func TestRecovery_permanentFailure_isNotTried(t *testing.T) {
	clock := newClock()
	j := newLedger()
	j.failAppend = 3
	j.recover = func() (journal.Journal, error) {
		t.Error("it was tried")
		return nil, errDisk
	}
	core, pods := open(t, recoverable{j}, mvcc.Options{Clock: clock})
	create(t, pods, "old")
	_, err := tryAnnotate(t.Context(), pods, "old", "changed")
	checkUnknown(t, err)
	for range 100 {
		clock.Step(time.Second)
		runtime.Gosched()
	}
	if err := core.Close(); err != nil {
		t.Error(err)
	}
}

// A recovered journal with other records must be rejected.
func TestRecovery_differentJournal_isDamaged(t *testing.T) {
	for name, change := range map[string]func(l *ledger){
		"a published record is missing": func(l *ledger) { delete(l.records, 3) },
		"the last published records are missing": func(l *ledger) {
			delete(l.records, 4)
			delete(l.records, 5)
		},
		"an object from before the history is missing": func(l *ledger) { delete(l.records, 2) },
		"an object from before the history has another value": func(l *ledger) {
			r := l.records[2]
			r.Value = append([]byte(" "), r.Value[1:]...)
			l.records[2] = r
		},
		"a published record has another key": func(l *ledger) {
			r := l.records[4]
			r.Key += "x"
			l.records[4] = r
		},
		"a published record has another time": func(l *ledger) {
			r := l.records[4]
			r.Committed = r.Committed.Add(time.Second)
			l.records[4] = r
		},
		"the tail has a hole": func(l *ledger) {
			l.records[8] = l.records[6]
			r := l.records[8]
			r.Revision = 8
			l.records[8] = r
			delete(l.records, 6)
		},
		"the tail does not fit": func(l *ledger) {
			r := l.records[6]
			r.Previous = 4
			l.records[6] = r
		},
		"it is compacted further": func(l *ledger) { l.compacted = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			j := newLedger()
			j.failWith = errFull
			var recovered *ledger
			j.recover = func() (journal.Journal, error) {
				recovered = j.reopen()
				change(recovered)
				return recovered, nil
			}
			core, pods := open(t, recoverable{j}, mvcc.Options{Clock: clock})
			for _, name := range []string{"old", "a", "b", "c"} { // revisions 2 to 5
				create(t, pods, name)
			}
			if err := core.Compact(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			j.hold()
			unknown := createInBackground(pods, "unknown")
			j.waitAppended(t, 6)
			j.sync(6)
			checkUnknown(t, <-unknown)
			untilDamaged(t, core, clock)
			_, err := tryAnnotate(t.Context(), pods, "old", "changed")
			checkStatus(t, err, http.StatusServiceUnavailable, "damaged")
			if pod := get(t, pods, "a"); pod.ResourceVersion != "3" {
				t.Errorf("reads show %s", pod.ResourceVersion)
			}
			if !recovered.closed || j.closed {
				t.Errorf("the recovered journal is closed: %v, the failed one: %v", recovered.closed, j.closed)
			}
		})
	}
}

// Trim need not be durable: trimmed records may be back after a recovery.
func TestRecovery_trimmedRecords_areTrimmedAgain(t *testing.T) {
	clock := newClock()
	j := newLedger()
	j.failWith = errFull
	core, pods := open(t, recoverable{j}, mvcc.Options{Clock: clock})
	create(t, pods, "a")             // 2
	annotate(t, pods, "a", "second") // 3
	create(t, pods, "b")             // 4
	remove(t, pods, "b")             // 5
	create(t, pods, "b")             // 6, after a tombstone that is not needed
	before := j.reopen()
	j.recover = func() (journal.Journal, error) { return before, nil }
	if err := core.Compact(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	j.failAppend = 7
	_, err := tryAnnotate(t.Context(), pods, "b", "changed")
	checkUnknown(t, err)
	before.last, before.durable = 6, 6
	untilHealthy(t, core, clock)
	if err := core.Close(); err != nil {
		t.Fatal(err)
	}
	if got := before.revisions(); !slices.Equal(got, []uint64{3, 6}) || before.compacted != 5 {
		t.Errorf("the journal holds %v, compacted at %d", got, before.compacted)
	}
}

// The failed journal loses files to the recovered one.
func TestRecovery_historyReads(t *testing.T) {
	clock := newClock()
	j := newLedger()
	j.failWith = errFull
	core, pods := open(t, recoverable{j}, mvcc.Options{Clock: clock, HotBytes: -1, ObjectCacheBytes: -1})
	first := create(t, pods, "a")
	annotate(t, pods, "a", "second")
	j.failAppend = 4
	_, err := tryAnnotate(t.Context(), pods, "a", "third")
	checkUnknown(t, err)

	reading := make(chan error)
	recovered := j.reopen()
	recovered.last, recovered.durable = 3, 3
	j.recover = func() (journal.Journal, error) {
		j.mu.Lock()
		clear(j.records)
		j.mu.Unlock()
		asked := make(chan struct{})
		j.onRead = func() { close(asked) }
		go func() {
			list, err := listAt(pods, 2, storage.Everything)
			if err == nil && (len(list.Items) != 1 || list.Items[0].Annotations["note"] != first.Annotations["note"]) {
				err = fmt.Errorf("the list shows %v", list.Items)
			}
			reading <- err
		}()
		<-asked
		return recovered, nil
	}
	untilHealthy(t, core, clock)
	if err := <-reading; err != nil {
		t.Error(err)
	}
}

func TestClose_whileRecovering(t *testing.T) {
	clock := newClock()
	recovering, closing := make(chan struct{}), make(chan struct{})
	var recovered *ledger
	core, pods, j := failing(t, clock, func(j *ledger) (journal.Journal, error) {
		close(recovering)
		<-closing
		recovered = j.upTo(4)
		return recovered, nil
	})
	testwait.Until(t, "the journal is recovered", func() bool {
		clock.Step(time.Second)
		select {
		case <-recovering:
			return true
		default:
			return false
		}
	})
	w := watchFrom(t, pods, core.Revision(), selecting(t, "app=none"))
	closed := background(core.Close)
	close(closing)
	expectEnd(t, w)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	err := pods.Create(context.Background(), key("later"), samplePod("later"), &example.Pod{}, 0)
	checkStatus(t, err, http.StatusServiceUnavailable, "")
	if !j.closed || recovered == nil || !recovered.closed {
		t.Error("a journal stays open")
	}
}
