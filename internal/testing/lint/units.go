package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/packages"
)

// A depth is how much of a package is read and analyzed.
type depth int

const (
	declared depth = iota // the types
	known                 // and the facts that analyzers export
	checked               // and what analyzers find
)

// unit is a package, or its variant with the package's tests.
type unit struct {
	*packages.Package
	depth   depth
	imports map[string]*unit // by the paths that its sources have
	users   []*unit          // those that import it
	waits   int              // the imports that are not yet read
	types   *types.Package
	found   []analysis.Diagnostic
}

// load returns the packages that the patterns match, with their tests, and all their dependencies. Facts are for dependencies that
// a matched package imports, or for all if deep is set.
func load(patterns []string, deep bool) ([]*unit, error) {
	roots, err := packages.Load(&packages.Config{
		Mode:  packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedModule | packages.NeedTypesSizes,
		Tests: true,
	}, patterns...)
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var units []*unit
	var broken []error
	byID := map[string]*unit{}
	var add func(p *packages.Package) *unit
	add = func(p *packages.Package) *unit {
		u := byID[p.ID]
		if u != nil {
			return u
		}
		u = &unit{Package: p, imports: map[string]*unit{}}
		byID[p.ID] = u
		units = append(units, u)
		for _, err := range p.Errors {
			broken = append(broken, err)
		}
		for path, needed := range p.Imports {
			n := add(needed)
			u.imports[path] = n
			n.users = append(n.users, u)
			u.waits++
		}
		return u
	}
	for _, root := range roots {
		if strings.HasSuffix(root.ID, ".test") {
			continue // the main package that the go command writes
		}
		u := add(root)
		u.depth = checked
	}
	if len(broken) > 0 {
		return nil, errors.Join(broken...)
	}
	for _, u := range units {
		if deep {
			u.depth = max(u.depth, known)
		}
		if u.depth != checked {
			continue
		}
		for _, n := range u.imports {
			n.depth = max(n.depth, known)
		}
	}
	for _, u := range units {
		// The variant with the tests has all files of the package.
		if tested := byID[u.PkgPath+" ["+u.PkgPath+".test]"]; tested != nil && tested != u {
			u.depth = min(u.depth, known)
		}
	}
	return units, nil
}

// run reads and analyzes the packages, each after those that it imports, on all processors.
func run(files *token.FileSet, units []*unit) error {
	store := &facts{}
	ready := make(chan *unit, len(units))
	var mutex sync.Mutex
	var broken []error
	left := len(units)
	for _, u := range units {
		if u.waits == 0 {
			ready <- u
		}
	}
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for u := range ready {
				err := u.read(files, store)
				mutex.Lock()
				if err != nil {
					broken = append(broken, err)
				}
				for _, user := range u.users {
					if user.waits--; user.waits == 0 {
						ready <- user
					}
				}
				if left--; left == 0 {
					close(ready)
				}
				mutex.Unlock()
			}
		})
	}
	workers.Wait()
	return errors.Join(broken...)
}

// read parses a package, checks its types and runs the analyzers of its depth.
func (u *unit) read(files *token.FileSet, store *facts) error {
	if u.PkgPath == "unsafe" {
		u.types = types.Unsafe
		return nil
	}
	for _, n := range u.imports {
		if n.types == nil {
			return nil // its own error is enough
		}
	}
	mode := parser.SkipObjectResolution
	if u.depth > declared {
		mode = parser.ParseComments
	}
	var syntax []*ast.File
	for _, name := range u.GoFiles {
		file, err := parser.ParseFile(files, name, nil, mode)
		if err != nil {
			return err
		}
		syntax = append(syntax, file)
	}
	config := types.Config{
		Importer:         importer(u.imports),
		Sizes:            u.TypesSizes,
		IgnoreFuncBodies: u.depth == declared,
	}
	var info *types.Info
	if u.depth > declared {
		info = &types.Info{
			Types:        map[ast.Expr]types.TypeAndValue{},
			Defs:         map[*ast.Ident]types.Object{},
			Uses:         map[*ast.Ident]types.Object{},
			Implicits:    map[ast.Node]types.Object{},
			Instances:    map[*ast.Ident]types.Instance{},
			Scopes:       map[ast.Node]*types.Scope{},
			Selections:   map[*ast.SelectorExpr]*types.Selection{},
			FileVersions: map[*ast.File]string{},
		}
	}
	var module *analysis.Module
	if u.Module != nil {
		module = &analysis.Module{Path: u.Module.Path, Version: u.Module.Version, GoVersion: u.Module.GoVersion}
		if u.Module.GoVersion != "" {
			config.GoVersion = "go" + u.Module.GoVersion
		}
	}
	var err error
	if u.types, err = config.Check(u.PkgPath, files, syntax, info); err != nil {
		return fmt.Errorf("check the types of %s: %w", u.ID, err)
	}
	if u.depth == declared || len(syntax) == 0 {
		return nil
	}
	return u.analyze(store, analysis.Pass{
		Fset:         files,
		Files:        syntax,
		OtherFiles:   u.OtherFiles,
		IgnoredFiles: u.IgnoredFiles,
		Pkg:          u.types,
		TypesInfo:    info,
		TypesSizes:   u.TypesSizes,
		Module:       module,
	})
}

type importer map[string]*unit

func (i importer) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	u := i[path]
	if u == nil {
		return nil, fmt.Errorf("%s is not listed as an import", path)
	}
	return u.types, nil
}
