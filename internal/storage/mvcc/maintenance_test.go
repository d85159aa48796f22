package mvcc_test

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

func idle(t *testing.T, j journal.Journal, options mvcc.Options) *mvcc.Core {
	t.Helper()
	options.Idle = true
	core, err := mvcc.Open(t.Context(), j, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = core.Close() })
	return core
}

func TestMaintenance(t *testing.T) {
	storetest.RunMaintenance(t, func(t *testing.T) store.Maintenance { return idle(t, memory.New(), mvcc.Options{}) })
	t.Run("nothing hot", func(t *testing.T) {
		storetest.RunMaintenance(t, func(t *testing.T) store.Maintenance { return idle(t, memory.New(), mvcc.Options{HotBytes: -1}) })
	})
}

// TestSnapshot_isNotCompacted drops every replaced value from memory, so that the values of the snapshot must come from
// the journal.
func TestSnapshot_isNotCompacted(t *testing.T) {
	core := idle(t, memory.New(), mvcc.Options{HotBytes: -1, History: mvcc.History{MinAge: -1, MinRevisions: -1, MaxBytes: 1}})
	put := func(n int, seen uint64) uint64 {
		t.Helper()
		revision, err := core.Put(t.Context(), store.Value{Key: "/a", Data: fmt.Append(nil, n)}, seen)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	revision := put(1, 0)
	s, err := core.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for n := range 1000 {
		revision = put(n+2, revision)
	}
	if err := core.CompactHistory(t.Context()); err != nil {
		t.Errorf("the core's own compaction: %v", err)
	}
	if err := core.Compact(t.Context(), revision); !errors.Is(err, store.ErrInUse) {
		t.Errorf("compacting what is read: %v", err)
	}
	if got := core.CompactedRevision(); got > s.Revision() {
		t.Errorf("compacted to %d, past the snapshot at %d", got, s.Revision())
	}
	for v, err := range s.Values(t.Context()) {
		if err != nil || string(v.Data) != "1" {
			t.Errorf("the snapshot has %q, %v", v.Data, err)
		}
	}
	s.Close()
	if err := core.Compact(t.Context(), revision); err != nil {
		t.Errorf("compacting afterwards: %v", err)
	}
}

func TestSnapshot_holdsBackTooMuch_isLost(t *testing.T) {
	clock := newClock()
	for name, test := range map[string]struct {
		options mvcc.Options
		hold    func(put func())
		want    string
	}{
		"bytes": {
			mvcc.Options{HotBytes: -1, SnapshotBytes: 1000, History: mvcc.History{MinAge: -1, MinRevisions: -1, MaxBytes: 100}},
			func(put func()) {
				for range 1000 {
					put()
				}
			},
			"bytes of history",
		},
		"age": {
			mvcc.Options{HotBytes: -1, SnapshotAge: time.Minute, History: mvcc.History{MinAge: -1, MinRevisions: -1}},
			func(put func()) { put(); clock.Step(2 * time.Minute) },
			"it was open for 2m0s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.options.Clock = clock
			core := idle(t, memory.New(), test.options)
			revision := uint64(0)
			put := func() {
				t.Helper()
				var err error
				if revision, err = core.Put(t.Context(), store.Value{Key: "/a", Data: fmt.Append(nil, revision)}, revision); err != nil {
					t.Fatal(err)
				}
			}
			put()
			held, err := core.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer held.Close()
			test.hold(put)
			fresh, err := core.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer fresh.Close()
			if err := core.CompactHistory(t.Context()); err != nil || core.CompactedRevision() <= held.Revision() {
				t.Errorf("%v, compacted to %d: a snapshot is still in the way", err, core.CompactedRevision())
			}
			for v, err := range held.Values(t.Context()) {
				if !errors.Is(err, store.ErrSnapshotLost) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("the snapshot has %q, %v, want ErrSnapshotLost: %s", v.Data, err, test.want)
				}
			}
			for _, err := range fresh.Values(t.Context()) {
				if err != nil {
					t.Errorf("a snapshot that holds back nothing: %v", err)
				}
			}
		})
	}
}

func values(list ...store.Value) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		for _, v := range list {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// kept is a journal that outlives the core above it.
type kept struct{ journal.Journal }

func (kept) Close() error { return nil }

func TestFill_aboveRevision(t *testing.T) {
	j := kept{memory.New()}
	last, err := mvcc.Fill(t.Context(), j, 1000, values(store.Value{Key: "/a", Data: []byte("1")}, store.Value{Key: "/b", Data: []byte("2")}))
	if err != nil || last != 1002 {
		t.Fatalf("last revision %d, %v", last, err)
	}
	if _, err := mvcc.Fill(t.Context(), j, 1000, values()); err == nil {
		t.Error("filled a journal that is not new")
	}
	core := idle(t, j, mvcc.Options{})
	if core.Revision() != 1002 || core.CompactedRevision() != 1002 {
		t.Errorf("at revision %d, compacted %d", core.Revision(), core.CompactedRevision())
	}
	revision, err := core.Put(t.Context(), store.Value{Key: "/a", Data: []byte("3")}, 1001)
	if err != nil || revision != 1003 {
		t.Errorf("next revision %d, %v", revision, err)
	}
}

// altered is a journal that returns another record at one revision.
type altered struct {
	journal.Journal
	revision uint64
}

func (a altered) Read(revision uint64) (journal.Record, error) {
	r, err := a.Journal.Read(revision)
	if revision == a.revision {
		r.Value = bytes.ToUpper(r.Value)
	}
	return r, err
}

func TestScan_alteredRecord(t *testing.T) {
	core := idle(t, altered{memory.New(), 3}, mvcc.Options{})
	for _, key := range []string{"/a", "/b", "/c"} {
		if _, err := core.Put(t.Context(), store.Value{Key: key, Data: []byte("x")}, 0); err != nil {
			t.Fatal(err)
		}
	}
	var found []string
	_, err := core.Scan(t.Context(), func(r journal.Record) error {
		found = append(found, fmt.Sprint("read ", r.Revision))
		return nil
	}, func(d *journal.Damage) { found = append(found, fmt.Sprint("damaged ", d.First)) })
	if got, want := fmt.Sprint(found), "[read 2 damaged 3 read 4]"; err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}
