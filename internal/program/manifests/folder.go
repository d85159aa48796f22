package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Change is the change of a file: created, changed, unchanged or removed.
type Change struct {
	Path, What string
}

// Write makes a folder contain the files. It removes files that it wrote earlier and that are no longer among the
// files, since Helm would install them. If a file that Write did not write exists at the path of one of the files,
// Write returns an error and changes nothing. With dryRun it only returns the changes.
func Write(dir string, files []File, dryRun bool) ([]Change, error) {
	changes, err := changesOf(dir, files)
	if err != nil || dryRun {
		return changes, err
	}
	for i, change := range changes {
		if change.What == "removed" {
			if err := os.Remove(change.Path); err != nil {
				return nil, err
			}
			continue
		}
		if change.What == "unchanged" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(change.Path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(change.Path, files[i].Text, 0o644); err != nil {
			return nil, err
		}
	}
	return changes, nil
}

// changesOf returns the changes of the files in their order, and then the removals.
func changesOf(dir string, files []File) ([]Change, error) {
	var changes []Change
	var foreign []string
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.Path))
		before, err := os.ReadFile(path)
		what := "changed"
		switch {
		case errors.Is(err, fs.ErrNotExist):
			what = "created"
		case err != nil:
			return nil, err
		case bytes.Equal(before, f.Text):
			what = "unchanged"
		case !marked(before):
			foreign = append(foreign, path)
		}
		changes = append(changes, Change{path, what})
	}
	if len(foreign) > 0 {
		return nil, fmt.Errorf("not written by this verb: %s; move the files, or choose another folder", strings.Join(foreign, ", "))
	}
	old, err := stale(dir, changes)
	return append(changes, old...), err
}

func stale(dir string, wanted []Change) ([]Change, error) {
	var old []Change
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.Type().IsRegular() || filepath.Ext(path) != ".yaml" ||
			slices.ContainsFunc(wanted, func(c Change) bool { return c.Path == path }) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil && marked(text) {
			old = append(old, Change{path, "removed"})
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return old, err
}

func marked(text []byte) bool { return bytes.HasPrefix(text, []byte(Mark+"\n")) }
