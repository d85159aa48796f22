package schema

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"

	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"

	"github.com/annexapi/annex/cmd/annex/internal/typo"
)

const prefix = "kubebuilder:"

// foreign are what kubebuilder's other generators read, by the beginning of their names.
// They say nothing about how a kind is served.
var foreign = []string{"object", "rbac", "webhook", "webhookconfiguration", "scaffold", "ac", "docs-gen", "doc", "conversion"}

func isForeign(name string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), ":")
	return slices.Contains(foreign, first)
}

// comment is a line of a comment that is one of kubebuilder's markers.
type comment struct {
	text string // without slashes and plus
	pos  token.Pos
}

// name is the marker's, without its value.
func (c comment) name() string {
	name, _, _ := strings.Cut(c.text, "=")
	return strings.TrimSpace(name)
}

func commentsIn(f *ast.File) []comment {
	return slices.DeleteFunc(markersIn(f), func(c comment) bool { return !strings.HasPrefix(c.text, prefix) })
}

// markersIn is commentsIn for the markers of other families, too, such as +listType.
func markersIn(f *ast.File) []comment {
	var all []comment
	for _, group := range f.Comments {
		for _, line := range group.List {
			text, ok := strings.CutPrefix(line.Text, "//")
			if !ok {
				continue
			}
			if text, ok = strings.CutPrefix(strings.TrimSpace(text), "+"); ok {
				all = append(all, comment{text, line.Pos()})
			}
		}
	}
	return all
}

// marked says whether a package has markers of kubebuilder's that say how its kinds are
// served. That a type is an object, or is to be copied, says nothing of that kind.
func (p *Packages) marked(root *loader.Package) bool {
	for _, f := range root.Syntax {
		for _, c := range commentsIn(f) {
			if !isForeign(c.name()) {
				return true
			}
		}
	}
	return false
}

func (p *Packages) overlooked() []Problem {
	var problems []Problem
	for _, root := range p.roots {
		problems = append(problems, p.overlookedIn(root)...)
	}
	return problems
}

// overlookedIn finds the markers that mean nothing where they stand. controller-tools
// takes them for comments.
func (p *Packages) overlookedIn(root *loader.Package) []Problem {
	root.NeedSyntax()
	var problems []Problem
	for _, f := range root.Syntax {
		fields := fieldLists(f)
		for _, c := range commentsIn(f) {
			if isForeign(c.name()) {
				continue
			}
			target := []markers.TargetType{markers.DescribesType, markers.DescribesPackage}
			if slices.ContainsFunc(fields, func(list *ast.FieldList) bool { return list.Pos() < c.pos && c.pos < list.End() }) {
				target = []markers.TargetType{markers.DescribesField}
			}
			if slices.ContainsFunc(target, func(t markers.TargetType) bool { return p.registry.Lookup("+"+c.text, t) != nil }) {
				continue
			}
			at := p.fset.Position(c.pos)
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Column: at.Column, Message: p.advice(c, target[0])})
		}
	}
	return problems
}

// fieldLists are the places between the braces of struct types.
func fieldLists(f *ast.File) []*ast.FieldList {
	var lists []*ast.FieldList
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.StructType); ok {
			lists = append(lists, s.Fields)
		}
		return true
	})
	return lists
}

// advice says what is wrong with a marker that is unknown where it stands.
func (p *Packages) advice(c comment, target markers.TargetType) string {
	for other, where := range map[markers.TargetType]string{
		markers.DescribesField:   "a field",
		markers.DescribesType:    "a type",
		markers.DescribesPackage: "the package clause",
	} {
		if other != target && p.registry.Lookup("+"+c.text, other) != nil {
			return fmt.Sprintf("+%s has no effect here: it belongs above %s", c.name(), where)
		}
	}
	if near := p.nearest(c.name(), target); near != "" {
		return fmt.Sprintf("unknown marker +%s: did you mean +%s?", c.name(), near)
	}
	return fmt.Sprintf("unknown marker +%s: controller-tools has none of this name, remove it or see its list of markers", c.name())
}

// nearest returns the known marker that is a typing mistake away, or nothing.
func (p *Packages) nearest(name string, target markers.TargetType) string {
	best, distance := "", 4
	for _, def := range p.registry.AllDefinitions() {
		if def.Target != target {
			continue
		}
		if d := typo.Distance(name, def.Name); d < distance || d == distance && def.Name < best {
			best, distance = def.Name, d
		}
	}
	return best
}
