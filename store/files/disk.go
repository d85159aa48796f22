package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/annexapi/annex/store/journal"
)

// FS is the file system of a journal. Names are relative to the root and use slashes. Errors for missing files match
// fs.ErrNotExist.
type FS interface {
	// Create creates a file that only its owner can read. It replaces any file with that name.
	Create(name string) (File, error)
	Open(name string) (io.ReadCloser, error)
	// Rename replaces any file with the new name.
	Rename(oldName, newName string) error
	// RenameNew is Rename, but never replaces a file: if the new name exists, the error matches fs.ErrExist. The
	// error matches errors.ErrUnsupported if the system cannot check that atomically.
	RenameNew(oldName, newName string) error
	// Exchange swaps the files of two names atomically. The error matches errors.ErrUnsupported if the system cannot
	// do that, and fs.ErrNotExist if one of the names does not exist.
	Exchange(oldName, newName string) error
	Remove(name string) error
	// Mkdir creates a directory that only its owner can enter. An existing directory is no error.
	Mkdir(name string) error
	// List returns the entries of a directory, in no particular order.
	List(name string) ([]fs.DirEntry, error)
	// Stat does not follow symbolic links.
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// Lock excludes other processes, and other openers in this process, until the result is closed. The error matches
	// journal.ErrLocked if another opener holds the lock.
	Lock(name string) (io.Closer, error)
}

// File is a file being written by one goroutine.
type File interface {
	io.WriteCloser
	// Sync makes the content durable.
	Sync() error
	Stat() (fs.FileInfo, error)
}

// disk is the operating system's file system below a directory.
type disk struct{ root string }

func (d disk) path(name string) string { return filepath.Join(d.root, filepath.FromSlash(name)) }

func (d disk) Create(name string) (File, error) {
	return os.OpenFile(d.path(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}

func (d disk) Open(name string) (io.ReadCloser, error) { return os.Open(d.path(name)) }
func (d disk) Rename(oldName, newName string) error {
	return os.Rename(d.path(oldName), d.path(newName))
}

func (d disk) RenameNew(oldName, newName string) error {
	return renameNew(d.path(oldName), d.path(newName))
}

func (d disk) Exchange(oldName, newName string) error {
	return exchange(d.path(oldName), d.path(newName))
}

func (d disk) Remove(name string) error                { return os.Remove(d.path(name)) }
func (d disk) List(name string) ([]fs.DirEntry, error) { return os.ReadDir(d.path(name)) }
func (d disk) Stat(name string) (fs.FileInfo, error)   { return os.Lstat(d.path(name)) }
func (d disk) Lock(name string) (io.Closer, error)     { return lockFile(d.path(name)) }

func (d disk) Mkdir(name string) error {
	err := os.Mkdir(d.path(name), 0o700)
	if errors.Is(err, fs.ErrExist) {
		// A link to a directory elsewhere is not accepted.
		if info, statErr := os.Lstat(d.path(name)); statErr == nil && info.IsDir() {
			return nil
		}
	}
	return err
}

func (d disk) SyncDir(name string) error {
	dir, err := os.Open(d.path(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// makeRoot creates the root and its parents.
func makeRoot(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	return disk{filepath.Dir(root)}.SyncDir(".")
}

// stamp is a cheap fingerprint of a file: a different stamp means that the file may have changed.
type stamp struct {
	size     int64
	modified time.Time
	number   uint64 // of the inode, 0 if the system has none
}

func stampOf(info fs.FileInfo) stamp {
	return stamp{info.Size(), info.ModTime(), inode(info)}
}

func (s stamp) same(other stamp) bool {
	return s.size == other.size && s.number == other.number && s.modified.Equal(other.modified)
}

// racy reports whether the file may have been written again after the stamp was taken without changing the stamp:
// clocks of file systems tick in milliseconds.
func (s stamp) racy(now time.Time) bool { return now.Sub(s.modified) < 50*time.Millisecond }

// locked replaces the error of a lock held by another opener by journal.ErrLocked.
func locked(err error, held bool) error {
	if held {
		return journal.ErrLocked
	}
	return err
}
