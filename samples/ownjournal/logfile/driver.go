package logfile

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/journal"
)

// storage is the storage in a directory; the zero value is a directory in the data directory.
type storage struct{ dir string }

var _ driver.Journal = storage{}

// Dir keeps objects in a log in a directory, which is created if missing. An empty dir means the directory log in the
// server's data directory.
func Dir(dir string) driver.Journal { return storage{dir} }

// Name implements driver.Driver.
func (storage) Name() string { return "logfile" }

// Traits implements driver.Driver. Only this server reads the log.
func (storage) Traits() driver.Traits { return driver.Traits{} }

// Validate implements driver.Driver.
func (s storage) Validate(dataDir string) error {
	if s.Location(dataDir) == "" {
		return errors.New("storage logfile needs a directory, or a data directory")
	}
	return nil
}

// Location implements driver.Driver.
func (s storage) Location(dataDir string) string {
	if s.dir == "" && dataDir != "" {
		return filepath.Join(dataDir, "log")
	}
	return s.dir
}

// OpenJournal implements driver.Journal.
func (s storage) OpenJournal(_ context.Context, env driver.Env) (journal.Journal, error) {
	return Open(s.Location(env.DataDir))
}
