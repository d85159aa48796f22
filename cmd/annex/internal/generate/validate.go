package generate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"iter"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/gengo/v2/namer"
	"k8s.io/gengo/v2/types"

	"github.com/annexapi/annex/cmd/annex/internal/generate/protobuf"
)

// reserved are the names of generated functions in every package. AddToScheme is not among them, since a package may
// declare its own.
var reserved = []string{"API", "openAPIDefinitions", "registerConversions", "registerDefaults", "registerValidations",
	customResourcesFunction, messagesFunction}

// validate finds mistakes that would make the generators fail, while their position is still known.
func (l *packageSet) validate(s *source) Problems {
	var problems Problems
	at := func(pos token.Position, format string, args ...any) {
		problems = append(problems, Problem{File: pos.Filename, Line: pos.Line, Message: fmt.Sprintf(format, args...)})
	}
	if s.group != "" {
		for _, name := range reserved {
			if pos, ok := s.declared[name]; ok {
				at(pos, "%s is the name of a generated function: rename this function", name)
			}
		}
		problems = append(problems, l.notKinds(s)...)
		if len(problems) == 0 && len(findObjects(l.universe[s.path]).kinds) == 0 {
			at(s.position(), "package %s has no kinds: a kind is an exported struct that embeds metav1.TypeMeta and metav1.ObjectMeta", s.name)
		}
	}
	if s.protobuf {
		for _, name := range protobuf.Helpers {
			if pos, ok := s.declared[name]; ok {
				at(pos, "%s is the name of a generated function: rename this function", name)
			}
		}
	}
	for _, t := range exportedTypes(l.universe[s.path]) {
		if t.Kind != types.Struct || hasTag(t, "k8s:deepcopy-gen", "false") || hasTag(t, "kubebuilder:object:generate", "false") ||
			s.methods[t.Name.Name]["DeepCopyInto"] {
			continue
		}
		for _, m := range t.Members {
			if what := uncopyable(m.Type); what != "" {
				at(s.field(t.Name.Name, m.Name), "field %s.%s: %s", t.Name.Name, m.Name, what)
			}
		}
	}
	if s.group != "" {
		problems = append(problems, l.formless(s)...)
		defined := definitions(l.roots(s))
		for _, t := range exportedTypes(l.universe[s.path]) {
			for _, m := range t.Members {
				if defined[t] && nameless(m) {
					at(
						s.field(t.Name.Name, m.Name),
						"field %s.%s: a struct without a name has no OpenAPI definition: declare it as a type",
						t.Name.Name,
						m.Name,
					)
				}
			}
		}
	}
	problems = append(problems, s.badTags()...)
	problems = append(problems, l.misnamedConversions(s)...)
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok && field.Doc != nil {
				problems = append(problems, s.badDefaults(field)...)
			}
			return true
		})
	}
	return problems
}

// methodless finds the exported types that cannot have methods: generic types, and types with fields of these names.
func (l *packageSet) methodless(s *source) Problems {
	var problems Problems
	at := func(pos token.Position, format string, args ...any) {
		problems = append(problems, Problem{File: pos.Filename, Line: pos.Line, Message: fmt.Sprintf(format, args...)})
	}
	for _, t := range exportedTypes(l.universe[s.path]) {
		if hasTag(t, "k8s:deepcopy-gen", "false") || hasTag(t, "kubebuilder:object:generate", "false") {
			continue
		}
		for _, m := range t.Members {
			if slices.Contains([]string{"DeepCopy", "DeepCopyInto", "DeepCopyObject", "OpenAPIModelName"}, m.Name) {
				at(
					s.field(t.Name.Name, m.Name),
					"field %s.%s has the name of a generated method: rename the field; its JSON name may stay",
					t.Name.Name,
					m.Name,
				)
			}
		}
	}
	for t, g := range s.typeSpecs() {
		if isGenericData(t) && !strings.Contains(comments(g.Doc)+comments(t.Doc), "+k8s:deepcopy-gen=false") {
			at(s.fset.Position(t.Pos()), "annex generate cannot generate methods for type %s, which has type parameters: declare types "+
				"without parameters, or add +k8s:deepcopy-gen=false above the type if no API object uses it", t.Name.Name)
		}
	}
	return problems
}

// typeSpecs returns the type declarations in the package's own files, with their enclosing declarations.
func (s *source) typeSpecs() iter.Seq2[*ast.TypeSpec, *ast.GenDecl] {
	return func(yield func(*ast.TypeSpec, *ast.GenDecl) bool) {
		for _, f := range s.files {
			for _, d := range f.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok {
					continue
				}
				for _, spec := range g.Specs {
					if t, ok := spec.(*ast.TypeSpec); ok && !yield(t, g) {
						return
					}
				}
			}
		}
	}
}

// isGenericData reports whether t is exported and generic, and neither an interface nor a function, which get no
// methods anyway.
func isGenericData(t *ast.TypeSpec) bool {
	switch t.Type.(type) {
	case *ast.InterfaceType, *ast.FuncType:
		return false
	}
	return t.TypeParams != nil && t.Name.IsExported()
}

func comments(group *ast.CommentGroup) string {
	var b strings.Builder
	if group != nil {
		for _, c := range group.List {
			b.WriteString(c.Text + "\n")
		}
	}
	return b.String()
}

// notKinds finds types that are not kinds although they have a list, and lists that are not API lists, because they
// do not embed the metadata.
func (l *packageSet) notKinds(s *source) Problems {
	var problems Problems
	add := func(t *types.Type, format string, args ...any) {
		at := s.declared[t.Name.Name]
		problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(format, args...)})
	}
	for _, list := range exportedTypes(l.universe[s.path]) {
		kind, ok := strings.CutSuffix(list.Name.Name, "List")
		i := slices.IndexFunc(list.Members, func(m types.Member) bool { return m.Name == "Items" })
		if !ok || i < 0 || list.Members[i].Type.Kind != types.Slice {
			continue
		}
		item := deref(list.Members[i].Type.Elem)
		if item.Kind != types.Struct || item.Name != (types.Name{Package: s.path, Name: kind}) {
			continue
		}
		isList, isKind := embeds(list, "TypeMeta") && embeds(list, "ListMeta"), embeds(item, "TypeMeta") && embeds(item, "ObjectMeta")
		if !isList && !isKind {
			continue // a list of something else
		}
		for _, meta := range []string{"TypeMeta", "ObjectMeta"} {
			if !embeds(item, meta) {
				add(item, "type %s has a list type, %s, but is not a kind: embed metav1.%s in it", kind, list.Name.Name, meta)
			}
		}
		for _, meta := range []string{"TypeMeta", "ListMeta"} {
			if !embeds(list, meta) {
				add(list, "type %s is not a list type for %s: embed metav1.%s in it", list.Name.Name, kind, meta)
			}
		}
	}
	return problems
}

// sameKinds finds the kinds of s that another package of the pass declares, too.
func (l *packageSet) sameKinds(s *source) Problems {
	var problems Problems
	for _, other := range slices.Concat(l.sources, l.neighbours) {
		if other.path >= s.path || other.group != s.group || other.version != s.version {
			continue
		}
		for _, t := range findObjects(l.universe[s.path]).kinds {
			if there, ok := other.declared[t.Name.Name]; ok {
				at := s.declared[t.Name.Name]
				problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
					"kind %s of %s/%s is also in package %s (%s:%d): rename one of the kinds, or give its package another group or version",
					t.Name.Name, s.group, s.version, other.path, filepath.Base(there.Filename), there.Line)})
			}
		}
	}
	return problems
}

// uncopyable returns the problem of a type that cannot be copied, with its fix, or nothing.
func uncopyable(t *types.Type) string {
	const remove = "cannot be copied: remove it, or add +k8s:deepcopy-gen=false above the type if it is not an API type"
	switch t.Kind {
	case types.Func:
		return "a function " + remove
	case types.Chan:
		return "a channel " + remove
	case types.Interface:
		for name := range t.Methods {
			if strings.HasPrefix(name, "DeepCopy") {
				return ""
			}
		}
		return "an interface cannot be copied: use runtime.RawExtension for content of any kind"
	case types.Struct:
		if t.Name.Package != "" && namer.IsPrivateGoName(t.Name.Name) {
			return fmt.Sprintf("annex generate cannot generate methods for type %s, which is not exported: export the type", t.Name.Name)
		}
	case types.Pointer, types.Slice, types.Array, types.Map:
		return uncopyable(t.Elem)
	}
	return ""
}

// nameless reports whether the definition of m would be that of an unnamed struct type.
func nameless(m types.Member) bool {
	name, _, _ := strings.Cut(reflect.StructTag(m.Tags).Get("json"), ",")
	target := referenced(m.Type)
	return name != "-" && target != nil && target.Name.Package == ""
}

// badDefaults checks the +default tags of one field.
func (s *source) badDefaults(field *ast.Field) Problems {
	var problems Problems
	found := 0
	for _, c := range field.Doc.List {
		value, ok := strings.CutPrefix(strings.TrimSpace(strings.TrimPrefix(c.Text, "//")), "+default=")
		if !ok {
			continue
		}
		at := s.fset.Position(c.Pos())
		if found++; found > 1 {
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: "a second +default: keep one of them"})
		}
		if !strings.HasPrefix(value, "ref(") && !json.Valid([]byte(value)) {
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
				`+default=%s is not JSON: write a string in quotes, as in +default="a"`, value)})
		}
	}
	return problems
}

// field returns the position of a field of a struct type, or of the type if the field is not found.
func (s *source) field(typeName, fieldName string) token.Position {
	pos := s.declared[typeName]
	t, _ := s.typeSpec(typeName)
	for _, field := range structFields(t) {
		for _, name := range field.Names {
			if name.Name == fieldName {
				pos = s.fset.Position(name.Pos())
			}
		}
		if len(field.Names) == 0 && embeddedName(field.Type) == fieldName {
			pos = s.fset.Position(field.Pos())
		}
	}
	return pos
}

// typeSpec returns the declaration of a type and its comment, or nil.
func (s *source) typeSpec(name string) (*ast.TypeSpec, *ast.CommentGroup) {
	for t, g := range s.typeSpecs() {
		if t.Name.Name == name {
			return t, cmp.Or(t.Doc, g.Doc)
		}
	}
	return nil, nil
}

// structFields returns the fields of a struct type, and none for other types.
func structFields(t *ast.TypeSpec) []*ast.Field {
	if t == nil {
		return nil
	}
	st, ok := t.Type.(*ast.StructType)
	if !ok {
		return nil
	}
	return st.Fields.List
}

func embeddedName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return embeddedName(t.X)
	case *ast.SelectorExpr:
		return t.Sel.Name
	case *ast.Ident:
		return t.Name
	}
	return ""
}

var (
	generatedField = regexp.MustCompile(`\bin\.(\w+)\b`)
	noCopyMethod   = regexp.MustCompile(`\(type (\S+) has no field or method DeepCopy\w*\)`)
	openAPIError   = regexp.MustCompile(`(?:[\w./-]+/)?[\w-]+\.(\w+): (\w+): (.*)$`)
)

// explain traces type errors in generated code back to the type and, if possible, the field for which the code was
// generated. sources is the generated code.
func (l *packageSet) explain(problems Problems, sources map[string]string) Problems {
	out := Problems{}
	for _, p := range problems {
		i := slices.IndexFunc(l.sources, func(s *source) bool { return filepath.Join(s.dir, FileName) == p.File })
		if i >= 0 {
			p = l.sources[i].blame(p, sources[l.sources[i].path])
		}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func (s *source) blame(p Problem, text string) Problem {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", text, parser.SkipObjectResolution)
	if err != nil {
		return p
	}
	message := "the code generated for this does not compile: " + p.Message
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || p.Line < fset.Position(fn.Pos()).Line || p.Line > fset.Position(fn.End()).Line {
			continue
		}
		pos := s.position()
		if fn.Recv != nil {
			owner := receiver(fn)
			pos = s.declared[owner]
			line := strings.Split(text, "\n")[p.Line-1]
			if m := generatedField.FindStringSubmatch(line); m != nil {
				pos = s.field(owner, m[1])
			}
		} else if own, ok := s.declared["AddToScheme"]; ok && strings.Contains(p.Message, "AddToScheme") {
			pos = own
			message = "AddToScheme must be a func(*runtime.Scheme) error: " + p.Message
		}
		if m := noCopyMethod.FindStringSubmatch(p.Message); m != nil {
			message = fmt.Sprintf("type %s cannot be copied, for it has no method DeepCopyInto: use a type that has (metav1.Time for time.Time), "+
				"or generate its package too (+k8s:deepcopy-gen=package)", strings.ReplaceAll(m[1], `"`, ""))
		}
		return Problem{File: pos.Filename, Line: pos.Line, Message: message}
	}
	p.File, p.Line, p.Column, p.Message = s.dir, 0, 0, message
	return p
}

// locate finds the field of an error from openapi-gen.
func (s *source) locate(err error) error {
	m := openAPIError.FindStringSubmatch(oneLine(err.Error()))
	if m == nil || !s.declares(m[1]) {
		return err
	}
	pos := s.field(m[1], m[2])
	return Problem{File: pos.Filename, Line: pos.Line, Message: "no OpenAPI definition: " + m[3]}
}
