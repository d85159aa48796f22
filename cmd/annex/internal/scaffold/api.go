package scaffold

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// APIOptions describe a new kind.
type APIOptions struct {
	Options
	// Group is the first part of the group's name, to which the project's domain is appended, or the whole name if it
	// contains a dot.
	Group string
	// Version is the API version.
	Version string
	// Kind is the name of the Go type.
	Kind string
	// Resource is the lower-case plural name. Empty means the plural of Kind.
	Resource string
	// ClusterScoped kinds have no namespace.
	ClusterScoped bool
}

// kindData is the data for the templates of a kind.
type kindData struct {
	Group, Version, GroupVersion       string
	Kind, Singular, Resource, Receiver string
	// Pkg is the import name of the version's package.
	Pkg string
	// Import is the import path of the version's package, Module that of the project.
	Import, Module string
	// Protobuf is set if the package gets protobuf methods.
	Protobuf bool
	// ResourceTag is set if generated clients need a tag with the resource.
	ResourceTag bool
	// ConvertsTo is the import path of the package to which the version's kinds are converted, empty for a hub.
	ConvertsTo string
}

func newKindData(p *project, group, version, kind, resource string) kindData {
	return kindData{
		Group: group, Version: version, GroupVersion: group + "/" + version,
		Kind: kind, Singular: strings.ToLower(kind), Resource: resource, Receiver: strings.ToLower(kind[:1]),
		Pkg:    importAlias(group, version),
		Import: path.Join(p.module, groupFolder(group), version), Module: p.module,
		Protobuf: true, ResourceTag: !clientsGuess(kind, resource),
	}
}

// API adds a kind to the project that contains Dir.
func API(o APIOptions) (*Result, error) {
	if err := checkGroup(o.Group); err != nil {
		return nil, err
	}
	if err := checkVersion(o.Version); err != nil {
		return nil, err
	}
	if err := checkKind(o.Kind); err != nil {
		return nil, err
	}
	if o.Resource == "" {
		o.Resource = pluralOf(o.Kind)
	}
	if err := checkLabel("--resource", "the name of a resource", o.Resource); err != nil {
		return nil, err
	}
	p, err := findProject(o.Dir)
	if err != nil {
		return nil, err
	}
	group, err := p.wholeGroup(o.Group)
	if err != nil {
		return nil, err
	}
	data := newKindData(p, group, o.Version, o.Kind, o.Resource)
	packages, err := p.packagesOf(group)
	if err != nil {
		return nil, err
	}
	if err := p.refuseTaken(packages, data); err != nil {
		return nil, err
	}
	if err := p.register(data, o.ClusterScoped); err != nil {
		return nil, err
	}

	dir := path.Join(groupFolder(group), o.Version)
	w := &plan{root: p.root}
	if packages[o.Version] == nil {
		if err := w.render(path.Join(dir, "doc.go"), "api/doc.go", data); err != nil {
			return nil, err
		}
	}
	if err := w.render(path.Join(dir, fileName(o.Kind)), "api/kind.go", data); err != nil {
		return nil, err
	}
	if err := w.render(samplePath(data), "api/sample.yaml", data); err != nil {
		return nil, err
	}
	if err := w.edited(p.server); err != nil {
		return nil, err
	}
	files, err := w.carryOut(o.Options)
	if err != nil {
		return nil, err
	}
	return &Result{
		Files:    files,
		Packages: []string{p.show(dir)},
		Next: []string{
			"edit " + p.show(path.Join(dir, fileName(o.Kind))) + "   # add fields to " + o.Kind + ", then run annex generate",
			"go run . serve   # then, in another terminal:",
			"kubectl --kubeconfig data/kubeconfig apply -f " + p.show(samplePath(data)),
		},
	}, nil
}

func samplePath(d kindData) string {
	first, _, _ := strings.Cut(d.Group, ".")
	return path.Join("config/samples", first+"_"+d.Version+"_"+d.Singular+".yaml")
}

func (p *plan) render(file, name string, data any) error {
	text, err := render(name+".tmpl", data)
	if err != nil {
		return err
	}
	p.create(file, text)
	return nil
}

func (p *plan) edited(s *source) error {
	text, err := s.edited()
	if err != nil {
		return err
	}
	p.edit(s.path, text)
	return nil
}

// apiPackage is the package of a version.
type apiPackage struct {
	dir     string // relative to the project
	sources []*source
}

const groupTag = "+groupName="

// packagesOf reads the packages of a group, by version. It returns an error if their folder has a package of another
// group.
func (p *project) packagesOf(group string) (map[string]*apiPackage, error) {
	dir := groupFolder(group)
	entries, err := os.ReadDir(filepath.Join(p.root, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, generate.Problem{File: p.show(dir), Message: fmt.Sprintf("cannot be read: %v", unwrapPath(err))}
	}
	packages := map[string]*apiPackage{}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		pkg, err := p.readPackage(filepath.Join(p.root, filepath.FromSlash(dir), e.Name()))
		if err != nil {
			return nil, err
		}
		pkg.dir = path.Join(dir, e.Name())
		for _, s := range pkg.sources {
			if has, at := groupOf(s); has != "" && has != group {
				return nil, p.problem(s, at, "the folder belongs to group %s, not %s: give the groups different first labels", has, group)
			}
		}
		if len(pkg.sources) > 0 {
			packages[e.Name()] = pkg
		}
	}
	return packages, nil
}

// readPackage reads the hand-written files of a folder.
func (p *project) readPackage(dir string) (*apiPackage, error) {
	pkg := &apiPackage{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, generate.Problem{File: shorten(dir, p.from), Message: fmt.Sprintf("cannot be read: %v", unwrapPath(err))}
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		if e.IsDir() || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") || e.Name() == generate.FileName {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, generate.Problem{File: shorten(file, p.from), Message: fmt.Sprintf("cannot be read: %v", unwrapPath(err))}
		}
		s, err := p.parse(file, text)
		if err != nil {
			return nil, err
		}
		pkg.sources = append(pkg.sources, s)
	}
	return pkg, nil
}

// groupOf finds the comment with a package's group.
func groupOf(s *source) (string, token.Pos) {
	for _, c := range s.file.Comments {
		if c.Pos() > s.file.Package {
			break
		}
		for _, line := range c.List {
			if name, ok := strings.CutPrefix(strings.TrimSpace(strings.TrimPrefix(line.Text, "//")), groupTag); ok {
				return strings.TrimSpace(name), line.Pos()
			}
		}
	}
	return "", token.NoPos
}

// typeNamed returns the declaration of a type.
func (pkg *apiPackage) typeNamed(name string) (*source, *ast.TypeSpec) {
	for _, s := range pkg.sources {
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok && t.Name.Name == name {
					return s, t
				}
			}
		}
	}
	return nil, nil
}

// refuseTaken returns an error if the group has the kind or resource already.
func (p *project) refuseTaken(packages map[string]*apiPackage, d kindData) error {
	for version, pkg := range packages {
		s, t := pkg.typeNamed(d.Kind)
		switch {
		case s == nil:
		case version == d.Version:
			return p.problem(s, t.Pos(), "kind %s exists already: choose another name", d.Kind)
		default:
			return p.problem(s, t.Pos(), "kind %s exists already, in %s: add a version to it with annex create version --group %s --kind %s "+
				"--version %s", d.Kind, version, d.Group, d.Kind, d.Version)
		}
	}
	if pkg := packages[d.Version]; pkg != nil {
		for _, name := range []string{d.Kind + "Spec", d.Kind + "Status", d.Kind + "List", "Validate" + d.Kind} {
			if s, t := pkg.typeNamed(name); s != nil {
				return p.problem(s, t.Pos(), "%s is declared already, and kind %s would declare it too: rename one of them", name, d.Kind)
			}
		}
	}
	kinds, err := p.kinds(d.Group)
	if err != nil {
		return err
	}
	for _, k := range kinds {
		if k.resource == d.Resource {
			return p.problem(
				p.server,
				k.element.Pos(),
				"the resource %s exists already in %s: choose another name with --resource",
				d.Resource,
				d.Group,
			)
		}
	}
	return nil
}

// groups returns the composite literal of the server's groups, or nil if there is none yet.
func (p *project) groups() (*ast.CompositeLit, error) {
	value := fieldOf(p.definition, "Groups")
	if value == nil {
		return nil, nil
	}
	lit, ok := value.(*ast.CompositeLit)
	if !ok {
		return nil, p.problem(p.server, value.Pos(), "cannot add to Groups, which is not a literal []annex.Group{...}: write it as a "+
			"literal in the literal of annex.Server")
	}
	return lit, nil
}

// group returns a group's composite literal, or nil.
func (p *project) group(name string) (*ast.CompositeLit, error) {
	groups, err := p.groups()
	if groups == nil || err != nil {
		return nil, err
	}
	for _, e := range groups.Elts {
		if lit, ok := e.(*ast.CompositeLit); ok && p.server.stringOf(fieldOf(lit, "Name")) == name {
			return lit, nil
		}
	}
	return nil, nil
}

// stringOf returns the value of a string literal, or of a constant in the file.
func (s *source) stringOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		value, _ := strconv.Unquote(e.Value)
		return value
	case *ast.Ident:
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for i, name := range v.Names {
					if name.Name == e.Name && i < len(v.Values) {
						return s.stringOf(v.Values[i])
					}
				}
			}
		}
	}
	return ""
}

// kindsOf returns the composite literal of a group's kinds, or nil if there is none yet.
func (p *project) kindsOf(group *ast.CompositeLit) (*ast.CompositeLit, error) {
	value := fieldOf(group, "Kinds")
	if value == nil {
		return nil, nil
	}
	lit, ok := value.(*ast.CompositeLit)
	if !ok {
		return nil, p.problem(p.server, value.Pos(), "cannot add to Kinds, which is not a literal []annex.Kind{...}: write it as a "+
			"literal in the literal of the group")
	}
	return lit, nil
}

// register adds the kind's registration to the definition.
func (p *project) register(d kindData, clusterScoped bool) error {
	s := p.server
	annex := s.importName(library)
	pkg := s.use(d.Import, d.Pkg)
	line := fmt.Sprintf("%s.KindOf[%s.%s, %s.%sList](%q, %s.API)", annex, pkg, d.Kind, pkg, d.Kind, d.Resource, pkg)
	if clusterScoped {
		line += ".ClusterScoped()"
	}
	line += fmt.Sprintf(".Validate(%s.Validate%s)", pkg, d.Kind)

	return p.addKinds([]string{d.Group}, map[string][]string{d.Group: {line}})
}

// registration is the registration of a kind in a group: the chain of calls that begins with annex.KindOf.
type registration struct {
	element  ast.Expr
	pkg      string // the file's import name for the hub's package
	kind     string
	resource string
	kindOf   *ast.CallExpr
	// calls are the method calls of the chain, in order.
	calls []*ast.CallExpr
}

// kinds returns the kinds of a group that are registered in a literal chain of calls.
func (p *project) kinds(group string) ([]registration, error) {
	g, err := p.group(group)
	if g == nil || err != nil {
		return nil, err
	}
	lit, err := p.kindsOf(g)
	if lit == nil || err != nil {
		return nil, err
	}
	var all []registration
	for _, e := range lit.Elts {
		if r, ok := p.server.registration(e); ok {
			all = append(all, r)
		}
	}
	return all, nil
}

// registration parses a chain of calls.
func (s *source) registration(e ast.Expr) (registration, bool) {
	r := registration{element: e}
	for {
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return r, false
		}
		switch fun := call.Fun.(type) {
		case *ast.SelectorExpr:
			r.calls = append([]*ast.CallExpr{call}, r.calls...)
			e = fun.X
			continue
		case *ast.IndexListExpr:
			hub, ok := fun.Indices[0].(*ast.SelectorExpr)
			if !ok || !isSelector(fun.X, s.importName(library), "KindOf") || len(call.Args) == 0 {
				return r, false
			}
			pkg, ok := hub.X.(*ast.Ident)
			if !ok {
				return r, false
			}
			r.pkg, r.kind, r.kindOf = pkg.Name, hub.Sel.Name, call
			r.resource = s.stringOf(call.Args[0])
			return r, true
		}
		return r, false
	}
}
