package embedded_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/annexapi/annex/internal/testing/crashfs"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

// load is a number of writers that append records of 1 KB, and a concurrent trimmer.
type load struct {
	journal journal.Journal
	faults  *storetest.Faults // the injected faults; may be nil

	mu   sync.Mutex // orders the appends
	last uint64

	acknowledged atomic.Uint64 // the highest revision up to which all are acknowledged
	dropped      sync.Map      // revisions that a Trim may have dropped
}

// run appends n records for each writer. A writer stops at an error. run returns the errors.
func (l *load) run(writers, n int) (failures []error) {
	var left atomic.Int64
	left.Store(int64(writers * n))
	var mu sync.Mutex
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for left.Add(-1) >= 0 {
				if err := l.write(); err != nil {
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

func (l *load) write() error {
	l.mu.Lock()
	revision := l.last + 1
	wait, err := l.journal.Append(bigRecord(revision))
	if err != nil {
		l.mu.Unlock()
		return err
	}
	l.last = revision
	if revision%100 == 0 {
		err = l.trim(revision)
	}
	l.mu.Unlock()
	if err := errors.Join(err, wait()); err != nil {
		return err
	}
	for {
		highest := l.acknowledged.Load()
		if revision <= highest || l.acknowledged.CompareAndSwap(highest, revision) {
			return nil
		}
	}
}

func (l *load) trim(revision uint64) error {
	if revision < 200 {
		return nil
	}
	var drop []uint64
	for r := revision - 199; r < revision-100; r += 2 {
		drop = append(drop, r)
		l.dropped.Store(r, true)
	}
	return l.journal.Trim(revision-100, drop)
}

// mustBeWhole checks that j holds every acknowledged record, and nothing but an unbroken sequence of appended
// records. It returns the last revision.
func (l *load) mustBeWhole(t testing.TB, j journal.Journal) uint64 {
	t.Helper()
	records, _, err := replay(j)
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(1)
	for _, got := range records {
		for ; next < got.Revision; next++ {
			if _, dropped := l.dropped.Load(next); !dropped {
				l.faults.Lost(t, 1, "revision %d is missing, %d follows", next, got.Revision)
			}
		}
		if want := bigRecord(got.Revision); !sameRecords([]journal.Record{want}, []journal.Record{got}) {
			l.faults.Corrupted(t, "revision %d has other content", got.Revision)
		}
		next++
	}
	if acknowledged := l.acknowledged.Load(); next <= acknowledged {
		l.faults.Lost(t, int(acknowledged-next+1), "revisions %d to %d were acknowledged and are missing", next, acknowledged)
	}
	if t.Failed() {
		t.FailNow()
	}
	return next - 1
}

// A journal that cannot be opened is not recovered: its process ends.
func TestOpen_fullDisk_promisesNoRecovery(t *testing.T) {
	files := injecting(vfs.NewMem(), func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".log") {
			return syscall.ENOSPC
		}
		return nil
	})
	j, err := embedded.Open("journal", embedded.Options{FS: files})
	if err == nil {
		t.Fatal("it opened", j.Close())
	}
	if !errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "by itself") {
		t.Error(err)
	}
}

// injecting returns a file system that calls fail before each operation.
func injecting(files vfs.FS, fail func(errorfs.Op) error) vfs.FS {
	return injectingFS{errorfs.Wrap(files, errorfs.InjectorFunc(fail)), fail}
}

// injectingFS also injects errors into reused files, which errorfs does not.
type injectingFS struct {
	*errorfs.FS
	fail func(errorfs.Op) error
}

func (i injectingFS) ReuseForWrite(oldName, newName string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := i.FS.ReuseForWrite(oldName, newName, category)
	if err != nil {
		return nil, err
	}
	return errorfs.WrapFile(file, errorfs.InjectorFunc(func(op errorfs.Op) error {
		op.Path = newName
		return i.fail(op)
	})), nil
}

// brokenFS makes files whose names contain part fail in ways that errorfs does not support: breaks wraps such a file
// so that it fails once on is set.
type brokenFS struct {
	vfs.FS
	part   string
	on     *atomic.Bool
	breaks func(vfs.File, *atomic.Bool) vfs.File
}

func (b brokenFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := b.FS.Create(name, category)
	return b.wrap(name, file, err)
}

func (b brokenFS) ReuseForWrite(oldName, newName string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := b.FS.ReuseForWrite(oldName, newName, category)
	return b.wrap(newName, file, err)
}

func (b brokenFS) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.Contains(name, b.part) {
		return file, err
	}
	return b.breaks(file, b.on), nil
}

// shortFile writes half of its argument and reports no error.
type shortFile struct {
	vfs.File
	on *atomic.Bool
}

func (f shortFile) Write(p []byte) (int, error) {
	if !f.on.Load() {
		return f.File.Write(p)
	}
	return f.File.Write(p[:len(p)/2])
}

// stickyFile returns an error from Close while on is set.
type stickyFile struct {
	vfs.File
	on *atomic.Bool
}

func (f stickyFile) Close() error {
	err := f.File.Close()
	if f.on.Load() {
		return syscall.EIO
	}
	return err
}

// blindFile returns an error from Stat while on is set.
type blindFile struct {
	vfs.File
	on *atomic.Bool
}

func (f blindFile) Stat() (vfs.FileInfo, error) {
	if f.on.Load() {
		return nil, syscall.EIO
	}
	return f.File.Stat()
}

// mustFail drives j, whose file system has begun to fail, until j notices, and checks the errors that callers get.
func mustFail(t *testing.T, j *embedded.Journal, l *load, want error) {
	t.Helper()
	const writers = 16
	failures := l.run(writers, 2500)
	if len(failures) != writers {
		t.Fatalf("%d of %d writers failed: %v", len(failures), writers, failures)
	}
	for _, err := range append(failures, j.Err()) {
		if !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
	}
	if _, err := j.Append(bigRecord(l.last + 1)); !errors.Is(err, want) {
		t.Errorf("append to the failed journal: %v", err)
	}
	if err := j.Trim(1, nil); !errors.Is(err, want) {
		t.Errorf("trim of the failed journal: %v", err)
	}
	// Reads still succeed.
	for revision := uint64(1); revision <= l.acknowledged.Load(); revision += 7 {
		if _, dropped := l.dropped.Load(revision); dropped {
			continue
		}
		if got, err := j.Read(revision); err != nil || !sameRecords([]journal.Record{bigRecord(revision)}, []journal.Record{got}) {
			t.Fatalf("read %d from the failed journal: %v", revision, err)
		}
	}
	if err := j.Close(); !errors.Is(err, want) {
		t.Errorf("close of the failed journal: %v", err)
	}
}

// mustHaveRecovered opens the journal on a healthy file system.
func mustHaveRecovered(t *testing.T, files vfs.FS, l *load) {
	t.Helper()
	j := mustOpen(t, imageDir, embedded.Options{FS: files})
	l.last = l.mustBeWhole(t, j)
	l.journal = j
	if failures := l.run(4, 10); len(failures) > 0 {
		t.Fatal(failures)
	}
	l.mustBeWhole(t, j)
}

func errorsOfTheDisk(t *testing.T, faults *storetest.Faults) {
	write, sync := errorfs.OpFileWrite, []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}
	create := []errorfs.OpKind{errorfs.OpCreate, errorfs.OpReuseForWrite}
	for _, c := range []struct {
		name  string
		kinds []errorfs.OpKind
		path  string
		err   error
	}{
		{"the log cannot be written", []errorfs.OpKind{write}, ".log", syscall.ENOSPC},
		{"the log cannot be synced", sync, ".log", syscall.EIO},
		{"no log can be created", create, ".log", syscall.ENOSPC},
		{"the directory cannot be synced", sync, imageDir, syscall.EIO},
		{"no table can be created", create, ".sst", syscall.ENOSPC},
		{"a table cannot be written", []errorfs.OpKind{write}, ".sst", syscall.ENOSPC},
		{"a table cannot be synced", sync, ".sst", syscall.EIO},
		{"a table cannot be read", []errorfs.OpKind{errorfs.OpFileReadAt}, ".sst", syscall.EIO},
		{"the MANIFEST cannot be written", []errorfs.OpKind{write}, "MANIFEST", syscall.ENOSPC},
		{"the MANIFEST cannot be synced", sync, "MANIFEST", syscall.EIO},
		{"the watermark cannot be written", []errorfs.OpKind{errorfs.OpFileWriteAt}, "WITNESS", syscall.ENOSPC},
		{"a file cannot be removed", []errorfs.OpKind{errorfs.OpRemove}, "", syscall.EIO},
		{"nothing can be written", append([]errorfs.OpKind{write, errorfs.OpFileWriteAt}, append(create, sync...)...), "", syscall.EROFS},
	} {
		for _, once := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/once=%v", c.name, once), func(t *testing.T) {
				t.Parallel()
				healthy := vfs.NewMem()
				var on atomic.Bool
				failing := injecting(healthy, func(op errorfs.Op) error {
					if !slices.Contains(c.kinds, op.Kind) || !strings.Contains(healthy.PathBase(op.Path), c.path) {
						return nil
					}
					if once && on.CompareAndSwap(true, false) || !once && on.Load() {
						return c.err
					}
					return nil
				})
				j, err := embedded.Open(imageDir, embedded.Options{FS: failing, MemTableSize: 256 << 10})
				if err != nil {
					t.Fatal(err)
				}
				l := &load{journal: j, faults: faults}
				if failures := l.run(16, 100); len(failures) > 0 {
					t.Fatal(failures)
				}
				on.Store(true)
				faults.Injected()
				if c.path == ".sst" && c.kinds[0] == errorfs.OpFileReadAt {
					// One unreadable table is no reason to refuse reads of the others, so this case has a check of
					// its own.
					mustReportUnreadable(t, j, l, c.err)
					on.Store(false)
				} else {
					mustFail(t, j, l, c.err)
				}
				mustHaveRecovered(t, healthy, l)
			})
		}
	}
}

func mustReportUnreadable(t *testing.T, j *embedded.Journal, l *load, want error) {
	t.Helper()
	var found bool
	for revision := uint64(1); revision <= l.acknowledged.Load() && !found; revision++ {
		_, err := j.Read(revision)
		found = errors.Is(err, want)
		if err != nil && !found && !errors.Is(err, journal.ErrNotFound) {
			t.Fatalf("read %d: %v", revision, err)
		}
	}
	// Pebble's background work may have met the only error instead.
	if err := j.Err(); !found && !errors.Is(err, want) {
		t.Errorf("no read failed, and the journal has %v", err)
	}
	_ = j.Close()
}

func filesThatMisbehave(t *testing.T, faults *storetest.Faults) {
	short := func(f vfs.File, on *atomic.Bool) vfs.File { return shortFile{f, on} }
	sticky := func(f vfs.File, on *atomic.Bool) vfs.File { return stickyFile{f, on} }
	blind := func(f vfs.File, on *atomic.Bool) vfs.File { return blindFile{f, on} }
	for _, c := range []struct {
		name, part string
		breaks     func(vfs.File, *atomic.Bool) vfs.File
		want       error
	}{
		{"short write to the log", ".log", short, io.ErrShortWrite},
		{"short write to a table", ".sst", short, io.ErrShortWrite},
		{"short write to the MANIFEST", "MANIFEST", short, io.ErrShortWrite},
		{"error on closing the log", ".log", sticky, syscall.EIO},
		{"error on closing a table", ".sst", sticky, syscall.EIO},
		{"no size of a reused log", ".log", blind, syscall.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			healthy := vfs.NewMem()
			var on atomic.Bool
			j, err := embedded.Open(imageDir, embedded.Options{FS: brokenFS{healthy, c.part, &on, c.breaks}, MemTableSize: 256 << 10})
			if err != nil {
				t.Fatal(err)
			}
			l := &load{journal: j, faults: faults}
			if failures := l.run(16, 50); len(failures) > 0 {
				t.Fatal(failures)
			}
			on.Store(true)
			faults.Injected()
			mustFail(t, j, l, c.want)
			mustHaveRecovered(t, healthy, l)
		})
	}
}

// tearingFS tears renames while on is set: it does nothing, or everything, or leaves two names, and returns an error;
// or it does everything, and a power cut undoes it.
type tearingFS struct {
	vfs.FS
	on   *atomic.Bool
	tear func(fs vfs.FS, oldName, newName string) error
}

func (r tearingFS) Rename(oldName, newName string) error {
	if !r.on.Load() {
		return r.FS.Rename(oldName, newName)
	}
	return r.tear(r.FS, oldName, newName)
}

func (r tearingFS) ReuseForWrite(oldName, newName string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if r.on.Load() {
		if err := r.tear(r.FS, oldName, newName); err != nil {
			return nil, err
		}
		return r.FS.OpenReadWrite(newName, category)
	}
	return r.FS.ReuseForWrite(oldName, newName, category)
}

// tornRenames tears the renames of a journal that recycles its logs, while it runs and while it is opened (which
// renames its options).
func tornRenames(t *testing.T, faults *storetest.Faults) {
	rename := func(files vfs.FS, oldName, newName string) error { return files.Rename(oldName, newName) }
	for _, c := range []struct {
		name string
		tear func(files vfs.FS, oldName, newName string) error
		cut  bool // of the power, afterwards
	}{
		{"nothing has happened", func(vfs.FS, string, string) error { return syscall.EIO }, false},
		{"everything has happened", func(files vfs.FS, oldName, newName string) error {
			return errors.Join(rename(files, oldName, newName), syscall.EIO)
		}, false},
		{"there are two names", func(files vfs.FS, oldName, newName string) error {
			return errors.Join(files.Link(oldName, newName), syscall.EIO)
		}, false},
		{"a power cut takes it back", rename, true},
	} {
		for _, opening := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/opening=%v", c.name, opening), func(t *testing.T) {
				healthy := crashfs.New()
				var on atomic.Bool
				open := func() (*embedded.Journal, error) {
					return embedded.Open(imageDir, embedded.Options{FS: tearingFS{healthy, &on, c.tear}, MemTableSize: 256 << 10})
				}
				j, err := open()
				if err != nil {
					t.Fatal(err)
				}
				l := &load{journal: j, faults: faults}
				if failures := l.run(16, 100); len(failures) > 0 {
					t.Fatal(failures)
				}
				if opening {
					if err := j.Close(); err != nil {
						t.Fatal(err)
					}
				}
				on.Store(true)
				faults.Injected()
				if opening {
					j, err = open()
				} else if failures := l.run(16, 100); len(failures) > 0 != !c.cut {
					t.Errorf("failures: %v", failures)
				}
				if (j != nil && (err == nil && j.Err() == nil)) != c.cut {
					t.Errorf("opening: %v, the journal: %v", err, j)
				}
				after := healthy
				if c.cut {
					after = healthy.CrashClone(vfs.CrashCloneCfg{})
				}
				if j != nil {
					_ = j.Close()
				}
				mustHaveRecovered(t, after, l)
			})
		}
	}
}

// errorsAtAnyOperation lets a random operation on the disk fail, from opening to closing, and either only that one or
// all later ones too. ANNEX_DISK_ERRORS sets the number of trials.
func errorsAtAnyOperation(t *testing.T, faults *storetest.Faults) {
	rng := storetest.Seeded(t)
	const operations = 6000 // about the number that the load below takes
	var refused, failed, unnoticed int
	for range storetest.Trials(t, "ANNEX_DISK_ERRORS", 60) {
		at, once := rng.Int64N(operations), rng.IntN(2) == 0
		if rng.IntN(3) == 0 {
			at = rng.Int64N(150) // while opening
		}
		what := fmt.Sprintf("operation %d, once=%v", at, once)
		healthy := vfs.NewMem()
		var count atomic.Int64
		failing := injecting(healthy, func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsRead || op.Kind == errorfs.OpFilePreallocate {
				return nil
			}
			if n := count.Add(1); n == at || !once && n > at {
				return syscall.EIO
			}
			return nil
		})
		l := &load{faults: faults}
		j, err := embedded.Open(imageDir, embedded.Options{FS: failing, MemTableSize: 256 << 10})
		if err != nil {
			refused++
		} else {
			l.journal = j
			failures := l.run(8, 250)
			if (len(failures) > 0) != (j.Err() != nil) && len(failures) > 0 {
				t.Errorf("%s: writers saw %v but the journal has %v", what, failures, j.Err())
			}
			if j.Err() != nil {
				failed++
			} else {
				unnoticed++
			}
			if err := j.Close(); err != nil && !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: close: %v", what, err)
			}
		}
		if count.Load() >= at {
			faults.Injected()
		}
		t.Run(what, func(t *testing.T) { mustHaveRecovered(t, healthy, l) })
	}
	t.Logf("%d refused to open, %d failed while running, %d not before closing", refused, failed, unnoticed)
}

// powerCuts takes images of the disk as power cuts would leave it: the synced data, and a random part of the rest.
// ANNEX_POWER_CUTS sets their number.
func powerCuts(t *testing.T, faults *storetest.Faults) {
	rng := storetest.Seeded(t)
	cuts := storetest.Trials(t, "ANNEX_POWER_CUTS", 30)
	var files crashfs.FS
	var l *load
	var checked, beyond uint64
	for cut := range cuts {
		// Each cut looks at all records of its journal, so the time for a single journal would grow with the square
		// of the number of cuts.
		if cut%50 == 0 {
			files = crashfs.New()
			l = &load{journal: mustOpen(t, imageDir, embedded.Options{FS: files, MemTableSize: 256 << 10}), faults: faults}
		}
		target := l.acknowledged.Load() + rng.Uint64N(600)
		done := make(chan []error, 1)
		go func() { done <- l.run(32, 20) }()
		for l.acknowledged.Load() < target && l.journal.Err() == nil {
			runtime.Gosched()
		}
		// Records acknowledged before the cut must exist after it.
		before := load{faults: faults}
		before.acknowledged.Store(l.acknowledged.Load())
		percent := rng.IntN(101)
		faults.Injected()
		crashed := files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
		if failures := <-done; len(failures) > 0 {
			t.Fatal(failures)
		}
		l.dropped.Range(func(revision, _ any) bool {
			before.dropped.Store(revision, true)
			return true
		})
		t.Run(fmt.Sprintf("cut %d with %d%% of the unsynced data", cut, percent), func(t *testing.T) {
			// Every third time there is a second cut, during recovery.
			if cut%3 == 0 {
				recovering, err := embedded.Open(imageDir, embedded.Options{FS: crashed})
				if err != nil {
					t.Fatal(err)
				}
				again := crashed.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				if err := recovering.Close(); err != nil {
					t.Fatal(err)
				}
				crashed = again
			}
			after := mustOpen(t, imageDir, embedded.Options{FS: crashed})
			last := before.mustBeWhole(t, after)
			checked += before.acknowledged.Load()
			beyond += last - before.acknowledged.Load()
			before.last, before.journal = last, after
			if failures := before.run(2, 5); len(failures) > 0 {
				t.Fatal(failures)
			}
		})
	}
	t.Logf("%d cuts, %d acknowledged records found again, %d more that were not acknowledged", cuts, checked, beyond)
}
