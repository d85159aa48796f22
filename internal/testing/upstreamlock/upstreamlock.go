// Package upstreamlock compares declarations of upstream modules with upstream.lock at the root of the tree.
//
// Annex repeats private behaviour of the Kubernetes libraries where they export no way to ask for it. The compiler does
// not notice when a new version of them changes such behaviour. The lock holds a hash of each repeated declaration, and
// a test that names both sides fails when the hash differs.
//
// The file has the versions of the modules at its head:
//
//	module k8s.io/apiserver v0.37.2
//	module k8s.io/kubernetes v1.37.1 e2e/cluster/kubernetes
//
// The folder, where there is one, is that of the go.mod that selects the version; otherwise the root's does. An entry
// begins with the package and the declaration of ours. Indented lines below it have the reason, and the upstream
// declarations:
//
//	internal/fastpath CompressedSize
//		Smaller bodies are sent as they are.
//		0123456789abcdef k8s.io/apiserver pkg/endpoints/handlers/responsewriters/writers.go defaultGzipThresholdBytes
//
// Declarations are named as Go calls them: F, T, T.Method. The hash is the beginning of the SHA-256 of the declaration
// as go/printer prints it without comments and blank lines. A line with ? in the place of the hash is new; an update
// fills it in. Lines that begin with # separate areas.
package upstreamlock

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Module is an upstream module of the lock.
type Module struct {
	Path    string
	Version string // the version of which the hashes are
	// By is the folder of the go.mod that selects the version, with slashes. It is empty for the root's.
	By string

	line int
}

// Upstream names a declaration of an upstream module.
type Upstream struct {
	Hash   string
	Module string
	File   string // within the module, with slashes
	Name   string

	line int
}

// Entry is a declaration of ours that repeats upstream ones.
type Entry struct {
	Package  string // its folder, with slashes
	Name     string
	Why      string
	Upstream []Upstream

	line int
}

// Lock is a parsed lock file.
type Lock struct {
	Modules []Module
	Entries []Entry

	lines []string
}

var declarationLine = regexp.MustCompile(`^\t(\?|[0-9a-f]{16}) (\S+) (\S+\.go) (\S+)$`)

// Parse reads a lock file. Its errors name the line.
func Parse(text []byte) (*Lock, error) {
	l := &Lock{lines: strings.Split(string(text), "\n")}
	for i, line := range l.lines {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(line, "#"):
		case fields[0] == "module" && (len(fields) == 3 || len(fields) == 4):
			m := Module{Path: fields[1], Version: fields[2], line: i}
			if len(fields) == 4 {
				m.By = fields[3]
			}
			l.Modules = append(l.Modules, m)
		case line[0] == '\t' && len(l.Entries) > 0:
			entry := &l.Entries[len(l.Entries)-1]
			if found := declarationLine.FindStringSubmatch(line); found != nil {
				if !slices.ContainsFunc(l.Modules, func(m Module) bool { return m.Path == found[2] }) {
					return nil, fmt.Errorf("line %d: module %s is not at the head of the file", i+1, found[2])
				}
				entry.Upstream = append(entry.Upstream, Upstream{Hash: found[1], Module: found[2], File: found[3], Name: found[4], line: i})
			} else {
				entry.Why = strings.TrimSpace(entry.Why + " " + strings.TrimSpace(line))
			}
		case line[0] != '\t' && len(fields) == 2:
			l.Entries = append(l.Entries, Entry{Package: fields[0], Name: fields[1], line: i})
		default:
			return nil, fmt.Errorf("line %d: neither a module, an entry nor a part of an entry: %q", i+1, line)
		}
	}
	for _, e := range l.Entries {
		switch {
		case len(e.Upstream) == 0:
			return nil, fmt.Errorf("line %d: %s %s names no upstream declaration", e.line+1, e.Package, e.Name)
		case e.Why == "":
			return nil, fmt.Errorf("line %d: %s %s has no reason", e.line+1, e.Package, e.Name)
		}
	}
	return l, nil
}

// Selected is the version of a module that a go.mod selects.
type Selected struct {
	Version string
	Dir     string // empty if its source is not on this machine
}

// Check compares the lock with the source and returns a message for each difference. Root is the folder of our tree. A
// module without a Dir is not checked. With update, it takes the current hashes and versions into the lock, and returns
// only differences that an update cannot settle.
func (l *Lock) Check(root string, selected map[string]Selected, update bool) []string {
	var wrong []string
	source := source{}
	for _, e := range l.Entries {
		if ours := filepath.Join(root, filepath.FromSlash(e.Package)); source.declaring(ours, e.Name) == "" {
			wrong = append(wrong, fmt.Sprintf("%s has no declaration %s any more: name what repeats %s now, or take the entry out",
				e.Package, e.Name, e.Upstream[0].Name))
		}
		for _, u := range e.Upstream {
			module := selected[u.Module]
			if module.Dir == "" {
				continue
			}
			was := l.version(u.Module)
			head := fmt.Sprintf("%s %s repeats %s of %s %s", e.Package, e.Name, u.Name, u.Module, u.File)
			name := filepath.Join(module.Dir, filepath.FromSlash(u.File))
			hash := source.hash(name, u.Name)
			switch {
			case hash == u.Hash:
			case hash == "":
				if other := source.declaring(filepath.Dir(name), u.Name); other != "" {
					wrong = append(wrong, fmt.Sprintf("%s: %s declares it in %s", head, module.Version, path.Join(path.Dir(u.File), other)))
				} else {
					wrong = append(wrong, fmt.Sprintf("%s: it is gone (%s has it, %s does not)", head, was, module.Version))
				}
			case update:
				l.lines[u.line] = strings.Replace(l.lines[u.line], u.Hash, hash, 1)
			default:
				before := strings.Replace(name, "@"+module.Version, "@"+was, 1)
				wrong = append(wrong, fmt.Sprintf("%s: it has changed from %s to %s (hash %s, now %s)\n\tdiff -u %s %s",
					head, was, module.Version, u.Hash, hash, before, name))
			}
		}
	}
	for _, m := range l.Modules {
		if now := selected[m.Path]; update && now.Dir != "" && now.Version != m.Version {
			l.lines[m.line] = strings.Replace(l.lines[m.line], m.Version, now.Version, 1)
		}
	}
	return wrong
}

// Text returns the file with the changes of an update.
func (l *Lock) Text() []byte { return []byte(strings.Join(l.lines, "\n")) }

func (l *Lock) version(module string) string {
	for _, m := range l.Modules {
		if m.Path == module {
			return m.Version
		}
	}
	return ""
}

// source has the parsed files by their paths.
type source map[string]declarations

// declarations are those of a file by their names: a function, a specification, or a group of constants.
type declarations struct {
	files *token.FileSet
	named map[string]any
}

// declaring returns the base name of the file in a folder that declares a name. It is empty if none does; files of tests
// do not count.
func (s source) declaring(dir, name string) string {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return ""
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		if _, is := s.parsed(file).named[name]; is {
			return filepath.Base(file)
		}
	}
	return ""
}

// hash returns the hash of a declaration in a file; it is empty if there is none.
func (s source) hash(file, name string) string {
	d := s.parsed(file)
	node, is := d.named[name]
	if !is {
		return ""
	}
	return hashOf(d.files, node)
}

// parsed returns the declarations of a file. A missing file, or one with a syntax error, has none.
func (s source) parsed(path string) declarations {
	if d, known := s[path]; known {
		return d
	}
	d := declarations{token.NewFileSet(), map[string]any{}}
	s[path] = d
	file, err := parser.ParseFile(d.files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return d
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			d.named[nameOf(decl)] = decl
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					d.named[spec.Name.Name] = spec
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						d.named[name.Name] = spec
						if len(spec.Values) == 0 && decl.Tok == token.CONST {
							d.named[name.Name] = decl // the value repeats that of a constant above
						}
					}
				}
			}
		}
	}
	return d
}

// nameOf returns the name of a function, that of a method behind its type.
func nameOf(f *ast.FuncDecl) string {
	name := f.Name.Name
	if f.Recv == nil {
		return name
	}
	receiver := ""
	ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool {
		if id, is := n.(*ast.Ident); is && receiver == "" { // type parameters come later
			receiver = id.Name
		}
		return receiver == ""
	})
	return receiver + "." + name
}

var blank = regexp.MustCompile(`\n\s*\n`)

// hashOf returns the hash of a declaration's source. The file was parsed without comments; blank lines go, because a
// comment between two statements leaves one.
func hashOf(set *token.FileSet, node any) string {
	var text bytes.Buffer
	if err := printer.Fprint(&text, set, node); err != nil {
		return "unprintable"
	}
	sum := sha256.Sum256(blank.ReplaceAll(text.Bytes(), []byte("\n")))
	return hex.EncodeToString(sum[:8])
}
