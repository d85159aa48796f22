package serve

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/annexapi/annex/store/journal"
)

// lockDataDir locks a data directory against other servers, whatever their storage: two
// would overwrite each other's certificates and kubeconfig. It creates one that does not
// exist.
func lockDataDir(dir string) (io.Closer, error) {
	if err := MakeDataDir(dir); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	return lock, nil
}

// MakeDataDir creates a data directory that is named and does not exist. There will be private keys in it,
// so .gitignore excludes everything. Not so in a directory that existed: it is the operator's,
// and may be the root of a repository.
func MakeDataDir(dir string) error {
	if _, err := os.Stat(dir); dir == "" || !errors.Is(err, fs.ErrNotExist) {
		return nil // what is wrong with it is found when it is used
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("*\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("data directory %s: %w", dir, err)
	}
	return nil
}

func lockDir(dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Two servers in one process exclude each other by the file's name.
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
