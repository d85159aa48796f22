package schema

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"

	"github.com/annexapi/annex/internal/base/typo"
)

const (
	prefix     = "kubebuilder:"
	objectRoot = prefix + "object:root"
)

// foreign are the name prefixes of markers for kubebuilder's other generators. They do not affect how a kind is
// served.
var foreign = []string{"object", "rbac", "webhook", "webhookconfiguration", "scaffold", "ac", "docs-gen", "doc", "conversion"}

func isForeign(name string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), ":")
	return slices.Contains(foreign, first)
}

// objectMarkers are markers for other generators of the same types: deep copies and apply configurations.
var objectMarkers = []string{objectRoot, prefix + "object:generate", prefix + "ac:generate", prefix + "ac:output:package"}

// misspeltObject returns the likely intended marker for an unknown marker of those families.
func misspeltObject(name string) string {
	if family, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), ":"); family != "object" && family != "ac" {
		return ""
	}
	if slices.Contains(objectMarkers, name) {
		return ""
	}
	return typo.Nearest(name, objectMarkers)
}

// nearestForeign is nearest for the markers of other generators.
func nearestForeign(name string) string {
	if near := typo.Nearest(name, objectMarkers); near != "" {
		return near
	}
	family, rest, _ := strings.Cut(strings.TrimPrefix(name, prefix), ":")
	if near := typo.Nearest(family, foreign); near != "" {
		return strings.TrimSuffix(prefix+near+":"+rest, ":")
	}
	return ""
}

// MarkerNames returns the names of all known markers, without arguments, including markers of other families such as
// listType.
func MarkerNames() ([]string, error) {
	registry, err := newRegistry()
	if err != nil {
		return nil, err
	}
	names := slices.Clone(objectMarkers)
	for _, definition := range registry.AllDefinitions() {
		names = append(names, definition.Name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// comment is a kubebuilder marker in a line of a comment.
type comment struct {
	text string // without slashes and plus
	pos  token.Pos
}

// name returns the name of the marker.
func (c comment) name() string {
	name, _, _ := strings.Cut(c.text, "=")
	return strings.TrimSpace(name)
}

func commentsIn(f *ast.File) []comment {
	return slices.DeleteFunc(markersIn(f), func(c comment) bool { return !strings.HasPrefix(c.text, prefix) })
}

// markersIn is commentsIn for all markers, including other families such as +listType.
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

// Marked reports whether the files of a package, which are parsed with comments, have kubebuilder markers that affect
// how its kinds are served. Markers for objects and deep copies do not.
func Marked(files []*ast.File) bool {
	for _, f := range files {
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

// overlookedIn finds the markers that have no meaning at their place. controller-tools treats them as comments.
func (p *Packages) overlookedIn(root *loader.Package) []Problem {
	root.NeedSyntax()
	var problems []Problem
	for _, f := range root.Syntax {
		fields := fieldLists(f)
		for _, c := range commentsIn(f) {
			at := p.fset.Position(c.pos)
			if near := misspeltObject(c.name()); near != "" {
				problems = append(problems, Problem{File: at.Filename, Line: at.Line, Column: at.Column, Message: unknownMarker(c.name(), near)})
			}
			if isForeign(c.name()) {
				continue
			}
			target := []markers.TargetType{markers.DescribesType, markers.DescribesPackage}
			if slices.ContainsFunc(fields, func(list *ast.FieldList) bool { return list.Pos() < c.pos && c.pos < list.End() }) {
				target = []markers.TargetType{markers.DescribesField}
			}
			if i := slices.IndexFunc(target, func(t markers.TargetType) bool { return p.registry.Lookup("+"+c.text, t) != nil }); i >= 0 {
				if message := unknownArgument(p.registry.Lookup("+"+c.text, target[i]), c); message != "" {
					problems = append(problems, Problem{File: at.Filename, Line: at.Line, Column: at.Column, Message: message})
				}
				continue
			}
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Column: at.Column, Message: p.advice(c, target[0])})
		}
	}
	return problems
}

var argumentUnknown = regexp.MustCompile(`unknown argument "([^"]*)"`)

// unknownArgument returns a message about an argument that a marker does not have, or nothing.
func unknownArgument(definition *markers.Definition, c comment) string {
	_, err := definition.Parse("+" + c.text)
	if err == nil {
		return ""
	}
	unknown := argumentUnknown.FindStringSubmatch(err.Error())
	if unknown == nil {
		return ""
	}
	known := slices.Sorted(maps.Keys(definition.Fields))
	if near := typo.Nearest(unknown[1], known); near != "" {
		return fmt.Sprintf("+%s has no argument %s: did you mean %s?", definition.Name, unknown[1], near)
	}
	return fmt.Sprintf("+%s has no argument %s: it has %s", definition.Name, unknown[1], strings.Join(known, ", "))
}

var parserError = regexp.MustCompile(`\(at <input>:\d+:\d+\)`)

// withoutEchoes drops the parser's problems on lines that have a better message.
func withoutEchoes(problems []Problem) []Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool {
		return parserError.MatchString(p.Message) && slices.ContainsFunc(problems, func(other Problem) bool {
			return other.File == p.File && other.Line == p.Line && !parserError.MatchString(other.Message)
		})
	})
}

// fieldLists returns the field lists of struct types, which are positions between their braces.
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

// advice returns the message for a marker that is unknown at its place.
func (p *Packages) advice(c comment, target markers.TargetType) string {
	for other, where := range map[markers.TargetType]string{
		markers.DescribesField:   "a field",
		markers.DescribesType:    "a type",
		markers.DescribesPackage: "the package clause",
	} {
		if other != target && p.registry.Lookup("+"+c.text, other) != nil {
			return fmt.Sprintf("+%s has no effect here: move it above %s", c.name(), where)
		}
	}
	if near := p.nearest(c.name(), target); near != "" {
		return unknownMarker(c.name(), near)
	}
	if near := nearestForeign(c.name()); near != "" {
		return unknownMarker(c.name(), near)
	}
	return fmt.Sprintf("unknown marker +%s: remove it, or use a marker of controller-tools", c.name())
}

func unknownMarker(name, near string) string {
	return fmt.Sprintf("unknown marker +%s: did you mean +%s?", name, near)
}

// nearest returns the known marker that differs by a typing mistake, or nothing. For a marker with named arguments,
// the name is followed by the name of its first argument.
func (p *Packages) nearest(name string, target markers.TargetType) string {
	best, distance := "", 4
	for _, def := range p.registry.AllDefinitions() {
		if def.Target != target {
			continue
		}
		known := []string{def.Name}
		if !def.AnonymousField() {
			for argument := range def.Fields {
				known = append(known, def.Name+":"+argument)
			}
		}
		for _, known := range known {
			if d := typo.Distance(name, known); d < distance || d == distance && known < best {
				best, distance = known, d
			}
		}
	}
	return best
}
