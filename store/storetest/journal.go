package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// OpenJournal opens the journal in a directory, and creates it if it is missing.
type OpenJournal func(t testing.TB, dir string) (journal.Journal, error)

// RunJournal checks a journal against its contract. A journal that is not durable starts empty whenever it is opened,
// and skips the tests that open it twice.
func RunJournal(t *testing.T, open OpenJournal, durable bool) {
	tests := []struct {
		name    string
		reopens bool
		run     func(t *testing.T, j *journalUnderTest)
	}{
		{"a new journal replays nothing", false, replaysNothing},
		{"a record is read as it was appended", false, readsExactly},
		{"a record can be read before it is durable", false, readsAtOnce},
		{"a dropped record is not found, others are", false, trims},
		{"records follow each other", false, refusesGaps},
		{"a new journal jumps to a revision", false, jumpsWhenNew},
		{"a journal with records jumps to a revision", false, jumpsAhead},
		{"waiting in any order", false, waitsInAnyOrder},
		{"many writers while records are dropped and read", false, manyWriters},
		{"a shelf is sorted, and changes with a trim", false, shelvesInOrder},
		{"after Close every call says so", false, saysClosed},
		{"a replay gives every record, in order and exactly", true, replaysExactly},
		{"a replay leaves out what was dropped and knows the compacted revision", true, replaysTrimmed},
		{"a dropped last tombstone leaves the compacted revision", true, replaysNoRecord},
		{"a jump outlives the journal, with and without records", true, replaysJumps},
		{"records are appended after a replay", true, appendsAfterReplay},
		{"an error of yield ends the replay", true, yieldEndsReplay},
		{"the context ends the replay", true, contextEndsReplay},
		{"a shelf and users outlive the journal", true, keepsShelf},
		{"an open journal cannot be opened again", true, isLocked},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.reopens && !durable {
				t.Skip("the journal is not durable")
			}
			j := &journalUnderTest{dir: t.TempDir(), open: open}
			j.start(t)
			t.Cleanup(func() { _ = j.Close() })
			test.run(t, j)
		})
	}
}

type journalUnderTest struct {
	journal.Journal
	dir  string
	open OpenJournal
}

// start opens the journal.
func (j *journalUnderTest) start(t testing.TB) {
	t.Helper()
	opened, err := j.open(t, j.dir)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	j.Journal = opened
}

// reopen closes the journal, opens it again and returns the replayed records.
func (j *journalUnderTest) reopen(t testing.TB) ([]journal.Record, uint64) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	j.start(t)
	return j.replay(t)
}

func (j *journalUnderTest) replay(t testing.TB) ([]journal.Record, uint64) {
	t.Helper()
	var records []journal.Record
	compacted, err := j.Replay(t.Context(), func(r journal.Record) error {
		r.Value = bytes.Clone(r.Value) // the value belongs to the journal
		records = append(records, r)
		return nil
	})
	if err != nil {
		t.Fatalf("replay: %v", err)
	}
	return records, compacted
}

// fill replays an empty journal, as its user must, and appends records.
func (j *journalUnderTest) fill(t testing.TB, records ...journal.Record) {
	t.Helper()
	j.replay(t)
	j.append(t, records...)
}

// append appends records and waits until they are durable.
func (j *journalUnderTest) append(t testing.TB, records ...journal.Record) {
	t.Helper()
	for _, r := range records {
		wait, err := j.Append(r)
		if err != nil {
			t.Fatalf("append revision %d: %v", r.Revision, err)
		}
		if wait == nil {
			continue
		}
		if err := wait(); err != nil {
			t.Fatalf("wait for revision %d: %v", r.Revision, err)
		}
	}
}

func (j *journalUnderTest) checkRead(t testing.TB, want journal.Record) {
	t.Helper()
	got, err := j.Read(want.Revision)
	if err != nil {
		t.Errorf("read revision %d: %v", want.Revision, err)
		return
	}
	checkRecord(t, got, want)
}

func (j *journalUnderTest) checkNotFound(t testing.TB, revision uint64) {
	t.Helper()
	if _, err := j.Read(revision); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("read revision %d: got %v, want ErrNotFound", revision, err)
	}
}

// checkReplay compares the replayed records with those appended and not dropped.
func checkReplay(t testing.TB, got []journal.Record, compacted uint64, want []journal.Record, wantCompacted uint64) {
	t.Helper()
	if compacted != wantCompacted {
		t.Errorf("compacted revision %d, want %d", compacted, wantCompacted)
	}
	checkRecords(t, got, want)
}

func checkRecord(t testing.TB, got, want journal.Record) {
	t.Helper()
	same := got.Revision == want.Revision && got.Previous == want.Previous && got.Deleted == want.Deleted &&
		got.Key == want.Key && bytes.Equal(got.Value, want.Value) &&
		sameTime(got.Committed, want.Committed) && sameTime(got.Expires, want.Expires)
	if !same {
		t.Errorf("got %s\nwant %s", describe(got), describe(want))
	}
}

func checkRecords(t testing.TB, got, want []journal.Record) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d records, want %d", len(got), len(want))
	}
	for i := range got {
		checkRecord(t, got[i], want[i])
	}
}

func sameTime(got, want time.Time) bool {
	if want.IsZero() {
		return got.IsZero()
	}
	return got.Location() == time.UTC && got.Truncate(time.Microsecond).Equal(want.Truncate(time.Microsecond))
}

func describe(r journal.Record) string {
	value := fmt.Sprintf("%q", r.Value)
	if len(r.Value) > 40 {
		value = fmt.Sprintf("%d bytes", len(r.Value))
	}
	return fmt.Sprintf("{%d replaces %d, deleted %v, key %q, value %s, committed %v, expires %v}",
		r.Revision, r.Previous, r.Deleted, r.Key, value, r.Committed, r.Expires)
}

// sampleRecords returns the first records of a journal, one of each kind.
func sampleRecords() []journal.Record {
	at := time.Date(2026, 2, 28, 23, 59, 59, 123456000, time.UTC)
	big := make([]byte, 5<<20)
	for i := range big {
		big[i] = byte(rand.Uint32())
	}
	return []journal.Record{
		{Revision: 2, Key: "/pods/a/one", Value: []byte("one"), Committed: at},
		{Revision: 3, Key: "/pods/a/big", Value: big, Committed: at.Add(time.Second)},
		{Revision: 4, Key: "/pods/a/empty", Value: []byte{}, Committed: at.Add(time.Second)},
		{Revision: 5, Key: "/pods/a/expires", Value: []byte("soon"), Committed: at, Expires: at.Add(time.Hour)},
		{Revision: 6, Key: "/pods/a/one", Previous: 2, Value: []byte("one, changed"), Committed: at.Add(-time.Minute)},
		{Revision: 7, Key: "/pods/a/one", Previous: 6, Deleted: true, Committed: at},
		{Revision: 8, Key: "/pods/a/one", Value: []byte{0, 0xff, '\n'}, Committed: at},
		{Revision: 9, Key: "/", Value: []byte("/"), Committed: at},
		{Revision: 10, Key: strings.Repeat("/näme\x00", 200), Value: []byte("k"), Committed: at},
	}
}

// record makes up a record that creates a key of its own.
func record(revision uint64) journal.Record {
	return journal.Record{
		Revision:  revision,
		Key:       fmt.Sprintf("/pods/%d", revision),
		Value:     fmt.Appendf(nil, "value of %d", revision),
		Committed: time.Unix(int64(revision), 0).UTC(),
	}
}

func replaysNothing(t *testing.T, j *journalUnderTest) {
	if records, compacted := j.replay(t); len(records) != 0 || compacted != 0 {
		t.Errorf("got %d records and compacted revision %d, want none", len(records), compacted)
	}
	if err := j.Err(); err != nil {
		t.Errorf("Err of a sound journal: %v", err)
	}
}

func readsExactly(t *testing.T, j *journalUnderTest) {
	want := sampleRecords()
	j.fill(t, want...)
	for _, r := range want {
		j.checkRead(t, r)
	}
	j.checkNotFound(t, 1)
	j.checkNotFound(t, 11)
}

func readsAtOnce(t *testing.T, j *journalUnderTest) {
	j.replay(t)
	wait, err := j.Append(record(2))
	if err != nil {
		t.Fatal(err)
	}
	j.checkRead(t, record(2))
	if wait != nil {
		if err := wait(); err != nil {
			t.Fatal(err)
		}
	}
}

func trims(t *testing.T, j *journalUnderTest) {
	want := sampleRecords()
	j.fill(t, want...)
	if err := j.Trim(6, []uint64{2}); err != nil {
		t.Fatal(err)
	}
	if err := j.Trim(7, []uint64{6, 7, 2, 99}); err != nil {
		t.Fatalf("dropping what is not there must be no error: %v", err)
	}
	if err := j.Trim(8, nil); err != nil {
		t.Fatal(err)
	}
	for _, r := range want {
		if r.Revision == 2 || r.Revision == 6 || r.Revision == 7 {
			j.checkNotFound(t, r.Revision)
		} else {
			j.checkRead(t, r)
		}
	}
}

func refusesGaps(t *testing.T, j *journalUnderTest) {
	j.fill(t, record(2), record(3))
	j.checkFollows(t, 3)
}

// checkFollows checks that the next record has to follow the revision last.
func (j *journalUnderTest) checkFollows(t *testing.T, last uint64) {
	t.Helper()
	for _, revision := range []uint64{last - 1, last, last + 2} {
		if _, err := j.Append(record(revision)); err == nil {
			t.Fatalf("revision %d was accepted after %d", revision, last)
		}
	}
	if err := j.Err(); err != nil {
		t.Errorf("after refusing a record: %v", err)
	}
	j.append(t, record(last+1))
	j.checkRead(t, record(last+1))
}

const farAhead = 1_000_000_000

func jumpsWhenNew(t *testing.T, j *journalUnderTest) {
	j.replay(t)
	if err := j.Trim(farAhead, nil); err != nil {
		t.Fatal(err)
	}
	j.checkNotFound(t, farAhead)
	j.checkFollows(t, farAhead)
}

func jumpsAhead(t *testing.T, j *journalUnderTest) {
	j.fill(t, record(2), record(3), record(4))
	if err := j.Trim(farAhead, []uint64{3}); err != nil {
		t.Fatal(err)
	}
	j.checkRead(t, record(2))
	j.checkNotFound(t, 3)
	j.checkRead(t, record(4))
	j.checkFollows(t, farAhead)
	if err := j.Trim(farAhead+1, nil); err != nil {
		t.Fatal(err)
	}
	j.checkRead(t, record(farAhead+1))
	j.checkFollows(t, farAhead+1)
}

func replaysJumps(t *testing.T, j *journalUnderTest) {
	jump := func(to uint64, want ...journal.Record) {
		t.Helper()
		if err := j.Trim(to, nil); err != nil {
			t.Fatal(err)
		}
		got, compacted := j.reopen(t)
		checkReplay(t, got, compacted, want, to)
		j.checkFollows(t, to)
	}
	j.replay(t)
	jump(farAhead)
	jump(2*farAhead, record(farAhead+1))
	got, compacted := j.reopen(t)
	checkReplay(t, got, compacted, []journal.Record{record(farAhead + 1), record(2*farAhead + 1)}, 2*farAhead)
	jump(3*farAhead, record(farAhead+1), record(2*farAhead+1))
}

func waitsInAnyOrder(t *testing.T, j *journalUnderTest) {
	j.replay(t)
	var waits []func() error
	for revision := uint64(2); revision < 50; revision++ {
		wait, err := j.Append(record(revision))
		if err != nil {
			t.Fatal(err)
		}
		if wait != nil {
			waits = append(waits, wait)
		}
	}
	rand.Shuffle(len(waits), func(a, b int) { waits[a], waits[b] = waits[b], waits[a] })
	for _, wait := range waits {
		if err := wait(); err != nil {
			t.Fatal(err)
		}
	}
}

func manyWriters(t *testing.T, j *journalUnderTest) {
	const writers, each = 16, 50
	j.replay(t)
	var appending sync.Mutex
	last := uint64(1)
	appendNext := func() (uint64, func() error, error) {
		appending.Lock()
		defer appending.Unlock()
		wait, err := j.Append(record(last + 1))
		if err == nil {
			last++
		}
		return last, wait, err
	}
	var writing, trimming sync.WaitGroup
	written := make(chan uint64, writers*each)
	for range writers {
		writing.Go(func() {
			for range each {
				revision, wait, err := appendNext()
				if err == nil && wait != nil {
					err = wait()
				}
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				j.checkRead(t, record(revision))
				written <- revision
			}
		})
	}
	// Every fourth record is dropped after it was read.
	trimming.Go(func() {
		compacted := uint64(0)
		for revision := range written {
			compacted = max(compacted, revision)
			if revision%4 != 0 {
				continue
			}
			if err := j.Trim(compacted, []uint64{revision}); err != nil {
				t.Errorf("trim: %v", err)
			}
			j.checkNotFound(t, revision)
		}
	})
	writing.Wait()
	close(written)
	trimming.Wait()
}

func saysClosed(t *testing.T, j *journalUnderTest) {
	j.fill(t, record(2))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	_, appendErr := j.Append(record(3))
	_, readErr := j.Read(2)
	_, replayErr := j.Replay(t.Context(), func(journal.Record) error { return nil })
	for call, err := range map[string]error{
		"Append": appendErr, "Read": readErr, "Replay": replayErr, "Trim": j.Trim(2, nil), "Err": j.Err(),
	} {
		if !errors.Is(err, journal.ErrClosed) {
			t.Errorf("%s: got %v, want ErrClosed", call, err)
		}
	}
}

func replaysExactly(t *testing.T, j *journalUnderTest) {
	want := sampleRecords()
	j.fill(t, want...)
	got, compacted := j.reopen(t)
	checkReplay(t, got, compacted, want, 0)
}

func replaysTrimmed(t *testing.T, j *journalUnderTest) {
	all := sampleRecords()
	j.fill(t, all...)
	if err := j.Trim(8, []uint64{2, 6, 7}); err != nil {
		t.Fatal(err)
	}
	// A durable record makes an earlier Trim durable.
	j.append(t, record(11))
	got, compacted := j.reopen(t)
	want := append(append(append([]journal.Record{}, all[1:4]...), all[6:]...), record(11))
	checkReplay(t, got, compacted, want, 8)
}

func replaysNoRecord(t *testing.T, j *journalUnderTest) {
	j.fill(t, record(2), journal.Record{Revision: 3, Previous: 2, Key: record(2).Key, Deleted: true})
	if err := j.Trim(3, []uint64{2, 3}); err != nil {
		t.Fatal(err)
	}
	// A clean Close loses nothing.
	got, compacted := j.reopen(t)
	if len(got) != 0 || compacted != 3 {
		t.Errorf("got %d records and compacted revision %d, want none and 3", len(got), compacted)
	}
}

func appendsAfterReplay(t *testing.T, j *journalUnderTest) {
	want := sampleRecords()
	j.fill(t, want...)
	for range 3 {
		got, compacted := j.reopen(t)
		checkReplay(t, got, compacted, want, 0)
		next := record(uint64(len(want)) + 2)
		j.append(t, next)
		j.checkRead(t, next)
		want = append(want, next)
	}
}

func yieldEndsReplay(t *testing.T, j *journalUnderTest) {
	j.fill(t, record(2), record(3), record(4))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j.start(t)
	enough, calls := errors.New("enough"), 0
	_, err := j.Replay(t.Context(), func(journal.Record) error {
		if calls++; calls == 2 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || calls != 2 {
		t.Errorf("got %v after %d calls, want yield's error after 2", err, calls)
	}
}

func contextEndsReplay(t *testing.T, j *journalUnderTest) {
	j.fill(t, record(2), record(3))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := j.Replay(ctx, func(journal.Record) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func isLocked(t *testing.T, j *journalUnderTest) {
	j.fill(t, record(2))
	if other, err := j.open(t, j.dir); !errors.Is(err, journal.ErrLocked) {
		if err == nil {
			_ = other.Close()
		}
		t.Errorf("got %v, want ErrLocked", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j.start(t)
	records, _ := j.replay(t)
	checkRecords(t, records, []journal.Record{record(2)})
}
