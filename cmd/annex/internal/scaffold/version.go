package scaffold

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// VersionOptions describe a new version of a kind.
type VersionOptions struct {
	Options
	// Group, Kind and Version are as in APIOptions. Group may be empty if only one group has the kind.
	Group, Kind, Version string
	// Hub makes the new version the hub, to which all others convert.
	Hub bool
}

// Version adds a version to a kind: a copy of the hub's types, and generated conversions between the two. Conversions
// that cannot be generated are left to the user, as functions that do not compile until they are completed.
func Version(o VersionOptions) (*Result, error) {
	if err := checkVersion(o.Version); err != nil {
		return nil, err
	}
	k, err := findKind(o.Dir, o.Group, o.Kind)
	if err != nil {
		return nil, err
	}
	p := k.project
	added := newKindData(p, k.group, o.Version, o.Kind, k.resource)
	if pkg := k.packages[o.Version]; pkg != nil {
		if s, t := pkg.typeNamed(o.Kind); s != nil {
			return nil, p.problem(s, t.Pos(), "kind %s exists already in %s: choose another version", o.Kind, o.Version)
		}
	}
	if hubSource, _ := k.hub.typeNamed(o.Kind); hubSource == nil {
		return nil, p.problem(
			p.server,
			k.element.Pos(),
			"the type %s.%s is not declared in %s: write the version by hand",
			k.pkg,
			o.Kind,
			k.hub.dir,
		)
	}
	if o.Hub {
		if k.requests, err = k.requestTypes(path.Join(p.module, k.hub.dir)); err != nil {
			return nil, err
		}
	}
	names := k.copied(added, o.Hub)
	added.Protobuf = slices.ContainsFunc(k.hub.sources, func(s *source) bool { return bytes.Contains(s.text, []byte(protobufTag)) })
	old := newKindData(p, k.group, path.Base(k.hub.dir), o.Kind, k.resource)
	types, err := k.copyTypes(added, names)
	if err != nil {
		return nil, err
	}
	spoke, hub := added, old
	if o.Hub {
		spoke, hub = old, added
	} else {
		added.ConvertsTo = old.Import
	}

	dir := path.Join(groupFolder(k.group), o.Version)
	w := &plan{root: p.root}
	if k.packages[o.Version] == nil {
		if err := w.render(path.Join(dir, "doc.go"), "api/doc.go", added); err != nil {
			return nil, err
		}
	}
	w.create(path.Join(dir, fileName(o.Kind)), types)
	if err := k.sampleOf(w, old, added); err != nil {
		return nil, err
	}
	if err := k.convert(spoke, hub, ""); err != nil {
		return nil, err
	}
	k.registerVersion(spoke, hub, added)
	result := &Result{Packages: []string{p.show(dir)}}
	if o.Hub {
		if result.Next, err = k.moveHub(old, added, names); err != nil {
			return nil, err
		}
	}
	for _, s := range k.touched() {
		if s.emptied() {
			w.remove(s.path)
			continue
		}
		if err := w.edited(s); err != nil {
			return nil, err
		}
	}
	for _, version := range slices.Sorted(maps.Keys(k.packages)) {
		pkg := k.packages[version]
		if version != o.Version && slices.ContainsFunc(pkg.sources, func(s *source) bool { return len(s.edits) > 0 }) {
			result.Packages = append(result.Packages, p.show(pkg.dir))
		}
	}
	if result.Files, err = w.carryOut(o.Options); err != nil {
		return nil, err
	}
	result.Next = append(result.Next,
		"edit "+p.show(path.Join(dir, fileName(o.Kind)))+"   # change the types of "+o.Version,
		"annex generate && go test ./...   # generate reports fields that it cannot convert, and the test fields that are lost",
	)
	conversion := path.Join(groupFolder(k.group), spoke.Version, strings.ToLower(o.Kind)+"_conversion.go")
	result.finish = func(err error) error { return result.leave(p, conversion, spoke.Version, hub, err) }
	return result, nil
}

// leave writes stubs of the functions that the generator's problems name. It returns any other error, and the
// problems themselves if the stubs' file exists.
func (r *Result) leave(p *project, file, version string, hub kindData, err error) error {
	var problems generate.Problems
	if !errors.As(err, &problems) {
		return err
	}
	var stubs []string
	for _, problem := range problems {
		if problem.Stub == "" {
			return err
		}
		if !slices.Contains(stubs, problem.Stub) {
			stubs = append(stubs, problem.Stub)
		}
	}
	alias := ""
	if base := path.Base(hub.Import); base != hub.Version {
		alias = hub.Version + " "
	}
	text, broken := format.Source(fmt.Appendf(nil, `package %s

import (
	"k8s.io/apimachinery/pkg/conversion"

	%s%q
)

// annex generate cannot generate these conversions completely. They do not compile until you
// replace each function that they call for a field. Values that the other version cannot
// represent are lost when clients write through that version: the round-trip test finds such
// fields. A conversion may also return an error, which rejects the object.

%s`, version, alias, hub.Import, strings.Join(stubs, "\n")))
	if broken != nil {
		return fmt.Errorf("write the conversion: %w", broken)
	}
	whole := filepath.Join(p.root, filepath.FromSlash(file))
	if _, there := os.Stat(whole); there == nil {
		return err // the problems list the missing functions
	}
	if err := write(whole, text); err != nil {
		return err
	}
	r.Files = append(r.Files, File{Path: p.show(file), State: Created})
	r.Next = slices.Insert(r.Next, len(r.Next)-1, "edit "+p.show(file)+"   # complete the conversions; the package does not compile before")
	return nil
}

// protobufTag is the tag of a package with protobuf methods.
const protobufTag = "+k8s:protobuf-gen=package"

// projectKind is a registered kind of a project.
type projectKind struct {
	registration
	project  *project
	group    string
	packages map[string]*apiPackage
	hub      *apiPackage
	hooks    []*source // files beside the server's definition with edits
	// requests are the types in the hub's package that the kind's subresources take and return.
	requests []string
	// ambiguous is set if another group has a kind of the same name.
	ambiguous bool
}

// findKind returns the registration of a kind, with its packages.
func findKind(dir, group, kind string) (*projectKind, error) {
	if group != "" {
		if err := checkGroup(group); err != nil {
			return nil, err
		}
	}
	if err := checkKind(kind); err != nil {
		return nil, err
	}
	p, err := findProject(dir)
	if err != nil {
		return nil, err
	}
	names, err := p.groupNames()
	if err != nil {
		return nil, err
	}
	if group != "" {
		if group, err = p.wholeGroup(group); err != nil {
			return nil, err
		}
	}
	var found []*projectKind
	var known []string
	same := 0
	for _, name := range names {
		kinds, err := p.kinds(name)
		if err != nil && (group == "" || group == name) {
			return nil, err
		}
		for _, r := range kinds {
			if r.kind == kind {
				same++
			}
			if group != "" && group != name {
				continue
			}
			known = append(known, r.kind)
			if r.kind == kind {
				found = append(found, &projectKind{registration: r, project: p, group: name})
			}
		}
	}
	switch {
	case len(found) == 0 && len(known) == 0:
		return nil, p.problem(p.server, p.definition.Pos(), "no kind %s is written out here, and no other: add it with annex create api", kind)
	case len(found) == 0:
		return nil, p.problem(
			p.server,
			p.definition.Pos(),
			"no kind %s is written out here, only %s: add it with annex create api",
			kind,
			strings.Join(known, ", "),
		)
	case len(found) > 1:
		return nil, misuse("kind %s is in the groups %s and %s: select one with --group", kind, found[0].group, found[1].group)
	}
	k := found[0]
	k.ambiguous = same > 1
	if k.packages, err = p.packagesOf(k.group); err != nil {
		return nil, err
	}
	for _, pkg := range k.packages {
		if p.server.importName(path.Join(p.module, pkg.dir)) == k.pkg {
			k.hub = pkg
		}
	}
	if k.hub == nil {
		return nil, p.problem(
			p.server,
			k.element.Pos(),
			"the package %s of kind %s is not in %s: move it there, or do this by hand",
			k.pkg,
			kind,
			groupFolder(k.group),
		)
	}
	return k, nil
}

// Kind is a kind that is registered in a project's definition.
type Kind struct{ Group, Kind string }

// Kinds returns the kinds of the project that contains dir, as far as they can be read; an empty dir is the current
// folder. It is meant for completion, and returns none if it cannot read the project.
func Kinds(dir string) []Kind {
	p, err := findProject(dir)
	if err != nil {
		return nil
	}
	groups, err := p.groupNames()
	if err != nil {
		return nil
	}
	var all []Kind
	for _, group := range groups {
		kinds, err := p.kinds(group)
		if err != nil {
			continue
		}
		for _, k := range kinds {
			all = append(all, Kind{group, k.kind})
		}
	}
	return all
}

// groupNames returns the names of all groups in the definition.
func (p *project) groupNames() ([]string, error) {
	groups, err := p.groups()
	if groups == nil || err != nil {
		return nil, err
	}
	var names []string
	for _, e := range groups.Elts {
		if lit, ok := e.(*ast.CompositeLit); ok {
			if name := p.server.stringOf(fieldOf(lit, "Name")); name != "" {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// registerVersion adds the version to the kind's registration.
func (k *projectKind) registerVersion(spoke, hub, added kindData) {
	s := k.project.server
	annex := s.importName(library)
	pkg := s.use(added.Import, added.Pkg)
	spokePkg, hubPkg := pkg, k.pkg
	if hub == added {
		spokePkg, hubPkg = k.pkg, pkg
	}
	version := fmt.Sprintf("%s.GeneratedVersion[%s.%s, %s.%s](%s.API)", annex, spokePkg, spoke.Kind, hubPkg, spoke.Kind, spokePkg)
	if call := k.call("Versions"); call != nil {
		if n := len(call.Args); n > 0 && !s.comma(call.Args[n-1].End(), call.Rparen) {
			version = ", " + version
		}
		s.insert(call.Rparen, version)
		return
	}
	s.insert(k.element.End(), ".\nVersions("+version+")")
}

// call returns the call of a method in the chain, or nil.
func (r *registration) call(method string) *ast.CallExpr {
	for _, call := range r.calls {
		if call.Fun.(*ast.SelectorExpr).Sel.Name == method {
			return call
		}
	}
	return nil
}

// sampleOf creates the new version's sample object from the old version's.
func (k *projectKind) sampleOf(w *plan, old, added kindData) error {
	text, err := os.ReadFile(filepath.Join(k.project.root, filepath.FromSlash(samplePath(old))))
	line := []byte("apiVersion: " + old.GroupVersion + "\n")
	if err != nil || bytes.Count(text, line) != 1 {
		return w.render(samplePath(added), "api/sample.yaml", added)
	}
	w.create(samplePath(added), bytes.Replace(text, line, []byte("apiVersion: "+added.GroupVersion+"\n"), 1))
	return nil
}

// copied returns the names of the declarations that the new version copies from the hub: the kind's types, constants,
// methods and defaults, and the declarations that these use. A new hub also gets the validation function, and other
// functions that the server's definition names. Names that the version's package declares already are left out.
func (k *projectKind) copied(added kindData, hub bool) map[string]bool {
	from := []string{added.Kind, added.Kind + "List"}
	if hub {
		from = slices.Concat(from, k.ofHub(), k.requests)
	}
	names := k.hub.reachable(from...)
	if target := k.packages[added.Version]; target != nil {
		maps.DeleteFunc(names, func(name string, _ bool) bool { return target.declares(name) })
	}
	return names
}

// copyTypes returns the file of the kind in the new version.
func (k *projectKind) copyTypes(added kindData, names map[string]bool) ([]byte, error) {
	var body bytes.Buffer
	imports := map[string]string{}
	for _, s := range k.hub.sources {
		for _, d := range s.file.Decls {
			if !slices.ContainsFunc(namesOf(d), func(name string) bool { return names[name] }) {
				continue
			}
			from := d.Pos()
			if doc := docOf(d); doc != nil {
				from = doc.Pos()
			}
			body.WriteString("\n")
			body.Write(s.text[s.offset(from):s.offset(d.End())])
			body.WriteString("\n")
			maps.Copy(imports, s.importsOf(d))
		}
	}
	var head strings.Builder
	fmt.Fprintf(&head, "package %s\n\nimport (\n", added.Version)
	for _, group := range []bool{true, false} {
		for _, p := range slices.Sorted(maps.Keys(imports)) {
			if standard(p) == group {
				fmt.Fprintf(&head, "%s\n", imports[p])
			}
		}
		head.WriteString("\n")
	}
	head.WriteString(")\n")
	text, err := format.Source(append([]byte(head.String()), body.Bytes()...))
	if err != nil {
		return nil, fmt.Errorf("copy the types of %s: %w", added.Kind, err)
	}
	return text, nil
}

// standard reports whether a package belongs to the standard library.
func standard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

// reachable returns the names of the package's declarations that the given ones use. A type includes its methods, its
// constants, and its defaulting functions.
func (pkg *apiPackage) reachable(names ...string) map[string]bool {
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		for _, s := range pkg.sources {
			for _, d := range s.file.Decls {
				if !slices.Contains(namesOf(d), name) {
					continue
				}
				seen[name] = true
				mentioned(d, func(id *ast.Ident) { visit(id.Name) })
			}
		}
	}
	for _, name := range names {
		visit(name)
	}
	return seen
}

// namesOf returns the names under which a declaration is copied: its own name, or the name of its type.
func namesOf(d ast.Decl) []string {
	var names []string
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			return []string{receiver(d)}
		}
		names = append(names, d.Name.Name)
		if rest, ok := strings.CutPrefix(d.Name.Name, "SetDefaults_"); ok {
			name, _, _ := strings.Cut(rest, "_")
			names = append(names, name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name.Name)
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					names = append(names, id.Name)
				}
				if id, ok := spec.Type.(*ast.Ident); ok && d.Tok == token.CONST {
					names = append(names, id.Name)
				}
			}
		}
	}
	return names
}

func receiver(f *ast.FuncDecl) string {
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	id, _ := t.(*ast.Ident)
	if id == nil {
		return ""
	}
	return id.Name
}

// mentioned calls do with the names in a node that may refer to declarations; it skips the names of fields and
// parameters.
func mentioned(n ast.Node, do func(id *ast.Ident)) {
	ast.Inspect(n, func(inner ast.Node) bool {
		switch inner := inner.(type) {
		case *ast.Field:
			mentioned(inner.Type, do)
		case *ast.KeyValueExpr:
			mentioned(inner.Value, do)
		case *ast.SelectorExpr:
			mentioned(inner.X, do)
		case *ast.Ident:
			do(inner)
		default:
			return true
		}
		return false
	})
}

func (pkg *apiPackage) declares(name string) bool {
	for _, s := range pkg.sources {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); (!ok || f.Recv == nil) && slices.Contains(namesOf(d), name) {
				return true
			}
		}
	}
	return false
}

// function returns the declaration of a function.
func (pkg *apiPackage) function(name string) (*source, *ast.FuncDecl) {
	for _, s := range pkg.sources {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
				return s, f
			}
		}
	}
	return nil, nil
}

func docOf(d ast.Decl) *ast.CommentGroup {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Doc
	case *ast.GenDecl:
		return d.Doc
	}
	return nil
}

// importsOf returns the imports that a declaration uses, in source form.
func (s *source) importsOf(d ast.Decl) map[string]string {
	used := map[string]bool{}
	ast.Inspect(d, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok {
				used[x.Name] = true
			}
		}
		return true
	})
	imports := map[string]string{}
	for _, spec := range s.file.Imports {
		importPath := strings.Trim(spec.Path.Value, `"`)
		if used[s.importName(importPath)] {
			imports[importPath] = string(s.text[s.offset(spec.Pos()):s.offset(spec.End())])
		}
	}
	return imports
}
