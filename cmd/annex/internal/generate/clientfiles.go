package generate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ClientFile is the result for one file of the clients.
type ClientFile struct {
	// File is relative to Options.Dir.
	File string `json:"file"`
	// Changed reports whether the file was written or removed, or with Check would be.
	Changed bool `json:"changed"`
	// Removed reports whether the file is from an earlier run and was not made by this one.
	Removed bool `json:"removed,omitempty"`
}

// compareClients compares the files made for the folder into with the existing ones. It refuses to replace a file
// that generate did not write.
func compareClients(into, dir string, made []clientFile) ([]ClientFile, error) {
	var all []ClientFile
	var problems Problems
	for _, f := range made {
		file := filepath.Join(into, filepath.FromSlash(f.Name))
		before, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("generate clients: %w", err)
		}
		if _, ours := headerOf(string(before)); err == nil && !ours {
			problems = append(
				problems,
				Problem{
					File:    shorten(file, dir),
					Line:    1,
					Message: "annex generate did not write this file, and would overwrite it: rename or remove it",
				},
			)
		}
		all = append(all, ClientFile{File: shorten(file, dir), Changed: err != nil || string(before) != f.Source})
	}
	if len(problems) > 0 {
		return nil, problems
	}
	old, err := formerClients(into, made)
	if err != nil {
		return nil, err
	}
	for _, file := range old {
		all = append(all, ClientFile{File: shorten(file, dir), Changed: true, Removed: true})
	}
	slices.SortFunc(all, func(a, b ClientFile) int { return strings.Compare(a.File, b.File) })
	return all, nil
}

// formerClients returns the files in the clients' folders that an earlier run wrote and this run did not make.
func formerClients(into string, made []clientFile) ([]string, error) {
	if len(made) == 0 {
		return nil, nil
	}
	current := map[string]bool{}
	for _, f := range made {
		current[filepath.Join(into, filepath.FromSlash(f.Name))] = true
	}
	var old []string
	for _, folder := range clientFolders {
		err := filepath.WalkDir(filepath.Join(into, folder), func(file string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case d.IsDir() || current[file] || filepath.Ext(file) != ".go" || filepath.Base(file) == FileName:
				return nil
			}
			ours, err := generated(file)
			if ours {
				old = append(old, file)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("generate clients: %w", err)
		}
	}
	return old, nil
}

// writeClients writes the files that differ. It removes the files of earlier runs, and folders that become empty.
func writeClients(into string, made []clientFile) error {
	old, err := formerClients(into, made)
	if err != nil {
		return err
	}
	for _, f := range made {
		file := filepath.Join(into, filepath.FromSlash(f.Name))
		if before, err := os.ReadFile(file); err == nil && string(before) == f.Source {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("generate clients: %w", err)
		}
		if err := writeWhole(file, []byte(f.Source), 0o644); err != nil {
			return err
		}
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("generate clients: %w", err)
		}
		// A folder that is not empty stays.
		for dir := filepath.Dir(file); dir != into && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
		}
	}
	return nil
}
