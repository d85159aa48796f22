package generate

import (
	"fmt"
	"go/token"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/gengo/v2/namer"
	"k8s.io/gengo/v2/types"
)

// wellFormedTag matches a struct tag that reflect reads completely; reflect ignores the rest of a malformed one.
var wellFormedTag = regexp.MustCompile(`^ *([^\s":]+:"([^"\\]|\\.)*"( +|$))*$`)

// formless finds fields of API objects that have no JSON form, or another form than in OpenAPI. Go would encode them
// all the same, and the server would fail when a client writes or applies such an object.
func (l *packageSet) formless(s *source) Problems {
	f := &forms{l: l, seen: map[*types.Type]bool{}}
	for _, t := range l.roots(s) {
		f.walk(t, s.declared[t.Name.Name])
	}
	return f.problems
}

type forms struct {
	l        *packageSet
	seen     map[*types.Type]bool
	problems Problems
}

// walk checks the fields of t and of the structs that they contain. A problem of a field outside the pass is reported
// at the field in the pass that leads to it, which is at.
func (f *forms) walk(t *types.Type, at token.Position) {
	if f.seen[t] || t.Name.Package == "" || slices.Contains(suppliedPackages, t.Name.Package) {
		return
	}
	f.seen[t] = true
	f.fields(t, "", at, map[string]string{})
}

// fields checks the fields of t. names maps JSON names that are already taken to their fields; inlinedAs is the path
// to t in the enclosing struct.
func (f *forms) fields(t *types.Type, inlinedAs string, at token.Position, names map[string]string) {
	owner := f.l.declaring(t.Name.Package)
	for _, m := range t.Members {
		pos, who := at, t.Name.Name+"."+m.Name
		if owner != nil {
			pos = owner.field(t.Name.Name, m.Name)
		} else {
			who = t.Name.Package + "." + who
		}
		path := inlinedAs + m.Name
		name, what := jsonName(m, owner != nil)
		if what == "" && name != "-" {
			what = metaName(m, name)
		}
		if what == "" && name != "-" && !leftOut(m) {
			what = noForm(m.Type)
		}
		if there, taken := names[name]; what == "" && taken {
			what = fmt.Sprintf("JSON name %q is already used by %s: rename one of the fields", name, there)
		}
		if what != "" {
			f.problems = append(f.problems, Problem{File: pos.Filename, Line: pos.Line, Message: fmt.Sprintf("field %s: %s", who, what)})
			continue
		}
		target := structOf(m.Type)
		switch {
		case name == "-":
		case name == "":
			if target != nil {
				f.fields(target, path+".", pos, names)
			}
		default:
			names[name] = path
			if target != nil {
				f.walk(target, pos)
			}
		}
	}
}

// declaring returns the package of the pass with this path, or nil.
func (l *packageSet) declaring(path string) *source {
	if s := l.source(path); s != nil {
		return s
	}
	return pick(l.neighbours, path)
}

// jsonName returns the JSON name of m, "-" if it is not encoded, and an empty name if its own fields are inlined; or
// else the problem. mendable is set if the user's module declares m, so that the problem can be fixed there.
func jsonName(m types.Member, mendable bool) (name, wrong string) {
	if namer.IsPrivateGoName(m.Name) && !m.Embedded {
		return "-", "the field is not exported, and objects with such a field cannot be applied: export or remove it"
	}
	if mendable && !wellFormedTag.MatchString(m.Tags) {
		return "-", fmt.Sprintf("the tag `%s` is malformed, so Go ignores it: write `json:\"name\"`, without a space after the colon", m.Tags)
	}
	tag, tagged := reflect.StructTag(m.Tags).Lookup("json")
	if tag == "-" {
		return "-", ""
	}
	name, options, _ := strings.Cut(tag, ",")
	switch {
	case name == "-":
		return "-", `the JSON name of the field would be -: exclude the field with json:"-", or give it a name`
	case name != "":
		return name, ""
	case m.Embedded && !tagged && mendable:
		return "-", fmt.Sprintf(`an embedded type without a tag is part of the JSON, but not of OpenAPI: add the tag json:"%s"`, embeddedTag(m))
	case m.Embedded:
		return "", ""
	case options != "":
		return "-", fmt.Sprintf(
			`json:"%s" has no name: write json:"%s"`,
			tag,
			strings.Replace(strings.ToLower(m.Name[:1])+m.Name[1:]+","+options, ",inline", "", 1),
		)
	}
	return m.Name, ""
}

func embeddedTag(m types.Member) string {
	if isMeta(m, "ObjectMeta") || isMeta(m, "ListMeta") {
		return "metadata,omitempty"
	}
	return ",inline"
}

// metaName checks that the metadata of objects is where clients look for it.
func metaName(m types.Member, name string) string {
	switch {
	case !m.Embedded:
	case isMeta(m, "TypeMeta") && name != "":
		return `apiVersion and kind must be fields of the object itself: use the tag json:",inline"`
	case (isMeta(m, "ObjectMeta") || isMeta(m, "ListMeta")) && name != "metadata":
		return `clients expect the field as metadata: use the tag json:"metadata,omitempty"`
	}
	return ""
}

func isMeta(m types.Member, name string) bool {
	return m.Type.Name == types.Name{Package: metaPackage, Name: name}
}

// noForm returns the problem of a type that a server cannot serve, with its fix, or nothing.
func noForm(t *types.Type) string {
	switch {
	case t.Name == types.Name{Package: "encoding/json", Name: "RawMessage"}:
		return "OpenAPI treats json.RawMessage as a string: use runtime.RawExtension for objects, apiextensionsv1.JSON for anything"
	case hasOwnJSON(t):
		return ""
	}
	switch t.Kind {
	case types.Alias:
		return noForm(t.Underlying)
	case types.Array:
		return "an array cannot be applied: use a slice"
	case types.Pointer:
		if underlying(t.Elem).Kind == types.Pointer {
			return "a pointer to a pointer cannot be applied: use one pointer"
		}
		return noForm(t.Elem)
	case types.Slice:
		return noForm(t.Elem)
	case types.Map:
		if key := underlying(t.Key); key != types.String {
			return fmt.Sprintf("keys of type %s have no form in OpenAPI: use strings", t.Key.Name.Name)
		}
		return noForm(t.Elem)
	case types.Struct:
		if strings.Contains(t.Name.Name, "[") || len(t.TypeParams) > 0 {
			return fmt.Sprintf("type %s is generic, and has neither copying methods nor OpenAPI: declare a type without parameters", t.Name.Name)
		}
	case types.Builtin, types.Unsupported, types.Unknown:
		switch name := t.Name.Name; name {
		case "uint64", "uintptr":
			return name + " cannot be applied: use int64"
		case "rune":
			return "rune is not an OpenAPI type: use int32, or string for text"
		case "complex64", "complex128":
			return name + " has no form in JSON: use strings"
		}
	}
	return ""
}

// underlying resolves type names, but not pointers.
func underlying(t *types.Type) *types.Type {
	for t.Kind == types.Alias {
		t = t.Underlying
	}
	return t
}

// structOf returns the struct within the elements of t, or nil.
func structOf(t *types.Type) *types.Type {
	for !hasOwnJSON(t) {
		switch t.Kind {
		case types.Struct:
			return t
		case types.Alias:
			t = t.Underlying
		case types.Pointer, types.Slice, types.Map:
			t = t.Elem
		default:
			return nil
		}
	}
	return nil
}

// hasOwnJSON reports whether t has a JSON encoding of its own.
func hasOwnJSON(t *types.Type) bool {
	return t.Methods["MarshalJSON"] != nil
}
