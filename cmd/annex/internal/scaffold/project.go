package scaffold

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// project is a Go module with the definition of a server.
type project struct {
	from   string // the command's current folder
	root   string // the folder of go.mod
	module string
	domain string // empty if there is no marker for it
	server *source
	// definition is the composite literal annex.Server in server.
	definition *ast.CompositeLit
}

// source is a file that can be edited.
type source struct {
	path   string // relative to the project, with slashes
	module string // path of the file's module
	text   []byte
	fset   *token.FileSet
	file   *ast.File

	edits    []edit
	imported []string // import specs to add
	removed  []ast.Decl
}

// findProject returns the project that contains dir.
func findProject(dir string) (*project, error) {
	from, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the current folder: %w", err)
	}
	// A walk does not enter a folder that is a symbolic link, not even as its root.
	if resolved, err := filepath.EvalSymlinks(from); err == nil {
		from = resolved
	}
	p := &project{from: from, root: from}
	for {
		text, err := os.ReadFile(filepath.Join(p.root, "go.mod"))
		if err == nil {
			p.module = modfile.ModulePath(text)
			break
		}
		up := filepath.Dir(p.root)
		if up == p.root {
			return nil, generate.Problem{File: filepath.Base(from), Message: "is not in a project: run annex init in the folder of " +
				"the project"}
		}
		p.root = up
	}
	if work, out := outsideWorkspace(p.root); out {
		return nil, generate.Problem{
			File: p.show("go.mod"),
			Line: 1,
			Message: fmt.Sprintf(
				"%s does not list this module, so the go command cannot use it: run go work use %s",
				shorten(work, p.from),
				shorten(p.root, p.from),
			),
		}
	}
	return p, p.findServer()
}

var domainTag = regexp.MustCompile(`(?m)^\s*(?://)?\s*\+annex:domain=(\S+)\s*$`)

// findServer finds the single definition of a server, and the marker for the domain.
func (p *project) findServer() error {
	var found []generate.Problem
	err := filepath.WalkDir(p.root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // the go command cannot read it, either
		case d.IsDir() && path != p.root && skipFolder(path, d.Name()):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(`"`+library+`"`)) && !bytes.Contains(text, []byte(`"`+library+`/program"`)) {
			return nil
		}
		s, err := p.parse(path, text)
		if err != nil {
			return err
		}
		if m := domainTag.FindSubmatch(text); m != nil {
			p.domain = string(m[1])
		}
		if lit := s.literal("Server"); lit != nil {
			found = append(found, p.problem(s, lit.Pos(), ""))
			p.server, p.definition = s, lit
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return generate.Problem{
			File:    p.show("go.mod"),
			Line:    1,
			Message: fmt.Sprintf("module %s has no annex.Server: run annex init, or write a definition like that of annex init", p.module),
		}
	case len(found) > 1:
		return generate.Problem{
			File: found[1].File,
			Line: found[1].Line,
			Message: fmt.Sprintf("defines a second annex.Server; the first is in %s:%d: keep only one in "+
				"a module", found[0].File, found[0].Line),
		}
	}
	return nil
}

// skipFolder reports whether the folder contains no files of the project itself.
func skipFolder(path, name string) bool {
	if name[0] == '.' || name[0] == '_' || name == "vendor" || name == "testdata" || name == "node_modules" {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

func (p *project) parse(path string, text []byte) (*source, error) {
	rel, err := filepath.Rel(p.root, path)
	if err != nil {
		return nil, err
	}
	s := &source{path: filepath.ToSlash(rel), module: p.module, text: text, fset: token.NewFileSet()}
	s.file, err = parser.ParseFile(s.fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, syntaxProblem(shorten(path, p.from), err)
	}
	return s, nil
}

// show returns a path of the project relative to the user's folder.
func (p *project) show(path string) string {
	return shorten(filepath.Join(p.root, filepath.FromSlash(path)), p.from)
}

func (p *project) problem(s *source, at token.Pos, format string, args ...any) generate.Problem {
	return generate.Problem{File: p.show(s.path), Line: s.fset.Position(at).Line, Message: fmt.Sprintf(format, args...)}
}

// wholeGroup returns the full name of the group in --group.
func (p *project) wholeGroup(group string) (string, error) {
	if strings.Contains(group, ".") {
		return group, nil
	}
	if p.domain == "" {
		return "", p.problem(p.server, p.server.file.Package, "the project has no domain: add // +annex:domain=DOMAIN above the package "+
			"clause, or use the whole group name, as in --group %s.example.com", group)
	}
	return group + "." + p.domain, nil
}

// groupFolder returns the folder of a group's versions, named after the group's first label.
func groupFolder(group string) string {
	first, _, _ := strings.Cut(group, ".")
	return "apis/" + first
}

// importAlias returns the name by which files import an API package.
func importAlias(group, version string) string {
	first, _, _ := strings.Cut(group, ".")
	return strings.ReplaceAll(first, "-", "") + version
}
