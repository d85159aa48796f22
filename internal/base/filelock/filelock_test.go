package filelock_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/internal/base/filelock"
)

// TestMain lets the test binary be another process that tries the lock named by LOCK.
func TestMain(m *testing.M) {
	path := os.Getenv("LOCK")
	if path == "" {
		os.Exit(m.Run())
	}
	try := filelock.Try
	if os.Getenv("LOCK_BY") == "pebble" {
		try = vfs.Default.Lock
	}
	if _, err := try(path); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// locked reports whether another process finds the lock held.
func locked(t *testing.T, path, by string) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(cmd.Environ(), "LOCK="+path, "LOCK_BY="+by)
	err := cmd.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return err != nil
}

func TestTry_held(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := filelock.Try(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := filelock.Try(path); !errors.Is(err, filelock.ErrHeld) {
		t.Errorf("a second lock in the process: %v", err)
	}
	for _, by := range []string{"", "pebble"} {
		if !locked(t, path, by) {
			t.Errorf("another process (%q) gets the lock", by)
		}
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if locked(t, path, "") {
		t.Error("the lock is held after it was closed")
	}
	again, err := filelock.Try(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err == nil {
		t.Error("a second Close is no error")
	}
	if _, err := filelock.Try(path); !errors.Is(err, filelock.ErrHeld) {
		t.Errorf("after a second Close of the first lock: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTry_heldByPebble(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := vfs.Default.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if !locked(t, path, "") {
		t.Error("another process gets a lock that Pebble holds")
	}
}

func TestTry_noDirectory(t *testing.T) {
	_, err := filelock.Try(filepath.Join(t.TempDir(), "missing", "lock"))
	if path := (*fs.PathError)(nil); !errors.As(err, &path) {
		t.Errorf("no *fs.PathError: %v", err)
	}
}
