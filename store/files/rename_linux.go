package files

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func renameNew(oldPath, newPath string) error {
	return renameat2(oldPath, newPath, unix.RENAME_NOREPLACE)
}

func exchange(oldPath, newPath string) error {
	return renameat2(oldPath, newPath, unix.RENAME_EXCHANGE)
}

func renameat2(oldPath, newPath string, flags uint) error {
	err := unix.Renameat2(unix.AT_FDCWD, oldPath, unix.AT_FDCWD, newPath, flags)
	if errors.Is(err, unix.EINVAL) {
		err = errors.ErrUnsupported // the file system does not support the flag
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: oldPath, New: newPath, Err: err}
	}
	return nil
}
