package files_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

// memory is a file system in memory, or above it, as a journal takes it.
type memory struct{ vfs.FS }

func newMemory(under vfs.FS) memory {
	if err := under.MkdirAll("/root", 0o700); err != nil {
		panic(err)
	}
	if err := (memory{under}).SyncDir(".."); err != nil {
		panic(err)
	}
	return memory{under}
}

func (m memory) path(name string) string { return m.PathJoin("/", "root", name) }

func (m memory) Create(name string) (files.File, error) {
	file, err := m.FS.Create(m.path(name), vfs.WriteCategoryUnspecified)
	return memoryFile{file}, err
}

func (m memory) Open(name string) (io.ReadCloser, error) { return m.FS.Open(m.path(name)) }
func (m memory) Rename(oldName, newName string) error {
	return m.FS.Rename(m.path(oldName), m.path(newName))
}

// RenameNew and Exchange are not done at once: nobody else changes these files at the
// same time. MemFS.Link is of no use to them, for it waits for a CrashClone that waits
// for it.
func (m memory) RenameNew(oldName, newName string) error {
	if _, err := m.Stat(newName); err == nil {
		return &fs.PathError{Op: "rename", Path: newName, Err: fs.ErrExist}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return m.Rename(oldName, newName)
}

func (m memory) Exchange(oldName, newName string) error {
	aside := oldName + ".aside"
	if err := m.Rename(newName, aside); err != nil {
		return err
	}
	if err := m.Rename(oldName, newName); err != nil {
		return err
	}
	return m.Rename(aside, oldName)
}

func (m memory) Remove(name string) error              { return m.FS.Remove(m.path(name)) }
func (m memory) Mkdir(name string) error               { return m.FS.MkdirAll(m.path(name), 0o700) }
func (m memory) Stat(name string) (fs.FileInfo, error) { return m.FS.Stat(m.path(name)) }
func (m memory) Lock(name string) (io.Closer, error)   { return m.FS.Lock(m.path(name)) }

func (m memory) List(name string) ([]fs.DirEntry, error) {
	names, err := m.FS.List(m.path(name))
	if err != nil {
		return nil, err
	}
	var list []fs.DirEntry
	for _, base := range names {
		info, err := m.FS.Stat(m.PathJoin(m.path(name), base))
		if err != nil {
			return nil, err
		}
		list = append(list, fs.FileInfoToDirEntry(info))
	}
	return list, nil
}

func (m memory) SyncDir(name string) error {
	dir, err := m.OpenDir(m.path(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

type memoryFile struct{ vfs.File }

func (f memoryFile) Stat() (fs.FileInfo, error) { return f.File.Stat() }

// broken lets files misbehave in ways that errorfs has not, once on is set.
type broken struct {
	files.FS
	on     *atomic.Bool
	write  func(file files.File, p []byte) (int, error)
	rename func(under files.FS, oldName, newName string) error
	close  error
	suffix string // of the names that it happens to
}

func (b broken) Create(name string) (files.File, error) {
	file, err := b.FS.Create(name)
	if err != nil || !strings.HasSuffix(name, b.suffix) {
		return file, err
	}
	return brokenFile{file, b}, nil
}

// renames reports whether giving a file its last name goes wrong.
func (b broken) renames(newName string) bool {
	return b.on.Load() && b.rename != nil && strings.HasSuffix(newName, b.suffix) && !strings.HasPrefix(newName, ".annex/tmp/")
}

func (b broken) Rename(oldName, newName string) error {
	if b.renames(newName) {
		return b.rename(b.FS, oldName, newName)
	}
	return b.FS.Rename(oldName, newName)
}

func (b broken) RenameNew(oldName, newName string) error {
	if b.renames(newName) {
		return b.rename(b.FS, oldName, newName)
	}
	return b.FS.RenameNew(oldName, newName)
}

func (b broken) Exchange(oldName, newName string) error {
	if b.renames(newName) {
		return b.rename(b.FS, oldName, newName)
	}
	return b.FS.Exchange(oldName, newName)
}

type brokenFile struct {
	files.File
	broken broken
}

func (f brokenFile) Write(p []byte) (int, error) {
	if f.broken.on.Load() && f.broken.write != nil {
		return f.broken.write(f.File, p)
	}
	return f.File.Write(p)
}

func (f brokenFile) Close() error {
	err := f.File.Close()
	if f.broken.on.Load() && f.broken.close != nil {
		return f.broken.close
	}
	return err
}

// load is writers that change objects of their own, and what each object can be.
type load struct {
	journal *files.Journal

	mu       sync.Mutex // orders the appends
	last     uint64
	current  map[string]uint64 // by key: the revision of the object
	promised map[string]string // what was acknowledged last; empty is deleted
	tried    map[string]string // what is being written
	highest  uint64            // revision acknowledged
}

func newLoad() *load {
	return &load{current: map[string]uint64{}, promised: map[string]string{}, tried: map[string]string{}}
}

// take goes on with a journal. It returns what that holds.
func (l *load) take(t testing.TB, j *files.Journal) {
	t.Helper()
	l.journal = j
	last := uint64(1)
	compacted, err := j.Replay(t.Context(), func(r journal.Record) error {
		last = r.Revision
		if l.current[r.Key] = r.Revision; r.Deleted {
			l.current[r.Key] = 0
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l.last = max(compacted, last)
}

const pad = 300

func valueOf(content string) []byte {
	return fmt.Appendf(nil, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x","uid":"%s"},"spec":{"content":"%s","padding":"%s"},"status":{"phase":"%s"}}`,
		content, content, strings.Repeat("x", pad), content)
}

func contentOf(value []byte) string {
	var object struct {
		Spec struct{ Content string }
	}
	if json.Unmarshal(value, &object) != nil || !bytes.Equal(value, valueOf(object.Spec.Content)) {
		return "something that nobody wrote"
	}
	return object.Spec.Content
}

// run makes n changes by each writer, who stops at an error. It returns the errors.
func (l *load) run(rng *rand.Rand, writers, n int) (failures []error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	for writer := range writers {
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		group.Go(func() {
			for range n {
				if err := l.write(own, writer); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failures = append(failures, err)
					return
				}
			}
		})
	}
	group.Wait()
	return failures
}

func (l *load) write(rng *rand.Rand, writer int) error {
	key := fmt.Sprintf("/pods/ns%d/pod-%d-%d", writer%3, writer, rng.IntN(4))
	content := fmt.Sprintf("w%d-%d", writer, rng.Uint64())
	l.mu.Lock()
	record := journal.Record{Revision: l.last + 1, Previous: l.current[key], Key: key, Committed: time.Now().UTC()}
	if record.Previous != 0 && rng.IntN(4) == 0 {
		record.Deleted, content = true, ""
	} else {
		record.Value = valueOf(content)
	}
	l.tried[key] = content
	wait, err := l.journal.Append(record)
	if err != nil {
		if l.journal.Err() == nil {
			err = fmt.Errorf("refused without a reason: %w", err)
		}
		delete(l.tried, key)
		l.mu.Unlock()
		return err
	}
	l.last = record.Revision
	l.mu.Unlock()
	if err := wait(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.promised[key] = content
	delete(l.tried, key)
	l.current[key] = record.Revision
	if record.Deleted {
		l.current[key] = 0
	}
	l.highest = max(l.highest, record.Revision)
	return nil
}

// copy is what was promised and tried up to now.
func (l *load) copy() *load {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := newLoad()
	c.highest = l.highest
	for key, content := range l.promised {
		c.promised[key] = content
	}
	for key, content := range l.tried {
		c.tried[key] = content
	}
	return c
}

// check opens the journal on a healthy file system and looks for everything that was
// promised: in the records, and after a first look in the object files. Nothing there
// may be taken for an edit.
func (l *load) check(t *testing.T, count *storetest.Faults, under files.FS) *files.Journal {
	t.Helper()
	j, err := files.Open("root", files.Options{Resources: layout, FS: under, Rescan: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]string{}
	compacted, err := j.Replay(t.Context(), func(r journal.Record) error {
		held[r.Key] = contentOf(r.Value)
		l.current[r.Key] = r.Revision
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if compacted < l.highest {
		count.Corrupted(t, "the revision fell from %d to %d", l.highest, compacted)
	}
	for key, content := range l.promised {
		tried, trying := l.tried[key]
		if got := held[key]; got != content && (!trying || got != tried) {
			count.Lost(t, 1, "%s is %q, promised was %q, tried %q (%v)", key, got, content, tried, trying)
		}
	}
	for key, content := range held {
		if _, known := l.promised[key]; !known && content != l.tried[key] && l.tried[key] != anything {
			count.Corrupted(t, "%s is %q, which nobody wrote", key, content)
		}
		if l.promised[key] = content; l.tried[key] != "" {
			delete(l.tried, key)
		}
	}
	for key := range l.promised {
		if _, ok := held[key]; !ok {
			l.promised[key], l.current[key] = "", 0
		}
		delete(l.tried, key)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- j.Run(ctx, func(_ context.Context, p *files.Proposal) error {
			count.Corrupted(t, "%s was taken for an edit: %s", p.Path, p.Document)
			return files.Broken(errors.New("nobody has edited it"))
		})
	}()
	<-j.Observed()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	l.checkObjects(t, count, under)
	l.last = compacted
	l.journal = j
	return j
}

// checkObjects compares the object files with what was promised.
func (l *load) checkObjects(t *testing.T, count *storetest.Faults, under files.FS) {
	t.Helper()
	for key, content := range l.promised {
		name := "core" + key + ".yaml"
		file, err := under.Open(name)
		if content == "" {
			if err == nil {
				count.Corrupted(t, "%s is there, but the object is not", name)
				_ = file.Close()
			}
			continue
		}
		if err != nil {
			count.Lost(t, 1, "object file: %v", err)
			continue
		}
		data, err := io.ReadAll(file)
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), "content: "+content+"\n") || strings.Contains(string(data), "uid") {
			count.Corrupted(t, "%s should have the content %s:\n%s", name, content, data)
		}
	}
}

// TestAnErrorOfTheDiskMakesTheJournalReadOnly lets one kind of operation on one kind
// of file fail.
func TestAnErrorOfTheDiskMakesTheJournalReadOnly(t *testing.T) {
	count := storetest.CountFaults(t, "files")
	short := func(file files.File, p []byte) (int, error) { return file.Write(p[:len(p)/2]) }
	silent := func(file files.File, p []byte) (int, error) { _, err := file.Write(p[:len(p)/2]); return len(p), err }
	full := func(file files.File, p []byte) (int, error) {
		n, _ := file.Write(p[:len(p)/3])
		return n, syscall.ENOSPC
	}
	not := func(files.FS, string, string) error { return syscall.EIO }
	gone := func(under files.FS, oldName, newName string) error {
		_ = under.Remove(newName)
		return syscall.EIO
	}
	late := func(under files.FS, oldName, newName string) error {
		_ = under.Rename(oldName, newName)
		return syscall.EIO
	}
	for name, c := range map[string]struct {
		broken broken
		want   error
	}{
		"short write of a record":                  {broken{write: short, suffix: ".record"}, io.ErrShortWrite},
		"short write of an object":                 {broken{write: short, suffix: ".yaml"}, io.ErrShortWrite},
		"a write of an object that is not told of": {broken{write: silent, suffix: ".yaml"}, nil},
		"a write of a record that is not told of":  {broken{write: silent, suffix: ".record"}, nil},
		"no space for a record":                    {broken{write: full, suffix: ".record"}, syscall.ENOSPC},
		"no space for an object":                   {broken{write: full, suffix: ".yaml"}, syscall.ENOSPC},
		"no space for the state":                   {broken{write: full, suffix: "state"}, nil},
		"error on closing a record":                {broken{close: syscall.EIO, suffix: ".record"}, syscall.EIO},
		"error on closing an object":               {broken{close: syscall.EIO, suffix: ".yaml"}, syscall.EIO},
		"a record cannot be renamed":               {broken{rename: not, suffix: ".record"}, syscall.EIO},
		"an object cannot be renamed":              {broken{rename: not, suffix: ".yaml"}, syscall.EIO},
		"a rename of a record that is half done":   {broken{rename: late, suffix: ".record"}, syscall.EIO},
		"a rename of an object that is half done":  {broken{rename: late, suffix: ".yaml"}, syscall.EIO},
		"a rename that loses what was there":       {broken{rename: gone, suffix: ".yaml"}, syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := storetest.Seeded(t)
			healthy := newMemory(vfs.NewMem())
			var on atomic.Bool
			c.broken.FS, c.broken.on = healthy, &on
			j, err := files.Open("root", files.Options{Resources: layout, FS: c.broken})
			if err != nil {
				t.Fatal(err)
			}
			l := newLoad()
			l.take(t, j)
			if failures := l.run(rng, 8, 20); len(failures) > 0 {
				t.Fatal(failures)
			}
			on.Store(true)
			count.Injected()
			if name == "no space for the state" {
				// It is needed once in so many revisions, and to close.
				failures := l.run(rng, 16, 400)
				if len(failures) == 0 || !errors.Is(j.Err(), syscall.ENOSPC) {
					t.Errorf("%d writers failed, and the journal has %v", len(failures), j.Err())
				}
			} else {
				failures := l.run(rng, 8, 100)
				if len(failures) != 8 {
					t.Errorf("%d of 8 writers failed: %v", len(failures), failures)
				}
				for _, err := range append(failures, j.Err()) {
					if err == nil || c.want != nil && !errors.Is(err, c.want) {
						t.Errorf("error %v, want %v", err, c.want)
					}
				}
			}
			if _, err := j.Append(journal.Record{Revision: l.last + 1, Key: "/pods/a/b"}); err == nil {
				t.Error("a failed journal takes a record")
			}
			if err := j.Trim(1, nil); err == nil {
				t.Error("a failed journal can be trimmed")
			}
			if err := j.Close(); err == nil {
				t.Error("closing does not tell of the failure")
			}
			after := l.check(t, count, healthy)
			if failures := l.run(rng, 4, 10); len(failures) > 0 {
				t.Fatal(failures)
			}
			if err := after.Close(); err != nil {
				t.Fatal(err)
			}
			closeChecked(t, l.check(t, count, healthy))
		})
	}
}

func closeChecked(t *testing.T, j *files.Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAnErrorAtAnyOperationLosesNothing lets a random operation on the disk fail,
// from opening to closing, and all after it or only that one. ANNEX_DISK_ERRORS sets
// the number of trials.
func TestAnErrorAtAnyOperationLosesNothing(t *testing.T) {
	count := storetest.CountFaults(t, "files")
	rng := storetest.Seeded(t)
	const operations = 3000 // about what the load below takes
	for range storetest.Trials(t, "ANNEX_DISK_ERRORS", 60) {
		at, once := rng.Int64N(operations), rng.IntN(2) == 0
		if rng.IntN(4) == 0 {
			at = rng.Int64N(30) // while opening
		}
		t.Run(fmt.Sprintf("operation %d, once=%v", at, once), func(t *testing.T) {
			healthy := vfs.NewMem()
			newMemory(healthy)
			var operation atomic.Int64
			failing := errorfs.Wrap(healthy, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
					return nil
				}
				if n := operation.Add(1); n == at || !once && n > at {
					return syscall.EIO
				}
				return nil
			}))
			count.Injected()
			l := newLoad()
			j, err := files.Open("root", files.Options{Resources: layout, FS: memory{failing}})
			if err == nil {
				l.take(t, j)
				failures := l.run(rng, 8, 40)
				if len(failures) > 0 && j.Err() == nil {
					t.Errorf("writers saw %v but the journal has no error", failures)
				}
				if err := j.Close(); err != nil && !errors.Is(err, syscall.EIO) {
					t.Errorf("close: %v", err)
				}
			}
			closeChecked(t, l.check(t, count, memory{healthy}))
		})
	}
}

// TestAPowerCutLosesNothingAcknowledged takes images of the disk as power cuts would
// leave it: what was synced, and a random part of the rest. ANNEX_POWER_CUTS sets
// their number.
func TestAPowerCutLosesNothingAcknowledged(t *testing.T) {
	count := storetest.CountFaults(t, "files")
	rng := storetest.Seeded(t)
	disk := vfs.NewCrashableMem()
	j, err := files.Open("root", files.Options{Resources: layout, FS: newMemory(disk)})
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad()
	l.take(t, j)
	for cut := range storetest.Trials(t, "ANNEX_POWER_CUTS", 30) {
		target := l.copy().highest + rng.Uint64N(100)
		done := make(chan []error, 1)
		own := rand.New(rand.NewPCG(rng.Uint64(), 0))
		go func() { done <- l.run(own, 16, 10) }()
		for l.copy().highest < target && j.Err() == nil && len(done) == 0 {
			runtime.Gosched()
		}
		// Whatever was acknowledged before the cut must be there after it. What was
		// tried between the two looks is either.
		before := l.copy()
		percent := rng.IntN(101)
		crashed := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		after := l.copy()
		if failures := <-done; len(failures) > 0 {
			t.Fatal(failures)
		}
		count.Injected()
		t.Run(fmt.Sprintf("cut %d with %d%% of the unsynced data", cut, percent), func(t *testing.T) {
			if cut%3 == 0 { // a second cut while it recovers
				recovering, err := files.Open("root", files.Options{Resources: layout, FS: memory{crashed}})
				if err != nil {
					t.Fatal(err)
				}
				again := crashed.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				closeChecked(t, recovering)
				crashed = again
			}
			closeChecked(t, before.either(after).check(t, count, memory{crashed}))
		})
	}
	closeChecked(t, j)
}

// either is a load whose every object may be as it was promised, or tried, at either
// of two moments, if that is one of two contents.
func (l *load) either(later *load) *load {
	for key, content := range later.tried {
		if _, trying := l.tried[key]; !trying {
			l.tried[key] = content
		}
	}
	for key, content := range later.promised {
		if l.promised[key] != content || !has(l.promised, key) {
			// It was acknowledged in between, and may have been changed again: nothing
			// but the objects that did not change can be told.
			if tried, trying := l.tried[key]; !trying || tried != content {
				delete(l.promised, key)
				l.tried[key] = anything
			}
		}
	}
	return l
}

const anything = "anything"

func has(m map[string]string, key string) bool { _, ok := m[key]; return ok }

// TestFlippedBitsAreReported flips a bit in a side file or the state, and opens the
// journal. ANNEX_BIT_FLIPS sets how many.
func TestFlippedBitsAreReported(t *testing.T) {
	count := storetest.CountFaults(t, "files")
	rng := storetest.Seeded(t)
	dir := t.TempDir()
	j, err := files.Open(dir, files.Options{Resources: layout})
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad()
	l.take(t, j)
	if failures := l.run(rng, 8, 10); len(failures) > 0 {
		t.Fatal(failures)
	}
	closeChecked(t, j)
	var private []string
	err = filepath.WalkDir(filepath.Join(dir, ".annex"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && entry.Name() != "LOCK" {
			private = append(private, path)
		}
		return err
	})
	if err != nil || len(private) < 10 {
		t.Fatalf("%d files, %v", len(private), err)
	}
	refused := func(t *testing.T, path, what string) {
		t.Helper()
		count.Injected()
		j, err := files.Open(dir, files.Options{Resources: layout})
		if err == nil {
			count.Corrupted(t, "%s of %s was not noticed", what, path)
			closeChecked(t, j)
			return
		}
		if !errors.Is(err, journal.ErrDamaged) && !strings.Contains(err.Error(), "newer") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s of %s: %v", what, path, err)
		}
	}
	write := func(path string, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range storetest.Trials(t, "ANNEX_BIT_FLIPS", 300) {
		path := private[rng.IntN(len(private))]
		sound, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		spoilt := bytes.Clone(sound)
		what := ""
		switch rng.IntN(4) {
		case 0:
			spoilt, what = spoilt[:rng.IntN(len(spoilt))], "the loss of the end"
		case 1:
			spoilt, what = append(spoilt, 'x'), "an end that is too long"
		default:
			at := rng.IntN(len(spoilt))
			spoilt[at] ^= 1 << rng.IntN(8)
			what = fmt.Sprintf("a flipped bit at %d", at)
		}
		write(path, spoilt)
		refused(t, path, what)
		write(path, sound)
	}
	// A record in the place of another, one that has no state, and a foreign file.
	records := filepath.Join(dir, ".annex", "records")
	var some []string
	for _, path := range private {
		if strings.HasPrefix(path, records) {
			some = append(some, path)
		}
	}
	first, err := os.ReadFile(some[0])
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(some[1])
	if err != nil {
		t.Fatal(err)
	}
	write(some[0], second)
	refused(t, some[0], "another record")
	write(some[0], first)
	foreign := filepath.Join(records, "notes.txt")
	write(foreign, []byte("milk"))
	refused(t, foreign, "a foreign file")
	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, ".annex", "state")
	content, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	refused(t, state, "the loss")
	write(state, content)
	// And when all is as it was, it opens.
	if j, err = files.Open(dir, files.Options{Resources: layout}); err != nil {
		t.Fatal(err)
	}
	closeChecked(t, j)
}
