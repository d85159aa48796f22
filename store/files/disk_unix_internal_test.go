//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package files

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A child that is being started briefly has the files of its parent open.
func TestLockFile_openInChild_isReleased(t *testing.T) {
	path := filepath.Join(t.TempDir(), "LOCK")
	lock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := unix.Dup(int(lock.(unlockingFile).Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Close(inherited); err != nil {
			t.Error(err)
		}
	}()
	if other, err := lockFile(path); err == nil {
		t.Fatal("two have the lock", other.Close())
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lockFile(path)
	if err != nil {
		t.Fatalf("after it was closed: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
