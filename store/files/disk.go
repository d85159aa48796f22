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

// FS is what a journal needs of a file system. Names are relative to the root and
// have slashes. Missing files are reported as fs.ErrNotExist.
type FS interface {
	// Create makes a file that only its owner can read. What had the name is gone.
	Create(name string) (File, error)
	Open(name string) (io.ReadCloser, error)
	// Rename replaces what has the new name.
	Rename(oldName, newName string) error
	// RenameNew is Rename if nothing has the new name: else the error matches
	// fs.ErrExist. It matches errors.ErrUnsupported if that cannot be told at once.
	RenameNew(oldName, newName string) error
	// Exchange swaps what two names stand for, at once. The error matches
	// errors.ErrUnsupported if that cannot be done, and fs.ErrNotExist if one of them
	// stands for nothing.
	Exchange(oldName, newName string) error
	Remove(name string) error
	// Mkdir makes a directory that only its owner can enter. It is no error if there
	// is one.
	Mkdir(name string) error
	// List returns what is in a directory, in no certain order.
	List(name string) ([]fs.DirEntry, error)
	// Stat does not follow symbolic links.
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(name string) error
	// Lock keeps other processes, and other openers in this one, away until it is
	// closed; journal.ErrLocked if another has it.
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
		// A link to a directory elsewhere is none of ours.
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

// makeRoot makes the root and what it is in.
func makeRoot(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	return disk{filepath.Dir(root)}.SyncDir(".")
}

// stamp tells, without reading it, whether a file may have changed.
type stamp struct {
	size     int64
	modified time.Time
	number   uint64 // of the inode, 0 if there are none
}

func stampOf(info fs.FileInfo) stamp {
	return stamp{info.Size(), info.ModTime(), inode(info)}
}

func (s stamp) same(other stamp) bool {
	return s.size == other.size && s.number == other.number && s.modified.Equal(other.modified)
}

// racy reports whether a file may have been written again since the stamp was
// taken without showing it: clocks of file systems tick in milliseconds.
func (s stamp) racy(now time.Time) bool { return now.Sub(s.modified) < 50*time.Millisecond }

// locked turns the error of a lock that another one holds into the contract's.
func locked(err error, held bool) error {
	if held {
		return journal.ErrLocked
	}
	return err
}
