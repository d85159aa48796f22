package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// holding returns the files of a directory that contain a text.
func holding(t *testing.T, dir, text string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(text)) {
			names = append(names, entry.Name())
		}
	}
	return names
}

// writeSecrets appends records until revision last. Every other record contains the secret and is dropped.
func writeSecrets(t *testing.T, j journal.Journal, first, last uint64, secret string) {
	t.Helper()
	var wait func() error
	var drop []uint64
	for revision := first; revision <= last; revision++ {
		r := bigRecord(revision)
		if revision%2 == 1 {
			r.Value = fmt.Appendf(nil, "%s %d %x", secret, revision, r.Value)
			drop = append(drop, revision)
		}
		var err error
		if wait, err = j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	if err := j.Trim(last, drop); err != nil {
		t.Fatal(err)
	}
}

func TestPurge_droppedRecords_areGone(t *testing.T) {
	const secret = "plain-text-secret"
	dir := t.TempDir()
	j := mustOpen(t, dir, embedded.Options{MemTableSize: 256 << 10})
	defer j.Close()
	// Some of the secrets are only in the log, some in tables, and some in logs that are kept for reuse.
	writeSecrets(t, j, 1, 2000, secret)
	if len(holding(t, dir, secret)) == 0 {
		t.Fatal("the secret is nowhere: the test tests nothing")
	}
	if err := j.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := holding(t, dir, secret); len(names) > 0 {
		t.Errorf("dropped records are in %v", names)
	}
	writeSecrets(t, j, 2001, 2010, secret)
	if err := j.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := holding(t, dir, secret); len(names) > 0 {
		t.Errorf("dropped records are in %v, after they were in the log alone", names)
	}
	for revision := uint64(2); revision <= 2010; revision += 2 {
		r, err := j.Read(revision)
		if err != nil || !sameRecords([]journal.Record{r}, []journal.Record{bigRecord(revision)}) {
			t.Fatalf("revision %d is not what was kept: %v", revision, err)
		}
	}
}

func TestPurge_besideWriters(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir, embedded.Options{MemTableSize: 256 << 10})
	l := &load{journal: j}
	var writing sync.WaitGroup
	var ended atomic.Bool
	writing.Go(func() {
		defer ended.Store(true)
		for _, err := range l.run(4, 1000) {
			t.Error(err)
		}
	})
	for !ended.Load() {
		if err := j.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	writing.Wait()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	again := mustOpen(t, dir, embedded.Options{})
	defer again.Close()
	l.mustBeWhole(t, again)
}

// The compaction of a failed disk waits until the journal is closed. The purge must not wait with it.
func TestPurge_failedDisk_returns(t *testing.T) {
	var broken atomic.Bool
	files := injecting(vfs.NewMem(), func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return errorfs.ErrInjected
		}
		return nil
	})
	j := mustOpen(t, "/journal", embedded.Options{FS: files})
	defer j.Close()
	writeSecrets(t, j, 1, 100, "text")
	broken.Store(true)
	if err := j.Purge(t.Context()); err == nil {
		t.Error("a purge of a failed disk succeeded")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Purge(ended); err == nil {
		t.Error("a purge of a failed disk succeeded")
	}
}
