package lint

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"

	"github.com/annexapi/annex/cmd/annex/internal/crd/schema"
)

// source is the API of a tree of packages.
type source struct {
	root     string // of the repository, or of its copy
	fset     *token.FileSet
	versions map[string]*version // by group/version
	packages map[string]*packages.Package
	parsed   []parsedPackage         // all packages that match the patterns
	types    map[string]*declaration // by import path and name
	served   map[string]*servedKind  // by import path and name of the hub's type
	named    map[string]bool         // types in calls of KindOf, including calls that cannot be analysed
}

// version is an API package.
type version struct {
	name, group, version string
	pkg                  *packages.Package
	marked               bool // has kubebuilder markers that affect how its kinds are served
	kinds                []string
	proto                map[string]map[string]int // field numbers by message and field
}

// declaration is the declaration of a type.
type declaration struct {
	pkg    *packages.Package
	spec   *ast.TypeSpec
	marks  marks
	object types.Object
}

// servedKind is a kind in a server's definition.
type servedKind struct {
	pos           token.Position
	kind          string // the name of the hub's type
	resource      string
	clusterScoped bool
	withoutStatus bool
	scale         bool
	subresources  map[string]bool
	opaque        bool            // has subresources that are not visible here
	versions      map[string]bool // import paths of the served versions' packages
}

// servedAs returns the kind that serves a type, as its hub or as another version.
func (s *source) servedAs(packagePath, kind string) *servedKind {
	if k := s.served[packagePath+"."+kind]; k != nil {
		return k
	}
	for _, key := range slices.Sorted(maps.Keys(s.served)) {
		if k := s.served[key]; k.kind == kind && k.versions[packagePath] {
			return k
		}
	}
	return nil
}

const mode = packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo |
	packages.NeedImports | packages.NeedModule | packages.NeedCompiledGoFiles

// read loads the packages that match the patterns, in a folder of a tree: API packages with types, and other packages
// only with their calls of annex.KindOf, since they may have much to compile.
func read(ctx context.Context, root, dir string, patterns []string) (*source, error) {
	s := &source{
		root:     root,
		fset:     token.NewFileSet(),
		versions: map[string]*version{},
		packages: map[string]*packages.Package{},
		types:    map[string]*declaration{},
		served:   map[string]*servedKind{},
		named:    map[string]bool{},
	}
	if _, err := os.Stat(dir); err != nil {
		return s, nil // the folder did not exist
	}
	listed, err := s.load(ctx, dir, packages.NeedName|packages.NeedFiles|packages.NeedModule, patterns)
	if err != nil {
		return nil, err
	}
	parsed, err := s.parse(listed)
	if err != nil {
		return nil, err
	}
	s.parsed = parsed
	paths := apiPackages(parsed)
	if len(paths) == 0 {
		return s, nil
	}
	loaded, err := s.load(ctx, dir, mode, paths)
	if err != nil {
		return nil, err
	}
	for _, p := range loaded {
		if len(p.Syntax) == 0 {
			continue
		}
		s.packages[p.PkgPath] = p
		s.declare(p)
		if group, ok := groupOf(p.Syntax, p.CompiledGoFiles); ok {
			v := &version{name: group + "/" + p.Name, group: group, version: p.Name, pkg: p, marked: schema.Marked(p.Syntax)}
			s.versions[v.name] = v
			v.proto = protoNumbers(filepath.Dir(p.GoFiles[0]))
		}
	}
	for _, v := range s.versions {
		for name, object := range scope(v.pkg) {
			if isKind(object) {
				v.kinds = append(v.kinds, name)
			}
		}
		slices.Sort(v.kinds)
	}
	for _, p := range parsed {
		for _, f := range p.files {
			s.findServed(f)
		}
	}
	return s, nil
}

func (s *source) load(ctx context.Context, dir string, mode packages.LoadMode, patterns []string) ([]*packages.Package, error) {
	cfg := &packages.Config{Context: ctx, Mode: mode, Dir: dir, Fset: s.fset, Env: append(os.Environ(), "GOPROXY=off", "PWD="+dir)}
	loaded, err := packages.Load(cfg, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load packages: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	for _, p := range loaded {
		for _, e := range p.Errors {
			// Generated code may be missing, and the package may have been removed: the comparison handles both.
			if e.Kind == packages.TypeError || nothingThere.MatchString(e.Msg) {
				continue
			}
			return nil, errors.New(strings.TrimPrefix(s.place(e.Pos)+": "+strings.Join(strings.Fields(e.Msg), " "), ": "))
		}
	}
	return loaded, nil
}

// parsedPackage is a package that has been parsed without types.
type parsedPackage struct {
	path  string
	names []string // of the files
	files []*ast.File
}

func (s *source) parse(listed []*packages.Package) ([]parsedPackage, error) {
	var all []parsedPackage
	for _, p := range listed {
		one := parsedPackage{path: p.PkgPath, names: p.GoFiles}
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(s.fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				message := err.Error()
				if rel, relErr := filepath.Rel(s.root, name); relErr == nil {
					message = strings.ReplaceAll(message, name, rel)
				}
				return nil, errors.New(message)
			}
			one.files = append(one.files, f)
		}
		all = append(all, one)
	}
	return all, nil
}

// apiPackages returns the import paths of the packages with a group, and of the parsed packages that they import,
// since those may hold shared types.
func apiPackages(all []parsedPackage) []string {
	byPath := map[string]parsedPackage{}
	for _, p := range all {
		byPath[p.path] = p
	}
	found := map[string]bool{}
	var add func(p parsedPackage)
	add = func(p parsedPackage) {
		if found[p.path] {
			return
		}
		found[p.path] = true
		for _, f := range p.files {
			for _, spec := range f.Imports {
				if imported, ok := byPath[strings.Trim(spec.Path.Value, "\"`")]; ok {
					add(imported)
				}
			}
		}
	}
	for _, p := range all {
		if _, ok := groupOf(p.files, p.names); ok {
			add(p)
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// nothingThere matches the go command's errors about patterns without matches, and about code that it can list but
// not compile.
var nothingThere = regexp.MustCompile(
	`directory not found|no such file or directory|matched no packages|[nN]o (non-test )?Go files|no required module provides|is not in ` +
		`std|does not contain package|build constraints exclude|^# `,
)

// place formats a position relative to the root; it is empty if the position is unknown.
func (s *source) place(position string) string {
	file, rest, ok := strings.Cut(position, ":")
	if !ok {
		return ""
	}
	if rel, err := filepath.Rel(s.root, file); err == nil && filepath.IsLocal(rel) {
		file = rel
	}
	return file + ":" + rest
}

func scope(p *packages.Package) map[string]types.Object {
	all := map[string]types.Object{}
	for _, name := range p.Types.Scope().Names() {
		if object, ok := p.Types.Scope().Lookup(name).(*types.TypeName); ok && object.Exported() {
			all[name] = object
		}
	}
	return all
}

var groupMarker = regexp.MustCompile(`^//\s*\+groupName=(\S*)`)

// groupOf returns the group in a comment above a package clause, or anywhere in doc.go.
func groupOf(files []*ast.File, names []string) (string, bool) {
	for i, f := range files {
		inDoc := i < len(names) && slices.Contains([]string{"doc.go", "groupversion_info.go"}, filepath.Base(names[i]))
		for _, group := range f.Comments {
			if group.Pos() > f.Package && !inDoc {
				continue
			}
			for _, line := range group.List {
				if m := groupMarker.FindStringSubmatch(line.Text); m != nil {
					return m[1], m[1] != ""
				}
			}
		}
	}
	return "", false
}

func (s *source) declare(p *packages.Package) {
	for _, f := range p.Syntax {
		for _, d := range f.Decls {
			general, ok := d.(*ast.GenDecl)
			if !ok || general.Tok != token.TYPE {
				continue
			}
			for _, spec := range general.Specs {
				t := spec.(*ast.TypeSpec)
				doc := t.Doc
				if doc == nil {
					doc = general.Doc
				}
				s.types[p.PkgPath+"."+t.Name.Name] = &declaration{
					pkg:    p,
					spec:   t,
					marks:  marksOf(floating(f, doc, t.Pos()), doc),
					object: p.Types.Scope().Lookup(t.Name.Name),
				}
			}
		}
	}
}

// floating returns the comment that ends right above a doc comment: its markers count.
func floating(f *ast.File, doc *ast.CommentGroup, pos token.Pos) *ast.CommentGroup {
	if doc != nil {
		pos = doc.Pos()
	}
	for i, group := range f.Comments {
		if group.End() < pos && (i+1 >= len(f.Comments) || f.Comments[i+1].Pos() >= pos) {
			for _, d := range f.Decls {
				if d.Pos() < pos && d.End() > group.Pos() && d.Pos() < group.Pos() {
					return nil // within another declaration
				}
				if d.Pos() > group.End() && d.End() < pos {
					return nil // belongs to the preceding declaration
				}
			}
			if group.Pos() < f.Name.End() {
				return nil
			}
			return group
		}
	}
	return nil
}

const metaPath = "k8s.io/apimachinery/pkg/apis/meta/v1"

func isKind(object types.Object) bool {
	structure, ok := object.Type().Underlying().(*types.Struct)
	if !ok {
		return false
	}
	embedded := map[string]bool{}
	for i := range structure.NumFields() {
		f := structure.Field(i)
		if named, ok := types.Unalias(f.Type()).(*types.Named); ok && f.Embedded() && named.Obj().Pkg() != nil &&
			named.Obj().Pkg().Path() == metaPath {
			embedded[f.Name()] = true
		}
	}
	return embedded["TypeMeta"] && embedded["ObjectMeta"]
}

// field is a field of a struct's JSON form.
type field struct {
	name     string
	goName   string
	typ      types.Type
	marks    marks
	required bool
	number   string // in the protobuf tag
	pos      token.Position
}

// fields returns the fields of a named struct by JSON name, including those of inlined structs.
func (s *source) fields(named *types.Named) map[string]field {
	all := map[string]field{}
	d := s.types[typeKey(named)]
	structure, ok := named.Underlying().(*types.Struct)
	if d == nil || !ok {
		return all
	}
	list, ok := d.spec.Type.(*ast.StructType)
	if !ok {
		return all
	}
	optionalPackage := slices.ContainsFunc(d.pkg.Syntax, func(f *ast.File) bool {
		return slices.ContainsFunc(f.Comments, func(g *ast.CommentGroup) bool {
			return g.End() < f.Package && marksOf(g).has("kubebuilder:validation:Optional")
		})
	})
	n := 0
	for _, astField := range list.Fields.List {
		for range max(1, len(astField.Names)) {
			v, tag := structure.Field(n), reflect.StructTag(structure.Tag(n))
			n++
			json := tag.Get("json")
			name, options, _ := strings.Cut(json, ",")
			if json == "-" || !v.Exported() {
				continue
			}
			if inner, ok := namedOf(v.Type()); ok && name == "" && v.Embedded() {
				for innerName, f := range s.fields(inner) {
					all[innerName] = f
				}
				continue
			}
			if name == "" {
				name = v.Name()
			}
			m := marksOf(astField.Doc)
			f := field{name: name, goName: v.Name(), typ: v.Type(), marks: m, pos: s.position(v.Pos())}
			omitted := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
			switch {
			case m.has("optional", "k8s:optional", "kubebuilder:validation:Optional"):
			case m.has("required", "k8s:required", "kubebuilder:validation:Required"):
				f.required = true
			default:
				f.required = !omitted && !optionalPackage
			}
			if parts := strings.Split(tag.Get("protobuf"), ","); len(parts) > 1 {
				f.number = parts[1]
			}
			all[name] = f
		}
	}
	return all
}

func namedOf(t types.Type) (*types.Named, bool) {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	return named, ok
}

func typeKey(named *types.Named) string {
	if named.Obj().Pkg() == nil {
		return named.Obj().Name()
	}
	return named.Obj().Pkg().Path() + "." + named.Obj().Name()
}

// own reports whether the compared packages declare a type.
func (s *source) own(named *types.Named) bool { return s.types[typeKey(named)] != nil }

// constants returns the values of an enum type.
func (s *source) constants(named *types.Named) []string {
	d := s.types[typeKey(named)]
	if d == nil || !d.marks.has("enum", "k8s:enum") {
		return nil
	}
	var all []string
	for _, name := range d.pkg.Types.Scope().Names() {
		if c, ok := d.pkg.Types.Scope().Lookup(name).(*types.Const); ok && types.Identical(c.Type(), named) {
			all = append(all, strings.Trim(c.Val().ExactString(), `"`))
		}
	}
	return all
}

// position returns a position relative to the root of the tree.
func (s *source) position(pos token.Pos) token.Position {
	p := s.fset.Position(pos)
	if rel, err := filepath.Rel(s.root, p.Filename); err == nil && filepath.IsLocal(rel) {
		p.Filename = rel
	}
	return p
}

// findServed finds the kinds that a file defines with annex.KindOf in one expression.
func (s *source) findServed(f *ast.File) {
	imports := s.importsOf(f)
	inner := map[ast.Expr]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && !inner[call] {
			s.chain(imports, call, inner)
		}
		return true
	})
}

// importsOf returns the import paths of a file, by import name.
func (s *source) importsOf(f *ast.File) map[string]string {
	imports := map[string]string{}
	for _, spec := range f.Imports {
		importPath := strings.Trim(spec.Path.Value, "\"`")
		name := path.Base(importPath)
		if p := s.packages[importPath]; p != nil {
			name = p.Name
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = importPath
	}
	return imports
}

// qualified returns the import path and the name of a qualified identifier.
func qualified(imports map[string]string, e ast.Expr) (importPath, name string, ok bool) {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", "", false
	}
	x, ok := selector.X.(*ast.Ident)
	if !ok {
		return "", "", false
	}
	importPath, ok = imports[x.Name]
	return importPath, selector.Sel.Name, ok
}

// chain parses KindOf(...).Method(...).Method(...).
func (s *source) chain(imports map[string]string, call *ast.CallExpr, inner map[ast.Expr]bool) {
	kind := &servedKind{versions: map[string]bool{}, subresources: map[string]bool{}, pos: s.position(call.Pos())}
	for {
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			break
		}
		before, ok := method.X.(*ast.CallExpr)
		if !ok {
			return
		}
		switch method.Sel.Name {
		case "ClusterScoped":
			kind.clusterScoped = true
		case "WithoutStatus":
			kind.withoutStatus = true
		case "Scale":
			kind.scale = true
		case "Subresources":
			for _, argument := range call.Args {
				if name, ok := subresourceName(imports, argument); ok {
					kind.subresources[name] = true
				} else {
					kind.opaque = true
				}
			}
		case "Versions":
			for _, argument := range call.Args {
				if importPath, unserved := versionPackage(imports, argument); importPath != "" && !unserved {
					kind.versions[importPath] = true
				}
			}
		}
		inner[before] = true
		call = before
	}
	index, ok := call.Fun.(*ast.IndexListExpr)
	if !ok || len(index.Indices) == 0 || len(call.Args) == 0 {
		return
	}
	if _, name, ok := qualified(imports, index.X); !ok || name != "KindOf" {
		return
	}
	hubPath, hub, isHub := qualified(imports, index.Indices[0])
	if !isHub {
		return
	}
	s.named[hubPath+"."+hub] = true
	resource, isName := call.Args[0].(*ast.BasicLit)
	if !isName {
		return
	}
	kind.kind, kind.resource = hub, strings.Trim(resource.Value, "\"`")
	kind.versions[hubPath] = true
	s.served[hubPath+"."+hub] = kind
}

// subresourceName returns the name in annex.Action("NAME", ...), View or Connect, with optional method calls behind
// it.
func subresourceName(imports map[string]string, e ast.Expr) (string, bool) {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return "", false
	}
	function := call.Fun
	switch f := function.(type) {
	case *ast.IndexExpr:
		function = f.X
	case *ast.IndexListExpr:
		function = f.X
	}
	if _, name, ok := qualified(imports, function); ok && (name == "Action" || name == "View" || name == "Connect") && len(call.Args) > 0 {
		literal, ok := call.Args[0].(*ast.BasicLit)
		if !ok {
			return "", false
		}
		return strings.Trim(literal.Value, "\"`"), true
	}
	if method, ok := call.Fun.(*ast.SelectorExpr); ok {
		return subresourceName(imports, method.X)
	}
	return "", false
}

// versionPackage returns the package in annex.Version(PACKAGE.API, ...), with optional method calls behind it.
func versionPackage(imports map[string]string, e ast.Expr) (importPath string, unserved bool) {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return "", false
	}
	if method, ok := call.Fun.(*ast.SelectorExpr); ok {
		if before, ok := method.X.(*ast.CallExpr); ok {
			importPath, unserved = versionPackage(imports, before)
			return importPath, unserved || method.Sel.Name == "Unserved"
		}
	}
	if len(call.Args) == 0 {
		return "", false
	}
	importPath, _, _ = qualified(imports, call.Args[0])
	return importPath, false
}

var (
	protoMessage = regexp.MustCompile(`^\s*message\s+(\w+)\s*\{`)
	protoField   = regexp.MustCompile(`^\s*(?:optional|required|repeated)?\s*(?:map\s*<[^>]*>|[\w.]+)\s+(\w+)\s*=\s*(\d+)`)
)

// protoNumbers reads generated.proto, if it exists.
func protoNumbers(dir string) map[string]map[string]int {
	text, err := os.ReadFile(filepath.Join(dir, "generated.proto"))
	if err != nil {
		return nil
	}
	all := map[string]map[string]int{}
	message := ""
	for line := range strings.Lines(string(text)) {
		if m := protoMessage.FindStringSubmatch(line); m != nil {
			message = m[1]
			all[message] = map[string]int{}
			continue
		}
		if m := protoField.FindStringSubmatch(line); m != nil && message != "" {
			number := 0
			fmt.Sscan(m[2], &number)
			all[message][m[1]] = number
		}
	}
	return all
}
