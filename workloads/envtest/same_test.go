package envtest_test

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"testing"
)

// without are the names of controller-runtime's package that this package does not have.
var without = map[string]string{
	"DefaultBinaryAssetsIndexURL": "a variable about downloads",
	"DefaultKubeAPIServerFlags":   "a deprecated variable with flags of a process",
}

// A suite changes one import line, whichever names of the package it uses.
func TestNames_ofControllerRuntime(t *testing.T) {
	theirs := exported(t, "sigs.k8s.io/controller-runtime/pkg/envtest")
	if len(theirs) < 20 {
		t.Fatalf("only %q found", theirs)
	}
	ours := exported(t, "github.com/annexapi/annex/workloads/envtest")
	for _, name := range theirs {
		if _, known := without[name]; known == slices.Contains(ours, name) {
			t.Errorf("%s of controller-runtime: missing here is %t, and listed as missing is %t", name, !slices.Contains(ours, name), known)
		}
	}
}

// exported returns the names of a package that its users see.
func exported(t *testing.T, path string) []string {
	t.Helper()
	dir, err := build.Import(path, ".", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir.Dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, file := range files {
		if matched, _ := filepath.Match("*_test.go", filepath.Base(file)); matched {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range parsed.Decls {
			for _, name := range declaredNames(declared) {
				if name.IsExported() {
					names[name.Name] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// declaredNames returns the names of a declaration at the level of the package.
func declaredNames(d ast.Decl) []*ast.Ident {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		var names []*ast.Ident
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name)
			case *ast.ValueSpec:
				names = append(names, spec.Names...)
			}
		}
		return names
	}
	return nil
}
