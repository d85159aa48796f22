package generate

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	gotypes "go/types"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/gengo/v2/generator"
	"k8s.io/gengo/v2/namer"
	"k8s.io/gengo/v2/types"

	"github.com/annexapi/annex/cmd/annex/internal/generate/protobuf"
)

// part is code of one generator: declarations, and the imports behind the names in them.
type part struct {
	name    string
	imports map[string]string // path by local name
	body    string
	// variables is set if the part's variables are kept, too, as for validations.
	variables bool
}

func partOf(f *generator.File) (part, error) {
	return newPart(f.Name, f.Imports, f.Body.String())
}

// newPart makes a part of code and its import lines.
func newPart(name string, imports map[string]struct{}, body string) (part, error) {
	p := part{name: name, body: body, imports: map[string]string{}}
	for line := range imports {
		name, quoted, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			name, quoted = "", line
		}
		importPath := quoted
		if strings.HasPrefix(quoted, `"`) {
			var err error
			if importPath, err = strconv.Unquote(quoted); err != nil {
				return part{}, fmt.Errorf("import %s: %w", line, err)
			}
		}
		if name == "" {
			name = path.Base(importPath)
		}
		p.imports[name] = importPath
	}
	return p, nil
}

// merger merges the parts of one package into one file.
type merger struct {
	src   *source
	names map[string]string // import name by path
	taken map[string]bool   // names that imports must not use
	decls []declaration

	ownSchemas string // see schemaPrefix
}

// declaration is a function in the file. Declarations are sorted by group, then by key, then in the order of
// addition.
type declaration struct {
	group int
	key   string
	text  string
}

const (
	groupFacts = iota
	groupRegistration
	groupDefaults
	groupMethods
	groupConversions
	groupValidations
	groupDefinitions
	groupProtobuf
	groupCustomResources
)

// localNames are the identifiers of the generators' parameters and variables, which would shadow an import of that
// name.
var localNames = []string{
	"in",
	"out",
	"key",
	"val",
	"i",
	"c",
	"a",
	"b",
	"ok",
	"obj",
	"ref",
	"clone",
	"scheme",
	"inVal",
	"outVal",
	"ptrVar",
	"gv",
	"ctx",
	"op",
	"fldPath",
	"oldObj",
	"errs",
	"e",
	"fn",
	"oldVal",
	"earlyReturn",
	"list",
	"item",
	"oldValueCorrelated",
	"s",
	"newVal",
	"value",
	"oldValue",
	"m",
	"data",
	"n",
	"err",
	"l",
	"k",
	"v",
	"x",
	"j",
	"end",
	"entry",
	"keys",
	"depth",
}

func newMerger(s *source) *merger {
	m := &merger{src: s, names: map[string]string{}, taken: map[string]bool{}, ownSchemas: schemaPrefix(s.path)}
	for name := range s.declared {
		m.taken[name] = true
	}
	for _, name := range localNames {
		m.taken[name] = true
	}
	return m
}

// add adds the functions of p that the package does not declare itself, and the variables if p.variables is set. It
// drops all other declarations, above all init functions. It adds the names of the added functions to functions.
func (m *merger) add(p part, functions map[string]bool) error {
	head := "package p\n"
	fset := token.NewFileSet()
	src := head + p.body
	f, err := parser.ParseFile(fset, p.name, src, parser.ParseComments)
	if err != nil {
		return fmt.Errorf("parse generated %s: %w", p.name, err)
	}
	unresolved := map[*ast.Ident]bool{}
	for _, id := range f.Unresolved {
		unresolved[id] = true
	}
	for _, d := range f.Decls {
		if v, ok := d.(*ast.GenDecl); ok && v.Tok == token.VAR && p.variables {
			base := fset.Position(v.Pos()).Offset
			edits := m.edits(fset, v, p, unresolved)
			m.decls = append(m.decls, declaration{group: groupValidations, text: rewrite(src[base:fset.Position(v.End()).Offset], base, edits)})
			continue
		}
		fn, ok := d.(*ast.FuncDecl)
		if !ok || m.skips(fn) {
			continue
		}
		if fn.Recv == nil {
			functions[m.rename(fn.Name.Name)] = true
		}
		start := fn.Pos()
		if fn.Name.Name == "RegisterConversions" {
			fn.Doc = nil // the comment only repeats that the function is exported
		}
		if fn.Doc != nil {
			start = fn.Doc.Pos()
		}
		base := fset.Position(start).Offset
		edits := m.edits(fset, fn, p, unresolved)
		text := rewrite(src[base:fset.Position(fn.End()).Offset], base, edits)
		if object, ok := strings.CutPrefix(fn.Name.Name, "SetObjectDefaults_"); ok && fn.Doc == nil {
			text = fmt.Sprintf("// %s sets the defaults of %s and of everything in it.\n%s", fn.Name.Name, object, text)
		}
		if fn.Name.Name == "RegisterConversions" {
			text = "// registerConversions registers the conversions between this package's types and the hub's.\n" + text
		}
		m.decls = append(m.decls, declaration{group: groupOf(fn), key: keyOf(fn), text: text})
	}
	return nil
}

// skips reports whether fn is dropped: init functions, registration that the facts replace, and functions that the
// package declares itself.
func (m *merger) skips(fn *ast.FuncDecl) bool {
	if fn.Recv != nil {
		return m.src.methods[receiver(fn)][fn.Name.Name]
	}
	return fn.Name.Name == "init" || fn.Name.Name == "RegisterDefaults" || m.src.declares(m.rename(fn.Name.Name))
}

// rename returns the name of a generated function in the file. Functions for the package's own types need no import
// path in their name.
func (m *merger) rename(name string) string {
	switch name {
	case "GetOpenAPIDefinitions":
		return "openAPIDefinitions"
	case "RegisterConversions":
		return "registerConversions"
	}
	if own, ok := strings.CutPrefix(name, m.ownSchemas); ok {
		return "schema_" + own
	}
	return name
}

// schemaPrefix returns the prefix of the definition functions for types of one package, which openapi-gen makes of
// the last elements of its path.
func schemaPrefix(importPath string) string {
	t := &types.Type{Name: types.Name{Package: importPath, Name: "T"}}
	strategy := &namer.NameStrategy{
		Join:                func(_ string, in []string, _ string) string { return strings.Join(in, "_") },
		PrependPackageNames: 4,
	}
	return "schema_" + strings.TrimSuffix(strategy.Name(t), "T")
}

type edit struct {
	offset, length int
	text           string
}

// edits returns the changes in a declaration: the import names of this file, and the names of generated functions.
func (m *merger) edits(fset *token.FileSet, d ast.Decl, p part, unresolved map[*ast.Ident]bool) []edit {
	var edits []edit
	replace := func(id *ast.Ident, text string) {
		if id.Name != text {
			edits = append(edits, edit{fset.Position(id.Pos()).Offset, len(id.Name), text})
		}
	}
	fn, isFunc := d.(*ast.FuncDecl)
	if isFunc {
		replace(fn.Name, m.rename(fn.Name.Name))
	}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok && unresolved[id] {
				if importPath, ok := p.imports[id.Name]; ok {
					replace(id, m.importName(importPath))
				}
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok {
				replace(id, m.rename(id.Name))
			}
		}
		return true
	})
	if isFunc {
		edits = append(edits, orderDefaulters(fset, fn)...)
	}
	slices.SortFunc(edits, func(a, b edit) int { return a.offset - b.offset })
	return edits
}

// orderDefaulters sorts the calls of several SetDefaults functions of one value by name: SetDefaults_T,
// SetDefaults_T_A, SetDefaults_T_B. The generator takes them from a map, so their order would change from run to run.
func orderDefaulters(fset *token.FileSet, fn *ast.FuncDecl) []edit {
	var edits []edit
	flush := func(run []*ast.Ident) {
		names := make([]string, len(run))
		for i, id := range run {
			names[i] = id.Name
		}
		slices.Sort(names)
		for i, id := range run {
			if id.Name != names[i] {
				edits = append(edits, edit{fset.Position(id.Pos()).Offset, len(id.Name), names[i]})
			}
		}
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		block, ok := n.(*ast.BlockStmt)
		if !ok {
			return true
		}
		var run []*ast.Ident
		var of string
		for _, stmt := range block.List {
			id, value := defaulterCall(stmt)
			if id == nil || value != of {
				flush(run)
				run, of = nil, value
			}
			if id != nil {
				run = append(run, id)
			}
		}
		flush(run)
		return true
	})
	return edits
}

// defaulterCall returns the function's name if stmt calls a SetDefaults function, and a key of its type and argument.
// Calls with different keys must not be mixed.
func defaulterCall(stmt ast.Stmt) (*ast.Ident, string) {
	expr, ok := stmt.(*ast.ExprStmt)
	if !ok {
		return nil, ""
	}
	call, ok := expr.X.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return nil, ""
	}
	id, ok := call.Fun.(*ast.Ident)
	if !ok {
		return nil, ""
	}
	name, ok := strings.CutPrefix(id.Name, "SetDefaults_")
	if !ok {
		return nil, ""
	}
	typeName, _, _ := strings.Cut(name, "_")
	return id, typeName + " " + gotypes.ExprString(call.Args[0])
}

func rewrite(text string, base int, edits []edit) string {
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.WriteString(text[at : e.offset-base])
		b.WriteString(e.text)
		at = e.offset - base + e.length
	}
	b.WriteString(text[at:])
	return b.String()
}

var (
	versionElement = regexp.MustCompile(`^v[0-9]+((alpha|beta)[0-9]*)?$`)
	notIdentifier  = regexp.MustCompile(`[^a-zA-Z0-9_]+`)
)

// importName returns the file's import name for importPath: metav1, the path's last element, or, if that is a
// version, the last two elements, as is the custom.
func (m *merger) importName(importPath string) string {
	if name, ok := m.names[importPath]; ok {
		return name
	}
	elements := strings.Split(importPath, "/")
	name := elements[len(elements)-1]
	switch {
	case importPath == metaPackage:
		name = "metav1"
	case versionElement.MatchString(name) && len(elements) > 1:
		name = elements[len(elements)-2] + name
	}
	name = notIdentifier.ReplaceAllString(name, "")
	if token.IsKeyword(name) || name == "" || !token.IsIdentifier(name) {
		name = "pkg" + name
	}
	unique := name
	for i := 2; m.taken[unique]; i++ {
		unique = name + strconv.Itoa(i)
	}
	m.taken[unique] = true
	m.names[importPath] = unique
	return unique
}

func groupOf(fn *ast.FuncDecl) int {
	name := fn.Name.Name
	switch {
	case fn.Recv != nil:
		return groupMethods
	case strings.HasPrefix(name, "SetObjectDefaults_"):
		return groupDefaults
	case name == "GetOpenAPIDefinitions" || strings.HasPrefix(name, "schema_"):
		return groupDefinitions
	case slices.Contains(protobuf.Helpers, name):
		return groupProtobuf
	case name == customResourcesFunction, name == messagesFunction:
		return groupCustomResources
	}
	if name == "RegisterConversions" {
		return groupRegistration
	}
	if strings.HasPrefix(name, "autoConvert_") || strings.HasPrefix(name, "Convert_") {
		return groupConversions
	}
	if strings.HasPrefix(name, "Validate_") {
		return groupValidations
	}
	return groupFacts
}

// keyOf returns a key that keeps the methods of a type together. Other functions stay in the order of addition.
func keyOf(fn *ast.FuncDecl) string {
	if fn.Recv != nil {
		return receiver(fn)
	}
	return ""
}

// file returns the whole file, formatted.
func (m *merger) file() ([]byte, error) {
	slices.SortStableFunc(m.decls, func(a, b declaration) int {
		if a.group != b.group {
			return a.group - b.group
		}
		return strings.Compare(a.key, b.key)
	})
	var b strings.Builder
	b.WriteString(marker + "\n\npackage " + m.src.name + "\n\n")
	if len(m.names) > 0 {
		b.WriteString("import (\n")
		for _, importPath := range sortedKeys(m.names) {
			if name := m.names[importPath]; name != path.Base(importPath) {
				b.WriteString(name + " ")
			}
			b.WriteString(strconv.Quote(importPath) + "\n")
		}
		b.WriteString(")\n\n")
	}
	for _, d := range m.decls {
		b.WriteString(d.text + "\n\n")
	}
	out, err := format.Source([]byte(b.String()))
	if err != nil {
		return nil, fmt.Errorf("format generated code of %s: %w", m.src.path, err)
	}
	return out, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
