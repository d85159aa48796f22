package datadir

import (
	"os"
	"path/filepath"
)

// Stored is a storage that keeps its records in a directory.
type Stored struct {
	// Name is the storage's name, Path its directory.
	Name, Path string
}

// unrecorded lists the storages that kept their records in the data directory before the record existed, each with
// its directory and with a path in it that exists if the directory holds that storage. These places cannot change
// any more, so they are facts of the format (docs/formats/datadir.md) and no program has to link the storages to
// know them.
var unrecorded = []struct{ name, dir, mark string }{
	{"embedded", "storage", "."},
	{"files", "objects", ".annex/state"},
}

// Unrecorded returns the storages in a data directory that has no record.
func Unrecorded(dir string) []Stored {
	var found []Stored
	for _, s := range unrecorded {
		path := filepath.Join(dir, s.dir)
		if _, err := os.Stat(filepath.Join(path, filepath.FromSlash(s.mark))); err == nil {
			found = append(found, Stored{s.name, path})
		}
	}
	return found
}
