package dev

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// source identifies the hand-written source of a project.
type source struct {
	sum  [sha256.Size]byte
	apis apis
}

// apis are the sums of API packages, by folder.
type apis map[string][sha256.Size]byte

// isSource reports whether the server depends on a file of that name. Generated files do not count, since they follow
// from others.
func isSource(path string) bool {
	name := filepath.Base(path)
	switch {
	case name == "go.mod", name == "go.sum", name == "go.work":
		return true
	case filepath.Ext(name) != ".go",
		name == generate.FileName,
		strings.HasSuffix(name, "_test.go"),
		strings.HasPrefix(name, "."),
		strings.HasPrefix(name, "_"):
		return false
	}
	return true
}

// hasSource reports whether a folder below a project may hold source. Folders that the go command ignores do not, nor
// does the data directory of a server.
func hasSource(path string) bool {
	name := filepath.Base(path)
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "node_modules" {
		return false
	}
	_, err := os.Stat(filepath.Join(path, "cert"))
	return err != nil
}

// folders calls visit with root and the folders below it that may hold source.
func folders(root string, visit func(dir string, files []fs.DirEntry) error) error {
	root += string(filepath.Separator) // the separator makes the walk follow a symbolic link
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err) && path != root:
			return nil // it has been removed meanwhile
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case path != root && !hasSource(path):
			return filepath.SkipDir
		}
		files, err := os.ReadDir(path)
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return visit(path, files)
	})
}

// watch watches a folder and those below it.
func watch(watcher *fsnotify.Watcher, root string) error {
	return folders(root, func(dir string, _ []fs.DirEntry) error {
		if err := watcher.Add(dir); err != nil && !os.IsNotExist(err) {
			return err
		}
		return nil
	})
}

var groupName = regexp.MustCompile(`(?m)^\s*(//)?\s*\+groupName=`)

// read reads the project's source.
func read(root string) (source, error) {
	s := source{apis: apis{}}
	whole := sha256.New()
	err := folders(root, func(dir string, files []fs.DirEntry) error {
		own, isAPI := sha256.New(), false
		for _, f := range files {
			if f.IsDir() || !isSource(f.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if os.IsNotExist(err) {
				continue
			}
			if err != nil {
				return err
			}
			isAPI = isAPI || bytes.Contains(text, []byte("+groupName=")) && groupName.Match(text)
			add(own, f.Name(), text)
		}
		relative, err := filepath.Rel(root, dir)
		if err != nil {
			return err
		}
		if isAPI {
			s.apis[relative] = [sha256.Size]byte(own.Sum(nil))
		}
		add(whole, relative, own.Sum(nil))
		return nil
	})
	if err != nil {
		return source{}, fmt.Errorf("read the project: %w", err)
	}
	s.sum = [sha256.Size]byte(whole.Sum(nil))
	return s, nil
}

func add(to hash.Hash, name string, text []byte) {
	fmt.Fprintf(to, "%q %d\n", name, len(text))
	to.Write(text)
}

// changedSince returns the folders of all API packages if any of them has changed, since one may depend on another,
// and otherwise none.
func (a apis) changedSince(before apis) []string {
	var all []string
	changed := false
	for dir, sum := range a {
		all = append(all, dir)
		changed = changed || before[dir] != sum
	}
	if !changed {
		return nil
	}
	slices.Sort(all)
	return all
}
