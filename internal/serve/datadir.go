package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

// lockDataDir keeps a data directory from other servers, whatever their storage:
// two would make certificates and a kubeconfig over each other. It makes one that is not
// there.
func lockDataDir(dir string) (io.Closer, error) {
	_, err := os.Stat(dir)
	isNew := errors.Is(err, fs.ErrNotExist)
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	if isNew {
		// There will be private keys in it, which belong into no repository. A directory that
		// was there is the operator's, and may be the top of one.
		if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("*\n"), 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("data directory %s: %w", dir, err), lock.Close())
		}
	}
	return lock, nil
}

func lockDir(dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Within a process, the file's name is what is locked.
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	if real, err = filepath.Abs(real); err != nil {
		return nil, err
	}
	lock, err := vfs.Default.Lock(filepath.Join(real, "lock"))
	if path := (*fs.PathError)(nil); err != nil && !errors.As(err, &path) {
		return nil, journal.ErrLocked
	}
	return lock, err
}

// rooted is a journal that accepts no more records once its directory has been
// removed or replaced: they would go to files that nobody finds again.
//
// It recovers if that journal does.
type rooted struct {
	journal.Journal
	dir  string
	info fs.FileInfo
}

// root returns j, the open journal in dir, as a rooted one. It owns j.
func root(j journal.Journal, dir string) (journal.Journal, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return &rooted{j, dir, info}, nil
}

func (r *rooted) Err() error {
	if err := r.Journal.Err(); err != nil {
		return err
	}
	if info, err := os.Stat(r.dir); err != nil || !os.SameFile(info, r.info) {
		return fmt.Errorf("%s %w", r.dir, errRemoved)
	}
	return nil
}

// Recover implements journal.Recoverer.
func (r *rooted) Recover() (journal.Journal, error) {
	failed, ok := r.Journal.(journal.Recoverer)
	if !ok {
		return nil, r.Journal.Err()
	}
	if err := r.Err(); errors.Is(err, errRemoved) {
		return nil, journal.Transient(err)
	}
	recovered, err := failed.Recover()
	if err != nil {
		return nil, err
	}
	if recovered == r.Journal {
		return r, nil
	}
	return &rooted{recovered, r.dir, r.info}, nil
}

// DiskUsage is that of the journal, if it knows.
func (r *rooted) DiskUsage() uint64 {
	if sized, ok := r.Journal.(interface{ DiskUsage() uint64 }); ok {
		return sized.DiskUsage()
	}
	return 0
}

// Permit implements journal.Guarded for a journal that does, and permits everything
// to others.
func (r *rooted) Permit(ctx context.Context, record journal.Record) error {
	if guarded, ok := r.Journal.(journal.Guarded); ok {
		return guarded.Permit(ctx, record)
	}
	return nil
}

var errRemoved = errors.New("was removed while the server was using it")
