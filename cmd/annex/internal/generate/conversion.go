package generate

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	conversionargs "k8s.io/code-generator/cmd/conversion-gen/args"
	conversiongen "k8s.io/code-generator/cmd/conversion-gen/generators"
	"k8s.io/gengo/v2/generator"
	"k8s.io/gengo/v2/types"
)

const conversionTag = "k8s:conversion-gen"

// peers returns the packages to and from which the package's types are converted, those named by
// +k8s:conversion-gen=PACKAGE, the hub.
func (s *source) peers() []tag {
	var peers []tag
	for _, t := range s.tags {
		name, value, _ := strings.Cut(t.text, "=")
		if value = strings.TrimSpace(value); strings.TrimSpace(name) == conversionTag && value != "" && value != "false" {
			peers = append(peers, tag{value, t.pos})
		}
	}
	return peers
}

// conversions generates the conversion functions between the package's types and those of its peers.
func (l *packageSet) conversions(s *source) ([]*generator.File, error) {
	if len(s.peers()) == 0 {
		return nil, nil
	}
	c, files := l.context(s, conversiongen.NameSystems(), conversiongen.DefaultNameSystem())
	args := conversionargs.New()
	args.OutputFile = "conversion.go"
	if err := c.ExecuteTargets(conversiongen.GetTargets(c, args)); err != nil {
		return nil, fmt.Errorf("generate conversions of %s: %w", s.path, err)
	}
	for _, f := range files.files {
		if err := s.distinguish(f); err != nil {
			return nil, fmt.Errorf("name conversions of %s: %w", s.path, err)
		}
		if problems := l.unconverted(s, f); len(problems) > 0 {
			return nil, problems
		}
	}
	return files.files, nil
}

// versionName returns the part of a conversion's name that identifies the package of a type. It is the last path
// element, such as v1, or appsv1 for a peer with the same last element as the package itself: Convert_v1_X_To_v1_X
// would stand for both directions.
func (s *source) versionName(pkg string) string {
	version := path.Base(pkg)
	if pkg == s.path || version != path.Base(s.path) {
		return version
	}
	return notInName.ReplaceAllString(path.Base(path.Dir(pkg)), "") + version
}

var (
	notInName      = regexp.MustCompile(`[^A-Za-z0-9]`)
	conversionName = regexp.MustCompile(`^((?:auto)?Convert_)([A-Za-z0-9]+)(_\w+_To_)([A-Za-z0-9]+)(_\w+)$`)
)

// distinguish renames the conversions to and from peers with the package's own name according to versionName. The
// generator names conversions by the last elements of import paths alone. Within a function, all calls convert in the
// direction of the function.
func (s *source) distinguish(f *generator.File) error {
	name := ""
	for _, peer := range s.peers() {
		if peer.text != s.path && path.Base(peer.text) == path.Base(s.path) {
			name = s.versionName(peer.text)
		}
	}
	if name == "" {
		return nil
	}
	const head = "package p\n"
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, f.Name, head+f.Body.String(), parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p, err := partOf(f)
	if err != nil {
		return err
	}
	type edit struct {
		id   *ast.Ident
		text string
	}
	var edits []edit
	rename := func(in ast.Node, from typeRef) {
		ast.Inspect(in, func(n ast.Node) bool {
			if _, foreign := n.(*ast.SelectorExpr); foreign {
				return false
			}
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			m := conversionName.FindStringSubmatch(id.Name)
			if m == nil || m[2] != m[4] || m[2] != path.Base(s.path) {
				return true
			}
			if from.pkg == s.path {
				m[4] = name
			} else {
				m[2] = name
			}
			edits = append(edits, edit{id, strings.Join(m[1:], "")})
			return true
		})
	}
	for _, d := range parsed.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if conversionName.MatchString(fn.Name.Name) {
			rename(fn, p.typeOf(fn.Type.Params.List[0].Type, s))
			continue
		}
		// The registering function calls each conversion with its types.
		ast.Inspect(fn, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 3 {
				if in, ok := call.Args[0].(*ast.TypeAssertExpr); ok {
					rename(call.Fun, p.typeOf(in.Type, s))
				}
			}
			return true
		})
	}
	body := f.Body.String()
	slices.SortFunc(edits, func(a, b edit) int { return int(b.id.Pos() - a.id.Pos()) })
	for _, e := range edits {
		at := fset.Position(e.id.Pos()).Offset - len(head)
		body = body[:at] + e.text + body[at+len(e.id.Name):]
	}
	f.Body.Reset()
	f.Body.WriteString(body)
	return nil
}

var (
	manualConversion  = regexp.MustCompile(`WARNING: (?:in|out)\.(\w+) (.*)`)
	missingConversion = regexp.MustCompile(`FIXME: (.*)`)
	needsConversion   = regexp.MustCompile(`requires manual conversion: `)
	fullPath          = regexp.MustCompile(`[\w.-]+(?:/[\w.-]+)+/([\w-]+\.\w+)`)
)

// unconverted finds missing conversions that the generator could not derive, and that have to be written by hand.
func (l *packageSet) unconverted(s *source, generated *generator.File) Problems {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, generated.Name, "package p\n"+generated.Body.String(), parser.ParseComments)
	if err != nil {
		return asProblems(fmt.Errorf("parse generated conversions of %s: %w", s.path, err))
	}
	p, err := partOf(generated)
	if err != nil {
		return asProblems(err)
	}
	made := map[string]bool{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			made[fn.Name.Name] = true
		}
	}
	var problems Problems
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		name, auto := "", false
		if ok {
			name, auto = strings.CutPrefix(fn.Name.Name, "auto")
		}
		if !auto || len(fn.Type.Params.List) < 2 {
			continue
		}
		if s.declares(name) {
			continue // it handles the fields that the generator could not convert
		}
		in, out := p.typeOf(fn.Type.Params.List[0].Type, s), p.typeOf(fn.Type.Params.List[1].Type, s)
		signature := fmt.Sprintf("func %s(in *%s, out *%s, s conversion.Scope) error", name, in.in(s), out.in(s))
		fields := l.mistaken(in, out, s)
		for _, group := range f.Comments {
			if group.Pos() < fn.Pos() || group.Pos() > fn.End() {
				continue
			}
			for _, comment := range group.List {
				if m := manualConversion.FindStringSubmatch(comment.Text); m != nil {
					fields = append(fields, [2]string{m[1], needsConversion.ReplaceAllString(m[2], "")})
				} else if m := missingConversion.FindStringSubmatch(comment.Text); m != nil {
					fields = append(fields, [2]string{"", m[1]})
				}
			}
		}
		stub := conversionStub(name, signature, in, out, fields)
		for _, field := range fields {
			problem := l.missing(in, out, field[0], field[1], signature, s)
			problem.Stub = stub
			problems = append(problems, problem)
		}
	}
	return problems
}

// conversionStub returns a conversion to be completed by hand. For each field, it calls a function that does not
// exist yet.
func conversionStub(name, signature string, in, out typeRef, fields [][2]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s {\n\tif err := auto%s(in, out, s); err != nil {\n\t\treturn err\n\t}\n", signature, name)
	version := path.Base(out.pkg)
	for _, field := range fields {
		fmt.Fprintf(&b, "\tconvert%s%sTo%s(in, out) // %s\n", in.name, field[0], strings.ToUpper(version[:1])+version[1:], out.reason(field[1]))
	}
	b.WriteString("\treturn nil\n}\n")
	return b.String()
}

// reason rephrases the generator's reason for not converting to t.
func (t typeRef) reason(text string) string {
	return strings.ReplaceAll(
		fullPath.ReplaceAllString(text, "$1"),
		"does not exist in peer-type",
		fmt.Sprintf("%s.%s has no such field", path.Base(t.pkg), t.name),
	)
}

// mistaken finds the fields of in that the generator would convert by Go's rules for numbers and strings, which are
// not the intended conversion: a number becomes a letter, or loses its upper bits.
func (l *packageSet) mistaken(in, out typeRef, s *source) (fields [][2]string) {
	from, to := l.universe.Package(in.pkg).Types[in.name], l.universe.Package(out.pkg).Types[out.name]
	if from == nil || to == nil {
		return nil
	}
	for _, m := range from.Members {
		if slices.ContainsFunc(m.CommentLines, func(line string) bool { return strings.TrimSpace(line) == "+"+conversionTag+"=false" }) {
			continue
		}
		for _, other := range to.Members {
			if m.Name != other.Name {
				continue
			}
			if a, b, bad := lossy(m.Type, other.Type); bad && !s.declares("Convert_"+a+"_To_"+b) {
				fields = append(fields, [2]string{m.Name, fmt.Sprintf("inconvertible types (%s vs %s)", a, b)})
			}
		}
	}
	return fields
}

// lossy compares the element types of pointers, lists and maps.
func lossy(a, b *types.Type) (from, to string, bad bool) {
	for a.Kind == types.Alias {
		a = a.Underlying
	}
	for b.Kind == types.Alias {
		b = b.Underlying
	}
	if a.Kind != b.Kind {
		return "", "", false // the generator reports it
	}
	switch a.Kind {
	case types.Pointer, types.Slice:
		return lossy(a.Elem, b.Elem)
	case types.Map:
		if from, to, bad = lossy(a.Key, b.Key); bad {
			return from, to, bad
		}
		return lossy(a.Elem, b.Elem)
	case types.Builtin:
		from, to = a.Name.Name, b.Name.Name
		return from, to, from != to && !slices.Contains(wider[from], to)
	}
	return "", "", false
}

// wider maps a type to the types that can hold all of its values.
var wider = map[string][]string{
	"int8":    {"int16", "int32", "int", "int64"},
	"int16":   {"int32", "int", "int64"},
	"int32":   {"int", "int64", "float64"},
	"int":     {"int64"},
	"uint8":   {"byte", "uint16", "uint32", "uint", "uint64", "int16", "int32", "int", "int64"},
	"byte":    {"uint8", "uint16", "uint32", "uint", "uint64", "int16", "int32", "int", "int64"},
	"uint16":  {"uint32", "uint", "uint64", "int32", "int", "int64"},
	"uint32":  {"uint", "uint64", "int64"},
	"uint":    {"uint64"},
	"float32": {"float64"},
}

// typeRef is a type of a package.
type typeRef struct{ pkg, name string }

func (p part) typeOf(e ast.Expr, s *source) typeRef {
	star, ok := e.(*ast.StarExpr)
	if !ok {
		return typeRef{}
	}
	switch t := star.X.(type) {
	case *ast.Ident:
		return typeRef{s.path, t.Name}
	case *ast.SelectorExpr:
		if id, ok := t.X.(*ast.Ident); ok {
			return typeRef{p.imports[id.Name], t.Sel.Name}
		}
	}
	return typeRef{}
}

// in returns the type's name as written in the package s.
func (t typeRef) in(s *source) string {
	if t.pkg == s.path {
		return t.name
	}
	return path.Base(t.pkg) + "." + t.name
}

// missing returns the problem of a field, or of a value deeper in the type, that cannot be converted.
func (l *packageSet) missing(in, out typeRef, field, reason, signature string, s *source) Problem {
	at := s.declared[out.name]
	owner := pick(slices.Concat(l.sources, l.neighbours), in.pkg)
	if owner != nil {
		at = owner.declared[in.name]
		if field != "" {
			at = owner.field(in.name, field)
		}
	}
	what := path.Base(in.pkg) + "." + in.name
	if field != "" {
		what += "." + field
	}
	reason = out.reason(reason)
	return Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
		"%s cannot be converted: %s: write %s in package %s, which may call auto%s for the rest",
		what, reason, signature, s.name, signature[len("func "):strings.IndexByte(signature, '(')])}
}

// misnamedConversions finds functions that look like conversions but are not called, because their name does not
// match their types.
func (l *packageSet) misnamedConversions(s *source) Problems {
	if len(s.peers()) == 0 {
		return nil
	}
	namer := conversiongen.NameSystems()[conversiongen.DefaultNameSystem()]
	var problems Problems
	functions := l.universe[s.path].Functions
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		pos, ok := s.declared[name]
		if !ok || !strings.HasPrefix(name, "Convert_") {
			continue
		}
		signature := functions[name].Underlying.Signature
		if len(signature.Parameters) != 3 || signature.Parameters[0].Type.Kind != types.Pointer ||
			signature.Parameters[1].Type.Kind != types.Pointer ||
			signature.Parameters[2].Type.Name != (types.Name{Package: conversionPackage, Name: "Scope"}) ||
			len(signature.Results) != 1 ||
			signature.Results[0].Type.Name.Name != "error" {
			problems = append(problems, Problem{File: pos.Filename, Line: pos.Line, Message: fmt.Sprintf(
				"%s is not a conversion function: declare it as func(in *A, out *B, s conversion.Scope) error, or rename it", name)})
			continue
		}
		named := func(t *types.Type) string {
			if t.Name.Package != s.path && path.Base(t.Name.Package) == path.Base(s.path) {
				return s.versionName(t.Name.Package) + "_" + t.Name.Name
			}
			return namer.Name(t)
		}
		want := fmt.Sprintf("Convert_%s_To_%s", named(signature.Parameters[0].Type.Elem), named(signature.Parameters[1].Type.Elem))
		if name != want {
			problems = append(problems, Problem{File: pos.Filename, Line: pos.Line, Message: fmt.Sprintf(
				"generated code does not call %s: rename the conversion of these types to %s", name, want)})
		}
	}
	return problems
}

// unknownPeers finds tags that do not name a package.
func (l *packageSet) unknownPeers() Problems {
	var problems Problems
	for _, s := range l.sources {
		for _, peer := range s.peers() {
			if p := l.listed[peer.text]; p == nil || len(p.GoFiles) == 0 {
				problems = append(problems, Problem{File: peer.pos.Filename, Line: peer.pos.Line, Message: fmt.Sprintf(
					"+%s=%s: package not found: use the import path of the hub's package", conversionTag, peer.text)})
			}
		}
	}
	return problems
}

// conversionStubs returns stand-ins for the conversions to be generated, since hand-written conversions call them,
// and the imports of the stand-ins by name.
func (l *packageSet) conversionStubs(s *source) (functions string, imports map[string]string) {
	imports = map[string]string{}
	var b strings.Builder
	for i, peer := range s.peers() {
		name := fmt.Sprintf("annexstubpeer%d", i)
		for _, t := range exportedTypes(l.universe.Package(s.path)) {
			if t.Kind != types.Struct || !l.universe.Package(peer.text).Has(t.Name.Name) {
				continue
			}
			imports[name] = peer.text
			own, other := s.versionName(s.path)+"_"+t.Name.Name, s.versionName(peer.text)+"_"+t.Name.Name
			for _, d := range [][4]string{{own, other, t.Name.Name, name + "." + t.Name.Name}, {other, own, name + "." + t.Name.Name, t.Name.Name}} {
				for _, prefix := range []string{"Convert_", "autoConvert_"} {
					if f := prefix + d[0] + "_To_" + d[1]; !s.declares(f) {
						fmt.Fprintf(&b, "func %s(*%s, *%s, annexstubconversion.Scope) error { panic(0) }\n", f, d[2], d[3])
					}
				}
			}
		}
	}
	if b.Len() > 0 {
		imports["annexstubconversion"] = conversionPackage
	}
	return b.String(), imports
}
