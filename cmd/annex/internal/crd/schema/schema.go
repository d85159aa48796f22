// Package schema reads kubebuilder's markers. It generates the CustomResourceDefinitions of Go types with
// controller-tools' own parser and generator, so that markers have the same meaning, and reports markers that
// controller-tools would ignore.
package schema

import (
	"cmp"
	"errors"
	"fmt"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-tools/pkg/crd"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

// Problem is a mistake in the packages.
type Problem struct {
	// File, Line and Column are the position; zero values mean unknown.
	File         string
	Line, Column int
	// Message is one line.
	Message string
}

// Error returns the problem as FILE:LINE:COLUMN: MESSAGE.
func (p Problem) Error() string {
	return strings.TrimPrefix(fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message), ":0:0: ")
}

// Packages are Go packages as controller-tools loads them: parsed and typed when first needed. They are not safe for
// concurrent use.
type Packages struct {
	fset     *token.FileSet
	roots    []*loader.Package
	registry *markers.Registry
}

// Load finds the packages that match patterns of the go command, in the folder dir; empty is the current one. It
// honours GOFLAGS in the environment.
func Load(dir string, patterns ...string) (*Packages, error) {
	fset := token.NewFileSet()
	roots, err := loader.LoadRootsWithConfig(&packages.Config{Dir: dir, Fset: fset}, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load packages: %w", err)
	}
	registry, err := newRegistry()
	if err != nil {
		return nil, err
	}
	return &Packages{fset: fset, roots: roots, registry: registry}, nil
}

func newRegistry() (*markers.Registry, error) {
	registry := &markers.Registry{}
	if err := crdmarkers.Register(registry); err != nil {
		return nil, fmt.Errorf("register markers: %w", err)
	}
	// This marker is for another generator, but it identifies the kinds that were written for controller-gen.
	if err := registry.Define(objectRoot, markers.DescribesType, markers.RawArguments(nil)); err != nil {
		return nil, fmt.Errorf("register markers: %w", err)
	}
	if err := registerPatch(registry); err != nil {
		return nil, err
	}
	return registry, nil
}

// Paths returns the import paths of the matching packages.
func (p *Packages) Paths() []string {
	paths := make([]string, len(p.roots))
	for i, root := range p.roots {
		paths[i] = root.PkgPath
	}
	return paths
}

// Definitions returns the CustomResourceDefinitions of all kinds in the packages, with all versions and descriptions,
// sorted by name. They equal the output of controller-gen's crd generator with default options, except for the
// annotation with its version. Problems of the packages, including ignored markers, are returned as a joined error;
// each is a Problem.
func (p *Packages) Definitions() ([]apiextensionsv1.CustomResourceDefinition, error) {
	all, problems := p.definitions()
	if len(problems) > 0 {
		return nil, join(problems)
	}
	return all, nil
}

func (p *Packages) definitions() ([]apiextensionsv1.CustomResourceDefinition, []Problem) {
	problems := p.overlooked()
	parser := p.parser()
	for _, root := range p.roots {
		parser.NeedPackage(root)
	}
	var all []apiextensionsv1.CustomResourceDefinition
	for _, kind := range p.kinds(parser) {
		parser.NeedCRDFor(kind, nil)
		if definition, ok := parser.CustomResourceDefinitions[kind]; ok {
			crd.FixTopLevelMetadata(definition)
			if err := applyPatches(&definition); err != nil {
				problems = append(problems, Problem{Message: err.Error()})
			}
			all = append(all, definition)
		}
	}
	slices.SortFunc(all, func(a, b apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	problems = withoutEchoes(append(problems, p.problems()...))
	if slices.ContainsFunc(problems, func(p Problem) bool { return !lacksStorageVersion(p) }) {
		return all, problems
	}
	for _, d := range all {
		found, err := p.refusedVersions(parser, d)
		if err != nil {
			found = []Problem{{Message: err.Error()}}
		}
		problems = append(problems, found...)
	}
	return all, problems
}

// lacksStorageVersion reports whether the problem is that no version is marked as stored.
func lacksStorageVersion(p Problem) bool {
	return strings.HasSuffix(p.Message, "has no storage version")
}

// Version returns, by kind, the CustomResourceDefinitions of one of the packages, with the package's version only and
// without descriptions. The version has storage set if, and only if, the kind is marked +kubebuilder:storageversion. For
// a package without kubebuilder markers on its kinds it returns nil, and it omits kinds whose version is skipped.
//
// A version has Subresources, if only empty ones, if the kind's own markers determine them: +kubebuilder:subresource, or
// the marker +kubebuilder:object:root of every kind that was written for controller-gen. Otherwise the Go type decides.
//
// Likewise, a definition has a scope if the kind's own markers determine its resource:
// +kubebuilder:resource, or +kubebuilder:object:root. A field's marker in a package of
// another project, such as k8s.io/api/networking/v1, does not put its kinds into namespaces.
//
// A part of a definition that a cluster would refuse is a Problem, too.
func (p *Packages) Version(path string) (map[string]apiextensionsv1.CustomResourceDefinition, error) {
	i := slices.IndexFunc(p.roots, func(root *loader.Package) bool { return root.PkgPath == path })
	if i < 0 {
		return nil, fmt.Errorf("package %s is not loaded", path)
	}
	root := p.roots[i]
	root.NeedSyntax()
	if !Marked(root.Syntax) {
		return nil, join(slices.Concat(p.overlookedIn(root), problemsOf(root)))
	}
	problems := p.overlookedIn(root)
	parser := p.parser()
	parser.NeedPackage(root)
	all := map[string]apiextensionsv1.CustomResourceDefinition{}
	none := 0
	for _, kind := range p.kinds(parser) {
		info := parser.LookupType(root, kind.Kind)
		if info == nil {
			continue
		}
		// Imported packages may be other versions of the kind.
		maps.DeleteFunc(parser.GroupVersions, func(other *loader.Package, _ schema.GroupVersion) bool { return other != root })
		parser.NeedCRDFor(kind, &none)
		definition, ok := parser.CustomResourceDefinitions[kind]
		if !ok {
			continue
		}
		crd.FixTopLevelMetadata(definition)
		if err := applyPatches(&definition); err != nil {
			problems = append(problems, Problem{Message: err.Error()})
		}
		version := &definition.Spec.Versions[0]
		version.Storage = info.Markers.Get("kubebuilder:storageversion") != nil
		switch {
		case !speaksOfSubresources(info.Markers):
			version.Subresources = nil // controller-tools creates an empty one for columns
		case version.Subresources == nil:
			version.Subresources = &apiextensionsv1.CustomResourceSubresources{}
		}
		if !speaksOfResource(info.Markers) {
			definition.Spec.Scope = ""
		}
		all[kind.Kind] = definition
	}
	for _, loaded := range p.reached(root) {
		problems = append(problems, problemsOf(loaded)...)
	}
	// Another package may have the served version.
	problems = slices.DeleteFunc(problems, func(p Problem) bool { return strings.Contains(p.Message, "does not serve any version") })
	if len(problems) > 0 {
		return nil, join(withoutEchoes(problems))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		found, err := p.invalid(parser, crd.TypeIdent{Package: root, Name: name}, all[name])
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(a, b Problem) int { return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line) })
		return nil, join(slices.Compact(problems))
	}
	return all, nil
}

// Messages returns, by name, the schemas of Go types of one of the packages that are sent but not stored, without
// descriptions. For a package without kubebuilder markers it returns nil. Version must have accepted the package. A
// schema that a cluster would refuse is a Problem.
func (p *Packages) Messages(path string, names []string) (map[string]apiextensionsv1.JSONSchemaProps, error) {
	i := slices.IndexFunc(p.roots, func(root *loader.Package) bool { return root.PkgPath == path })
	if i < 0 {
		return nil, fmt.Errorf("package %s is not loaded", path)
	}
	root := p.roots[i]
	root.NeedSyntax()
	if !Marked(root.Syntax) || len(names) == 0 {
		return nil, nil
	}
	parser := p.parser()
	parser.NeedPackage(root)
	schemas := map[string]apiextensionsv1.JSONSchemaProps{}
	var problems []Problem
	for _, name := range names {
		message := crd.TypeIdent{Package: root, Name: name}
		parser.NeedFlattenedSchemaFor(message)
		flattened := parser.FlattenedSchemata[message]
		schema := *flattened.DeepCopy()
		crd.TruncateDescription(&schema, 0)
		schemas[name] = schema
	}
	for _, loaded := range p.reached(root) {
		problems = append(problems, problemsOf(loaded)...)
	}
	if len(problems) > 0 {
		return nil, join(withoutEchoes(problems))
	}
	for _, name := range names {
		found, err := p.invalid(parser, crd.TypeIdent{Package: root, Name: name}, definitionAround(name, schemas[name]))
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	if len(problems) > 0 {
		return nil, join(slices.Compact(problems))
	}
	return schemas, nil
}

// definitionAround returns a definition with the schema of a message, so that a cluster's rules for schemas can be
// applied to it.
func definitionAround(name string, of apiextensionsv1.JSONSchemaProps) apiextensionsv1.CustomResourceDefinition {
	definition := apiextensionsv1.CustomResourceDefinition{}
	plural := strings.ToLower(name) + "s"
	definition.Name = plural + ".messages.example.com"
	definition.Spec.Group, definition.Spec.Scope = "messages.example.com", apiextensionsv1.NamespaceScoped
	definition.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
		Plural: plural, Singular: strings.ToLower(name), Kind: name, ListKind: name + "List",
	}
	definition.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{
		Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: of.DeepCopy()},
	}}
	return definition
}

// isRoot reports whether a kind has controller-gen's marker for kinds.
func isRoot(kind markers.MarkerValues) bool {
	root, ok := kind.Get(objectRoot).(markers.RawArguments)
	return ok && string(root) != "false"
}

// speaksOfResource reports whether a kind's markers determine its resource and scope.
func speaksOfResource(kind markers.MarkerValues) bool {
	return isRoot(kind) || kind.Get("kubebuilder:resource") != nil
}

// speaksOfSubresources reports whether a kind's markers determine its subresources. With controller-gen's marker for
// kinds, a kind without further markers has none; a marker of a field or of a column does not decide about /status.
func speaksOfSubresources(kind markers.MarkerValues) bool {
	return isRoot(kind) || kind.Get("kubebuilder:subresource:status") != nil || kind.Get("kubebuilder:subresource:scale") != nil
}

func (p *Packages) parser() *crd.Parser {
	parser := &crd.Parser{
		Collector: &markers.Collector{Registry: p.registry},
		Checker:   &loader.TypeChecker{NodeFilters: []loader.NodeFilter{crd.Generator{}.CheckFilter()}},
		// These two options of controller-gen only accept more types.
		IgnoreUnexportedFields: true,
		AllowDangerousTypes:    true,
	}
	crd.AddKnownTypes(parser)
	return parser
}

func (p *Packages) kinds(parser *crd.Parser) []schema.GroupKind {
	meta := crd.FindMetav1(p.roots)
	if meta == nil {
		return nil
	}
	return crd.FindKubeKinds(parser, meta)
}

// problems returns controller-tools' problems in the packages and in the packages of their types.
func (p *Packages) problems() []Problem {
	var problems []Problem
	for _, loaded := range p.reached(p.roots...) {
		problems = append(problems, problemsOf(loaded)...)
	}
	return problems
}

func (p *Packages) reached(from ...*loader.Package) []*loader.Package {
	var all []*loader.Package
	seen := map[string]bool{}
	var visit func(*loader.Package)
	visit = func(loaded *loader.Package) {
		if seen[loaded.ID] {
			return
		}
		seen[loaded.ID] = true
		all = append(all, loaded)
		imports := loaded.Imports()
		for _, path := range slices.Sorted(maps.Keys(imports)) {
			visit(imports[path])
		}
	}
	for _, root := range from {
		visit(root)
	}
	return all
}

// problemsOf skips type errors: the compiler reports them, and generated code may be missing.
func problemsOf(loaded *loader.Package) []Problem {
	var problems []Problem
	for _, e := range loaded.Errors {
		if e.Kind == packages.TypeError {
			continue
		}
		problem := Problem{Message: strings.Join(strings.Fields(e.Msg), " ")}
		if parts := strings.Split(e.Pos, ":"); len(parts) >= 2 && strings.HasSuffix(parts[0], ".go") {
			problem.File = parts[0]
			problem.Line, _ = strconv.Atoi(parts[1])
			if len(parts) > 2 {
				problem.Column, _ = strconv.Atoi(parts[2])
			}
		}
		// Each kind with a broken type reports the same problem.
		if !slices.Contains(problems, problem) {
			problems = append(problems, problem)
		}
	}
	return problems
}

func join(problems []Problem) error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}

// ProblemsOf returns the problems in an error of this package, and nil for other errors.
func ProblemsOf(err error) []Problem {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var problems []Problem
	for _, e := range joined.Unwrap() {
		var p Problem
		if !errors.As(e, &p) {
			return nil
		}
		problems = append(problems, p)
	}
	return problems
}
