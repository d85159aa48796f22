package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/journal"
)

// Name is the name of the storage.
const Name = "files"

// directory is the storage in a directory; the zero value is the storage in the data directory.
type directory struct{ path string }

var _ driver.Directory = directory{}

// Dir returns a driver that keeps each object in a YAML file below a directory, for people to read, edit and put
// under version control. Edits of the files become ordinary writes. The directory is created if it is missing, and
// may hold files already; one process uses it at a time. If path is empty, it is the folder objects of the server's
// data directory.
func Dir(path string) driver.Directory { return directory{path} }

func (d directory) Name() string { return Name }

func (d directory) Traits() driver.Traits { return driver.Traits{TextOnly: true} }

func (d directory) Validate(dataDir string) error {
	if d.Location(dataDir) == "" {
		return errors.New("the storage files requires a directory of its own, or a data directory")
	}
	return nil
}

func (d directory) Location(dataDir string) string {
	if d.path == "" && dataDir != "" {
		return filepath.Join(dataDir, "objects")
	}
	return d.path
}

func (d directory) OpenJournal(ctx context.Context, env driver.Env) (journal.Journal, error) {
	return d.OpenIn(ctx, d.Location(env.DataDir), env)
}

func (d directory) OpenIn(_ context.Context, dir string, env driver.Env) (journal.Journal, error) {
	return Open(dir, Options{Resources: env.Resources, Logger: env.Logger})
}

func (d directory) Present(dir string) error {
	_, err := os.Stat(filepath.Join(dir, StateFile))
	return err
}

func (d directory) Scan(ctx context.Context, dir string, yield func(journal.Record) error, damaged func(*journal.Damage)) (uint64, error) {
	return Scan(ctx, dir, embedded.Options{}, yield, damaged)
}

func (d directory) LastRevision(ctx context.Context, dir string) (uint64, error) {
	return LastRevision(ctx, dir)
}
