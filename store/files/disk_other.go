//go:build !linux && !darwin && !freebsd && !netbsd && !openbsd && !dragonfly

package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

func inode(fs.FileInfo) uint64 { return 0 }

// lockFile takes a lock by creating a file, and releases it by removing the file. A killed process leaves the file
// behind, and a person has to remove it.
func lockFile(path string) (io.Closer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, locked(err, errors.Is(err, fs.ErrExist))
	}
	return lockedFile{file}, nil
}

type lockedFile struct{ *os.File }

func (f lockedFile) Close() error {
	return errors.Join(f.File.Close(), os.Remove(f.Name()))
}
