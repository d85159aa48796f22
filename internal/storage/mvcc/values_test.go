package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/store/storetest"
)

func TestValues_storedBytes(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{})
	storetest.CheckValues(t, core, pods)
}

func TestValues_replacedAndCompacted(t *testing.T) {
	core, pods := open(t, memory.New(), mvcc.Options{HotBytes: -1})
	const before = 64 // are read at once
	for i := range before {
		create(t, pods, fmt.Sprintf("a-%d", i))
	}
	create(t, pods, "b")
	create(t, pods, "c")
	var got []store.Value
	for stored, err := range core.Values(t.Context(), "/pods") {
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			annotate(t, pods, "b", "replaced")
			remove(t, pods, "c")
			if err := core.Compact(context.Background(), core.Revision()); err != nil {
				t.Fatal(err)
			}
		}
		got = append(got, stored)
	}
	if len(got) != before+1 || got[before].Key != key("b") || got[before].Revision != revisionOf(t, get(t, pods, "b")) {
		t.Errorf("got %d, at last %s at revision %d", len(got), got[len(got)-1].Key, got[len(got)-1].Revision)
	}
}

// manyReader is a journal whose ReadMany ends after some records, and which cannot read one revision.
type manyReader struct {
	journal.Journal
	most    int
	damaged uint64
	many    int // records that ReadMany has returned
	largest int // bytes that a call of it has returned
}

func (j *manyReader) Read(revision uint64) (journal.Record, error) {
	if revision == j.damaged {
		return journal.Record{}, journal.Damaged(revision, "unreadable")
	}
	return j.Journal.Read(revision)
}

func (j *manyReader) ReadMany(revisions []uint64, yield func(journal.Record) bool) error {
	size := 0
	for i, revision := range revisions {
		r, err := j.Read(revision)
		if errors.Is(err, journal.ErrNotFound) {
			continue
		}
		if err == nil && i == j.most {
			err = errors.New("the journal is gone")
		}
		if err != nil {
			return err
		}
		j.many++
		size += len(r.Value)
		j.largest = max(j.largest, size)
		if !yield(r) {
			return nil
		}
	}
	return nil
}

// Values that are not in memory come from the journal, by one call or by one for each, and are the same.
func TestValuesInAnyOrder_areValues(t *testing.T) {
	for name, most := range map[string]int{"all at once": 1 << 20, "in part": 100, "none at once": 0} {
		t.Run(name, func(t *testing.T) {
			j := &manyReader{Journal: memory.New(), most: most}
			core, pods := open(t, j, mvcc.Options{ValueBytes: 50_000})
			const objects = 2500
			for i := range objects {
				create(t, pods, fmt.Sprintf("a-%04d", i*7919%objects))
			}
			for i := range 20 {
				annotate(t, pods, fmt.Sprintf("a-%04d", i*100), "changed")
				remove(t, pods, fmt.Sprintf("a-%04d", i*100+1))
			}
			want := map[string]string{}
			for v, err := range core.Values(t.Context(), "/pods") {
				if err != nil {
					t.Fatal(err)
				}
				want[v.Key] = fmt.Sprint(v)
			}
			j.many = 0
			got, ordered := map[string]string{}, []string{}
			for v, err := range core.ValuesInAnyOrder(t.Context(), "/pods") {
				if err != nil {
					t.Fatal(err)
				}
				got[v.Key] = fmt.Sprint(v)
				ordered = append(ordered, v.Key)
			}
			if len(ordered) != objects-20 || !maps.Equal(got, want) {
				t.Errorf("%d values, %d of them different, want %d", len(ordered), len(got), len(want))
			}
			if slices.IsSorted(ordered) {
				t.Error("all values are in memory: this test shows nothing")
			}
			if most > 0 != (j.many > 0) {
				t.Errorf("%d values were read at once", j.many)
			}
			for range core.ValuesInAnyOrder(t.Context(), "/pod") {
				t.Fatal("a prefix is not a resource's name cut short")
			}
			if most == 0 {
				for range core.ValuesInAnyOrder(t.Context(), "/pods") {
					break // must not panic
				}
			}
		})
	}
}

func TestValuesInAnyOrder_replacedMeanwhile_areNewer(t *testing.T) {
	core, pods := open(t, &manyReader{Journal: memory.New(), most: 1 << 20}, mvcc.Options{HotBytes: -1, ValueBytes: -1})
	create(t, pods, "a")
	create(t, pods, "b")
	create(t, pods, "c")
	values, end := iter.Pull2(core.ValuesInAnyOrder(t.Context(), "/pods"))
	defer end()
	// The first value comes from the journal together with the others, so these are as they were.
	for _, name := range []string{"a", "b", "c"} {
		if v, err, ok := values(); err != nil || !ok || v.Key != key(name) {
			t.Fatalf("got %s, %v, want %s", v.Key, err, name)
		}
	}
	// All are removed from the journal before a list begins to read it.
	var got []string
	once := false
	for v, err := range core.ValuesInAnyOrder(compacting{t.Context(), func() {
		if !once {
			once = true
			annotate(t, pods, "b", "replaced")
			remove(t, pods, "c")
			if err := core.Compact(context.Background(), core.Revision()); err != nil {
				t.Error(err)
			}
		}
	}}, "/pods") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s@%d", v.Key, v.Revision))
	}
	want := []string{
		fmt.Sprintf("%s@%d", key("a"), revisionOf(t, get(t, pods, "a"))), fmt.Sprintf("%s@%d", key("b"), revisionOf(t, get(t, pods, "b"))),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// compacting is a context that does something whenever it is asked for its error.
type compacting struct {
	context.Context
	do func()
}

func (c compacting) Err() error {
	c.do()
	return c.Context.Err()
}

func TestValuesInAnyOrder_endsWithErrorOfJournalOrContext(t *testing.T) {
	j := &manyReader{Journal: memory.New(), most: 1 << 20}
	core, pods := open(t, j, mvcc.Options{HotBytes: -1, ValueBytes: -1})
	for i := range 5 {
		create(t, pods, fmt.Sprint("a-", i))
	}
	j.damaged = revisionOf(t, get(t, pods, "a-2"))
	read := func(ctx context.Context) (n int, last error) {
		for _, err := range core.ValuesInAnyOrder(ctx, "/pods") {
			if last = err; err == nil {
				n++
			}
		}
		return n, last
	}
	if n, err := read(t.Context()); !errors.Is(err, journal.ErrDamaged) || n != 2 {
		t.Errorf("%d values, and %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := read(ctx); !errors.Is(err, context.Canceled) || n != 0 {
		t.Errorf("%d values, and %v", n, err)
	}
}

func TestValuesInAnyOrder_largeValues_areReadInParts(t *testing.T) {
	j := &manyReader{Journal: memory.New(), most: 1 << 20}
	core, pods := open(t, j, mvcc.Options{HotBytes: -1, ValueBytes: -1})
	const objects = 30
	for i := range objects {
		create(t, pods, fmt.Sprint("a-", i))
		annotate(t, pods, fmt.Sprint("a-", i), strings.Repeat("x", 1<<20))
	}
	n := 0
	for v, err := range core.ValuesInAnyOrder(t.Context(), "/pods") {
		if n++; err != nil || len(v.Data) < 1<<20 {
			t.Fatalf("%d bytes, %v", len(v.Data), err)
		}
	}
	if n != objects || j.many != objects || j.largest > 4<<20 {
		t.Errorf("%d values, %d of them read together, at most %d bytes", n, j.many, j.largest)
	}
}
