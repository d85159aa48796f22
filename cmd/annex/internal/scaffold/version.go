package scaffold

import (
	"bytes"
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
)

// VersionOptions describe a new version of a kind.
type VersionOptions struct {
	Options
	// Group, Kind and Version are as in APIOptions. The group may be left out if only
	// one has the kind.
	Group, Kind, Version string
	// Hub makes the new version the one that all others convert to.
	Hub bool
}

// Version adds a version to a kind: the types of its hub, and functions that convert
// between the two. These do not compile until the user has said how.
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
	hubSource, hubType := k.hub.typeNamed(o.Kind)
	if hubSource == nil {
		return nil, p.problem(p.server, k.element.Pos(), "the type %s.%s is not declared in %s: write the version by hand", k.pkg, o.Kind, k.hub.dir)
	}
	added.Protobuf = slices.ContainsFunc(k.hub.sources, func(s *source) bool { return bytes.Contains(s.text, []byte(protobufTag)) })
	hubVersion := path.Base(k.hub.dir)
	old := newKindData(p, k.group, hubVersion, o.Kind, k.resource)
	types, err := k.copyTypes(added, o.Hub)
	if err != nil {
		return nil, err
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
	spoke, hub := added, old
	if o.Hub {
		spoke, hub = old, added
	}
	conversion := path.Join(groupFolder(k.group), spoke.Version, strings.ToLower(o.Kind)+"_conversion.go")
	stubs, err := renderConversion(spoke, hub, partsOf(hubType))
	if err != nil {
		return nil, err
	}
	w.files = append(w.files, planned{path: conversion, text: stubs, late: true})
	k.registerVersion(spoke, added, o.Hub)
	if err := w.edited(p.server); err != nil {
		return nil, err
	}
	files, err := w.carryOut(o.Options)
	if err != nil {
		return nil, err
	}
	result := &Result{Files: files, Packages: []string{p.show(dir)}, late: func() error { return w.write(true) }}
	result.Next = append(result.Next,
		"edit "+p.show(path.Join(dir, fileName(o.Kind)))+"   # what is different in "+o.Version,
		"edit "+p.show(conversion)+"   # write "+strings.Join(missing(partsOf(hubType), o.Kind), ", ")+": it does not compile before",
	)
	if o.Hub {
		if s, f := k.hub.function("Validate" + o.Kind); f != nil {
			result.Next = append(result.Next, "edit "+p.show(s.path)+"   # remove Validate"+o.Kind+": that of "+o.Version+" is called now")
		}
		result.Next = append(result.Next, "go vet ./...   # hooks and other versions that still speak of "+old.Version+", the former hub")
	}
	result.Next = append(result.Next, "annex generate && go test ./...   # the round-trip test tells what the conversion loses")
	return result, nil
}

// protobufTag is what a package says that has protobuf.
const protobufTag = "+k8s:protobuf-gen=package"

// projectKind is a kind of a project, as it is registered.
type projectKind struct {
	registered
	project  *project
	group    string
	packages map[string]*apiPackage
	hub      *apiPackage
}

// findKind finds the registration of a kind and its packages.
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
	names := []string{group}
	if group == "" {
		if names, err = p.groupNames(); err != nil {
			return nil, err
		}
	} else if names[0], err = p.wholeGroup(group); err != nil {
		return nil, err
	}
	var found []*projectKind
	var known []string
	for _, name := range names {
		kinds, err := p.kinds(name)
		if err != nil {
			return nil, err
		}
		for _, r := range kinds {
			known = append(known, r.kind)
			if r.kind == kind {
				found = append(found, &projectKind{registered: r, project: p, group: name})
			}
		}
	}
	switch {
	case len(found) == 0 && len(known) == 0:
		return nil, p.problem(p.server, p.definition.Pos(), "no kind %s is written out here, and no other: add it with annex create api", kind)
	case len(found) == 0:
		return nil, p.problem(p.server, p.definition.Pos(), "no kind %s is written out here, only %s: add it with annex create api", kind, strings.Join(known, ", "))
	case len(found) > 1:
		return nil, misuse("kind %s is in the groups %s and %s: say which with --group", kind, found[0].group, found[1].group)
	}
	k := found[0]
	if k.packages, err = p.packagesOf(k.group); err != nil {
		return nil, err
	}
	for _, pkg := range k.packages {
		if p.server.importName(path.Join(p.module, pkg.dir)) == k.pkg {
			k.hub = pkg
		}
	}
	if k.hub == nil {
		return nil, p.problem(p.server, k.element.Pos(), "the package %s of kind %s is not in %s: move it there, or do this by hand", k.pkg, kind, groupFolder(k.group))
	}
	return k, nil
}

// groupNames are the names of all groups that are written out.
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

// part is a field that a conversion converts.
type part struct{ Field, Type, ToHub, FromHub, Local, From string }

// partsOf are the fields of a kind beside TypeMeta and ObjectMeta.
func partsOf(t *ast.TypeSpec) []part {
	kind := t.Name.Name
	st, ok := t.Type.(*ast.StructType)
	if !ok {
		return nil
	}
	var parts []part
	for _, f := range st.Fields.List {
		for _, name := range f.Names {
			typ, _ := f.Type.(*ast.Ident)
			parts = append(parts, part{Field: name.Name, ToHub: "convert" + kind + name.Name + "ToHub", FromHub: "convert" + kind + name.Name + "FromHub",
				Local: "hub." + name.Name, From: "in." + name.Name})
			if typ != nil {
				parts[len(parts)-1].Type = typ.Name
			}
		}
	}
	return parts
}

// missing are the functions that the user has to write.
func missing(parts []part, kind string) []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.ToHub, p.FromHub)
	}
	return names
}

func renderConversion(spoke, hub kindData, parts []part) ([]byte, error) {
	if len(parts) == 0 {
		parts = []part{{Field: "Spec", Type: spoke.Kind + "Spec", ToHub: "convert" + spoke.Kind + "SpecToHub", FromHub: "convert" + spoke.Kind + "SpecFromHub", Local: "hub.Spec", From: "in.Spec"}}
	}
	text, err := render("version/conversion.go.tmpl", map[string]any{
		"Version": spoke.Version, "Kind": spoke.Kind, "HubPkg": hub.Pkg, "HubVersion": hub.Version, "HubImport": hub.Import, "Parts": parts,
	})
	if err != nil {
		return nil, err
	}
	formatted, err := format.Source(text)
	if err != nil {
		return nil, fmt.Errorf("write the conversion of %s: %w", spoke.Kind, err)
	}
	return formatted, nil
}

// registerVersion adds the version to the kind's element.
func (k *projectKind) registerVersion(spoke, added kindData, hub bool) {
	s := k.project.server
	annex := s.importName(library)
	pkg := s.use(added.Import, added.Pkg)
	spokePkg := pkg
	if hub {
		spokePkg = k.pkg
		k.renameHub(pkg)
	}
	version := fmt.Sprintf("%s.Version(%s.API, %s.%sToHub, %s.%sFromHub)", annex, spokePkg, spokePkg, spoke.Kind, spokePkg, spoke.Kind)
	if call := k.call("Versions"); call != nil {
		if n := len(call.Args); n > 0 && !s.comma(call.Args[n-1].End(), call.Rparen) {
			version = ", " + version
		}
		s.insert(call.Rparen, version)
		return
	}
	s.insert(k.element.End(), ".\nVersions("+version+")")
}

// call finds a method's call in the chain, or nil.
func (r *registered) call(method string) *ast.CallExpr {
	for _, call := range r.calls {
		if call.Fun.(*ast.SelectorExpr).Sel.Name == method {
			return call
		}
	}
	return nil
}

// renameHub has the kind's element, but for its other versions, speak of another hub.
func (k *projectKind) renameHub(pkg string) {
	versions := k.call("Versions")
	ast.Inspect(k.element, func(n ast.Node) bool {
		if versions != nil && slices.ContainsFunc(versions.Args, func(a ast.Expr) bool { return a == n }) {
			return false
		}
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == k.pkg {
				k.project.server.replace(x.Pos(), x.End(), pkg)
			}
		}
		return true
	})
}

// sampleOf makes the new version's object to try: the old one's, in the new version.
func (k *projectKind) sampleOf(w *plan, old, added kindData) error {
	text, err := os.ReadFile(filepath.Join(k.project.root, filepath.FromSlash(samplePath(old))))
	line := []byte("apiVersion: " + old.GroupVersion + "\n")
	if err != nil || bytes.Count(text, line) != 1 {
		return w.render(samplePath(added), "api/sample.yaml", added)
	}
	w.create(samplePath(added), bytes.Replace(text, line, []byte("apiVersion: "+added.GroupVersion+"\n"), 1))
	return nil
}

// copyTypes writes the file of the kind in the new version: the types that the hub's
// package declares for it, and those of its constants. The function that validates
// goes with the hub.
func (k *projectKind) copyTypes(added kindData, hub bool) ([]byte, error) {
	names := k.hub.reachable(added.Kind, added.Kind+"List")
	target := k.packages[added.Version]
	for name := range names {
		if target == nil {
			break
		}
		if s, _ := target.typeNamed(name); s != nil {
			delete(names, name) // both versions have such a type already
		}
	}
	var body bytes.Buffer
	imports := map[string]string{}
	for _, s := range k.hub.sources {
		for _, d := range s.file.Decls {
			if !wanted(d, names, added.Kind, hub) {
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

// standard tells whether a package is of Go's own library.
func standard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

// reachable are the names of the package's types that the given ones are made of.
func (pkg *apiPackage) reachable(names ...string) map[string]bool {
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		_, t := pkg.typeNamed(name)
		if t == nil || seen[name] {
			return
		}
		seen[name] = true
		ast.Inspect(t.Type, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				visit(id.Name)
			}
			return true
		})
	}
	for _, name := range names {
		visit(name)
	}
	return seen
}

// function finds the declaration of a function.
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

// wanted tells whether a declaration goes into the new version: the types, constants of
// them, and what validates if the new version is the hub.
func wanted(d ast.Decl, types map[string]bool, kind string, hub bool) bool {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return hub && d.Recv == nil && d.Name.Name == "Validate"+kind
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				return types[spec.Name.Name]
			case *ast.ValueSpec:
				id, ok := spec.Type.(*ast.Ident)
				return d.Tok == token.CONST && ok && types[id.Name]
			}
		}
	}
	return false
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

// importsOf are the imports that a declaration uses, as they are written.
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
