package embedded_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

// refusingDisk refuses operations of some kinds with an error. The higher the rarity of the operations, the fewer
// succeed before the first refusal.
func refusingDisk(err error, rarity int, kinds ...errorfs.OpKind) storetest.Disk {
	healthy := vfs.NewMem()
	const never = int64(1) << 62
	var left atomic.Int64
	left.Store(never)
	failing := injecting(healthy, func(op errorfs.Op) error {
		if slices.Contains(kinds, op.Kind) && left.Load() != never && left.Add(-1) < 0 {
			return err
		}
		return nil
	})
	return storetest.Disk{
		Open: func() (journal.Journal, error) {
			return embedded.Open(imageDir, embedded.Options{FS: failing, MemTableSize: 256 << 10})
		},
		Fail: func(n int) { left.Store(int64(n / rarity)) },
		Heal: func() { left.Store(never) },
	}
}

func recoveries(t *testing.T, faults *storetest.Faults) {
	room := []errorfs.OpKind{errorfs.OpCreate, errorfs.OpRename, errorfs.OpReuseForWrite, errorfs.OpFileWrite, errorfs.OpFileWriteAt}
	handles := []errorfs.OpKind{errorfs.OpCreate, errorfs.OpReuseForWrite, errorfs.OpOpenDir}
	for _, c := range []struct {
		name   string
		err    error
		rarity int
		kinds  []errorfs.OpKind
	}{
		{"a full disk", syscall.ENOSPC, 1, room},
		{"a used-up quota", syscall.EDQUOT, 1, room},
		{"too many open files", syscall.EMFILE, 100, handles},
		{"too many open files in the system", syscall.ENFILE, 100, handles},
	} {
		t.Run(c.name, func(t *testing.T) {
			storetest.RunRecovery(t, refusingDisk(c.err, c.rarity, c.kinds...), faults)
		})
	}
}

// failedSyncs checks that a failed sync is not recovered from: the unsynced data may be marked clean, and look
// durable to a reader.
func failedSyncs(t *testing.T, faults *storetest.Faults) {
	syncs := []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}
	for _, c := range []struct {
		name  string
		kinds []errorfs.OpKind
		err   error
	}{
		{"no space at a sync", syncs, syscall.ENOSPC},
		{"no quota at a sync", syncs, syscall.EDQUOT},
		{"an error of the disk at a sync", syncs, syscall.EIO},
		{"an error of the disk at a write", []errorfs.OpKind{errorfs.OpFileWrite}, syscall.EIO},
		{"a file system that became read-only", []errorfs.OpKind{errorfs.OpFileWrite}, syscall.EROFS},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk := refusingDisk(c.err, 1, c.kinds...)
			j, err := disk.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			l := &load{journal: j, faults: faults}
			disk.Fail(5)
			faults.Injected()
			if failures := l.run(4, 50); len(failures) == 0 {
				t.Fatal("nothing failed")
			}
			disk.Heal()
			_, err = j.(journal.Recoverer).Recover()
			for _, err := range []error{err, j.Err()} {
				if !errors.Is(err, c.err) || errors.Is(err, journal.ErrTransient) {
					t.Errorf("error %v, want a lasting one that is %v", err, c.err)
				}
			}
		})
	}
}

func failedRecoveries(t *testing.T, faults *storetest.Faults) {
	healthy := vfs.NewMem()
	var left atomic.Int64
	const never = int64(1) << 62
	left.Store(never)
	failing := injecting(healthy, func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpCreate, errorfs.OpReuseForWrite, errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpRename:
			if left.Load() != never && left.Add(-1) < 0 {
				return syscall.ENOSPC
			}
		}
		return nil
	})
	open := func() (*embedded.Journal, error) {
		return embedded.Open(imageDir, embedded.Options{FS: failing, MemTableSize: 256 << 10})
	}
	j, err := open()
	if err != nil {
		t.Fatal(err)
	}
	l := &load{journal: j, faults: faults}
	if failures := l.run(8, 100); len(failures) > 0 {
		t.Fatal(failures)
	}
	left.Store(0)
	if failures := l.run(8, 10); len(failures) != 8 {
		t.Fatalf("failures: %v", failures)
	}
	before := takeImage(t, healthy)
	refused := 0
	var next journal.Journal
	for n := int64(0); next == nil; n++ {
		left.Store(n)
		next, err = j.Recover()
		if err == nil {
			break
		}
		refused++
		faults.Injected()
		if !errors.Is(err, journal.ErrTransient) {
			t.Fatalf("after %d changes: %v", n, err)
		}
		left.Store(never)
		var names []string
		for name := range takeImage(t, healthy) {
			if before[name] == nil && name != "LOCK" {
				names = append(names, name)
			}
		}
		// Once a new MANIFEST is in use, so are the files that it names.
		inUse := slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "marker.manifest") })
		if len(names) > 0 && !inUse {
			t.Errorf("after %d changes: %v are left", n, names)
		}
	}
	left.Store(never)
	t.Logf("%d recoveries were refused", refused)
	if _, err := open(); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("the directory can be opened a second time: %v", err)
	}
	if err := j.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("close of the failed journal: %v", err)
	}
	if _, err := open(); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("the directory can be opened while the recovered journal is open: %v", err)
	}
	l.journal, l.last = next, l.mustBeWhole(t, next)
	if failures := l.run(4, 10); len(failures) > 0 {
		t.Fatal(failures)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	mustHaveRecovered(t, healthy, l)
}
