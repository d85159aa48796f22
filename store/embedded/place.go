package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

// place is a journal's directory, locked against other processes. While a journal
// is recovered there are two databases in it, the failed one and its successor, of
// which only the latter changes anything; the last one to leave unlocks it.
type place struct {
	dir     string
	files   vfs.FS
	options Options
	logger  *slog.Logger

	lock   io.Closer
	health io.Closer
	users  atomic.Int32
}

// enter makes and locks the directory for one user.
func enter(dir string, options Options) (_ *place, err error) {
	p := &place{dir: dir, files: options.FS, options: options, logger: options.Logger, health: nopCloser{}}
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
	// Left behind by a process that was killed.
	if err := p.files.Remove(p.files.PathJoin(p.dir, probeFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.logger.Warn("journal: a file stays that is not needed", "err", err)
	}
	p.users.Store(1)
	return p, nil
}

// leave is called once by every user.
func (p *place) leave() error {
	if p.users.Add(-1) > 0 {
		return nil
	}
	return errors.Join(p.lock.Close(), p.health.Close())
}

// databaseLock returns what a database takes for the lock of the directory. It
// wants one of its own, and the place holds the only one there is.
func (p *place) databaseLock() (*pebble.Lock, error) {
	return pebble.LockDirectory(p.dir, unlocked{p.files})
}

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
	// A lock file that cannot be created is not a lock that somebody holds.
	var path *fs.PathError
	if errors.As(err, &path) {
		return nil, err
	}
	return nil, fmt.Errorf("%w (%v)", journal.ErrLocked, err)
}
