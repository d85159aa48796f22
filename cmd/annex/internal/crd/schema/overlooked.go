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

// foreign are what kubebuilder's other generators read, by the beginning of their names.
// They say nothing about how a kind is served.
var foreign = []string{"object", "rbac", "webhook", "webhookconfiguration", "scaffold", "ac", "docs-gen", "doc", "conversion"}

func isForeign(name string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), ":")
	return slices.Contains(foreign, first)
}

// objectMarkers are those of the generators that look at the same types: deep copies and
// apply configurations.
var objectMarkers = []string{objectRoot, prefix + "object:generate", prefix + "ac:generate", prefix + "ac:output:package"}

// misspeltObject returns what was meant by a marker of those families that neither knows.
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

// MarkerNames are the names of the markers that are understood, those of other families
// such as listType among them, without arguments.
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

// Marked reports whether the files of a package, which are parsed with their comments,
// have markers of kubebuilder's that say how its kinds are served. That a type is an
// object, or is to be copied, says nothing of that kind.
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

// overlookedIn finds the markers that mean nothing where they stand. controller-tools
// takes them for comments.
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

// unknownArgument says which argument a marker does not have; nothing if it has them all.
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

// withoutEchoes leaves out what the parser says of a marker that a better message is about.
func withoutEchoes(problems []Problem) []Problem {
	return slices.DeleteFunc(slices.Clone(problems), func(p Problem) bool {
		return parserError.MatchString(p.Message) && slices.ContainsFunc(problems, func(other Problem) bool {
			return other.File == p.File && other.Line == p.Line && !parserError.MatchString(other.Message)
		})
	})
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
		return unknownMarker(c.name(), near)
	}
	if near := nearestForeign(c.name()); near != "" {
		return unknownMarker(c.name(), near)
	}
	return fmt.Sprintf("unknown marker +%s: controller-tools has none of this name, remove it or see its list of markers", c.name())
}

func unknownMarker(name, near string) string {
	return fmt.Sprintf("unknown marker +%s: did you mean +%s?", name, near)
}

// nearest returns the known marker that is a typing mistake away, or nothing. Behind the
// name of one with arguments stands the name of its first.
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
