package upstreamlock

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	root = "../../.."
	page = "docs/maintaining/raising-kubernetes.md"
)

func goCommand(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "GOWORK=off", "GOPROXY=off")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, said.String())
	}
	return out
}

// selectedVersions returns the versions of the modules that the go.mod files select, and where their source is. It does
// not need the network: a module that another go.mod than the root's pins may be missing.
func selectedVersions(t *testing.T, modules []Module) map[string]Selected {
	t.Helper()
	selected := map[string]Selected{}
	list := []string{"list", "-m", "-json"}
	cache := strings.TrimSpace(string(goCommand(t, "env", "GOMODCACHE")))
	for _, m := range modules {
		if m.By == "" {
			list = append(list, m.Path)
			continue
		}
		version := pinned(t, m)
		dir := filepath.Join(cache, m.Path+"@"+version)
		if _, err := os.Stat(dir); err != nil {
			t.Logf("%s %s is not in the module cache, and not checked: GOWORK=off go -C %s mod download %[1]s", m.Path, version, m.By)
			dir = ""
		}
		selected[m.Path] = Selected{version, dir}
	}
	for decoder := json.NewDecoder(bytes.NewReader(goCommand(t, list...))); ; {
		var m struct{ Path, Version, Dir string }
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			return selected
		} else if err != nil {
			t.Fatal(err)
		}
		if m.Dir == "" {
			t.Fatalf("%s %s is not in the module cache: go mod download", m.Path, m.Version)
		}
		selected[m.Path] = Selected{m.Version, m.Dir}
	}
}

// pinned returns the version of a module that the go.mod in the folder By requires.
func pinned(t *testing.T, m Module) string {
	t.Helper()
	var file struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(goCommand(t, "mod", "edit", "-json", filepath.Join(m.By, "go.mod")), &file); err != nil {
		t.Fatal(err)
	}
	for _, r := range file.Require {
		if r.Path == m.Path {
			return r.Version
		}
	}
	t.Fatalf("%s/go.mod does not require %s any more", m.By, m.Path)
	return ""
}

// UPDATE=1 takes the hashes of the selected versions into the lock.
func TestLock_isWhatGoModSelects(t *testing.T) {
	name := filepath.Join(root, "upstream.lock")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := Parse(text)
	if err != nil {
		t.Fatalf("upstream.lock: %v", err)
	}
	update := os.Getenv("UPDATE") != ""
	wrong := lock.Check(root, selectedVersions(t, lock.Modules), update)
	for _, mistake := range wrong {
		t.Error(mistake)
	}
	if len(wrong) > 0 {
		t.Errorf("%s is the procedure; UPDATE=1 go test ./internal/testing/upstreamlock takes new hashes", page)
	}
	if update && !bytes.Equal(lock.Text(), text) {
		if err := os.WriteFile(name, lock.Text(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	library = `package lib

// Default is a default.
const Default = 10

type queue struct{ size int }

func (q *queue) add(n int) int {
	q.size += n
	return q.size
}
`
	copied  = "package ours\n\nconst size = 10\n\ntype list[T any] struct{}\n\nfunc (l *list[T]) put() {}\n"
	entries = `# An area.
module example.com/lib v1.0.0

ours size
	Both wait as long.
	? example.com/lib lib/lib.go Default

ours list.put
	It adds as much.
	? example.com/lib lib/lib.go queue.add
`
)

// fixture returns a lock that has the hashes of a library of two declarations, a tree that repeats them, and the library.
func fixture(t *testing.T) (lock *Lock, tree, lib string) {
	t.Helper()
	tree, lib = t.TempDir(), t.TempDir()
	write(t, tree, map[string]string{"ours/ours.go": copied})
	write(t, lib, map[string]string{"lib/lib.go": library})
	first := parsed(t, []byte(entries))
	if wrong := first.Check(tree, at("v1.0.0", lib), true); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	if strings.Contains(string(first.Text()), "?") {
		t.Fatalf("an update leaves hashes open:\n%s", first.Text())
	}
	lock = parsed(t, first.Text())
	if wrong := lock.Check(tree, at("v1.0.0", lib), false); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	return lock, tree, lib
}

func parsed(t *testing.T, text []byte) *Lock {
	t.Helper()
	lock, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func at(version, dir string) map[string]Selected {
	return map[string]Selected{"example.com/lib": {version, dir}}
}

func TestCheck_upstreamDiffers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change [2]string
		file   string
		want   []string // of the one mistake; none if there is none
	}{
		"constant": {
			change: [2]string{"Default = 10", "Default = 20"},
			want:   []string{"ours size repeats Default of example.com/lib lib/lib.go", "changed from v1.0.0 to v1.1.0"},
		},
		"body of a method": {
			change: [2]string{"q.size += n", "q.size += 2 * n"},
			want:   []string{"ours list.put repeats queue.add of example.com/lib lib/lib.go", "changed from v1.0.0 to v1.1.0"},
		},
		"name": {
			change: [2]string{") add(", ") insert("},
			want:   []string{"ours list.put repeats queue.add", "it is gone (v1.0.0 has it, v1.1.0 does not)"},
		},
		"file": {
			file: "lib/other.go",
			want: []string{"v1.1.0 declares it in lib/other.go"},
		},
		"comment":             {change: [2]string{"// Default is a default.", "// Default is the default."}},
		"comment in a body":   {change: [2]string{"q.size += n", "q.size += n\n\n\t// It is returned."}},
		"another declaration": {change: [2]string{"size int", "size, more int"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock, tree, lib := fixture(t)
			if c.file != "" {
				if err := os.Rename(filepath.Join(lib, "lib/lib.go"), filepath.Join(lib, c.file)); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, lib, map[string]string{"lib/lib.go": strings.Replace(library, c.change[0], c.change[1], 1)})
			}
			wrong := lock.Check(tree, at("v1.1.0", lib), false)
			if len(wrong) == 0 != (len(c.want) == 0) {
				t.Fatalf("%q, want %q", wrong, c.want)
			}
			for _, part := range c.want {
				if !strings.Contains(wrong[0], part) {
					t.Errorf("%q does not contain %q", wrong[0], part)
				}
			}
		})
	}
}

func TestCheck_oursIsGone(t *testing.T) {
	t.Parallel()
	lock, tree, lib := fixture(t)
	write(t, tree, map[string]string{"ours/ours.go": strings.Replace(copied, "size =", "length =", 1)})
	wrong := lock.Check(tree, at("v1.0.0", lib), true)
	if len(wrong) != 1 || !strings.Contains(wrong[0], "ours has no declaration size any more") {
		t.Errorf("%q", wrong)
	}
}

func TestCheck_update_takesVersionsAndHashes(t *testing.T) {
	t.Parallel()
	lock, tree, lib := fixture(t)
	write(t, lib, map[string]string{"lib/lib.go": strings.Replace(library, "10", "20", 1)})
	if wrong := lock.Check(tree, at("v1.1.0", lib), true); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	again := parsed(t, lock.Text())
	if again.Modules[0].Version != "v1.1.0" {
		t.Errorf("the version is %s", again.Modules[0].Version)
	}
	if wrong := again.Check(tree, at("v1.1.0", lib), false); len(wrong) > 0 {
		t.Error(wrong)
	}
}

func TestCheck_moduleIsAway(t *testing.T) {
	t.Parallel()
	lock, tree, _ := fixture(t)
	if wrong := lock.Check(tree, at("v1.1.0", ""), false); len(wrong) > 0 {
		t.Errorf("%q: a module that is not in the cache is not checked", wrong)
	}
}

func TestParse_mistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string][2]string{
		"unknown module":  {"ours size\n\tWhy.\n\t? example.com/lib lib.go X", "line 3: module example.com/lib is not at the head"},
		"no declaration":  {"ours size\n\tWhy.\n", "names no upstream declaration"},
		"no reason":       {"module m v1\nours size\n\t? m lib.go X", "line 2: ours size has no reason"},
		"unexpected line": {"\tWhy.", "line 1: neither"},
	} {
		if _, err := Parse([]byte(c[0])); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %v, want %q", name, err, c[1])
		}
	}
}

// Constants that repeat the value of one above have the hash of the whole group.
func TestCheck_implicitConstant(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.go": "package a\n\nconst (\n\tx = iota\n\ty\n)\n"})
	before := source{}.hash(filepath.Join(dir, "a.go"), "y")
	write(t, dir, map[string]string{"a.go": "package a\n\nconst (\n\tx = iota + 1\n\ty\n)\n"})
	if after := (source{}).hash(filepath.Join(dir, "a.go"), "y"); before == "" || before == after {
		t.Errorf("hash %q, then %q", before, after)
	}
}
