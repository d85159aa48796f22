package embedded_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// otherProcess is the operating system's file system as another process sees it: locks of this process on files of
// the same name do not affect it.
type otherProcess struct{ vfs.FS }

func (otherProcess) Lock(name string) (io.Closer, error) { return os.Create(name) }

const never = time.Hour

func appendRecord(j journal.Journal, revision uint64) error {
	wait, err := j.Append(bigRecord(revision))
	if err != nil {
		return err
	}
	return wait()
}

// within fails the test if a condition does not come true.
func within(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestAppend_lockTaken_isNotAcknowledged(t *testing.T) {
	dir := t.TempDir()
	first := mustOpen(t, dir, embedded.Options{CheckInterval: never})
	for revision := uint64(1); revision <= 3; revision++ {
		if err := appendRecord(first, revision); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
		t.Fatal(err)
	}
	second := mustOpen(t, dir, embedded.Options{FS: otherProcess{vfs.Default}, CheckInterval: never})
	records, _, err := replay(second)
	if err != nil || len(records) != 3 {
		t.Fatalf("%d records, %v; want all that were acknowledged", len(records), err)
	}
	theirs := bigRecord(4)
	theirs.Key = "/things/default/theirs"
	wait, err := second.Append(theirs)
	if err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Fatal(err)
	}

	if err := appendRecord(first, 4); !errors.Is(err, journal.ErrLockLost) || errors.Is(err, journal.ErrTransient) {
		t.Errorf("a write under a lock that is gone: %v, want ErrLockLost", err)
	}
	if err := first.Err(); !errors.Is(err, journal.ErrLockLost) {
		t.Errorf("Err is %v, want ErrLockLost", err)
	}
	if _, err := first.Recover(); !errors.Is(err, journal.ErrLockLost) {
		t.Errorf("Recover gave %v, want ErrLockLost", err)
	}
	_ = first.Close() // returns the failure, and leaves the directory alone
	if err := appendRecord(second, 5); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	third := mustOpen(t, dir, embedded.Options{})
	defer third.Close()
	records, _, err = replay(third)
	if err != nil || len(records) != 5 || records[3].Key != theirs.Key {
		t.Errorf("%d records, %v; want the three of the first and the two of the second", len(records), err)
	}
}

// A compaction in the background must not touch the files of the process that has taken the directory over, even
// though no record is written any more.
func TestDirLock_taken_namesStayUnchanged(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, embedded.Options{CheckInterval: never, MemTableSize: 256 << 10})
	for revision := uint64(1); revision <= 20; revision++ {
		if err := appendRecord(j, revision); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
		t.Fatal(err)
	}
	before := names(t, dir)
	_ = j.Close() // flushes
	if after := names(t, dir); after != before {
		t.Errorf("the directory had %s, and has %s", before, after)
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return strings.Join(all, " ")
}

func TestErr_idleJournal_reportsLostLock(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, embedded.Options{CheckInterval: time.Millisecond})
	defer j.Close()
	if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
		t.Fatal(err)
	}
	within(t, "Err matches ErrLockLost", func() bool { return errors.Is(j.Err(), journal.ErrLockLost) })
}

func TestRecover_directoryPutBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	j := mustOpen(t, dir, embedded.Options{CheckInterval: time.Millisecond})
	if err := appendRecord(j, 1); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	gone := func(err error) bool {
		return errors.Is(err, journal.ErrDirectoryGone) && errors.Is(err, journal.ErrTransient)
	}
	within(t, "Err matches ErrDirectoryGone", func() bool { return gone(j.Err()) })
	if _, err := j.Recover(); !gone(err) {
		t.Errorf("Recover without the directory: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Recover(); !gone(err) {
		t.Errorf("Recover with another directory: %v", err)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
		t.Fatal(err)
	}
	next, err := j.Recover()
	if err != nil {
		t.Fatal(err)
	}
	records, _, err := replay(next)
	if err != nil || len(records) != 1 {
		t.Errorf("%d records, %v", len(records), err)
	}
	if err := appendRecord(next, 2); err != nil {
		t.Error(err)
	}
	_ = j.Close()
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}

// hanging is a file system that does not answer Stat of the lock while it hangs.
type hanging struct {
	vfs.FS
	until atomic.Pointer[chan struct{}]
}

func (h *hanging) Stat(name string) (vfs.FileInfo, error) {
	if until := h.until.Load(); until != nil && filepath.Base(name) == "LOCK" {
		<-*until
	}
	return h.FS.Stat(name)
}

func TestErr_hangingFileSystem_isUnresponsive(t *testing.T) {
	files := &hanging{FS: vfs.NewMem()}
	j := mustOpen(t, "/journal", embedded.Options{FS: files, CheckInterval: time.Millisecond})
	if err := appendRecord(j, 1); err != nil {
		t.Fatal(err)
	}
	answers := make(chan struct{})
	files.until.Store(&answers)
	within(t, "Err matches ErrUnresponsive", func() bool { return errors.Is(j.Err(), journal.ErrUnresponsive) })
	if errors.Is(j.Err(), journal.ErrTransient) {
		t.Error("nothing has failed that would have to be recovered from")
	}
	files.until.Store(nil)
	close(answers)
	within(t, "Err is nil again", func() bool { return j.Err() == nil })
	if err := appendRecord(j, 2); err != nil {
		t.Error(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func TestClose_hangingFileSystem_returns(t *testing.T) {
	files := &hanging{FS: vfs.NewMem()}
	j := mustOpen(t, "/journal", embedded.Options{FS: files, CheckInterval: time.Millisecond})
	answers := make(chan struct{})
	files.until.Store(&answers)
	within(t, "Err matches ErrUnresponsive", func() bool { return errors.Is(j.Err(), journal.ErrUnresponsive) })
	files.until.Store(nil) // but the check still hangs
	defer close(answers)
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}
