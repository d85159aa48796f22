package files_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
)

// TestRecordsFollowAJumpThatIsNotDurableYet appends while the state that says so is
// being written, as a core does that compacts its first revision beside the first
// writes.
func TestRecordsFollowAJumpThatIsNotDurableYet(t *testing.T) {
	var on atomic.Bool
	begun, release := make(chan struct{}, 1), make(chan struct{})
	under := broken{FS: newMemory(vfs.NewMem()), on: &on, suffix: "state", write: func(file files.File, p []byte) (int, error) {
		begun <- struct{}{}
		<-release
		return file.Write(p)
	}}
	j, err := files.Open("root", files.Options{Resources: layout, FS: under})
	if err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	trimmed := make(chan error, 1)
	go func() { trimmed <- j.Trim(1, nil) }()
	<-begun
	on.Store(false)
	var waits []func() error
	next := uint64(2)
	add := func(key string) {
		wait, err := j.Append(journal.Record{Revision: next, Key: key, Value: valueOf(key), Committed: time.Now().UTC()})
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, wait)
		next++
	}
	add("/pods/a/x")
	add("/pods/a/y")
	close(release)
	if err := <-trimmed; err != nil {
		t.Error(err)
	}
	add("/pods/a/z")
	for _, wait := range waits {
		if err := wait(); err != nil {
			t.Error(err)
		}
	}
	closeChecked(t, j)
}
