package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"weak"

	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

func put(revision, previous uint64, name string) journal.Record {
	return journal.Record{Revision: revision, Previous: previous, Key: key(name), Value: []byte("{}"), Committed: epoch}
}

func tombstone(revision, previous uint64, name string) journal.Record {
	return journal.Record{Revision: revision, Previous: previous, Key: key(name), Deleted: true, Committed: epoch}
}

func TestOpen_inconsistentJournal_isDamaged(t *testing.T) {
	tests := []struct {
		name      string
		compacted uint64
		records   []journal.Record
		damage    string // empty if the journal is sound
	}{
		{"empty", 0, nil, ""},
		{"a sound history", 0, []journal.Record{put(2, 0, "a"), put(3, 2, "a"), tombstone(4, 3, "a"), put(5, 0, "a")}, ""},
		{"objects from before the history", 4, []journal.Record{put(2, 0, "b"), put(3, 1, "a"), put(5, 3, "a")}, ""},
		{"everything compacted", 9, []journal.Record{put(2, 0, "b")}, ""},
		{"the first record is missing", 0, []journal.Record{put(3, 0, "a")}, "revision 2:"},
		{"a record is missing", 0, []journal.Record{put(2, 0, "a"), put(4, 0, "b")}, "revision 3:"},
		{"the first record after the compacted revision is missing", 4, []journal.Record{put(2, 0, "b"), put(6, 0, "a")}, "revision 5:"},
		{"a replaced object is missing", 4, []journal.Record{put(5, 3, "a")}, "revision 5:"},
		{"another object is replaced", 0, []journal.Record{put(2, 0, "a"), put(3, 0, "b"), put(4, 3, "a")}, "revision 4:"},
		{"an object is created twice", 0, []journal.Record{put(2, 0, "a"), put(3, 0, "a")}, "revision 3:"},
		{"a deleted object is replaced", 0, []journal.Record{put(2, 0, "a"), tombstone(3, 2, "a"), put(4, 2, "a")}, "revision 4:"},
		{"nothing is deleted", 0, []journal.Record{tombstone(2, 0, "a")}, "revision 2:"},
		{"a replaced object is left over", 3, []journal.Record{put(2, 0, "a"), put(3, 2, "a")}, "revision 3:"},
		{"a tombstone is left over", 3, []journal.Record{tombstone(3, 2, "a")}, "revision 3:"},
		{"a revision that cannot be", 0, []journal.Record{put(1, 0, "a")}, "revision 1:"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			j := newLedger(test.records...)
			j.compacted = test.compacted
			core, err := mvcc.Open(t.Context(), j, mvcc.Options{})
			if test.damage == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := core.Close(); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), test.damage) {
				t.Errorf("got %v, want damage at %s", err, test.damage)
			}
			if !j.closed {
				t.Error("the journal was not closed")
			}
		})
	}
}

func TestOpen_contextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := mvcc.Open(ctx, newLedger(put(2, 0, "a")), mvcc.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestOpen_lateResource_hasHistory(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{})
	create(t, pods, "a")
	annotate(t, pods, "a", "changed")
	remove(t, pods, "a")
	create(t, pods, "b")
	if err := core.Close(); err != nil {
		t.Fatal(err)
	}
	core, err := mvcc.Open(t.Context(), j.reopen(), mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = core.Close() }()
	others, err := core.Open(storetest.Pods("/others"))
	if err != nil {
		t.Fatal(err)
	}
	if err := others.Create(t.Context(), "/others/a", samplePod("a"), nil, 0); err != nil {
		t.Fatal(err)
	}
	pods = openPods(t, core)
	expect(t, watchFrom(t, pods, 2, storage.Everything), "MODIFIED a@3", "DELETED a@4", "ADDED b@5")
	if stats, err := pods.Stats(t.Context()); err != nil || stats.ObjectCount != 1 {
		t.Errorf("%+v, %v, want one object", stats, err)
	}
}

func TestOpen_prefixes(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	for _, prefix := range []string{"/pods/ns", "/", "", "pods", "/others/"} {
		if _, err := core.Open(storetest.Pods(prefix)); err == nil {
			t.Errorf("prefix %q was accepted beside /pods", prefix)
		}
	}
	if _, err := core.Open(storetest.Pods("/pods.metrics")); err != nil {
		t.Error(err)
	}
	again := openPods(t, core)
	if pod := get(t, again, "a"); pod.Name != "a" {
		t.Errorf("another view of the same prefix shows %v", pod)
	}
}

func TestRestart(t *testing.T) {
	ledgers := map[string]*ledger{} // by directory
	storetest.RunRestart(t, func(_ testing.TB, dir string) (journal.Journal, error) {
		j := newLedger()
		if before := ledgers[dir]; before != nil {
			j = before.reopen()
		}
		ledgers[dir] = j
		return j, nil
	})
}

// rising is a journal in which each record replaces the previous one. It tracks which values are still reachable.
type rising struct {
	*ledger
	records int
	linked  func(values []weak.Pointer[byte])
}

func (r rising) Replay(ctx context.Context, yield func(journal.Record) error) (uint64, error) {
	var values []weak.Pointer[byte]
	for i := range r.records {
		value := make([]byte, 10_000)
		values = append(values, weak.Make(&value[0]))
		record := journal.Record{Revision: uint64(i + 2), Key: "/pods/default/one", Value: value}
		if i > 0 {
			record.Previous = record.Revision - 1
		}
		if err := yield(record); err != nil {
			return 0, err
		}
	}
	r.linked(values)
	return 0, ctx.Err()
}

// A replayed history may have had many times the values that are kept in memory.
func TestReplay_replacedValues_areDropped(t *testing.T) {
	const unlinked = 128       // the last records, until the replay ends
	const most = unlinked + 10 // and the values of the history, and the latest one
	open(t, rising{newLedger(), 40 * unlinked, func(values []weak.Pointer[byte]) {
		testwait.NoError(t, "old values are let go", func(context.Context) error {
			runtime.GC()
			alive := 0
			for _, v := range values {
				if v.Value() != nil {
					alive++
				}
			}
			if alive > most {
				return fmt.Errorf("%d values are alive, want %d at most", alive, most)
			}
			return nil
		})
	}}, mvcc.Options{HotBytes: 50_000, Idle: true, Resident: true}) // Resident, so that values are not copied
}
