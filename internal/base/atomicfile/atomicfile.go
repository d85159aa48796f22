// Package atomicfile writes files that appear whole and durable, or not at all.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Write replaces path by data. After a crash there is either the old file or the new one, whole and with the right
// mode.
func Write(path string, data []byte, mode fs.FileMode) error {
	f, err := Create(path, mode)
	if err != nil {
		return err
	}
	defer f.Discard()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Replace()
}

// File is a file that does not have its name yet. Exactly one of Replace and Place gives it its name; Discard must be
// called in any case.
type File struct {
	*os.File
	path string
}

// Create creates a file beside path, under a temporary name until it is complete; the umask narrows the mode. The
// temporary name, which a crash leaves behind, begins with a dot and the file's name.
func Create(path string, mode fs.FileMode) (*File, error) {
	for tries := 0; ; tries++ {
		// os.CreateTemp has a fixed mode, and setting the mode later would ignore the umask.
		name := fmt.Sprintf(".%s.%d", filepath.Base(path), rand.Uint32())
		temporary, err := os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		switch {
		case err == nil:
			return &File{temporary, path}, nil
		case !errors.Is(err, fs.ErrExist) || tries == 100:
			return nil, err
		}
	}
}

// Replace gives the file its name, durably, and replaces any file with that name.
func (f *File) Replace() error {
	if err := f.finish(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), f.path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(f.path))
}

// Place gives the file its name, durably. If the name exists by now, the error matches fs.ErrExist.
func (f *File) Place() error {
	if err := f.finish(); err != nil {
		return err
	}
	return Place(f.Name(), f.path)
}

func (f *File) finish() error { return errors.Join(f.Sync(), f.Close()) }

// Discard removes the file unless it has its name.
func (f *File) Discard() {
	_ = f.Close() // it is closed already, or useless
	_ = os.Remove(f.Name())
}

// Place renames a file, durably, within its file system. If path exists, the error matches fs.ErrExist, and the file
// stays where it is.
func Place(file, path string) error {
	err := os.Link(file, path)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		// Not every file system has links. The process that creates the file owns the name.
		var reserved *os.File
		if reserved, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			if err := errors.Join(reserved.Close(), os.Rename(file, path)); err != nil {
				return err
			}
			return SyncDir(filepath.Dir(path))
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", path, fs.ErrExist)
	}
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(file), SyncDir(filepath.Dir(path)))
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
