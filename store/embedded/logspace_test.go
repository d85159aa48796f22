package embedded_test

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/annexapi/annex/internal/testing/crashfs"
	"github.com/annexapi/annex/store/embedded"
)

// logSizes records the sizes of logs at each sync.
type logSizes struct {
	vfs.FS
	mu    sync.Mutex
	sizes map[string][]int64 // by name, each size once
}

func (s *logSizes) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := s.FS.Create(name, category)
	return s.wrap(name, file), err
}

func (s *logSizes) ReuseForWrite(oldName, newName string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := s.FS.ReuseForWrite(oldName, newName, category)
	return s.wrap(newName+" reused", file), err
}

func (s *logSizes) wrap(name string, file vfs.File) vfs.File {
	if file == nil || !strings.Contains(name, ".log") {
		return file
	}
	return &sizedLog{file, name, s}
}

type sizedLog struct {
	vfs.File
	name string
	of   *logSizes
}

func (l *sizedLog) SyncData() error {
	info, err := l.Stat()
	if err != nil {
		return err
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	sizes := l.of.sizes[l.name]
	if len(sizes) == 0 || sizes[len(sizes)-1] != info.Size() {
		l.of.sizes[l.name] = append(sizes, info.Size())
	}
	return l.File.SyncData()
}

// appendSynced appends big records, each with a sync of its own.
func appendSynced(t *testing.T, j *embedded.Journal, from, to uint64) {
	t.Helper()
	for revision := from; revision <= to; revision++ {
		wait, err := j.Append(bigRecord(revision))
		if err != nil {
			t.Fatal(err)
		}
		if err := wait(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLog_isLongerThanSyncedPart(t *testing.T) {
	t.Parallel()
	files := &logSizes{FS: crashfs.New(), sizes: map[string][]int64{}}
	j, err := embedded.Open(imageDir, embedded.Options{FS: files, MemTableSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	const records = 4000
	appendSynced(t, j, 1, records)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	logs, reused := 0, 0
	for name, sizes := range files.sizes {
		logs++
		if strings.HasSuffix(name, " reused") {
			reused++
		}
		// Without filling, records of 1 KB would lengthen the log with each sync.
		if len(sizes) > 8 {
			t.Errorf("%s had %d sizes: %v", filepath.Base(name), len(sizes), sizes)
		}
	}
	if logs < 3 || reused == 0 {
		t.Errorf("%d logs, %d of them reused: this proves nothing", logs, reused)
	}
}

// The filling after the last record of a log is not taken for a record, however much of it a power cut leaves.
func TestLog_zeroesAtEnd_areNoRecords(t *testing.T) {
	t.Parallel()
	files := crashfs.New()
	j, err := embedded.Open(imageDir, embedded.Options{FS: files})
	if err != nil {
		t.Fatal(err)
	}
	const records = 300 // a little more than the first filling holds
	appendSynced(t, j, 1, records)
	for percent := 0; percent <= 100; percent += 25 {
		after := files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(uint64(percent), 1))})
		var zeroes bool
		for name, data := range takeImage(t, after) {
			zeroes = zeroes || strings.HasSuffix(name, ".log") && bytes.HasSuffix(data, make([]byte, 64<<10))
		}
		if !zeroes {
			t.Errorf("%d %%: no log ends with zeroes", percent)
		}
		again, err := embedded.Open(imageDir, embedded.Options{FS: after})
		if err != nil {
			t.Fatalf("%d %%: %v", percent, err)
		}
		got, _, err := replay(again)
		if err != nil || len(got) != records {
			t.Errorf("%d %%: %d records, %v", percent, len(got), err)
		}
		appendSynced(t, again, records+1, records+2)
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// A log that cannot be filled for lack of room is still written.
func TestLog_fillingFails_isWritten(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	refused := map[string]int{}
	files := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWriteAt && strings.HasSuffix(op.Path, ".log") {
			mu.Lock()
			defer mu.Unlock()
			refused[op.Path]++
			return syscall.ENOSPC
		}
		return nil
	}))
	j, err := embedded.Open(imageDir, embedded.Options{FS: files})
	if err != nil {
		t.Fatal(err)
	}
	appendSynced(t, j, 1, 400)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if len(refused) == 0 {
		t.Error("no log was to be filled")
	}
	for log, times := range refused {
		if times != 1 {
			t.Errorf("%s was to be filled %d times", log, times)
		}
	}
}
