package generate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/tools/go/packages"

	"github.com/annexapi/annex/cmd/annex/internal/generate/protobuf"
)

// record is the result of a request, with all of its inputs, except for inputs that cannot change under their name:
// the Go distribution and the module cache, whose versions are in go.mod and go.sum.
type record struct {
	// Files holds the SHA-256 of every file that was read, by path; it is empty for a file that was missing.
	Files map[string]string
	// Names holds the names of the Go files in every folder that was read, so that new files are noticed.
	Names    map[string][]string
	Packages []output
	Clients  []clientFile
}

// recordAge is how long a record is kept after its last use.
const recordAge = 30 * 24 * time.Hour

// recordOf returns the path of the record of a request, and the workspace file. The path is empty if no record can be
// kept. Requests of another version of the tool, and in another environment of the go command, have other records.
func recordOf(ctx context.Context, r moduleRequest) (path, work string) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", ""
	}
	self, err := os.Executable()
	if err != nil {
		return "", ""
	}
	info, err := os.Stat(self)
	if err != nil {
		return "", ""
	}
	cmd := exec.CommandContext(
		ctx,
		"go",
		"env",
		"GOWORK",
		"GOVERSION",
		"GOROOT",
		"GOFLAGS",
		"GOOS",
		"GOARCH",
		"CGO_ENABLED",
		"GOEXPERIMENT",
		"GOMODCACHE",
		"GOPATH",
	)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "PWD="+r.dir)
	env, err := cmd.Output()
	if err != nil {
		return "", "" // the worker reports the reason
	}
	work, _, _ = strings.Cut(string(env), "\n")
	key, err := json.Marshal([]any{r.dir, r.request, self, info.Size(), info.ModTime(), string(env)})
	if err != nil {
		return "", ""
	}
	sum := sha256.Sum256(key)
	return filepath.Join(cache, "annex", "generate", hex.EncodeToString(sum[:16])), work
}

// recall returns the packages of a record if no input has changed.
func recall(path string, r moduleRequest) ([]output, []clientFile, bool) {
	if path == "" {
		return nil, nil, false
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, false
	}
	var rec record
	if json.Unmarshal(text, &rec) != nil {
		return nil, nil, false
	}
	for file, want := range rec.Files {
		if sum, _, err := sumOf(file); err != nil || sum != want {
			return nil, nil, false
		}
	}
	names, err := namesOf(folders(r, sortedKeys(rec.Names)), rec.Packages, r.Clients)
	if err != nil || !reflect.DeepEqual(names, rec.Names) {
		return nil, nil, false
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // still in use
	return rec.Packages, rec.Clients, true
}

// remember records the result of a request that began at start. It records nothing if an input has changed since
// then, since the worker may have read the old or the new content.
func remember(path, work string, r moduleRequest, resp response, start time.Time) error {
	if path == "" {
		return nil
	}
	rec := record{Files: map[string]string{}, Packages: resp.Packages, Clients: resp.Clients}
	for _, out := range resp.Packages {
		if before, err := os.ReadFile(
			filepath.Join(out.Dir, protobuf.FileName),
		); out.Proto != "" &&
			(err != nil || string(before) != out.Proto) {
			return nil // the next run reads other field numbers than this one
		}
	}
	resp.Read = slices.DeleteFunc(slices.Clone(resp.Read), func(file string) bool {
		ours, err := generated(file)
		return r.Clients != "" && isBelow(filepath.Dir(file), r.Clients) && err == nil && ours
	})
	var dirs []string
	for _, file := range resp.Read {
		dirs = append(dirs, filepath.Dir(file))
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	files := slices.Concat(resp.Read, moduleFiles(r.dir, work))
	for _, dir := range dirs {
		files = append(files, filepath.Join(dir, protobuf.FileName))
	}
	for _, file := range files {
		sum, changed, err := sumOf(file)
		if err != nil {
			return err
		}
		// Time stamps of file systems are coarser than clocks.
		if changed.After(start.Add(-20 * time.Millisecond)) {
			return nil
		}
		rec.Files[file] = sum
	}
	var err error
	if rec.Names, err = namesOf(folders(r, dirs), rec.Packages, r.Clients); err != nil {
		return err
	}
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	forget(dir)
	return writeWhole(path, text, 0o600)
}

// forget removes records that have not been used for recordAge. It ignores errors.
func forget(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > recordAge {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// sumOf returns the SHA-256 and the modification time of a file, or zero values if the file is missing.
func sumOf(file string) (sum string, changed time.Time, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", time.Time{}, nil
	}
	if err != nil {
		return "", time.Time{}, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", time.Time{}, err
	}
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:]), info.ModTime(), nil
}

// folders returns dirs and, since wildcards may match in any folder, all folders of the module.
func folders(r moduleRequest, dirs []string) []string {
	all := slices.Clone(dirs)
	root := r.dir + string(filepath.Separator) // the separator makes the walk follow a symbolic link
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // the go command cannot read it, either
		case !d.IsDir():
			return nil
		case path != root && skipFolder(path, d.Name()):
			return filepath.SkipDir
		}
		all = append(all, filepath.Clean(path))
		return nil
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// namesOf returns the Go files in folders, except for files that this generation writes. Below the folder of the
// clients, folders that would be empty without generated files are skipped, since they come and go with the clients.
func namesOf(folders []string, written []output, clients string) (map[string][]string, error) {
	names := map[string][]string{}
	for _, dir := range folders {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		found := []string{}
		for _, e := range entries {
			name := e.Name()
			if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				continue
			}
			own := clients != "" && isBelow(dir, clients) ||
				name == FileName && slices.ContainsFunc(written, func(o output) bool { return o.Dir == dir })
			if own {
				if ours, err := generated(filepath.Join(dir, name)); err != nil || ours {
					continue
				}
			}
			found = append(found, name)
		}
		if clients != "" && isBelow(dir, clients) && len(found) == 0 {
			continue
		}
		names[dir] = found
	}
	return names, nil
}

// isBelow reports whether dir is root or a folder below it.
func isBelow(dir, root string) bool {
	return dir == root || strings.HasPrefix(dir, root+string(filepath.Separator))
}

// moduleFiles returns the files that determine the versions of dependencies: those of the module in dir, of its
// workspace, and of the folders by which they replace modules.
func moduleFiles(dir, work string) []string {
	var files []string
	var module func(dir string, replaced bool)
	module = func(dir string, replaced bool) {
		mod := filepath.Join(dir, "go.mod")
		if slices.Contains(files, mod) {
			return
		}
		files = append(files, mod, filepath.Join(dir, "go.sum"), filepath.Join(dir, "vendor", "modules.txt"))
		text, err := os.ReadFile(mod)
		if err != nil || replaced {
			return
		}
		if f, err := modfile.Parse(mod, text, nil); err == nil {
			replacedBy(f.Replace, dir, module)
		}
	}
	module(dir, false)
	if work == "" || work == "off" {
		return files
	}
	files = append(files, work, work+".sum")
	if text, err := os.ReadFile(work); err == nil {
		if f, err := modfile.ParseWork(work, text, nil); err == nil {
			for _, use := range f.Use {
				module(within(filepath.Dir(work), use.Path), false)
			}
			replacedBy(f.Replace, filepath.Dir(work), module)
		}
	}
	return files
}

func replacedBy(replace []*modfile.Replace, dir string, module func(dir string, replaced bool)) {
	for _, r := range replace {
		if r.New.Version == "" {
			module(within(dir, r.New.Path), true)
		}
	}
}

func within(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// read returns the files of packages that may change, that is, of packages without a version.
func (l *packageSet) read() []string {
	var files []string
	packages.Visit(sortedListed(l.listed), nil, func(p *packages.Package) {
		if p.Module == nil || p.Module.Version != "" && p.Module.Replace == nil || p.Module.Replace != nil && p.Module.Replace.Version != "" {
			return
		}
		for _, file := range slices.Concat(p.GoFiles, p.IgnoredFiles) {
			if filepath.Base(file) == FileName {
				if ours, err := generated(file); err == nil && ours {
					continue
				}
			}
			files = append(files, file)
		}
	})
	slices.Sort(files)
	return slices.Compact(files)
}

func sortedListed(listed map[string]*packages.Package) []*packages.Package {
	all := make([]*packages.Package, 0, len(listed))
	for _, path := range sortedKeys(listed) {
		all = append(all, listed[path])
	}
	return all
}

// writeWhole writes a file atomically: afterwards it has either its old or its new content.
func writeWhole(file string, text []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(file), err)
	}
	_, err = bytes.NewReader(text).WriteTo(tmp)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return fmt.Errorf("write %s: %w", filepath.Base(file), err)
	}
	return nil
}
