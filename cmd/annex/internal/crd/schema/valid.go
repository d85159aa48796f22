package schema

import (
	"context"
	"fmt"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-tools/pkg/crd"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

// judged are the parts of a definition that markers determine. The server determines the rest: an aggregated API may
// have a group that a CustomResourceDefinition may not have.
var judged = []string{
	"spec.validation",
	"spec.subresources",
	"spec.additionalPrinterColumns",
	"spec.selectableFields",
	"spec.names",
	"spec.versions[0].deprecationWarning",
}

// invalid finds parts of the definition of one version of a kind that a cluster would refuse, and fields that must
// keep unknown fields although their Go types cannot hold them.
func (p *Packages) invalid(
	parser *crd.Parser,
	kind crd.TypeIdent,
	definition apiextensionsv1.CustomResourceDefinition,
) ([]Problem, error) {
	problems, err := p.refused(parser, kind, definition)
	if err != nil || len(problems) > 0 {
		return problems, err
	}
	finder := &finder{packages: p, parser: parser, kind: kind}
	return finder.unpreserved(definition.Spec.Versions[0].Schema.OpenAPIV3Schema, nil), nil
}

// refusedVersions finds parts of any version of a definition that a cluster would refuse. The parser knows the Go
// types.
func (p *Packages) refusedVersions(parser *crd.Parser, definition apiextensionsv1.CustomResourceDefinition) ([]Problem, error) {
	var problems []Problem
	for _, v := range definition.Spec.Versions {
		one := *definition.DeepCopy()
		one.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{*v.DeepCopy()}
		for _, root := range p.roots {
			kind := crd.TypeIdent{Package: root, Name: definition.Spec.Names.Kind}
			gv := parser.GroupVersions[root]
			if gv.Group != definition.Spec.Group || gv.Version != v.Name || parser.Types[kind] == nil {
				continue
			}
			found, err := p.refused(parser, kind, one)
			if err != nil {
				return nil, err
			}
			problems = append(problems, found...)
		}
	}
	return problems, nil
}

// refused finds parts of the definition of one version of a kind that a cluster would refuse.
func (p *Packages) refused(
	parser *crd.Parser,
	kind crd.TypeIdent,
	definition apiextensionsv1.CustomResourceDefinition,
) ([]Problem, error) {
	definition = *definition.DeepCopy()
	definition.Spec.Versions[0].Storage, definition.Spec.Versions[0].Served = true, true
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&definition)
	internal := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(
		&definition,
		internal,
		nil,
	); err != nil {
		return nil, fmt.Errorf("read the definition of %s: %w", kind.Name, err)
	}
	finder := &finder{packages: p, parser: parser, kind: kind}
	var problems []Problem
	for _, e := range validation.ValidateCustomResourceDefinition(context.Background(), internal) {
		if slices.ContainsFunc(judged, func(part string) bool { return strings.HasPrefix(e.Field, part) }) {
			problems = append(problems, finder.problem(e, definition.Spec.Versions[0].Schema.OpenAPIV3Schema))
		}
	}
	return withoutTotals(problems), nil
}

const schemaRoot = "spec.validation.openAPIV3Schema"

// withoutTotals drops problems about the total cost of all rules if a single rule is too expensive.
func withoutTotals(problems []Problem) []Problem {
	mentions := func(text string) func(Problem) bool {
		return func(p Problem) bool { return strings.Contains(p.Message, text) }
	}
	if !slices.ContainsFunc(problems, mentions("estimated rule cost exceeds")) {
		return problems
	}
	problems = slices.DeleteFunc(problems, mentions("contributed to estimated rule cost total"))
	return slices.DeleteFunc(problems, mentions("estimated rule cost total for entire"))
}

// problem converts a problem of a definition to a problem of its markers.
func (f *finder) problem(e *field.Error, root *apiextensionsv1.JSONSchemaProps) Problem {
	rest, inSchema := strings.CutPrefix(e.Field, schemaRoot)
	if !inSchema {
		return f.ofKind(e)
	}
	steps := stepsOf(rest)
	place := f.place(steps)
	keyword := ""
	if place.steps < len(steps) {
		keyword = steps[place.steps].name
	}
	node := schemaAt(root, steps[:place.steps])
	rule := ""
	if keyword == "x-kubernetes-validations" && node != nil {
		if i := steps[place.steps].index; i < len(node.XValidations) {
			rule = node.XValidations[i].Rule
		}
	}
	where, marker := place.marker(f.packages, keyword, rule)
	what := pathOf(steps[:place.steps])
	if marker != "" {
		what = "+" + marker + " of " + what
	}
	detail := e.Detail
	switch {
	case rule != "":
		detail = fmt.Sprintf("rule %q: %s", rule, ruleProblem(detail))
		if part := steps[len(steps)-1].name; part != "rule" && part != keyword {
			detail = part + " of " + detail
		}
	case detail == "" || e.Type == field.ErrorTypeInvalid && keyword == "default" || e.Type == field.ErrorTypeNotSupported:
		detail = e.ErrorBody()
	}
	if t := recursive(place.goType); t != nil && e.Type == field.ErrorTypeRequired && keyword == "type" {
		detail = fmt.Sprintf("the Go type %s is recursive, which a schema cannot express: add +kubebuilder:pruning:PreserveUnknownFields "+
			"and +kubebuilder:validation:Schemaless above the field", t.Obj().Name())
		for _, o := range place.owners {
			if o.target == markers.DescribesField {
				where = o.pos
			}
		}
	}
	at := f.packages.fset.Position(where)
	return Problem{File: at.Filename, Line: at.Line, Column: at.Column, Message: what + ": " + inMarkers(detail)}
}

// recursive returns the struct type of t, or the struct type that it points to, if that type is recursive.
func recursive(t types.Type) *types.Named {
	for t != nil {
		t = types.Unalias(t)
		p, ok := t.Underlying().(*types.Pointer)
		if !ok {
			break
		}
		t = p.Elem()
	}
	named, ok := t.(*types.Named)
	if !ok || !madeOf(t, named, map[types.Type]bool{}) {
		return nil
	}
	return named
}

// ofKind is problem for errors about the kind as a whole.
func (f *finder) ofKind(e *field.Error) Problem {
	keywords := map[string]string{
		"names": "resource", "additionalPrinterColumns": "printcolumn", "selectableFields": "selectablefield",
		"subresources": "subresource", "versions": "deprecatedversion",
	}
	steps := stepsOf(strings.TrimPrefix(e.Field, "spec"))
	place := f.place(nil)
	where, marker := place.nth(f.packages, keywords[steps[0].name], steps[0].index)
	at := f.packages.fset.Position(where)
	what := f.kind.Name
	if marker != "" {
		what = "+" + marker + " of " + what
	}
	return Problem{
		File:    at.Filename,
		Line:    at.Line,
		Column:  at.Column,
		Message: what + ": " + inMarkers(strings.TrimPrefix(e.Field, "spec.")+": "+e.ErrorBody()),
	}
}

var (
	pointer  = regexp.MustCompile(`(?m)^ \|.*$`)
	position = regexp.MustCompile(`ERROR: <input>:\d+:\d+: `)
	property = regexp.MustCompile(`properties\[([^\]]*)\]`)
)

// ruleProblem removes the excerpts from errors of CEL's compiler.
func ruleProblem(detail string) string {
	detail = position.ReplaceAllString(pointer.ReplaceAllString(detail, ""), "")
	detail = strings.Replace(detail, "compilation failed: ", "does not compile: ", 1)
	return strings.TrimSpace(detail)
}

// inMarkers translates schema keywords in a text to markers, on one line.
func inMarkers(text string) string {
	text = strings.NewReplacer(
		"x-kubernetes-list-map-keys", "+listMapKey", "x-kubernetes-list-type", "+listType", "x-kubernetes-map-type", "+mapType",
		"it must have a default or be a required property", "it must be required or have a default: add +required, or +kubebuilder:default",
		schemaRoot+".", "",
	).Replace(property.ReplaceAllString(text, "$1"))
	return strings.Join(strings.Fields(text), " ")
}

// step is an element of a path: a name, and the content of the brackets behind it.
type step struct {
	name, key string
	index     int
}

var stepPattern = regexp.MustCompile(`\.?([^.\[\]]+)(?:\[([^\]]*)\])?`)

func stepsOf(path string) []step {
	var steps []step
	for _, m := range stepPattern.FindAllStringSubmatch(path, -1) {
		s := step{name: m[1], key: m[2]}
		// A key that is not a number leaves the index 0.
		_, _ = fmt.Sscan(m[2], &s.index)
		steps = append(steps, s)
	}
	return steps
}

// pathOf formats the path to a field for messages.
func pathOf(steps []step) string {
	var b strings.Builder
	for _, s := range steps {
		switch s.name {
		case "properties":
			b.WriteString("." + s.key)
		case "items":
			b.WriteString("[]")
		case "additionalProperties":
			b.WriteString("[*]")
		}
	}
	if b.Len() == 0 {
		return "the object"
	}
	return strings.TrimPrefix(b.String(), ".")
}

func schemaAt(s *apiextensionsv1.JSONSchemaProps, steps []step) *apiextensionsv1.JSONSchemaProps {
	for _, step := range steps {
		switch {
		case s == nil:
			return nil
		case step.name == "properties":
			property, ok := s.Properties[step.key]
			if !ok {
				return nil
			}
			s = &property
		case step.name == "items" && s.Items != nil:
			s = s.Items.Schema
		case step.name == "additionalProperties" && s.AdditionalProperties != nil:
			s = s.AdditionalProperties.Schema
		default:
			return nil
		}
	}
	return s
}

// unpreserved finds the fields marked +kubebuilder:pruning:PreserveUnknownFields whose Go types are structs, which
// drop unknown fields. Recursive structs are exempt, since there is no other way to give them a schema.
func (f *finder) unpreserved(s *apiextensionsv1.JSONSchemaProps, steps []step) []Problem {
	if s == nil {
		return nil
	}
	var problems []Problem
	if s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields {
		place := f.place(steps)
		if t := losing(place.goType); t != nil {
			where, marker := place.marker(f.packages, "x-kubernetes-preserve-unknown-fields", "")
			at := f.packages.fset.Position(where)
			what := pathOf(steps)
			if marker != "" {
				what = "+" + marker + " of " + what
			}
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Column: at.Column, Message: fmt.Sprintf(
				"%s: the Go type %s cannot store unknown fields, and would drop them: use runtime.RawExtension or apiextensionsv1.JSON, "+
					"keep the fields with methods MarshalJSON and UnmarshalJSON, or remove the marker",
				what, t.Obj().Name())})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		problems = append(problems, f.unpreserved(&property, append(slices.Clip(steps), step{name: "properties", key: name}))...)
	}
	if s.Items != nil {
		problems = append(problems, f.unpreserved(s.Items.Schema, append(slices.Clip(steps), step{name: "items"}))...)
	}
	if s.AdditionalProperties != nil {
		problems = append(
			problems,
			f.unpreserved(s.AdditionalProperties.Schema, append(slices.Clip(steps), step{name: "additionalProperties"}))...)
	}
	return problems
}

// losing returns the struct within a type that drops unknown fields, or nil. The values of a map are exempt: a schema
// prunes them although it preserves the map.
func losing(t types.Type) *types.Named {
	for t != nil {
		t = types.Unalias(t)
		switch in := t.Underlying().(type) {
		case *types.Pointer:
			t = in.Elem()
			continue
		case *types.Slice:
			t = in.Elem()
			continue
		case *types.Struct:
			named, ok := t.(*types.Named)
			if !ok {
				return nil
			}
			own, _, _ := types.LookupFieldOrMethod(types.NewPointer(t), true, named.Obj().Pkg(), "UnmarshalJSON")
			if own != nil || madeOf(t, named, map[types.Type]bool{}) {
				return nil
			}
			return named
		}
		return nil
	}
	return nil
}

// madeOf reports whether a type has a field, at any depth, of the type part.
func madeOf(t types.Type, part *types.Named, seen map[types.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch in := t.Underlying().(type) {
	case *types.Pointer:
		return is(in.Elem(), part) || madeOf(in.Elem(), part, seen)
	case *types.Slice:
		return is(in.Elem(), part) || madeOf(in.Elem(), part, seen)
	case *types.Map:
		return is(in.Elem(), part) || madeOf(in.Elem(), part, seen)
	case *types.Struct:
		for v := range in.Fields() {
			if is(v.Type(), part) || madeOf(v.Type(), part, seen) {
				return true
			}
		}
	}
	return false
}

func is(t types.Type, named *types.Named) bool { return types.Identical(types.Unalias(t), named) }
