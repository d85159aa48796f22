package lint

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"slices"
	"strings"
)

// unenforced finds types with rules that no server enforces: types that are not part of a kind, request or options of
// an API package, and requests and options in packages without a group. They break no client, so each finding is a
// note.
func (s *source) unenforced() []Finding {
	reached := map[string]bool{}
	for _, v := range s.versions {
		for _, object := range scope(v.pkg) {
			if isObject(object) {
				s.reach(object.Type(), reached)
			}
		}
	}
	var findings []Finding
	for _, key := range slices.Sorted(maps.Keys(s.types)) {
		d := s.types[key]
		named := ruleIn(d.spec, d.marks)
		if named == "" || reached[key] {
			continue
		}
		at := s.position(d.spec.Pos())
		findings = append(findings, Finding{
			File: at.Filename, Line: at.Line, Rule: "marker-unenforced", Where: d.pkg.Types.Name() + "." + d.spec.Name.Name, Note: true,
			Message: fmt.Sprintf("+%s has no effect: no kind, request or options of an API package uses the type; remove the marker, or "+
				"use the type", named),
		})
	}
	for _, p := range s.parsed {
		if s.packages[p.path] != nil {
			continue
		}
		for _, f := range p.files {
			findings = append(findings, s.unenforcedIn(f)...)
		}
	}
	return findings
}

// unenforcedIn finds requests and options in a file of a package that is not an API package.
func (s *source) unenforcedIn(f *ast.File) []Finding {
	var findings []Finding
	for _, declaration := range f.Decls {
		general, ok := declaration.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range general.Specs {
			t, ok := spec.(*ast.TypeSpec)
			if !ok || !embedsTypeMeta(t) {
				continue
			}
			named := ruleIn(t, marksOf(general.Doc, t.Doc))
			if named == "" {
				continue
			}
			at := s.position(t.Pos())
			findings = append(findings, Finding{
				File: at.Filename, Line: at.Line, Rule: "marker-unenforced", Where: f.Name.Name + "." + t.Name.Name, Note: true,
				Message: fmt.Sprintf("+%s has no effect: annex generates no validation for a package without a group; move the type into "+
					"an API package", named),
			})
		}
	}
	return findings
}

// ruleIn returns the name of a marker, on a type or on one of its fields, that constrains values, or an empty string.
func ruleIn(t *ast.TypeSpec, own marks) string {
	all := []marks{own}
	if structure, ok := t.Type.(*ast.StructType); ok {
		for _, f := range structure.Fields.List {
			all = append(all, marksOf(f.Doc))
		}
	}
	for _, m := range all {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			w, ok := word(name)
			rule := !slices.Contains(aside, w) || slices.Contains([]string{"required", "xvalidation", "items:xvalidation", "enum"}, w)
			if ok && rule || name == "kubebuilder:default" {
				return name
			}
		}
	}
	return ""
}

func embedsTypeMeta(t *ast.TypeSpec) bool {
	structure, ok := t.Type.(*ast.StructType)
	return ok && slices.ContainsFunc(structure.Fields.List, func(f *ast.Field) bool {
		selector, ok := f.Type.(*ast.SelectorExpr)
		return ok && len(f.Names) == 0 && selector.Sel.Name == "TypeMeta"
	})
}

// isObject reports whether a type is a kind, a list, or another object that clients send.
func isObject(object types.Object) bool {
	structure, ok := object.Type().Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range structure.Fields() {
		if named, ok := types.Unalias(f.Type()).(*types.Named); ok && f.Embedded() && strings.HasSuffix(typeKey(named), "/meta/v1.TypeMeta") {
			return true
		}
	}
	return false
}

// reach marks all types within a type.
func (s *source) reach(t types.Type, reached map[string]bool) {
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		if !s.own(t) || reached[typeKey(t)] {
			return
		}
		reached[typeKey(t)] = true
		s.reach(t.Underlying(), reached)
		// A type that is declared from another type has that type's markers, too.
		if d := s.types[typeKey(t)]; d != nil {
			if of := d.pkg.TypesInfo.TypeOf(d.spec.Type); of != nil {
				s.reach(of, reached)
			}
		}
	case *types.Struct:
		for f := range t.Fields() {
			s.reach(f.Type(), reached)
		}
	case *types.Map:
		s.reach(t.Key(), reached)
		s.reach(t.Elem(), reached)
	case interface{ Elem() types.Type }: // pointers, slices and arrays
		s.reach(t.Elem(), reached)
	}
}
