package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

func mustOpen(t testing.TB, dir string, options embedded.Options) *embedded.Journal {
	t.Helper()
	j, err := embedded.Open(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return j
}

// record makes up the record of a revision; its content is a function of the revision.
func record(revision uint64) journal.Record {
	return journal.Record{
		Revision:  revision,
		Key:       fmt.Sprintf("/things/%d", revision%7),
		Value:     fmt.Appendf(nil, "value of revision %d", revision),
		Committed: time.UnixMicro(1_700_000_000_000_000 + int64(revision)).UTC(),
	}
}

func appendRecords(t testing.TB, j journal.Journal, from, to uint64) {
	t.Helper()
	var wait func() error
	for revision := from; revision <= to; revision++ {
		var err error
		if wait, err = j.Append(record(revision)); err != nil {
			t.Fatal(err)
		}
	}
	if wait != nil {
		if err := wait(); err != nil {
			t.Fatal(err)
		}
	}
}

func replay(j journal.Journal) (records []journal.Record, compacted uint64, err error) {
	compacted, err = j.Replay(context.Background(), func(r journal.Record) error {
		r.Value = bytes.Clone(r.Value) // Replay's buffer belongs to the journal
		records = append(records, r)
		return nil
	})
	return records, compacted, err
}

func mustHold(t testing.TB, j journal.Journal, compacted uint64, revisions ...uint64) {
	t.Helper()
	got, gotCompacted, err := replay(j)
	if err != nil {
		t.Fatal(err)
	}
	var want []journal.Record
	for _, revision := range revisions {
		want = append(want, record(revision))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records, -want +got:\n%s", diff)
	}
	if gotCompacted != compacted {
		t.Errorf("compacted revision %d, want %d", gotCompacted, compacted)
	}
}

func TestOpen_again_keepsRecordsAndCompactedRevision(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, embedded.Options{})
	appendRecords(t, j, 1, 10)
	if err := j.Trim(8, []uint64{1, 2, 3, 5}); err != nil {
		t.Fatal(err)
	}
	identity := j.Identity()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	j = mustOpen(t, dir, embedded.Options{})
	if j.Identity() != identity || identity == "" {
		t.Errorf("identity %q, want %q", j.Identity(), identity)
	}
	mustHold(t, j, 8, 4, 6, 7, 8, 9, 10)
	appendRecords(t, j, 11, 12)
	got, err := j.Read(11)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(record(11), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := j.Read(5); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("reading a dropped record: error %v", err)
	}
}

func TestIdentity_twoJournals_differ(t *testing.T) {
	a, b := mustOpen(t, t.TempDir(), embedded.Options{}), mustOpen(t, t.TempDir(), embedded.Options{})
	if a.Identity() == b.Identity() {
		t.Errorf("both are %s", a.Identity())
	}
}

func TestAppend_emptiedJournal_continuesNumbering(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, embedded.Options{})
	appendRecords(t, j, 5, 6)
	if err := j.Trim(6, []uint64{5, 6}); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = mustOpen(t, dir, embedded.Options{})
	mustHold(t, j, 6)
	appendRecords(t, j, 7, 7)
}

func TestAppend_revisionOutOfOrder_isRejected(t *testing.T) {
	j := mustOpen(t, t.TempDir(), embedded.Options{})
	appendRecords(t, j, 1, 3)
	for _, revision := range []uint64{0, 1, 3, 5} {
		if _, err := j.Append(record(revision)); err == nil {
			t.Errorf("revision %d was accepted after 3", revision)
		}
	}
	if err := j.Err(); err != nil {
		t.Fatal(err)
	}
	appendRecords(t, j, 4, 4)
	mustHold(t, j, 0, 1, 2, 3, 4)
}

func TestTrim_missingRecords_isHarmless(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, embedded.Options{})
	appendRecords(t, j, 1, 4)
	if err := j.Trim(3, []uint64{2, 2, 900}); err != nil {
		t.Fatal(err)
	}
	if err := j.Trim(3, []uint64{2}); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = mustOpen(t, dir, embedded.Options{})
	mustHold(t, j, 3, 1, 3, 4)
	appendRecords(t, j, 5, 5)
}

func TestOpen_openJournal_isLocked(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, dir, embedded.Options{})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(dir))
	for _, name := range []string{dir, dir + "/", filepath.Base(dir), link} {
		_, err := embedded.Open(name, embedded.Options{})
		if !errors.Is(err, journal.ErrLocked) || !strings.Contains(err.Error(), name) {
			t.Errorf("opening %s again: error %v", name, err)
		}
	}
}

const lockedDirEnv = "ANNEX_TEST_LOCKED_DIR"

func TestOpen_openInAnotherProcess_isLocked(t *testing.T) {
	if dir := os.Getenv(lockedDirEnv); dir != "" {
		_, err := embedded.Open(dir, embedded.Options{})
		fmt.Printf("locked=%v %v\n", errors.Is(err, journal.ErrLocked), err)
		return
	}
	dir := t.TempDir()
	mustOpen(t, dir, embedded.Options{})
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), lockedDirEnv+"="+dir)
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "locked=true open journal "+dir) {
		t.Errorf("error %v, output:\n%s", err, out)
	}
}

func TestOpen_newDirectory_isPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "journal")
	mustOpen(t, dir, embedded.Options{})
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("permissions %o, want 700", info.Mode().Perm())
	}
}

func TestOpen_unusableDirectory_errorIsOneLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o500); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir, want string
		needsUser       bool
	}{
		{"is a file", file, "not a directory", false},
		{"below a file", filepath.Join(file, "journal"), "not a directory", false},
		{"not writable", closed, "permission denied", true},
		{"below one that is not writable", filepath.Join(closed, "journal"), "permission denied", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.needsUser && os.Getuid() == 0 {
				t.Skip("root may write everywhere")
			}
			_, err := embedded.Open(c.dir, embedded.Options{})
			if err == nil {
				t.Fatal("no error")
			}
			if errors.Is(err, journal.ErrLocked) || errors.Is(err, journal.ErrDamaged) {
				t.Errorf("error %v is of the wrong kind", err)
			}
			if !strings.Contains(err.Error(), c.dir) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q", err)
			}
		})
	}
}

func TestClose_laterCalls_returnErrClosed(t *testing.T) {
	j := mustOpen(t, t.TempDir(), embedded.Options{})
	appendRecords(t, j, 1, 1)
	for range 2 {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, appended := j.Append(record(2))
	_, read := j.Read(1)
	_, _, replayed := replay(j)
	for call, err := range map[string]error{
		"Append": appended, "Read": read, "ReadMany": j.ReadMany([]uint64{1}, func(journal.Record) bool { return true }), "Replay": replayed, "Trim": j.Trim(1, nil), "Err": j.Err(),
	} {
		if !errors.Is(err, journal.ErrClosed) {
			t.Errorf("%s: error %v", call, err)
		}
	}
}

// A replay reads ahead: the values that yield sees are those of their records, whatever is read meanwhile.
func TestReplay_manyBatches_keepTheirValues(t *testing.T) {
	j := mustOpen(t, t.TempDir(), embedded.Options{})
	const last = 3000
	of := func(revision uint64) journal.Record {
		r := bigRecord(revision)
		if revision%500 == 0 {
			r.Value = bytes.Repeat(r.Value, 300) // more than is read at once
		}
		return r
	}
	for revision := uint64(1); revision <= last; revision++ {
		wait, err := j.Append(of(revision))
		if err == nil && revision == last {
			err = wait()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	next := uint64(1)
	see := func(until uint64) error {
		_, err := j.Replay(t.Context(), func(r journal.Record) error {
			if want := of(next); r.Revision != next || r.Key != want.Key || !bytes.Equal(r.Value, want.Value) {
				t.Errorf("record %d of %q has %d bytes", r.Revision, r.Key, len(r.Value))
			}
			if next++; next > until {
				return io.EOF
			}
			return nil
		})
		return err
	}
	// The first one ends while records are read ahead.
	if err := see(last / 2); !errors.Is(err, io.EOF) || next != last/2+1 {
		t.Errorf("error %v before %d", err, next)
	}
	if next = 1; see(last+1) != nil || next != last+1 {
		t.Errorf("a replay of %d records ends before %d", last, next)
	}
}

// Revisions are read near each other, far from each other, trimmed ones, ones that never were, and none.
func TestReadMany_anyRevisions_areThoseOfRead(t *testing.T) {
	j := mustOpen(t, t.TempDir(), embedded.Options{MemTableSize: 256 << 10})
	const last = 3000
	for revision := uint64(1); revision <= last; revision++ {
		wait, err := j.Append(bigRecord(revision))
		if err == nil && revision%100 == 0 {
			err = wait()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var dropped []uint64
	for revision := uint64(1); revision < last/2; revision++ {
		if revision%3 == 0 || revision > 700 && revision < 900 {
			dropped = append(dropped, revision)
		}
	}
	if err := j.Trim(last/2, dropped); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, gap := range []int{1, 2, 20, 500, 5000} {
		var revisions, want, got []uint64
		for revision := uint64(1 + random.IntN(gap)); revision < last+100; revision += uint64(1 + random.IntN(gap)) {
			revisions = append(revisions, revision)
			if _, err := j.Read(revision); err == nil {
				want = append(want, revision)
			} else if !errors.Is(err, journal.ErrNotFound) {
				t.Fatal(err)
			}
		}
		err := j.ReadMany(revisions, func(r journal.Record) bool {
			if want := bigRecord(r.Revision); r.Key != want.Key || !bytes.Equal(r.Value, want.Value) {
				t.Errorf("record %d of %q has %d bytes", r.Revision, r.Key, len(r.Value))
			}
			got = append(got, r.Revision)
			return true
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("with gaps up to %d: %d of %d records, %v", gap, len(got), len(want), err)
		}
	}
	n := 0
	if err := j.ReadMany([]uint64{1, 2, 4}, func(journal.Record) bool { n++; return n < 2 }); err != nil || n != 2 {
		t.Errorf("%d records before yield has enough, %v", n, err)
	}
	if err := j.ReadMany(nil, func(journal.Record) bool { t.Error("a record of none"); return true }); err != nil {
		t.Error(err)
	}
}

func TestReplay_endsWithErrorOfYieldOrContext(t *testing.T) {
	j := mustOpen(t, t.TempDir(), embedded.Options{})
	appendRecords(t, j, 1, 5)
	enough := errors.New("enough")
	var seen int
	if _, err := j.Replay(context.Background(), func(journal.Record) error { seen++; return enough }); !errors.Is(err, enough) || seen != 1 {
		t.Errorf("error %v after %d records", err, seen)
	}
	ctx, cancel := context.WithCancel(context.Background())
	seen = 0
	_, err := j.Replay(ctx, func(journal.Record) error { seen++; cancel(); return nil })
	if !errors.Is(err, context.Canceled) || seen != 1 {
		t.Errorf("error %v after %d records", err, seen)
	}
}

func TestAppend_wait_mayBeCalledRepeatedlyAndConcurrently(t *testing.T) {
	j := mustOpen(t, t.TempDir(), embedded.Options{})
	wait, err := j.Append(record(1))
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 8)
	for range cap(results) {
		go func() { results <- wait() }()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

func TestOpen_otherFiles_areLeftAlone(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(other, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := mustOpen(t, dir, embedded.Options{})
	appendRecords(t, j, 1, 3)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(other); err != nil || string(got) != "mine" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDiskUsage_countsRecords(t *testing.T) {
	files := vfs.NewMem()
	j := mustOpen(t, "journal", embedded.Options{FS: files})
	before := j.DiskUsage()
	appendRecords(t, j, 1, 5000)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = mustOpen(t, "journal", embedded.Options{FS: files})
	if after := j.DiskUsage(); after < before+5000*5 {
		t.Errorf("%d bytes after 5000 records, %d before", after, before)
	}
}

func TestOpen_onlyWatermarkLeft_isDamaged(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, embedded.Options{})
	appendRecords(t, j, 1, 3)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != "WITNESS" {
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	if _, err := embedded.Open(dir, embedded.Options{}); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("error %v, want ErrDamaged", err)
	}
}
