package mvcc_test

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/memory"
)

// TestCompactHistory_rules writes an object and changes it nine times, a minute apart and with about 1300 bytes each:
// revisions 2 to 11.
func TestCompactHistory_rules(t *testing.T) {
	tests := []struct {
		name      string
		rules     mvcc.History
		compacted uint64
		early     uint64
	}{
		{"young events stay", mvcc.History{MinAge: 4 * time.Minute, MinRevisions: -1}, 7, 0},
		{"the last events stay", mvcc.History{MinAge: -1, MinRevisions: 3}, 8, 0},
		{"young ones stay beyond the last", mvcc.History{MinAge: 4 * time.Minute, MinRevisions: 3}, 7, 0},
		{"the last ones stay beyond the young", mvcc.History{MinAge: 2 * time.Minute, MinRevisions: 6}, 5, 0},
		{"nothing is old enough", mvcc.History{MinAge: time.Hour, MinRevisions: -1}, 1, 0},
		{"nothing is far enough back", mvcc.History{MinAge: -1, MinRevisions: 100}, 1, 0},
		{"no history at all", mvcc.History{MinAge: -1, MinRevisions: -1}, 11, 0},
		{"bytes win over everything", mvcc.History{MinAge: time.Hour, MinRevisions: 100, MaxBytes: 5000}, 8, 7},
		{"bytes that suffice", mvcc.History{MinAge: time.Hour, MinRevisions: 100, MaxBytes: 20_000}, 1, 0},
		{"bytes without limit", mvcc.History{MinAge: time.Hour, MinRevisions: 100, MaxBytes: -1}, 1, 0},
		{"only what bytes take beyond the other rules is early", mvcc.History{MinAge: 4 * time.Minute, MinRevisions: -1, MaxBytes: 5000}, 8, 1},
	}
	clock, written := newClock(), newLedger()
	core, pods := open(t, written, mvcc.Options{Clock: clock, History: mvcc.History{MinAge: 24 * time.Hour}})
	create(t, pods, "a")
	for i := range 9 {
		clock.Step(time.Minute)
		annotate(t, pods, "a", fmt.Sprint(i)+strings.Repeat("x", 1000))
	}
	if err := core.Close(); err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			core, _ := open(t, written.reopen(), mvcc.Options{Clock: clock, History: test.rules})
			if err := core.CompactHistory(t.Context()); err != nil {
				t.Fatal(err)
			}
			stats := core.Stats()
			if stats.Compacted != test.compacted || stats.TrimmedEarly != test.early {
				t.Errorf("compacted revision %d with %d early, want %d with %d", stats.Compacted, stats.TrimmedEarly, test.compacted, test.early)
			}
			if limit := test.rules.MaxBytes; limit > 0 && stats.HistoryBytes > limit {
				t.Errorf("%d bytes of history are left, the limit is %d", stats.HistoryBytes, limit)
			}
		})
	}
}

func TestCompactHistory_tooManyBytes(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{Clock: newClock(), History: mvcc.History{MaxBytes: 10_000}})
	create(t, pods, "a")
	w := watchFrom(t, pods, 2, storage.Everything)
	for core.CompactedRevision() == 0 {
		annotate(t, pods, "a", fmt.Sprint(core.Revision(), strings.Repeat("x", 1000)))
		next(t, w) // a watcher that keeps up is not affected
	}
	if err := core.CompactHistory(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stats := core.Stats(); stats.TrimmedEarly == 0 || stats.HistoryBytes > 10_000 {
		t.Errorf("%+v", stats)
	}
}

func TestHistory_coldValues_areRead(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{HotBytes: 3000, ObjectCacheBytes: -1})
	create(t, pods, "a")
	for i := range 10 {
		annotate(t, pods, "a", fmt.Sprint(i)+strings.Repeat("x", 1000))
	}
	if hot := core.Stats().HotBytes; hot > 3000 || hot < 1000 {
		t.Errorf("%d bytes are hot, want most of 3000", hot)
	}
	reads := func(revision uint64) int {
		before := j.reads
		list, err := listAt(pods, revision, storage.Everything)
		if err != nil || len(list.Items) != 1 || revisionOf(t, &list.Items[0]) != revision {
			t.Errorf("list at %d: %v, %v", revision, list.Items, err)
		}
		return j.reads - before
	}
	if n := reads(3); n != 1 {
		t.Errorf("an old object took %d reads of the journal", n)
	}
	for _, revision := range []uint64{10, 11, 12} {
		if n := reads(revision); n != 0 {
			t.Errorf("the object at %d, which is hot, took %d reads of the journal", revision, n)
		}
	}
}

func TestCompact_keptRecords(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{})
	create(t, pods, "a")           // 2
	create(t, pods, "b")           // 3
	annotate(t, pods, "a", "once") // 4
	remove(t, pods, "b")           // 5
	create(t, pods, "b")           // 6
	remove(t, pods, "b")           // 7
	annotate(t, pods, "a", "more") // 8
	tests := []struct {
		compact uint64
		records []uint64
	}{
		{3, []uint64{2, 3, 4, 5, 6, 7, 8}}, // no object has been superseded by then
		{4, []uint64{3, 4, 5, 6, 7, 8}},
		{5, []uint64{4, 6, 7, 8}},
		{6, []uint64{4, 6, 7, 8}},
		{7, []uint64{4, 8}},
		{8, []uint64{8}},
	}
	for _, test := range tests {
		if err := core.Compact(t.Context(), test.compact); err != nil {
			t.Fatal(err)
		}
		if got := j.revisions(); !slices.Equal(got, test.records) {
			t.Errorf("compacted at %d, the journal holds %v, want %v", test.compact, got, test.records)
		}
	}
	if stats := core.Stats(); stats.Events != 0 || stats.HistoryBytes != 0 || stats.HotBytes != 0 {
		t.Errorf("nothing should be left of the history: %+v", stats)
	}
	if err := core.Compact(t.Context(), 9); err == nil {
		t.Error("a revision that is still to come was compacted")
	}
	if err := core.Compact(t.Context(), 2); err != nil || core.CompactedRevision() != 8 {
		t.Errorf("compacting an older revision: %v, now at %d", err, core.CompactedRevision())
	}
}

func TestCompact_manySteps(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{})
	for i := range 3 {
		create(t, pods, fmt.Sprint(i))
	}
	for i := range 2000 {
		annotate(t, pods, fmt.Sprint(i%3), fmt.Sprint(i))
	}
	last := core.Revision()
	if err := core.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if got, want := j.revisions(), []uint64{last - 2, last - 1, last}; !slices.Equal(got, want) {
		t.Errorf("the journal holds %v, want %v", got, want)
	}
}

// TestCompact_memory compacts explicitly and not when the core does: the remaining memory must not depend on the number
// of writes between two compactions.
func TestCompact_memory(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory for seconds")
	}
	core, pods := open(t, memory.New(), mvcc.Options{
		Clock:            newClock(),
		History:          mvcc.History{MinAge: -1, MinRevisions: 100},
		HotBytes:         100_000,
		ObjectCacheBytes: 100_000,
	})
	create(t, pods, "a")
	heap := func() uint64 {
		goruntime.GC()
		goruntime.GC() // pools release memory only at the second collection
		var stats goruntime.MemStats
		goruntime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	update := func(times, between int) {
		for i := range times {
			annotate(t, pods, "a", fmt.Sprint(i))
			if (i+1)%between == 0 {
				if err := core.CompactHistory(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	update(5_000, 500)
	before := heap()
	for _, between := range []int{500, 20_000} {
		update(20_000, between)
		// The versions alone, without their values, would take about 2 MB.
		if after := heap(); after > before+1<<20 {
			t.Errorf("with %d writes between compactions the heap has grown from %d to %d bytes", between, before, after)
		}
	}
}

func TestCompactHistory_clockWasAhead(t *testing.T) {
	clock := newClock()
	core, pods := open(t, memory.New(), mvcc.Options{Clock: clock, Idle: true, History: mvcc.History{MinAge: time.Minute, MinRevisions: -1}})
	create(t, pods, "before")
	clock.SetTime(epoch.AddDate(1, 0, 0))
	create(t, pods, "ahead")
	clock.SetTime(epoch)
	create(t, pods, "after")
	if err := core.CompactHistory(t.Context()); err != nil || core.CompactedRevision() > 1 {
		t.Errorf("young events are gone: %v, compacted to %d", err, core.CompactedRevision())
	}
	clock.Step(2 * time.Minute)
	if err := core.CompactHistory(t.Context()); err != nil || core.CompactedRevision() != 4 {
		t.Errorf("%v, compacted to %d, want 4", err, core.CompactedRevision())
	}
	clock.SetTime(epoch.AddDate(1, 0, 0))
	create(t, pods, "last")
	clock.SetTime(epoch.Add(2 * time.Minute))
	if err := core.CompactHistory(t.Context()); err != nil || core.CompactedRevision() != 4 {
		t.Errorf("an event of the future is older than now: %v, compacted to %d", err, core.CompactedRevision())
	}
}

func TestCompact_failedTrim_isRetried(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{})
	create(t, pods, "a")
	annotate(t, pods, "a", "once")
	j.failTrim = errDisk
	if err := core.Compact(t.Context(), 3); err == nil {
		t.Error("the failure was not told")
	}
	j.failTrim = nil
	annotate(t, pods, "a", "more")
	if err := core.Compact(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if got, want := j.revisions(), []uint64{4}; !slices.Equal(got, want) {
		t.Errorf("the journal holds %v, want %v", got, want)
	}
}

func TestCompact_overtakenReader_expires(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{HotBytes: -1, ObjectCacheBytes: -1})
	create(t, pods, "a")
	for i := range 10 {
		annotate(t, pods, "a", fmt.Sprint(i))
	}
	compact := func(revision uint64) func() {
		return func() {
			if err := core.Compact(t.Context(), revision); err != nil {
				t.Error(err)
			}
		}
	}
	j.onRead = compact(4)
	if _, err := listAt(pods, 3, storage.Everything); !apierrors.IsResourceExpired(err) {
		t.Errorf("list: %v, want expired", err)
	}
	j.onRead = compact(6)
	expect(t, watchFrom(t, pods, 4, selecting(t, "tier")), "ERROR Expired")
}

func TestCompact_readDuringTrim_expires(t *testing.T) {
	j := newLedger()
	core, pods := open(t, j, mvcc.Options{HotBytes: -1, ObjectCacheBytes: -1})
	create(t, pods, "a")
	annotate(t, pods, "a", "changed")
	annotate(t, pods, "a", "changed again")
	tried := false
	j.onTrim = func() {
		tried = true
		if _, err := listAt(pods, 2, storage.Everything); !apierrors.IsResourceExpired(err) {
			t.Errorf("list: %v, want expired", err)
		}
	}
	if err := core.Compact(t.Context(), 4); err != nil || !tried {
		t.Error(err)
	}
}

func TestGetList_latest_doesNotExpire(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	create(t, pods, "a")
	create(t, pods, "b")
	p := selecting(t, "tier=front")
	p.GetAttrs = func(object runtime.Object) (labels.Set, fields.Set, error) {
		annotate(t, pods, "a", rv(core.Revision()))
		if err := core.Compact(t.Context(), core.Revision()); err != nil {
			t.Error(err)
		}
		return storage.DefaultNamespaceScopedAttr(object)
	}
	if list, err := listAt(pods, 0, p); err != nil || len(list.Items) != 2 || list.ResourceVersion != "3" {
		t.Errorf("got %d objects at %s: %v", len(list.Items), list.ResourceVersion, err)
	}
}

func TestGetList_continued_afterCompaction(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	for _, name := range []string{"a", "b", "c"} {
		create(t, pods, name)
	}
	first, err := listAt(pods, 0, storage.SelectionPredicate{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	annotate(t, pods, "c", "changed")
	if err := core.Compact(t.Context(), core.Revision()); err != nil {
		t.Fatal(err)
	}
	_, err = listAt(pods, 0, storage.SelectionPredicate{Limit: 1, Continue: first.Continue})
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("got %v, want expired", err)
	}
	token := err.(apierrors.APIStatus).Status().ListMeta.Continue
	rest, err := listAt(pods, 0, storage.SelectionPredicate{Continue: token})
	if err != nil {
		t.Fatal(err)
	}
	if len(rest.Items) != 2 || rest.Items[1].ResourceVersion != "5" {
		t.Errorf("the list goes on with %v", rest.Items)
	}
}
