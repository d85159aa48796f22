package gotypes

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// File is a Go file to write.
type File struct {
	// Path is relative to the folder that files are written below, with slashes.
	Path string
	Text []byte
	// Exists says that the file is there already, and is this one.
	Exists bool
	// Group is the API group that the file is part of.
	Group string
}

// Note is something in a definition that the Go types do not say.
type Note struct {
	// Where is the definition's name, with the version and the path in its schema.
	Where string `json:"where"`
	// Message says what is left out and what that means.
	Message string `json:"message"`
}

func (n Note) String() string { return n.Where + ": " + n.Message }

// Write makes the Go files of definitions, below dir: a folder for each group and version,
// in it a file for each kind, and doc.go. It changes nothing on disk. It is an error if a
// file is there with another text, or a folder holds another group.
func Write(dir string, definitions []*apiextensionsv1.CustomResourceDefinition) ([]File, []Note, error) {
	w := &writer{dir: dir, packages: map[string]*goPackage{}, folders: map[string]string{}, own: map[string]bool{}}
	for _, d := range definitions {
		for _, v := range d.Spec.Versions {
			folder, file := w.place(d, v.Name)
			w.own[path.Join(folder, file)] = true
		}
	}
	for _, d := range definitions {
		w.note(d, "", conversionNote(d))
		w.note(d, "", listKindNote(d))
		// No type within another kind gets the name of a kind.
		for _, v := range d.Spec.Versions {
			if err := w.reserve(d, v.Name); err != nil {
				return nil, nil, err
			}
		}
	}
	// Nor in another version: controller-tools would take it for one of the kind.
	for _, d := range definitions {
		for folder, p := range w.packages {
			if path.Dir(folder) == w.folder(d.Spec.Group) {
				p.taken[d.Spec.Names.Kind] = true
			}
		}
	}
	for _, d := range definitions {
		for i := range d.Spec.Versions {
			if err := w.version(d, &d.Spec.Versions[i]); err != nil {
				return nil, nil, fmt.Errorf("%s version %s: %w", d.Name, d.Spec.Versions[i].Name, err)
			}
		}
	}
	for i, f := range w.files {
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(f.Path)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, nil, err
		case bytes.Equal(text, f.Text):
			w.files[i].Exists = true
		default:
			return nil, nil, fmt.Errorf("%s exists and says something else: move it away, or choose another folder with --dir", filepath.Join(dir, f.Path))
		}
	}
	return w.files, w.notes, nil
}

type writer struct {
	dir      string
	files    []File
	notes    []Note
	packages map[string]*goPackage // by folder
	folders  map[string]string     // of groups, by group
	own      map[string]bool       // the files that this run writes
}

// goPackage is a folder that files are written into.
type goPackage struct {
	types map[string]string // files of types that are there, or will be
	taken map[string]bool   // names that no other type may get
}

func (w *writer) note(d *apiextensionsv1.CustomResourceDefinition, at, message string) {
	if message != "" {
		w.notes = append(w.notes, Note{Where: strings.TrimSpace(d.Name + " " + at), Message: message})
	}
}

func conversionNote(d *apiextensionsv1.CustomResourceDefinition) string {
	c := d.Spec.Conversion
	switch {
	case c != nil && c.Strategy == apiextensionsv1.WebhookConverter:
		return "a webhook converts between the versions: write the conversions in Go, for annex.Version"
	case len(d.Spec.Versions) > 1:
		return "the versions are not converted but renamed: what a version has no field for is lost to its clients, unless you write conversions for annex.Version"
	}
	return ""
}

func listKindNote(d *apiextensionsv1.CustomResourceDefinition) string {
	if kind := d.Spec.Names.ListKind; kind != "" && kind != d.Spec.Names.Kind+"List" {
		return fmt.Sprintf("spec.names.listKind %s becomes %sList", kind, d.Spec.Names.Kind)
	}
	return ""
}

// folder is that of a group: its first label, or all of its name if another group has
// that.
func (w *writer) folder(group string) string {
	if folder, ok := w.folders[group]; ok {
		return folder
	}
	folder, _, _ := strings.Cut(group, ".")
	for _, other := range w.folders {
		if other == folder {
			folder = group
		}
	}
	w.folders[group] = folder
	return folder
}

func (w *writer) reserve(d *apiextensionsv1.CustomResourceDefinition, version string) error {
	folder, file := w.place(d, version)
	p, err := w.goPackage(folder, d.Spec.Group, version)
	if err != nil {
		return err
	}
	kind := d.Spec.Names.Kind
	for _, name := range []string{kind, kind + "List"} {
		if in, ok := p.types[name]; ok && in != file {
			return fmt.Errorf("%s version %s: %s has a type %s already: choose another folder with --dir", d.Name, version, filepath.Join(w.dir, folder, in), name)
		}
		p.types[name], p.taken[name] = file, true
	}
	return nil
}

func (w *writer) version(d *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) error {
	folder, file := w.place(d, v.Name)
	k := &kindFile{writer: w, pkg: w.packages[folder], definition: d, version: v}
	text, err := k.write()
	if err != nil {
		return err
	}
	w.files = append(w.files, File{Path: path.Join(folder, file), Text: text, Group: d.Spec.Group})
	return nil
}

// place is the folder and the name of the file of a kind in a version.
func (w *writer) place(d *apiextensionsv1.CustomResourceDefinition, version string) (folder, file string) {
	return path.Join(w.folder(d.Spec.Group), version), strings.ToLower(d.Spec.Names.Kind) + "_types.go"
}

var groupName = regexp.MustCompile(`(?m)^//\s*\+groupName=(\S+)\s*$`)

// goPackage finds what is in a folder already, and adds doc.go unless another file there
// names the group.
func (w *writer) goPackage(folder, group, version string) (*goPackage, error) {
	if p, ok := w.packages[folder]; ok {
		return p, nil
	}
	p := &goPackage{types: map[string]string{}, taken: map[string]bool{}}
	w.packages[folder] = p
	files, err := filepath.Glob(filepath.Join(w.dir, filepath.FromSlash(folder), "*.go"))
	if err != nil {
		return nil, err
	}
	named := false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if m := groupName.FindSubmatch(text); m != nil {
			if string(m[1]) != group {
				return nil, fmt.Errorf("%s: the folder holds group %s, not %s: choose another folder with --dir", file, m[1], group)
			}
			named = named || filepath.Base(file) != docName || !bytes.Equal(text, docFile(group, version))
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("the folder holds Go code that cannot be read: %w", err)
		}
		if parsed.Name.Name != version && !strings.HasSuffix(file, "_test.go") {
			return nil, fmt.Errorf("%s: the folder holds package %s, not %s: choose another folder with --dir", file, parsed.Name.Name, version)
		}
		if w.own[path.Join(folder, filepath.Base(file))] {
			continue
		}
		for _, declaration := range parsed.Decls {
			if types, ok := declaration.(*ast.GenDecl); ok && types.Tok == token.TYPE {
				for _, spec := range types.Specs {
					name := spec.(*ast.TypeSpec).Name.Name
					p.types[name], p.taken[name] = filepath.Base(file), true
				}
			}
		}
	}
	if !named {
		w.files = append(w.files, File{Path: path.Join(folder, docName), Text: docFile(group, version), Group: group})
	}
	return p, nil
}

const docName = "doc.go"

func docFile(group, version string) []byte {
	return fmt.Appendf(nil, "// Package %s is version %[1]s of the API group %s.\n//\n// +groupName=%[2]s\npackage %[1]s\n", version, group)
}

// kindFile is the file of a kind in a version.
type kindFile struct {
	*writer
	pkg        *goPackage
	definition *apiextensionsv1.CustomResourceDefinition
	version    *apiextensionsv1.CustomResourceDefinitionVersion
	imports    map[string]string // names by path
	body       bytes.Buffer
	queue      []func()
}

const (
	metaPath     = "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimePath  = "k8s.io/apimachinery/pkg/runtime"
	intstrPath   = "k8s.io/apimachinery/pkg/util/intstr"
	resourcePath = "k8s.io/apimachinery/pkg/api/resource"
	jsonPath     = "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func (k *kindFile) use(importPath, name string) {
	k.imports[importPath] = name
}

func (k *kindFile) write() ([]byte, error) {
	k.imports = map[string]string{}
	k.use(metaPath, "metav1")
	kind := k.definition.Spec.Names.Kind
	k.root(kind, k.version.Schema.OpenAPIV3Schema)
	for len(k.queue) > 0 {
		next := k.queue[0]
		k.queue = k.queue[1:]
		next()
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "package %s\n\nimport (\n", k.version.Name)
	for _, importPath := range slices.Sorted(maps.Keys(k.imports)) {
		name := k.imports[importPath]
		if path.Base(importPath) == name {
			name = ""
		}
		fmt.Fprintf(&text, "\t%s %q\n", name, importPath)
	}
	text.WriteString(")\n")
	text.Write(k.body.Bytes())
	formatted, err := format.Source(text.Bytes())
	if err != nil {
		return nil, fmt.Errorf("format: %w", err)
	}
	return formatted, nil
}

// root writes the kind's own type and its list.
func (k *kindFile) root(kind string, s *apiextensionsv1.JSONSchemaProps) {
	marks := append(kindMarkers(k.definition, k.version), facets(s, "")...)
	marks = append(marks, topology(s)...)
	if preserves(s) {
		marks = append(marks, "kubebuilder:pruning:PreserveUnknownFields")
	}
	k.inexpressible(s, "")
	k.comment("", s.Description, marks)
	fmt.Fprintf(&k.body, "type %s struct {\n\tmetav1.TypeMeta `json:\",inline\"`\n", kind)
	required := slices.Contains(s.Required, "metadata")
	tag, mark := "metadata,omitempty", "optional"
	if required {
		tag, mark = "metadata", "required"
	}
	fmt.Fprintf(&k.body, "\t// +%s\n\tmetav1.ObjectMeta `json:%q`\n", mark, tag)
	if metadata, ok := s.Properties["metadata"]; ok && len(metadata.Properties) > 0 {
		k.note(k.definition, k.at(".metadata"), "rules for metadata are left out: check names in Validate")
	}
	taken := map[string]bool{"TypeMeta": true, "ObjectMeta": true}
	for _, name := range sortedKeys(s.Properties) {
		switch name {
		case "apiVersion", "kind", "metadata":
			if slices.Contains(s.Required, name) && name != "metadata" {
				k.note(k.definition, k.at("."+name), "is not marked as required: a server always sets it")
			}
			continue
		}
		property := s.Properties[name]
		k.field(kind, "."+name, name, &property, slices.Contains(s.Required, name), true, taken)
	}
	k.body.WriteString("}\n")
	fmt.Fprintf(&k.body, "\n// %[1]sList is a list of objects of the kind %[1]s.\n// +kubebuilder:object:root=true\ntype %[1]sList struct {\n\tmetav1.TypeMeta `json:\",inline\"`\n\tmetav1.ListMeta `json:\"metadata,omitempty\"`\n\n\tItems []%[1]s `json:\"items\"`\n}\n", kind)
}

func (k *kindFile) at(where string) string {
	return k.version.Name + " " + where
}

// field writes a field of the struct type parent.
func (k *kindFile) field(parent, where, name string, s *apiextensionsv1.JSONSchemaProps, required, root bool, taken map[string]bool) {
	field := unique(taken, goName(name))
	t := k.typeOf(s, parent+field, where, name)
	marks := []string{"optional"}
	if required {
		marks[0] = "required"
	}
	if s.Nullable {
		marks = append(marks, "nullable")
	}
	if s.Default != nil {
		marks = append(marks, defaultMarker(s.Default.Raw))
	}
	if s.Title != "" {
		marks = append(marks, "kubebuilder:title="+quote(s.Title))
	}
	if s.Example != nil {
		marks = append(marks, "kubebuilder:example="+scalar(s.Example.Raw))
	}
	if s.ExternalDocs != nil {
		text := "kubebuilder:externalDocs:url=" + quote(s.ExternalDocs.URL)
		if s.ExternalDocs.Description != "" {
			text += ",description=" + quote(s.ExternalDocs.Description)
		}
		marks = append(marks, text)
	}
	marks = append(marks, t.marks...)
	expression := t.expression
	tag := name
	switch {
	case required && s.Nullable && !t.nillable:
		expression = "*" + expression
	case required:
	default:
		tag += ",omitempty"
		// What a client says, zero or empty, must not become what it leaves out.
		plain := t.nillable || root && t.structure || expression == "string" && !s.Nullable && s.Default == nil
		if !plain {
			expression = "*" + expression
		}
	}
	k.body.WriteString("\n")
	k.comment("\t", s.Description, marks)
	fmt.Fprintf(&k.body, "\t%s %s `json:%q`\n", field, expression, tag)
}

// goType is a Go type with the markers that a field of it needs.
type goType struct {
	expression string
	marks      []string
	// nillable types need no pointer, structure says that it is a struct of this file.
	nillable, structure bool
}

// typeOf finds the Go type for a schema. Types with a name of their own are called name.
func (k *kindFile) typeOf(s *apiextensionsv1.JSONSchemaProps, name, where, field string) goType {
	k.inexpressible(s, where)
	if s.XIntOrString {
		return k.intOrString(s, where)
	}
	switch s.Type {
	case "string":
		return k.text(s)
	case "boolean":
		return goType{expression: "bool", marks: facets(s, "")}
	case "integer":
		if s.Format == "int32" {
			return goType{expression: "int32", marks: facets(s, "int32")}
		}
		return goType{expression: "int64", marks: facets(s, "int64")}
	case "number":
		return goType{expression: "float64", marks: facets(s, "")}
	case "array":
		return k.list(s, name, where)
	case "object":
		return k.object(s, name, where, field)
	}
	k.use(jsonPath, "apiextensionsv1")
	return goType{expression: "apiextensionsv1.JSON", marks: facets(s, "")}
}

const quantityPattern = "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$"

func (k *kindFile) intOrString(s *apiextensionsv1.JSONSchemaProps, where string) goType {
	rest := *s
	if s.Pattern == quantityPattern && len(s.AnyOf) == 2 {
		k.use(resourcePath, "resource")
		rest.Pattern = ""
		return goType{expression: "resource.Quantity", marks: intOrStringFacets(&rest)}
	}
	k.use(intstrPath, "intstr")
	t := goType{expression: "intstr.IntOrString", marks: intOrStringFacets(s)}
	if len(s.AnyOf) == 0 {
		// The Go type alone would bring anyOf with it.
		t.marks = append([]string{validationPrefix + "Schemaless", validationPrefix + "XIntOrString"}, facets(s, "")...)
	}
	if s.Minimum != nil || s.Maximum != nil || s.MultipleOf != nil {
		k.note(k.definition, k.at(where), "limits of an integer or string are left out: markers can give them to numbers only")
		t.marks = slices.DeleteFunc(t.marks, func(m string) bool { return strings.Contains(m, "imum=") || strings.Contains(m, "MultipleOf=") })
	}
	return t
}

// intOrStringFacets says that the type is one before what only strings may have.
func intOrStringFacets(s *apiextensionsv1.JSONSchemaProps) []string {
	marks := facets(s, "")
	if len(marks) > 0 {
		marks = append([]string{validationPrefix + "XIntOrString"}, marks...)
	}
	return marks
}

func (k *kindFile) text(s *apiextensionsv1.JSONSchemaProps) goType {
	switch s.Format {
	case "date-time":
		if marks := facets(s, "date-time"); len(marks) == 0 {
			k.use(metaPath, "metav1")
			return goType{expression: "metav1.Time"}
		}
	case "byte":
		return goType{expression: "[]byte", marks: facets(s, "byte"), nillable: true}
	}
	return goType{expression: "string", marks: facets(s, "")}
}

func (k *kindFile) list(s *apiextensionsv1.JSONSchemaProps, name, where string) goType {
	marks := append(facets(s, ""), topology(s)...)
	if s.Items == nil || s.Items.Schema == nil {
		return goType{expression: "[]string", marks: marks, nillable: true} // no structural schema is without
	}
	items := s.Items.Schema
	where += "[*]"
	t := k.typeOf(items, name+"Item", where, "")
	k.onlyForFields(items, where)
	t.marks = k.withoutSchemaless(t.marks, where)
	expression := t.expression
	switch {
	case len(t.marks) == 0:
	case slices.Contains([]string{"string", "boolean", "integer", "number"}, items.Type):
		for _, mark := range t.marks {
			marks = append(marks, validationPrefix+"items:"+strings.TrimPrefix(mark, validationPrefix))
		}
	default:
		expression = k.named(items, t, name+"Item")
	}
	return goType{expression: "[]" + expression, marks: marks, nillable: true}
}

func (k *kindFile) object(s *apiextensionsv1.JSONSchemaProps, name, where, field string) goType {
	values := s.AdditionalProperties
	switch {
	case len(s.Properties) > 0:
		return goType{expression: k.structure(s, name, where), structure: true}
	case values != nil && values.Schema != nil:
		t := k.typeOf(values.Schema, name+"Value", where+"[*]", "")
		k.onlyForFields(values.Schema, where+"[*]")
		t.marks = k.withoutSchemaless(t.marks, where+"[*]")
		expression := t.expression
		if len(t.marks) > 0 {
			expression = k.named(values.Schema, t, name+"Value")
		}
		marks := append(facets(s, ""), topology(s)...)
		if preserves(s) {
			marks = append(marks, "kubebuilder:pruning:PreserveUnknownFields")
		}
		return goType{expression: "map[string]" + expression, marks: marks, nillable: true}
	case preserves(s), values != nil && values.Allows:
		if !preserves(s) {
			k.note(k.definition, k.at(where), "additionalProperties: true becomes x-kubernetes-preserve-unknown-fields")
		}
		k.use(runtimePath, "runtime")
		return goType{expression: "runtime.RawExtension", marks: append(facets(s, ""), topology(s)...)}
	case field == "metadata" && len(facets(s, "")) == 0 && s.XMapType == nil:
		return goType{expression: "metav1.ObjectMeta"}
	}
	return goType{expression: k.structure(s, name, where), structure: true}
}

// structure writes a struct type when the one that needs it is written, and returns its
// name.
func (k *kindFile) structure(s *apiextensionsv1.JSONSchemaProps, name, where string) string {
	name = unique(k.pkg.taken, name)
	k.queue = append(k.queue, func() {
		marks := append(facets(s, ""), topology(s)...)
		if preserves(s) {
			marks = append(marks, "kubebuilder:pruning:PreserveUnknownFields")
			k.note(k.definition, k.at(where), "unknown fields are to be kept, but a Go struct does not hold them")
		}
		k.comment("", s.Description, marks)
		fmt.Fprintf(&k.body, "type %s struct {", name)
		taken := map[string]bool{}
		for _, property := range sortedKeys(s.Properties) {
			p := s.Properties[property]
			k.field(name, where+"."+property, property, &p, slices.Contains(s.Required, property), false, taken)
		}
		k.body.WriteString("}\n")
	})
	return name
}

// named writes a type for values whose markers need one.
func (k *kindFile) named(s *apiextensionsv1.JSONSchemaProps, t goType, name string) string {
	name = unique(k.pkg.taken, name)
	k.queue = append(k.queue, func() {
		k.comment("", s.Description, t.marks)
		fmt.Fprintf(&k.body, "type %s %s\n", name, t.expression)
	})
	return name
}

func preserves(s *apiextensionsv1.JSONSchemaProps) bool {
	return s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields
}

// inexpressible notes what there is no marker for.
func (k *kindFile) inexpressible(s *apiextensionsv1.JSONSchemaProps, where string) {
	for _, of := range []struct {
		name string
		has  bool
	}{
		{"allOf", len(s.AllOf) > 0},
		{"anyOf", len(s.AnyOf) > 0 && !s.XIntOrString},
		{"oneOf", len(s.OneOf) > 0},
		{"not", s.Not != nil},
	} {
		if of.has {
			k.note(k.definition, k.at(where), of.name+" is left out: there is no marker for it; say it as a CEL rule, +kubebuilder:validation:XValidation")
		}
	}
}

// onlyForFields notes what there are markers of fields for, but not of items and values.
func (k *kindFile) onlyForFields(s *apiextensionsv1.JSONSchemaProps, where string) {
	if s.Nullable {
		k.note(k.definition, k.at(where), "nullable is left out: there is a marker for fields only")
	}
	if s.Default != nil {
		k.note(k.definition, k.at(where), "default is left out: there is a marker for fields only")
	}
}

func (k *kindFile) withoutSchemaless(marks []string, where string) []string {
	if !slices.Contains(marks, validationPrefix+"Schemaless") {
		return marks
	}
	k.note(k.definition, k.at(where), "anyOf is added, of integer and string: only a field can be without")
	return slices.DeleteFunc(marks, func(mark string) bool { return mark == validationPrefix+"Schemaless" })
}

// comment writes a description and markers.
func (k *kindFile) comment(indent, description string, marks []string) {
	if indent == "" {
		k.body.WriteString("\n")
	}
	var lines []string
	for line := range strings.Lines(strings.TrimSpace(description)) {
		line = strings.TrimRight(strings.Map(printable, line), " \t\n")
		// These would be read as a marker, or as the end of the description.
		trimmed := strings.TrimSpace(line)
		joins := strings.HasPrefix(trimmed, "+") || strings.HasPrefix(line, "TODO") || strings.HasPrefix(line, "---")
		switch {
		case joins && len(lines) > 0:
			lines[len(lines)-1] += " " + trimmed
		case joins:
			lines = append(lines, "("+trimmed+")")
		default:
			lines = append(lines, line)
		}
	}
	for _, line := range lines {
		k.body.WriteString(strings.TrimRight(indent+"// "+line, " ") + "\n")
	}
	for _, mark := range marks {
		k.body.WriteString(indent + "// +" + mark + "\n")
	}
}

func printable(r rune) rune {
	if r < ' ' && r != '\t' && r != '\n' || r == 0x7f {
		return ' '
	}
	return r
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
