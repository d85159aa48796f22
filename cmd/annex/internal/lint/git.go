package lint

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
)

// ErrNoRepository reports that a folder is not in a git repository, or in one without commits.
var ErrNoRepository = errors.New("not in a git repository with a commit: no earlier version to compare with")

// inRepository reports whether dir looks like part of a git repository.
func inRepository(dir string) bool {
	for {
		if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
			return true
		}
		up := filepath.Dir(dir)
		if up == dir {
			return false
		}
		dir = up
	}
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %s", args[0], strings.Join(strings.Fields(stderr.String()+" "+err.Error()), " "))
	}
	return strings.TrimSpace(string(out)), nil
}

// mainBranches are the names of the branch with released code; the first existing one is used.
var mainBranches = []string{"origin/HEAD", "origin/main", "main", "origin/master", "master"}

// baseline returns the commit to compare with: ref if it is given, else the commit at which the current branch left
// the main branch, or the last commit.
func baseline(ctx context.Context, root, ref string) (string, error) {
	if ref != "" {
		commit, err := git(ctx, root, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
		if err != nil {
			return "", fmt.Errorf("--against %s: commit not found in this repository: fetch it, or use another", ref)
		}
		return commit, nil
	}
	for _, branch := range mainBranches {
		if commit, err := git(ctx, root, "merge-base", "HEAD", branch); err == nil {
			return commit, nil
		}
	}
	return git(ctx, root, "rev-parse", "HEAD")
}

// checkout writes the files of a commit into a new temporary folder, which the caller removes.
func checkout(ctx context.Context, root, commit string) (string, error) {
	dir, err := os.MkdirTemp("", "annex-lint-")
	if err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err == nil {
		err = extract(ctx, root, commit, dir)
	}
	if err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("check out %s: %w", commit, err)
	}
	return dir, nil
}

func extract(ctx context.Context, root, commit, dir string) error {
	cmd := exec.CommandContext(ctx, "git", "archive", "--format=tar", commit)
	cmd.Dir = root
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = untar(out, dir)
	_, drained := io.Copy(io.Discard, out)
	return errors.Join(err, drained, cmd.Wait())
}

// untar writes the files that packages need: Go, module and protobuf files.
func untar(r io.Reader, dir string) error {
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.FromSlash(header.Name)
		switch {
		case header.Typeflag != tar.TypeReg, !filepath.IsLocal(name):
			continue
		case filepath.Ext(name) != ".go" && filepath.Ext(name) != ".proto" && !strings.HasPrefix(filepath.Base(name), "go."):
			continue
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, archive)
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}

// anchor rewrites the replacements in a copied go.mod that point out of the repository, so that they are valid in the
// copy.
func anchor(root, copied string) error {
	return filepath.WalkDir(copied, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "go.mod" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		module, err := modfile.Parse(path, text, nil)
		if err != nil {
			return nil // the go command reports the error
		}
		rel, err := filepath.Rel(copied, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, r := range module.Replace {
			target := filepath.Join(root, rel, filepath.FromSlash(r.New.Path))
			outside := !strings.HasPrefix(target, root+string(filepath.Separator)) && target != root
			if r.New.Version != "" || filepath.IsAbs(r.New.Path) || !outside {
				continue
			}
			if err := module.AddReplace(r.Old.Path, r.Old.Version, target, ""); err != nil {
				return err
			}
		}
		if text, err = module.Format(); err != nil {
			return err
		}
		return os.WriteFile(path, text, 0o600)
	})
}
