package files_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/journal"
	"github.com/annexapi/annex/store/storetest"
)

// refusal lets operations of some kinds fail with an error.
type refusal struct {
	healthy memory
	failing memory
	left    atomic.Int64 // that succeed before
}

const never = int64(1) << 62

func refusing(err error, kinds ...errorfs.OpKind) *refusal {
	r := &refusal{healthy: newMemory(vfs.NewMem())}
	r.left.Store(never)
	r.failing = memory{errorfs.Wrap(r.healthy.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if slices.Contains(kinds, op.Kind) && r.left.Load() != never && r.left.Add(-1) < 0 {
			return err
		}
		return nil
	}))}
	return r
}

func (r *refusal) open() (journal.Journal, error) {
	return files.Open("root", files.Options{Resources: layout, FS: r.failing})
}

// disk refuses as a storetest.Disk. Of operations that are rare, fewer succeed before.
func (r *refusal) disk(rarity int) storetest.Disk {
	return storetest.Disk{
		Open: r.open,
		Fail: func(n int) { r.left.Store(int64(n / rarity)) },
		Heal: func() { r.left.Store(never) },
	}
}

var (
	room    = []errorfs.OpKind{errorfs.OpCreate, errorfs.OpRename, errorfs.OpMkdirAll, errorfs.OpFileWrite}
	handles = []errorfs.OpKind{errorfs.OpCreate, errorfs.OpOpen, errorfs.OpOpenDir, errorfs.OpList}
	syncs   = []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}
)

// TestAFullDiskIsRecoveredFrom fills the disk under writers and watchers, as often as
// ANNEX_RECOVERIES says.
func TestAFullDiskIsRecoveredFrom(t *testing.T) {
	faults := storetest.CountFaults(t, "files")
	for _, c := range []struct {
		name  string
		err   error
		kinds []errorfs.OpKind
	}{
		{"a full disk", syscall.ENOSPC, room},
		{"a used-up quota", syscall.EDQUOT, room},
		{"too many open files", syscall.EMFILE, handles},
		{"too many open files in the system", syscall.ENFILE, handles},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := refusing(c.err, c.kinds...)
			storetest.RunRecovery(t, r.disk(1), faults)
		})
	}
}

// TestAFailedSyncIsNotRecoveredFrom: what it was to write may be marked clean, and look
// durable to whoever reads it.
func TestAFailedSyncIsNotRecoveredFrom(t *testing.T) {
	count := storetest.CountFaults(t, "files")
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
			r := refusing(c.err, c.kinds...)
			opened, err := r.open()
			if err != nil {
				t.Fatal(err)
			}
			j := opened.(*files.Journal)
			l := newLoad()
			l.take(t, j)
			r.left.Store(5)
			count.Injected()
			if failures := l.run(storetest.Seeded(t), 4, 50); len(failures) == 0 {
				t.Fatal("nothing failed")
			}
			r.left.Store(never)
			_, err = j.Recover()
			for _, err := range []error{err, j.Err()} {
				if !errors.Is(err, c.err) || errors.Is(err, journal.ErrTransient) {
					t.Errorf("error %v, want a lasting one that is %v", err, c.err)
				}
			}
			_ = j.Close()
			closeChecked(t, l.check(t, count, r.healthy))
		})
	}
}
