package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/annexapi/annex/store"
)

// RunMaintenance checks a backend's store.Maintenance. open returns an empty backend, and closes it when t ends.
func RunMaintenance(t *testing.T, open func(t *testing.T) store.Maintenance) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, m store.Maintenance)
	}{
		{"a put creates, replaces what was seen, and refuses what was not", putsWhatWasSeen},
		{"a snapshot is what was stored at its revision, however much is written", snapshotsOneRevision},
		{"a snapshot under writers holds no write without those before it", snapshotsUnderWriters},
		{"what is compacted stays as it is now", compactsHistory},
		{"an expiry is kept", keepsExpiry},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

func stored(i int) store.Value {
	return store.Value{Key: fmt.Sprintf("/things/%05d", i), Data: fmt.Appendf(nil, `{"n":%d}`, i)}
}

func mustPut(t testing.TB, m store.Maintenance, v store.Value, seen uint64) uint64 {
	t.Helper()
	revision, err := m.Put(t.Context(), v, seen)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func takeSnapshot(t testing.TB, m store.Maintenance) store.Snapshot {
	t.Helper()
	s, err := m.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// contents returns the values of a snapshot by key; they must come in order.
func contents(t testing.TB, s store.Snapshot) map[string]store.Value {
	t.Helper()
	all := map[string]store.Value{}
	last := ""
	for v, err := range s.Values(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if v.Key <= last {
			t.Errorf("%s comes after %s", v.Key, last)
		}
		if v.Revision > s.Revision() {
			t.Errorf("%s is at revision %d, the snapshot at %d", v.Key, v.Revision, s.Revision())
		}
		last, all[v.Key] = v.Key, v
	}
	return all
}

func putsWhatWasSeen(t *testing.T, m store.Maintenance) {
	first := mustPut(t, m, stored(1), 0)
	changed := stored(1)
	changed.Data = []byte(`"changed"`)
	for _, seen := range []uint64{0, first - 1, first + 1} {
		if _, err := m.Put(t.Context(), changed, seen); !errors.Is(err, store.ErrChanged) {
			t.Errorf("put over revision %d as if it were %d: %v", first, seen, err)
		}
	}
	if _, err := m.Put(t.Context(), stored(2), first); !errors.Is(err, store.ErrChanged) {
		t.Errorf("put over nothing as if it were something: %v", err)
	}
	second := mustPut(t, m, changed, first)
	if second <= first {
		t.Errorf("revision %d after %d", second, first)
	}
	got := contents(t, takeSnapshot(t, m))
	if v := got[changed.Key]; len(got) != 1 || v.Revision != second || !bytes.Equal(v.Data, changed.Data) {
		t.Errorf("stored is %v", got)
	}
	if v := got[changed.Key]; !bytes.Equal(v.Context, m.ValueContext(v.Key)) {
		t.Errorf("context %q, want %q", v.Context, m.ValueContext(v.Key))
	}
}

func snapshotsOneRevision(t *testing.T, m store.Maintenance) {
	revisions := map[int]uint64{}
	for i := range manyValues {
		revisions[i] = mustPut(t, m, stored(i), 0)
	}
	s := takeSnapshot(t, m)
	for i := 0; i < manyValues; i += 2 {
		v := stored(i)
		v.Data = []byte(`"later"`)
		revisions[i] = mustPut(t, m, v, revisions[i])
	}
	mustPut(t, m, stored(manyValues), 0)
	for range 2 { // it can be read again
		got := contents(t, s)
		if len(got) != manyValues {
			t.Errorf("%d values, want %d", len(got), manyValues)
		}
		for i := range manyValues {
			if v := got[stored(i).Key]; !bytes.Equal(v.Data, stored(i).Data) {
				t.Errorf("%s is %s", stored(i).Key, v.Data)
			}
		}
	}
	s.Close()
	s.Close()
}

func snapshotsUnderWriters(t *testing.T, m store.Maintenance) {
	const writers = 8
	ctx, stop := context.WithCancel(t.Context())
	var writing, began sync.WaitGroup
	began.Add(writers)
	for w := range writers {
		writing.Go(func() {
			// Write two objects in turns: the second is never ahead of the first.
			seen := [2]uint64{}
			for n := 0; ctx.Err() == nil; n++ {
				for half := range seen {
					v := store.Value{Key: fmt.Sprintf("/pairs/%d-%d", w, half), Data: fmt.Append(nil, n)}
					revision, err := m.Put(t.Context(), v, seen[half])
					if err != nil {
						t.Error(err)
						return
					}
					seen[half] = revision
				}
				if n == 0 {
					began.Done()
				}
			}
		})
	}
	began.Wait()
	for range 20 {
		s := takeSnapshot(t, m)
		got := contents(t, s)
		for w := range writers {
			numbers := [2]int{}
			for half := range numbers {
				if _, err := fmt.Sscan(string(got[fmt.Sprintf("/pairs/%d-%d", w, half)].Data), &numbers[half]); err != nil {
					t.Fatal(err)
				}
			}
			if behind := numbers[0] - numbers[1]; behind < 0 || behind > 1 {
				t.Errorf("pair %d is at %d and %d", w, numbers[0], numbers[1])
			}
		}
		s.Close()
	}
	stop()
	writing.Wait()
}

func compactsHistory(t *testing.T, m store.Maintenance) {
	last := uint64(0)
	for i := range 50 {
		last = mustPut(t, m, stored(i), 0)
	}
	for i := range 10 {
		v := stored(i)
		v.Data = []byte(`"later"`)
		last = mustPut(t, m, v, takeRevision(t, m, v.Key))
	}
	before := takeSnapshot(t, m)
	want := contents(t, before)
	before.Close()
	if err := m.Compact(t.Context(), last+1000); err == nil {
		t.Error("compacted what has not been reached")
	}
	for range 2 {
		if err := m.Compact(t.Context(), last); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Compact(t.Context(), last-5); err != nil {
		t.Errorf("compacting less than before: %v", err)
	}
	got := contents(t, takeSnapshot(t, m))
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("after compaction there are %d values, want %d", len(got), len(want))
	}
	for key := range want {
		if got[key].Revision != want[key].Revision || !bytes.Equal(got[key].Data, want[key].Data) {
			t.Errorf("%s is %v, was %v", key, got[key], want[key])
		}
	}
	status, err := m.Status(t.Context())
	if err != nil || status.Revision < last {
		t.Errorf("status %+v, %v", status, err)
	}
}

func takeRevision(t testing.TB, m store.Maintenance, key string) uint64 {
	t.Helper()
	s := takeSnapshot(t, m)
	defer s.Close()
	return contents(t, s)[key].Revision
}

func keepsExpiry(t *testing.T, m store.Maintenance) {
	v := stored(1)
	v.Expires = time.Now().Add(time.Hour)
	revision := mustPut(t, m, v, 0)
	got := contents(t, takeSnapshot(t, m))[v.Key]
	if late := got.Expires.Sub(v.Expires).Abs(); got.Expires.IsZero() || late > 5*time.Second {
		t.Errorf("expires at %v, want %v", got.Expires, v.Expires)
	}
	v.Expires = time.Time{}
	mustPut(t, m, v, revision)
	if got := contents(t, takeSnapshot(t, m))[v.Key]; !got.Expires.IsZero() {
		t.Errorf("expires at %v, want never", got.Expires)
	}
}
