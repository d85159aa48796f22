package scaffold

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// Options are common to all commands.
type Options struct {
	// Dir is a folder in the project. Empty means the current one.
	Dir string
	// DryRun returns the result without writing it.
	DryRun bool
	// Force replaces existing files.
	Force bool
}

// State is the effect on a file, or with Options.DryRun the effect it would have.
type State string

// The states of a file.
const (
	Created   State = "created"
	Changed   State = "changed"
	Unchanged State = "unchanged"
	Removed   State = "removed"
)

// File is a file of a result.
type File struct {
	// Path is relative to Options.Dir.
	Path  string `json:"path"`
	State State  `json:"state"`
	// Diff is the change of a dry run, in the unified format.
	Diff string `json:"diff,omitempty"`
}

// Result is the result of a command.
type Result struct {
	Files []File `json:"files"`
	// Packages are the folders of API packages to generate, relative to Options.Dir.
	Packages []string `json:"-"`
	// Notes are remarks for the user, a line each.
	Notes []string `json:"notes,omitempty"`
	// Next are the user's next steps, a line each.
	Next []string `json:"next,omitempty"`

	finish func(error) error
}

// Finish takes the error of generating Packages. It writes the files that depend on it, and returns the error if they
// do not resolve it.
func (r *Result) Finish(generated error) error {
	if r.finish == nil {
		return generated
	}
	return r.finish(generated)
}

// plan is a set of changes of files below root.
type plan struct {
	root  string
	files []plannedFile
}

type plannedFile struct {
	path string // relative to root, with slashes
	text []byte
	// edit is set if the text is an edit of the existing file.
	edit bool
	// remove is set if the file is removed; it has no text then.
	remove bool
}

func (p *plan) create(path string, text []byte) {
	p.files = append(p.files, plannedFile{path: path, text: text})
}

func (p *plan) edit(path string, text []byte) {
	p.files = append(p.files, plannedFile{path: path, text: text, edit: true})
}

func (p *plan) remove(path string) {
	p.files = append(p.files, plannedFile{path: path, edit: true, remove: true})
}

// carryOut executes the plan, or changes nothing if a file is in the way.
func (p *plan) carryOut(o Options) ([]File, error) {
	from, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("find the current folder: %w", err)
	}
	var files []File
	var inTheWay generate.Problems
	for _, f := range p.files {
		shown := shorten(filepath.Join(p.root, filepath.FromSlash(f.path)), from)
		before, err := os.ReadFile(filepath.Join(p.root, filepath.FromSlash(f.path)))
		missing := errors.Is(err, fs.ErrNotExist)
		if err != nil && !missing {
			return nil, generate.Problem{File: shown, Message: fmt.Sprintf("cannot be read: %v", unwrapPath(err))}
		}
		file := File{Path: shown, State: Changed}
		switch {
		case f.remove:
			file.State = Removed
		case missing:
			file.State = Created
		case bytes.Equal(before, f.text):
			file.State = Unchanged
		case !f.edit && !o.Force:
			inTheWay = append(
				inTheWay,
				generate.Problem{File: shown, Message: "exists with other content: move it away, or set --force to replace it"},
			)
		}
		if o.DryRun && file.State != Unchanged {
			old, now := "a/"+f.path, "b/"+f.path
			if missing {
				old = "/dev/null"
			}
			if f.remove {
				now = "/dev/null"
			}
			if utf8.Valid(f.text) {
				file.Diff = string(diff.Diff(old, before, now, f.text))
			} else {
				file.Diff = fmt.Sprintf("Binary files %s and %s differ\n", old, now)
			}
		}
		files = append(files, file)
	}
	if len(inTheWay) > 0 {
		return nil, inTheWay
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	if o.DryRun {
		return files, nil
	}
	return files, p.write()
}

func (p *plan) write() error {
	for _, f := range p.files {
		file := filepath.Join(p.root, filepath.FromSlash(f.path))
		if f.remove {
			if err := os.Remove(file); err != nil {
				return fmt.Errorf("remove %s: %w", file, err)
			}
			continue
		}
		if err := write(file, f.text); err != nil {
			return err
		}
	}
	return nil
}

// write replaces a file atomically.
func write(path string, text []byte) error {
	if before, err := os.ReadFile(path); err == nil && bytes.Equal(before, text) {
		return nil
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// unwrapPath removes the path from an error, for messages that begin with the path.
func unwrapPath(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// shorten returns path relative to dir, for messages.
func shorten(path, dir string) string {
	if rel, err := filepath.Rel(dir, path); err == nil {
		return rel
	}
	return path
}
