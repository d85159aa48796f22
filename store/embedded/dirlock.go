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

// dirLock is the directory of a journal, locked against other processes. While a journal is recovered, the directory
// holds two databases, the failed one and its successor. Only the successor changes anything. The last user to leave
// unlocks the directory.
//
// A lock holds as long as its file stays in the directory. If the file is removed, another process creates and locks
// a new one, and two databases overwrite each other. So verify compares the locked file with the file in the
// directory
//
//   - before a revision is acknowledged and after it was synced, so that the next process
//     to lock the directory finds the revision (see watermark);
//   - before a file is created, renamed or removed (see disk);
//   - at intervals, for the health of an idle journal (see watchdog).
type dirLock struct {
	dir     string
	files   vfs.FS
	options Options
	logger  *slog.Logger

	lock   io.Closer
	health io.Closer
	users  atomic.Int32

	// The locked file and directory, and the functions that look at the current ones.
	path string
	file fs.FileInfo
	root fs.FileInfo
	stat func(string) (fs.FileInfo, error)
	same func(a, b fs.FileInfo) bool
}

// enter creates and locks the directory for one user.
func enter(dir string, options Options) (_ *dirLock, err error) {
	p := &dirLock{dir: dir, files: options.FS, options: options, logger: options.Logger, health: nopCloser{}}
	if p.logger == nil {
		p.logger = slog.New(slog.DiscardHandler)
	}
	if p.files == nil {
		// The lock distinguishes openers in this process by the name of the directory.
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
	// A killed process leaves the probe file behind.
	if err := p.files.Remove(p.files.PathJoin(p.dir, probeFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.logger.Warn("journal: failed to remove an unused file", "err", err)
	}
	p.users.Store(1)
	return p, nil
}

// identify records the identity of the locked file and its directory.
func (p *dirLock) identify() (err error) {
	p.path = p.files.PathJoin(p.dir, lockFile)
	p.stat, p.same = os.Stat, os.SameFile
	if p.options.FS != nil {
		// A file system of the caller may not know file numbers.
		p.stat = func(path string) (fs.FileInfo, error) { return p.files.Stat(path) }
		p.same = func(a, b fs.FileInfo) bool { return os.SameFile(a, b) || a.ModTime().Equal(b.ModTime()) }
	}
	if p.root, err = p.stat(p.dir); err != nil {
		return err
	}
	p.file, err = p.stat(p.path)
	return err
}

// verify returns an error unless the directory is still locked by this lock. A missing directory is a transient
// error: it may return unchanged, because its lock went with it. If only the lock file is missing, another process
// may have changed the directory since.
func (p *dirLock) verify() error {
	file, err := p.stat(p.path)
	if err == nil && p.same(file, p.file) {
		return nil
	}
	if err != nil && !isAbsent(err) {
		return journal.Transient(fmt.Errorf("read the lock file: %w", err))
	}
	root, err := p.stat(p.dir)
	switch {
	case err != nil && !isAbsent(err):
		return journal.Transient(fmt.Errorf("read the directory: %w", err))
	case err != nil || !p.same(root, p.root):
		return journal.Transient(journal.ErrDirectoryGone)
	}
	return journal.ErrLockLost
}

func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// leave ends one use of the directory. Every user calls it once.
func (p *dirLock) leave() error {
	if p.users.Add(-1) > 0 {
		return nil
	}
	return errors.Join(p.lock.Close(), p.health.Close())
}

// databaseLock returns a lock for Pebble, which insists on locking the directory itself. It locks nothing, because
// dirLock holds the real lock.
func (p *dirLock) databaseLock() (*pebble.Lock, error) {
	return pebble.LockDirectory(p.dir, unlockedFS{p.files})
}

// lockFile is Pebble's name for the lock file of a directory.
const lockFile = "LOCK"

type unlockedFS struct{ vfs.FS }

func (unlockedFS) Lock(string) (io.Closer, error) { return nopCloser{}, nil }

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
	// An error of creating the lock file does not mean that another process holds the lock.
	var path *fs.PathError
	if errors.As(err, &path) {
		return nil, err
	}
	return nil, fmt.Errorf("%w (%v)", journal.ErrLocked, err)
}
