// Package datadir keeps a server's data directory: the record of which server and which storage it belongs to, its mode,
// and the file that keeps git away from private keys. It opens no storage and takes no lock.
package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/annexapi/annex/internal/base/atomicfile"
)

// RecordName is the file name of the record.
const RecordName = "annex.json"

// Format is the newest format of the record that this program reads, and the format that it writes.
const Format = 1

// Record identifies the server and the storages of a data directory. The zero value belongs to a directory without
// a record, and permits every server and storage.
type Record struct {
	// Format is 0 if there is no file.
	Format int `json:"format"`
	// Server is the server's name.
	Server string `json:"server"`
	// Storage names the storage of all resources that StorageOf does not list.
	Storage string `json:"storage"`
	// Ephemeral is set if Storage loses all objects when its server stops, so that no later storage hides any object.
	Ephemeral bool `json:"ephemeral,omitempty"`
	// StorageOf names other durable storages, by resource.
	StorageOf map[string]string `json:"storageOf,omitempty"`
	// Directories are the places of storages that keep a directory, by the storages' names. Relative paths begin at the
	// data directory.
	Directories map[string]string `json:"directories,omitempty"`
	// CopiedTo names a storage that all objects have been copied to, and that the next start may use instead of Storage.
	CopiedTo string `json:"copiedTo,omitempty"`
	// CreatedBy is the version of the program that made the record, CreatedAt when.
	CreatedBy string    `json:"createdBy"`
	CreatedAt time.Time `json:"createdAt"`
}

// Read returns the record of a data directory; the zero Record if the directory or its record does not exist. A record of
// a newer format is an error.
func Read(dir string) (Record, error) {
	path := filepath.Join(dir, RecordName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || dir == "" {
		return Record{}, nil
	}
	if err != nil {
		return Record{}, Explain(dir, err)
	}
	var known struct {
		Format    int    `json:"format"`
		CreatedBy string `json:"createdBy"`
	}
	if err := json.Unmarshal(data, &known); err != nil || known.Format < 1 {
		return Record{}, fmt.Errorf("data directory %s: %s is not a valid record of a data directory: restore it from a copy, or move it "+
			"away so that the server creates a new one", dir, path)
	}
	if known.Format > Format {
		return Record{}, fmt.Errorf("data directory %s has format %d, made by %s; this program reads formats up to %d: "+
			"run a newer program, or set Options.DataDir to another directory",
			dir, known.Format, known.CreatedBy, Format)
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("data directory %s: read %s: %w", dir, path, err)
	}
	return r, nil
}

// Write makes the record durable, with mode 0600, unless the directory has the same one already. Format, and in a new
// record CreatedAt, are filled in. The directory must exist.
func (r Record) Write(dir string) error {
	r.Format = Format
	if r.CreatedAt.IsZero() {
		r.CreatedAt = time.Now().UTC().Truncate(time.Second)
	}
	if old, err := Read(dir); err != nil {
		return err
	} else if old.equal(r) {
		return nil
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("data directory %s: encode %s: %w", dir, RecordName, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, RecordName), append(data, '\n'), 0o600); err != nil {
		return Explain(dir, err)
	}
	return nil
}

func (r Record) equal(o Record) bool {
	return r.Format == o.Format && r.Server == o.Server && r.Storage == o.Storage && r.Ephemeral == o.Ephemeral &&
		r.CopiedTo == o.CopiedTo && r.CreatedBy == o.CreatedBy && r.CreatedAt.Equal(o.CreatedAt) &&
		maps.Equal(r.StorageOf, o.StorageOf) && maps.Equal(r.Directories, o.Directories)
}

// Directory returns the place of a storage, absolute or beginning with the path dir of the data directory; empty if the
// record does not have it.
func (r Record) Directory(dir, storage string) string {
	path := r.Directories[storage]
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// Relative returns a path as Directories holds it.
func Relative(dir, path string) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("find the directory %s: %w", path, err)
	}
	root, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the directory %s: %w", dir, err)
	}
	if relative, err := filepath.Rel(root, absolute); err == nil && filepath.IsLocal(relative) {
		return relative, nil
	}
	return absolute, nil
}
