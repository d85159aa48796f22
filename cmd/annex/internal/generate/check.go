package generate

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotypes "go/types"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/tools/go/packages"
)

// check type-checks the packages of the pass, each with an additional file, and returns the problems of these
// packages. Packages between them are checked again too, so that they see the additions; the types of all other
// packages come from the parser.
func (l *packageSet) check(additions map[string]string) (Problems, error) {
	checked := map[string]*gotypes.Package{}
	parsed := l.parsedPackages()
	affected := l.affected()

	var problems Problems
	var checkPackage func(p *packages.Package) (*gotypes.Package, error)
	importer := importerFunc(func(path string) (*gotypes.Package, error) {
		if path == "unsafe" {
			return gotypes.Unsafe, nil
		}
		if p := l.listed[path]; p != nil && affected[path] {
			return checkPackage(p)
		}
		if p := parsed[path]; p != nil {
			return p, nil
		}
		return nil, fmt.Errorf("package %s is not loaded", path)
	})
	checkPackage = func(p *packages.Package) (*gotypes.Package, error) {
		if done, ok := checked[p.PkgPath]; ok {
			return done, nil
		}
		files, err := l.parseFiles(p)
		if err != nil {
			return nil, err
		}
		own := l.source(p.PkgPath) != nil
		if text, ok := additions[p.PkgPath]; ok {
			f, err := parser.ParseFile(l.fset, filepath.Join(filepath.Dir(p.GoFiles[0]), FileName), text, parser.SkipObjectResolution)
			if err != nil {
				return nil, fmt.Errorf("parse generated code: %w", err)
			}
			files = append(files, f)
		}
		cfg := &gotypes.Config{
			Importer:  resolve(p, importer),
			GoVersion: goVersion(p),
			Sizes:     gotypes.SizesFor("gc", runtime.GOARCH),
			Error: func(err error) {
				if e, ok := err.(gotypes.Error); ok && own {
					at := l.fset.Position(e.Pos)
					problems = append(problems, Problem{File: at.Filename, Line: at.Line, Column: at.Column, Message: oneLine(e.Msg)})
				}
			},
		}
		// cfg.Error has collected the errors; Check returns the package as far as it could be typed.
		done, _ := cfg.Check(p.PkgPath, l.fset, files, nil)
		checked[p.PkgPath] = done
		return done, nil
	}
	for _, s := range l.sources {
		if _, err := checkPackage(l.listed[s.path]); err != nil {
			return nil, err
		}
	}
	return problems, nil
}

type importerFunc func(path string) (*gotypes.Package, error)

func (f importerFunc) Import(path string) (*gotypes.Package, error) { return f(path) }

// resolve maps the import paths in p's files to the packages' own paths, which differ for vendored packages.
func resolve(p *packages.Package, next importerFunc) importerFunc {
	return func(path string) (*gotypes.Package, error) {
		if imported := p.Imports[path]; imported != nil {
			return next(imported.PkgPath)
		}
		return next(path)
	}
}

func goVersion(p *packages.Package) string {
	if p.Module == nil || p.Module.GoVersion == "" {
		return ""
	}
	return "go" + p.Module.GoVersion
}

func (l *packageSet) parseFiles(p *packages.Package) ([]*ast.File, error) {
	if s := l.source(p.PkgPath); s != nil {
		return slices.Clone(s.files), nil
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(l.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, syntaxProblems(err)
		}
		files = append(files, f)
	}
	return files, nil
}

// parsedPackages returns all packages that the generators loaded. Their loader does not export them, but each
// declaration leads to its package and each package to its imports.
func (l *packageSet) parsedPackages() map[string]*gotypes.Package {
	found := map[string]*gotypes.Package{}
	var add func(p *gotypes.Package)
	add = func(p *gotypes.Package) {
		if p == nil || found[p.Path()] != nil {
			return
		}
		found[p.Path()] = p
		for _, imported := range p.Imports() {
			add(imported)
		}
	}
	for _, path := range l.base.Inputs {
		for _, t := range l.universe[path].Types {
			add(declaringPackage(t.GoType))
		}
		for _, f := range l.universe[path].Functions {
			add(declaringPackage(f.Underlying.GoType))
		}
	}
	return found
}

// declaringPackage returns the package in which t is declared, if the parts of t reveal it, or nil.
func declaringPackage(t gotypes.Type) *gotypes.Package {
	switch t := t.(type) {
	case *gotypes.Named:
		return t.Obj().Pkg()
	case *gotypes.Struct:
		if t.NumFields() > 0 {
			return t.Field(0).Pkg()
		}
	case *gotypes.Interface:
		if t.NumExplicitMethods() > 0 {
			return t.ExplicitMethod(0).Pkg()
		}
	case *gotypes.Signature:
		if t.Params().Len() > 0 {
			return t.Params().At(0).Pkg()
		}
	}
	return nil
}

// affected returns the packages that were parsed without their generated files, and all packages that import one of
// them, directly or indirectly.
func (l *packageSet) affected() map[string]bool {
	is := map[string]bool{}
	seen := map[string]bool{}
	for _, s := range slices.Concat(l.sources, l.neighbours) {
		is[s.path], seen[s.path] = true, true
	}
	var visit func(p *packages.Package) bool
	visit = func(p *packages.Package) bool {
		if seen[p.PkgPath] {
			return is[p.PkgPath]
		}
		seen[p.PkgPath] = true
		for _, imported := range p.Imports {
			if visit(imported) {
				is[p.PkgPath] = true
			}
		}
		return is[p.PkgPath]
	}
	for _, p := range l.listed {
		visit(p)
	}
	return is
}
