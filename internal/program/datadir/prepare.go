package datadir

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/annexapi/annex/internal/base/atomicfile"
)

const gitignore = ".gitignore"

// Prepare creates a data directory with mode 0700, or removes the permissions of other users from an existing data
// directory. It writes a .gitignore that excludes the whole directory from repositories, except for the directories
// committed, which are paths below it. Prepare never changes a directory that has other content as well, such as a
// repository, and rejects it if other users have access. tightened is set if the mode of an existing directory was
// changed. If dir is empty, Prepare does nothing.
func Prepare(dir string, committed ...string) (tightened bool, err error) {
	if dir == "" {
		return false, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, Explain(dir, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return false, Explain(dir, err)
	}
	if !info.IsDir() {
		return false, Explain(dir, syscall.ENOTDIR)
	}
	own, err := isOwn(dir)
	if err != nil {
		return false, Explain(dir, err)
	}
	if tightened, err = tighten(dir, info, own); err != nil || !own {
		return tightened, err
	}
	if err := writeIgnore(filepath.Join(dir, gitignore), committed); err != nil {
		return tightened, Explain(dir, err)
	}
	return tightened, nil
}

// tighten removes the permissions of other users from a directory.
func tighten(dir string, info fs.FileInfo, own bool) (bool, error) {
	mode := info.Mode()
	if runtime.GOOS == "windows" || mode.Perm()&0o077 == 0 || isMountPoint(dir, info) {
		// The system that mounts a volume sets its mode, for the group of the program.
		return false, nil
	}
	switch {
	case !isOwner(info):
		return false, fmt.Errorf("data directory %s belongs to another user and is open to others (mode %04o): "+
			"its owner must chmod it to 700 and chown it to this user, or set Options.DataDir to another directory", dir, mode.Perm())
	case !own || mode&fs.ModeSticky != 0:
		return false, fmt.Errorf("data directory %s has other files and is open to other users (mode %04o): chmod 700 %[1]s, or set "+
			"Options.DataDir to a separate directory", dir, mode.Perm())
	}
	if err := os.Chmod(dir, mode.Perm()&0o700); err != nil {
		return false, Explain(dir, err)
	}
	return true, nil
}

// isOwn reports whether a directory is empty, or has been a data directory before and is not the root of a repository: it
// has a file that only data directories have, or nothing that they do not have.
func isOwn(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	certain, others := false, false
	for _, entry := range entries {
		name, _, _ := strings.Cut(entry.Name(), ".") // a restore moves the previous storage to storage.TIME
		switch {
		case entry.Name() == ".git":
			return false, nil
		case slices.Contains([]string{RecordName, "lock", "kubeconfig"}, entry.Name()):
			certain = true
		case !slices.Contains([]string{"storage", "objects", "cert", "users"}, name) && entry.Name() != gitignore:
			others = true
		}
	}
	return certain || !others, nil
}

// writeIgnore writes the file, or adds to it. A file that a person has changed stays as it is.
func writeIgnore(path string, committed []string) error {
	content := "*\n"
	old, err := os.ReadFile(path)
	switch {
	case err == nil && written(old):
		content = string(old)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	for _, directory := range committed {
		if directory == "." {
			continue
		}
		// Git does not look below an excluded directory, so that each directory on the way is named.
		parents := strings.Split(filepath.ToSlash(directory), "/")
		lines := ""
		for i := range parents {
			lines += "!/" + strings.Join(parents[:i+1], "/") + "/\n"
		}
		below := strings.Join(parents, "/")
		lines += "!/" + below + "/**\n/" + below + "/.*/\n" // hide a storage's internal files
		if !strings.Contains(content, lines) {
			content += lines
		}
	}
	if content == string(old) {
		return nil
	}
	return atomicfile.Write(path, []byte(content), 0o600)
}

// written reports whether all lines are of the kinds that writeIgnore writes.
func written(content []byte) bool {
	rest, ok := bytes.CutPrefix(content, []byte("*\n"))
	if !ok {
		return false
	}
	for line := range strings.Lines(string(rest)) {
		if !strings.HasPrefix(strings.TrimPrefix(line, "!"), "/") {
			return false
		}
	}
	return true
}

// Explain returns a one-line error about a data directory. For the usual causes it names the remedy.
func Explain(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return fmt.Errorf("data directory %s: the path, or a directory above it, is a file: set Options.DataDir to another directory", dir)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("data directory %s: this user may not write to it (%w): its owner must chown it, or set Options.DataDir to "+
			"another directory", dir, cause(err))
	}
	return fmt.Errorf("data directory %s: %w", dir, err)
}

// cause is an error without the path, which the message has already.
func cause(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}
