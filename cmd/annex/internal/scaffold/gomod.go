package scaffold

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// direct are the modules that a project itself imports.
var direct = []string{library, "google.golang.org/protobuf", "k8s.io/apimachinery", "k8s.io/kube-openapi"}

// notOfProjects are the modules that only the library's tests and its control plane import, which a new project does
// not. A project has all other requirements of the library, too. With them and their sums, the go command need not
// resolve anything, nor use the network.
var notOfProjects = []string{
	"github.com/anishathalye/porcupine",
	"github.com/google/go-cmp",
	"github.com/stretchr/testify",
	"golang.org/x/tools",
	"gopkg.in/natefinch/lumberjack.v2", // upstream's flags, which tests compare with the library's
	"gopkg.in/yaml.v3",
	"k8s.io/component-helpers",   // with which roles are compared
	"github.com/moby/spdystream", // used by control planes, as are those below
	"github.com/mxk/go-flowrate",
	"k8s.io/kube-aggregator",
}

// moduleFiles holds the texts of go.mod and go.sum.
type moduleFiles struct{ mod, sum []byte }

// requirements makes the module files of a project in dir from those of the library's checkout. The contents of
// existing files are kept.
func requirements(dir, path, checkout string, existing moduleFiles) (moduleFiles, error) {
	text, err := os.ReadFile(filepath.Join(checkout, "go.mod"))
	if err != nil {
		return moduleFiles{}, fmt.Errorf("read the checkout of %s: %w", library, err)
	}
	from, err := modfile.Parse(filepath.Join(checkout, "go.mod"), text, nil)
	if err != nil {
		return moduleFiles{}, fmt.Errorf("read the checkout of %s: %w", library, err)
	}
	sums, err := os.ReadFile(filepath.Join(checkout, "go.sum"))
	if err != nil {
		return moduleFiles{}, fmt.Errorf("read the checkout of %s: %w", library, err)
	}
	f, err := parseModule(path, existing.mod)
	if err != nil {
		return moduleFiles{}, err
	}
	if f.Go == nil {
		if err := f.AddGoStmt(from.Go.Version); err != nil {
			return moduleFiles{}, fmt.Errorf("write go.mod: %w", err)
		}
	}
	require(f, from)
	if err := f.AddReplace(library, "", replacement(dir, checkout), ""); err != nil {
		return moduleFiles{}, fmt.Errorf("write go.mod: %w", err)
	}
	f.Cleanup()
	mod, err := f.Format()
	if err != nil {
		return moduleFiles{}, fmt.Errorf("write go.mod: %w", err)
	}
	return moduleFiles{mod, mergeSums(existing.sum, withoutUnreached(sums, from))}, nil
}

// parseModule parses an existing go.mod, or makes a new one.
func parseModule(path string, existing []byte) (*modfile.File, error) {
	if existing == nil {
		f := new(modfile.File)
		if err := f.AddModuleStmt(path); err != nil {
			return nil, fmt.Errorf("write go.mod: %w", err)
		}
		return f, nil
	}
	f, err := modfile.Parse("go.mod", existing, nil)
	if err == nil {
		return f, nil
	}
	var list modfile.ErrorList
	if errors.As(err, &list) && len(list) > 0 {
		return nil, generate.Problem{File: "go.mod", Line: list[0].Pos.Line, Message: fmt.Sprintf("%v: repair the file, or "+
			"move it away", list[0].Err)}
	}
	return nil, generate.Problem{File: "go.mod", Message: err.Error()}
}

// require adds the library's requirements. Existing newer versions are kept.
func require(f, from *modfile.File) {
	versions := map[string]string{library: "v0.0.0"}
	for _, r := range from.Require {
		if !slices.Contains(notOfProjects, r.Mod.Path) {
			versions[r.Mod.Path] = r.Mod.Version
		}
	}
	var all []*modfile.Require
	for _, r := range f.Require {
		if v, ok := versions[r.Mod.Path]; ok && semver.Compare(v, r.Mod.Version) > 0 {
			r.Mod.Version = v
		}
		delete(versions, r.Mod.Path)
		all = append(all, &modfile.Require{Mod: r.Mod, Indirect: r.Indirect && !slices.Contains(direct, r.Mod.Path)})
	}
	for path, version := range versions {
		all = append(all, &modfile.Require{
			Mod:      module.Version{Path: path, Version: version},
			Indirect: !slices.Contains(direct, path),
		})
	}
	slices.SortFunc(all, func(a, b *modfile.Require) int { return strings.Compare(a.Mod.Path, b.Mod.Path) })
	f.SetRequireSeparateIndirect(all)
}

// replacement returns the path of the checkout for go.mod in dir. The path is relative if one is inside the other, or
// if the project is below the folder that contains the checkout: then it is also valid for colleagues, and after both
// have moved together. If the checkout is a symbolic link, the project may be beside either the link or its target.
func replacement(dir, checkout string) string {
	isBelow := func(path, above string) bool {
		rel, err := filepath.Rel(above, path)
		return err == nil && filepath.IsLocal(rel)
	}
	dir = realPath(dir)
	for _, from := range []string{filepath.Join(realPath(filepath.Dir(checkout)), filepath.Base(checkout)), realPath(checkout)} {
		beside := filepath.Dir(from)
		if !isBelow(from, dir) && (!isBelow(dir, beside) || beside == filepath.Dir(beside)) {
			continue
		}
		back, err := filepath.Rel(dir, from)
		if err != nil {
			continue
		}
		if back = filepath.ToSlash(back); !strings.HasPrefix(back, ".") {
			back = "./" + back
		}
		return back
	}
	return filepath.ToSlash(checkout)
}

// realPath resolves the symbolic links in the existing part of a path.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(realPath(parent), filepath.Base(path))
}

// unreached are the modules of notOfProjects that no requirement in a project's module graph has at the library's
// version.
var unreached = []string{
	"github.com/armon/go-socks5",
	"github.com/moby/spdystream",
	"github.com/mxk/go-flowrate",
	"golang.org/x/tools",
	"k8s.io/kube-aggregator",
}

// withoutUnreached returns the library's sums, except for sums that go mod tidy would remove from a project.
func withoutUnreached(sums []byte, library *modfile.File) []byte {
	versions := map[string]string{}
	for _, path := range unreached {
		versions[path] = "" // any version, for modules that the library requires only indirectly
	}
	for _, r := range library.Require {
		if slices.Contains(unreached, r.Mod.Path) {
			versions[r.Mod.Path] = r.Mod.Version
		}
	}
	var out []byte
	for line := range bytes.Lines(sums) {
		path, rest, _ := strings.Cut(string(line), " ")
		version, _, _ := strings.Cut(rest, " ")
		if v, ok := versions[path]; !ok || v != "" && strings.TrimSuffix(version, "/go.mod") != v {
			out = append(out, line...)
		}
	}
	return out
}

// mergeSums returns the union of the lines.
func mergeSums(existing, sums []byte) []byte {
	known := map[string]bool{}
	for line := range bytes.Lines(existing) {
		known[string(bytes.TrimSpace(line))] = true
	}
	out := bytes.Clone(existing)
	if len(out) > 0 && !bytes.HasSuffix(out, []byte("\n")) {
		out = append(out, '\n')
	}
	for line := range bytes.Lines(sums) {
		if !known[string(bytes.TrimSpace(line))] {
			out = append(out, line...)
		}
	}
	return out
}

// direct marks modules in go.mod as direct requirements, since the project now imports them itself.
func (p *plan) direct(paths ...string) error {
	file := filepath.Join(p.root, "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read go.mod: %w", err)
	}
	f, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		return generate.Problem{File: "go.mod", Message: err.Error()}
	}
	changed := false
	for _, r := range f.Require {
		named := slices.Contains(paths, r.Mod.Path)
		changed = changed || named && r.Indirect
		r.Indirect = r.Indirect && !named
	}
	if !changed {
		return nil
	}
	var all []*modfile.Require
	for _, r := range f.Require {
		all = append(all, &modfile.Require{Mod: r.Mod, Indirect: r.Indirect})
	}
	f.SetRequireSeparateIndirect(all)
	f.Cleanup()
	if text, err = f.Format(); err != nil {
		return fmt.Errorf("write go.mod: %w", err)
	}
	p.edit("go.mod", text)
	return nil
}
