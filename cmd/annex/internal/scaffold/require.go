package scaffold

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// RequireOptions set how a module requires the library.
type RequireOptions struct {
	Options
	// Replace is as in InitOptions.
	Replace string
}

// Require adds the library to the requirements of the module that contains Dir, which may be any module, for example
// a kubebuilder project. The go command resolves the library's own requirements.
func Require(ctx context.Context, o RequireOptions) (*Result, error) {
	root, err := moduleFolder(o.Dir)
	if err != nil {
		return nil, err
	}
	from, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("find the current folder: %w", err)
	}
	mod := shorten(filepath.Join(root, "go.mod"), from)
	if work, out := outsideWorkspace(root); out {
		return nil, generate.Problem{
			File: mod,
			Line: 1,
			Message: fmt.Sprintf(
				"%s does not list this module, so the go command cannot use it: run go work use %s",
				shorten(work, from),
				shorten(root, from),
			),
		}
	}
	before, err := readModule(root)
	if err != nil {
		return nil, err
	}
	f, err := parseModule("", before.mod)
	if err != nil {
		return nil, err
	}
	if f.Module == nil || f.Module.Mod.Path == library {
		return nil, generate.Problem{
			File:    mod,
			Line:    1,
			Message: "is that of " + library + " itself, or of no module: run this command in the module of your server",
		}
	}
	result := &Result{Next: []string{"annex generate ./...   # generates code for the API packages"}}
	what := library
	if released := releasedVersion(); o.Replace == "" && os.Getenv(checkoutVariable) == "" && released != "" {
		what += "@" + released
		if err := f.DropReplace(library, ""); err != nil {
			return nil, fmt.Errorf("write go.mod: %w", err)
		}
	} else {
		checkout, err := findCheckout(o.Replace)
		if err != nil {
			return nil, err
		}
		to := replacement(root, checkout)
		if err := f.AddReplace(library, "", to, ""); err != nil {
			return nil, fmt.Errorf("write go.mod: %w", err)
		}
		result.Notes = append(result.Notes, replaceNote(to))
	}
	f.Cleanup()
	text, err := f.Format()
	if err != nil {
		return nil, fmt.Errorf("write go.mod: %w", err)
	}
	p := &plan{root: root}
	p.edit("go.mod", text)
	if result.Files, err = p.carryOut(o.Options); err != nil || o.DryRun {
		return result, err
	}
	if err := goGet(ctx, root, what, ofProgram(what)); err != nil {
		// An incomplete requirement would make all other commands of the go command fail.
		return nil, errors.Join(generate.Problem{File: mod, Message: err.Error()}, write(filepath.Join(root, "go.mod"), before.mod))
	}
	after, err := readModule(root)
	if err != nil {
		return nil, err
	}
	result.Files = nil
	for _, file := range []struct {
		name    string
		was, is []byte
	}{{"go.mod", before.mod, after.mod}, {"go.sum", before.sum, after.sum}} {
		state := Changed
		switch {
		case file.was == nil:
			state = Created
		case string(file.was) == string(file.is):
			state = Unchanged
		}
		result.Files = append(result.Files, File{Path: shorten(filepath.Join(root, file.name), from), State: state})
	}
	return result, nil
}

// moduleFolder returns the folder of the go.mod at or above dir.
func moduleFolder(dir string) (string, error) {
	from, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the current folder: %w", err)
	}
	for at := from; ; at = filepath.Dir(at) {
		switch _, err := os.Stat(filepath.Join(at, "go.mod")); {
		case err == nil:
			return at, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("find go.mod: %w", err)
		case at == filepath.Dir(at):
			return "", generate.Problem{
				File:    filepath.Base(from),
				Message: "is not in a Go module: run go mod init, or create a project with annex init",
			}
		}
	}
}

// ofProgram returns the package by which a program has a command line, at the version of the library: go get adds
// the sums of the packages that it names, and package program links more modules than the library's own package.
func ofProgram(what string) string {
	_, version, versioned := strings.Cut(what, "@")
	if !versioned {
		return library + "/program"
	}
	return library + "/program@" + version
}

// goGet adds a module and its requirements by go get.
func goGet(ctx context.Context, dir string, what ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"get"}, what...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("the go command is not in PATH: install Go")
	}
	if err != nil {
		return fmt.Errorf("go get %s failed: %s", strings.Join(what, " "), strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}

// replaceNote returns the note about the effect of a replacement in go.mod on others.
func replaceNote(to string) string {
	note := fmt.Sprintf("Annex has no release yet: go.mod replaces %s by %s", library, to)
	if modfile.IsDirectoryPath(to) && !filepath.IsAbs(filepath.FromSlash(to)) {
		return note + ", where other machines also need a checkout"
	}
	return note + ", a path that other machines do not have: move the checkout beside the project, so that go.mod gets a relative path; " +
		"or run annex require on each machine, with $" + checkoutVariable + " or --replace set to the local checkout"
}
