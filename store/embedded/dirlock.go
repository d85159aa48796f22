package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

// dirLock is a journal's directory, locked against other processes. While a journal
// is recovered there are two databases in it, the failed one and its successor, of
// which only the latter changes anything; the last one to leave unlocks it.
//
// A lock holds as long as its file is in the directory. If the file is removed,
// another process makes and locks one of its own, and two databases write over each
// other. So verify compares the file that is locked with the one in the directory
//
//   - before a revision is acknowledged and after it was synced, so that the next process
//     to lock the directory finds it (see watermark);
//   - before a file is created, renamed or removed (see disk);
//   - every now and then, for the health of an idle journal (see watchdog).
type dirLock struct {
	dir     string
	files   vfs.FS
	options Options
	logger  *slog.Logger

	lock   io.Closer
	health io.Closer
	users  atomic.Int32

	// What was locked, and where to look whether it is still there.
	path string
	file fs.FileInfo
	root fs.FileInfo
	stat func(string) (fs.FileInfo, error)
	same func(a, b fs.FileInfo) bool
}

// enter makes and locks the directory for one user.
func enter(dir string, options Options) (_ *dirLock, err error) {
	p := &dirLock{dir: dir, files: options.FS, options: options, logger: options.Logger, health: nopCloser{}}
	if p.logger == nil {
		p.logger = slog.New(slog.DiscardHandler)
	}
	if p.files == nil {
		// The lock tells openers in this process apart by the name of the directory.
		if p.dir, err = filepath.Abs(dir); err != nil {
			return nil, err
		}
		p.files, p.health = vfs.WithDiskHealthChecks(vfs.Default, slowDisk, nil, func(info vfs.DiskSlowInfo) {
			p.logger.Warn("journal: the disk is slow", "operation", info.String())
		})
	}
	defer func() {
		if err != nil {
			_ = p.health.Close()
		}
	}()
	if err := makeDir(p.files, p.dir); err != nil {
		return nil, err
	}
	if options.FS == nil {
		if p.dir, err = filepath.EvalSymlinks(p.dir); err != nil {
			return nil, err
		}
	}
	if p.lock, err = lockDir(p.files, p.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = p.lock.Close()
		}
	}()
	if err := p.identify(); err != nil {
		return nil, err
	}
	// Left behind by a process that was killed.
	if err := p.files.Remove(p.files.PathJoin(p.dir, probeFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.logger.Warn("journal: a file stays that is not needed", "err", err)
	}
	p.users.Store(1)
	return p, nil
}

// identify notes which file has been locked.
func (p *dirLock) identify() (err error) {
	p.path = p.files.PathJoin(p.dir, lockFile)
	p.stat, p.same = os.Stat, os.SameFile
	if p.options.FS != nil {
		// A file system of the caller's need not know file numbers.
		p.stat = func(path string) (fs.FileInfo, error) { return p.files.Stat(path) }
		p.same = func(a, b fs.FileInfo) bool { return os.SameFile(a, b) || a.ModTime().Equal(b.ModTime()) }
	}
	if p.root, err = p.stat(p.dir); err != nil {
		return err
	}
	p.file, err = p.stat(p.path)
	return err
}

// verify tells whether the directory is still the one that was locked, by this lock.
// A directory that is not there may come back, as it was: its lock went with it. If
// the lock has gone from it, another process may have changed it since.
func (p *dirLock) verify() error {
	file, err := p.stat(p.path)
	if err == nil && p.same(file, p.file) {
		return nil
	}
	if err != nil && !isAbsent(err) {
		return journal.Transient(fmt.Errorf("look at the lock: %w", err))
	}
	root, err := p.stat(p.dir)
	switch {
	case err != nil && !isAbsent(err):
		return journal.Transient(fmt.Errorf("look at the directory: %w", err))
	case err != nil || !p.same(root, p.root):
		return journal.Transient(journal.ErrDirectoryGone)
	}
	return journal.ErrLockLost
}

func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// leave is called once by every user.
func (p *dirLock) leave() error {
	if p.users.Add(-1) > 0 {
		return nil
	}
	return errors.Join(p.lock.Close(), p.health.Close())
}

// databaseLock returns what a database takes for the lock of the directory. It
// wants one of its own, and dirLock holds the only one there is.
func (p *dirLock) databaseLock() (*pebble.Lock, error) {
	return pebble.LockDirectory(p.dir, unlocked{p.files})
}

// lockFile is what Pebble calls the file that it locks a directory by.
const lockFile = "LOCK"

type unlocked struct{ vfs.FS }

func (unlocked) Lock(string) (io.Closer, error) { return nopCloser{}, nil }

// makeDir creates dir and its parents, and makes their names durable.
func makeDir(files vfs.FS, dir string) error {
	if _, err := files.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := files.PathDir(dir)
	if parent != dir {
		if err := makeDir(files, parent); err != nil {
			return err
		}
	}
	if err := files.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	handle, err := files.OpenDir(parent)
	if err != nil {
		return err
	}
	return errors.Join(handle.Sync(), handle.Close())
}

func lockDir(files vfs.FS, dir string) (*pebble.Lock, error) {
	lock, err := pebble.LockDirectory(dir, files)
	if err == nil {
		return lock, nil
	}
	// A lock file that cannot be created is not a lock that another process holds.
	var path *fs.PathError
	if errors.As(err, &path) {
		return nil, err
	}
	return nil, fmt.Errorf("%w (%v)", journal.ErrLocked, err)
}
