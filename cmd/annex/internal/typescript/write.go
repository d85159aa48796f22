package typescript

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/annexapi/annex/internal/base/atomicfile"
)

// Written is the result for one file.
type Written struct {
	// File has the folder of the run before its name.
	File string `json:"file"`
	// Changed reports whether the file was written or removed, or with check would be.
	Changed bool `json:"changed"`
	// Removed reports whether an earlier run wrote the file, and this one did not make it.
	Removed bool `json:"removed,omitempty"`
}

// Write writes the files that differ into a folder, and removes those of earlier runs that are no longer made. It
// refuses a folder with files that it did not write, except for names that begin with a period. With check it compares
// only.
func Write(dir string, files []File, check bool) ([]Written, error) {
	existing, err := filesOf(dir)
	if err != nil {
		return nil, err
	}
	var all []Written
	for _, f := range files {
		before, known := existing[f.Name]
		delete(existing, f.Name)
		changed := !known || string(before) != f.Source
		all = append(all, Written{File: filepath.Join(dir, filepath.FromSlash(f.Name)), Changed: changed})
		if !changed || check {
			continue
		}
		file := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, fmt.Errorf("generate the TypeScript client: %w", err)
		}
		if err := atomicfile.Write(file, []byte(f.Source), 0o644); err != nil {
			return nil, fmt.Errorf("generate the TypeScript client: %w", err)
		}
	}
	for name := range existing {
		file := filepath.Join(dir, filepath.FromSlash(name))
		all = append(all, Written{File: file, Changed: true, Removed: true})
		if check {
			continue
		}
		if err := os.Remove(file); err != nil {
			return nil, fmt.Errorf("generate the TypeScript client: %w", err)
		}
		// A folder that is not empty stays.
		for parent := filepath.Dir(file); parent != filepath.Clean(dir) && os.Remove(parent) == nil; parent = filepath.Dir(parent) {
		}
	}
	slices.SortFunc(all, func(a, b Written) int { return strings.Compare(a.File, b.File) })
	return all, nil
}

// filesOf returns the files in a folder, by their slash-separated names. All of them must be from an earlier run.
func filesOf(dir string) (map[string][]byte, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("%s is a file: set --typescript to a folder for the client", dir)
	}
	existing := map[string][]byte{}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist) && file == dir:
			return nil
		case err != nil:
			return err
		case strings.HasPrefix(d.Name(), ".") && file != dir:
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case d.IsDir():
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(text, []byte(Header)) {
			return fmt.Errorf("%s was not written by annex generate: set --typescript to a folder for the client alone, such as %s",
				file, filepath.Join(dir, "client"))
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		existing[filepath.ToSlash(name)] = text
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("generate the TypeScript client: %w", err)
	}
	return existing, nil
}
