//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func inode(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Ino)
	}
	return 0
}

// lockFile takes a lock that belongs to the open file. So it excludes other openers in this process as well.
func lockFile(path string) (io.Closer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(locked(err, errors.Is(err, unix.EWOULDBLOCK)), file.Close())
	}
	return unlockingFile{file}, nil
}

// unlockingFile releases the lock before it closes the file, because a child process that is just being started may
// briefly have the file open, too.
type unlockingFile struct{ *os.File }

func (f unlockingFile) Close() error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.File.Close())
}
