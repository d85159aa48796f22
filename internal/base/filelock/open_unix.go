//go:build unix

package filelock

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// open creates or opens the file and takes a write lock of fcntl on all of it.
func open(path string) (*os.File, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	whole := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	if err := syscall.FcntlFlock(file.Fd(), syscall.F_SETLK, &whole); err != nil {
		_ = file.Close() // nothing was written
		// POSIX lets a system answer either.
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
			return nil, ErrHeld
		}
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return file, nil
}
