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
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// File is a Go file to write.
type File struct {
	// Path is relative to the output folder, with slashes.
	Path string
	Text []byte
	// Exists reports whether the file exists with the same text.
	Exists bool
	// Group is the API group of the file.
	Group string
}

// Note is a part of a definition that the Go types do not express.
type Note struct {
	// Where is the definition's name, with the version and the path in its schema.
	Where string `json:"where"`
	// Message names the lost part and the consequence.
	Message string `json:"message"`
}

func (n Note) String() string { return n.Where + ": " + n.Message }

// Write returns the Go files for definitions, below dir: a folder for each group version, with a file for each kind
// and a doc.go. It does not write to disk. It returns an error if a file exists with another text, or a folder
// belongs to another group.
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
	// This holds across versions: controller-tools would take such a type for a version of the kind.
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
			return nil, nil, fmt.Errorf(
				"%s exists with other content: move it away, or choose another folder with --output-dir",
				filepath.Join(dir, f.Path),
			)
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
	own      map[string]bool       // the files of this run
}

// goPackage is a folder of generated files.
type goPackage struct {
	types map[string]string // files of existing and new types
	taken map[string]bool   // names that are in use
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
		return "a webhook converts between the versions: write the conversions in Go, and pass them to annex.Version"
	case len(d.Spec.Versions) > 1:
		return "a conversion between the versions only changes the apiVersion: it drops fields that the target version does not have, " +
			"unless you write conversions and pass them to annex.Version"
	}
	return ""
}

func listKindNote(d *apiextensionsv1.CustomResourceDefinition) string {
	if kind := d.Spec.Names.ListKind; kind != "" && kind != d.Spec.Names.Kind+"List" {
		return fmt.Sprintf("spec.names.listKind %s becomes %sList", kind, d.Spec.Names.Kind)
	}
	return ""
}

// folder returns the folder of a group: its first label, or its full name if another group has that folder.
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
			return fmt.Errorf(
				"%s version %s: %s has a type %s already: choose another folder with --output-dir",
				d.Name,
				version,
				filepath.Join(w.dir, folder, in),
				name,
			)
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

// place returns the folder and the file name of a kind in a version.
func (w *writer) place(d *apiextensionsv1.CustomResourceDefinition, version string) (folder, file string) {
	return path.Join(w.folder(d.Spec.Group), version), strings.ToLower(d.Spec.Names.Kind) + "_types.go"
}

var groupName = regexp.MustCompile(`(?m)^//\s*\+groupName=(\S+)\s*$`)

// goPackage reads the declarations in an existing folder, and adds doc.go unless another file there names the group.
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
				return nil, fmt.Errorf("%s: the folder has the group %s, not %s: choose another folder with --output-dir", file, m[1], group)
			}
			named = named || filepath.Base(file) != docName || !bytes.Equal(text, docFile(group, version))
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("the folder has invalid Go code: %w", err)
		}
		if parsed.Name.Name != version && !strings.HasSuffix(file, "_test.go") {
			return nil, fmt.Errorf(
				"%s: the folder has the package %s, not %s: choose another folder with --output-dir",
				file,
				parsed.Name.Name,
				version,
			)
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

const unknownName = "unknown_fields.go"

// keepUnknown adds the file with the functions that structs with unknown fields call.
func (w *writer) keepUnknown(folder, group, version string) {
	name := path.Join(folder, unknownName)
	if !slices.ContainsFunc(w.files, func(f File) bool { return f.Path == name }) {
		w.files = append(w.files, File{Path: name, Text: fmt.Appendf(nil, unknownFile, version), Group: group})
	}
}

const unknownFile = `package %s

import (
	stdjson "encoding/json"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/json"
)

// readFields reads a JSON object: its fields of the given names into known, which is a
// pointer to a struct, all others into unknown.
func readFields(data []byte, known any, unknown *map[string]apiextensionsv1.JSON, names ...string) error {
	if err := json.Unmarshal(data, known); err != nil {
		return err
	}
	var fields map[string]apiextensionsv1.JSON
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	for _, name := range names {
		delete(fields, name)
	}
	if len(fields) == 0 {
		fields = nil
	}
	*unknown = fields
	return nil
}

// writeFields writes a struct as a JSON object that has the unknown fields, too. Where it has
// a field of that name, the struct's is written.
func writeFields(known any, unknown map[string]apiextensionsv1.JSON) ([]byte, error) {
	data, err := stdjson.Marshal(known)
	if err != nil || len(unknown) == 0 {
		return data, err
	}
	var fields map[string]stdjson.RawMessage
	if err := stdjson.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	all := make(map[string]any, len(fields)+len(unknown))
	for name, value := range unknown {
		all[name] = value
	}
	for name, value := range fields {
		all[name] = value
	}
	return stdjson.Marshal(all)
}
`

// kindFile is the file of a kind in one version.
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
	marks := append(kindMarkers(k.definition, k.version), facets(s, "", ofObject)...)
	marks = append(marks, topology(s)...)
	if preserves(s) {
		marks = append(marks, "kubebuilder:pruning:PreserveUnknownFields")
	}
	marks = append(marks, rootPatch(s).markers()...)
	k.comment("", s.Description, marks)
	fmt.Fprintf(&k.body, "type %s struct {\n\tmetav1.TypeMeta `json:\",inline\"`\n", kind)
	required := slices.Contains(s.Required, "metadata")
	tag, mark := "metadata,omitempty", "optional"
	if required {
		tag, mark = "metadata", "required"
	}
	fmt.Fprintf(&k.body, "\t// +%s\n\tmetav1.ObjectMeta `json:%q`\n", mark, tag)
	taken := map[string]bool{"TypeMeta": true, "ObjectMeta": true, unknownFields: true}
	known := []string{"apiVersion", "kind", "metadata"}
	for _, name := range sortedKeys(s.Properties) {
		if slices.Contains(known[:3], name) {
			continue
		}
		known = append(known, name)
		property := s.Properties[name]
		k.field(kind, "."+name, name, &property, slices.Contains(s.Required, name), true, taken)
	}
	k.endStruct(kind, s, known)
	fmt.Fprintf(&k.body, "\n// %[1]sList is a list of objects of the kind %[1]s.\n// +kubebuilder:object:root=true\ntype %[1]sList struct "+
		"{\n\tmetav1.TypeMeta `json:\",inline\"`\n\tmetav1.ListMeta `json:\"metadata,omitempty\"`\n\n\tItems []%[1]s `json:\"items\"`\n}\n", kind)
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
	marks = append(marks, t.patch.markers()...)
	expression := t.expression
	tag := name
	switch {
	case required && s.Nullable && !t.nillable:
		expression = "*" + expression
	case required:
	case t.nillable, root && t.structure && s.Default == nil && !s.Nullable:
		tag += ",omitzero" // unlike omitempty, it keeps an empty list or map, and omits an empty struct
	default:
		tag += ",omitempty"
		// A zero or empty value in a request must not be treated as absent.
		if expression != "string" || s.Nullable || s.Default != nil || !takesEmpty(s) {
			expression = "*" + expression
		}
	}
	k.body.WriteString("\n")
	k.comment("\t", s.Description, marks)
	fmt.Fprintf(&k.body, "\t%s %s `json:%q`\n", field, expression, tag)
}

// takesEmpty reports whether an empty string is certainly valid. If it is not, the Go type must distinguish an empty
// string from an absent one, or the server could not refuse it.
func takesEmpty(s *apiextensionsv1.JSONSchemaProps) bool {
	if s.MinLength != nil && *s.MinLength > 0 || s.Format != "" || len(s.XValidations) > 0 {
		return false
	}
	if len(s.Enum) > 0 && !slices.ContainsFunc(s.Enum, func(v apiextensionsv1.JSON) bool { return string(v.Raw) == `""` }) {
		return false
	}
	if s.Pattern == "" {
		return true
	}
	ok, err := regexp.MatchString(s.Pattern, "")
	return ok && err == nil
}

// goType is a Go type, with the markers for a field of that type.
type goType struct {
	expression string
	marks      []string
	// patch holds the constraints that no kubebuilder marker can express.
	patch patch
	// nillable types need no pointer; structure is set for a struct in this file.
	nillable, structure bool
	// opaque types are types of other packages with a schema of their own. No type can be declared from them, since
	// it would lose their methods.
	opaque bool
}

// typeOf returns the Go type for a schema. A type that needs a declaration gets the given name.
func (k *kindFile) typeOf(s *apiextensionsv1.JSONSchemaProps, name, where, field string) goType {
	if s.XIntOrString {
		return k.intOrString(s)
	}
	switch s.Type {
	case "string":
		return k.text(s)
	case "boolean":
		return plain("bool", s, "", ofAny)
	case "integer":
		if s.Format == "int32" {
			return plain("int32", s, "int32", ofNumber)
		}
		return plain("int64", s, "int64", ofNumber)
	case "number":
		return plain("float64", s, "", ofNumber)
	case "array":
		return k.list(s, name, where)
	case "object":
		return k.object(s, name, where, field)
	}
	k.use(jsonPath, "apiextensionsv1")
	return opaque("apiextensionsv1.JSON", s, facets(s, "", ofAny), "")
}

// plain returns a Go type whose constraints markers can express, except for those without an effect.
func plain(expression string, s *apiextensionsv1.JSONSchemaProps, implied string, applicable values) goType {
	return goType{expression: expression, marks: facets(s, implied, applicable), patch: remainder(s, applicable)}
}

func (k *kindFile) intOrString(s *apiextensionsv1.JSONSchemaProps) goType {
	if s.Pattern == quantityPattern && len(s.AnyOf) == 2 {
		k.use(resourcePath, "resource")
		rest := *s
		rest.Pattern = ""
		return opaque("resource.Quantity", s, intOrStringFacets(&rest), "pattern")
	}
	k.use(intstrPath, "intstr")
	if len(s.AnyOf) == 0 {
		// The Go type alone would add anyOf.
		marks := append([]string{validationPrefix + "Schemaless", validationPrefix + "XIntOrString"}, facets(s, "", ofText)...)
		return goType{expression: "intstr.IntOrString", marks: marks, patch: remainder(s, ofText), opaque: true}
	}
	return opaque("intstr.IntOrString", s, intOrStringFacets(s), "pattern", "minLength", "maxLength")
}

// intOrStringFacets puts the marker for the type in front of markers that only strings may have.
func intOrStringFacets(s *apiextensionsv1.JSONSchemaProps) []string {
	marks := facets(s, "", ofText)
	if len(marks) > 0 {
		marks = append([]string{validationPrefix + "XIntOrString"}, marks...)
	}
	return marks
}

func (k *kindFile) text(s *apiextensionsv1.JSONSchemaProps) goType {
	switch s.Format {
	case "date-time":
		if t := plain("metav1.Time", s, "date-time", ofText); len(t.marks) == 0 && len(t.patch) == 0 {
			k.use(metaPath, "metav1")
			t.opaque = true
			return t
		}
	case "byte":
		t := plain("[]byte", s, "byte", ofText)
		t.nillable = true
		return t
	}
	return plain("string", s, "", ofText)
}

func (k *kindFile) list(s *apiextensionsv1.JSONSchemaProps, name, where string) goType {
	out := plain("[]string", s, "", ofList)
	out.marks = append(out.marks, topology(s)...)
	out.nillable = true
	if s.Items == nil || s.Items.Schema == nil {
		return out // every structural schema has one
	}
	items := s.Items.Schema
	if preserves(s) {
		// A list preserves unknown fields in its items.
		keeping := *items
		keeping.XPreserveUnknownFields = s.XPreserveUnknownFields
		items = &keeping
		out.patch = out.patch.set("x-kubernetes-preserve-unknown-fields", true)
	}
	t := k.typeOf(items, name+"Item", where+"[*]", "")
	expression := t.expression
	switch {
	case t.opaque:
		out.patch = out.patch.with("items", ownSchema(t.expression, s.Items.Schema))
		t.patch = nil
	case len(t.marks) == 0:
	case slices.Contains([]string{"string", "boolean", "integer", "number"}, items.Type):
		for _, mark := range t.marks {
			out.marks = append(out.marks, validationPrefix+"items:"+strings.TrimPrefix(mark, validationPrefix))
		}
	default:
		expression = k.named(items, t, name+"Item")
	}
	out.patch = out.patch.with("items", t.patch, onlyOfFields(items))
	if items != s.Items.Schema && !preserves(s.Items.Schema) {
		out.patch = out.patch.with("items", patch{"x-kubernetes-preserve-unknown-fields": nil})
	}
	out.expression = "[]" + t.element(expression, items)
	return out
}

func (k *kindFile) object(s *apiextensionsv1.JSONSchemaProps, name, where, field string) goType {
	inner := s.AdditionalProperties
	switch {
	case len(s.Properties) > 0:
		return goType{expression: k.structure(s, name, where), structure: true}
	case inner != nil && inner.Schema != nil:
		out := plain("", s, "", ofObject)
		out.marks = append(out.marks, topology(s)...)
		out.nillable = true
		if preserves(s) {
			out.marks = append(out.marks, "kubebuilder:pruning:PreserveUnknownFields")
		}
		t := k.typeOf(inner.Schema, name+"Value", where+"[*]", "")
		expression := t.expression
		switch {
		case t.opaque:
			out.patch = out.patch.with("additionalProperties", ownSchema(t.expression, inner.Schema))
			t.patch = nil
		case len(t.marks) > 0:
			expression = k.named(inner.Schema, t, name+"Value")
		}
		out.patch = out.patch.with("additionalProperties", t.patch, onlyOfFields(inner.Schema))
		out.expression = "map[string]" + t.element(expression, inner.Schema)
		return out
	case preserves(s), inner != nil && inner.Allows:
		k.use(runtimePath, "runtime")
		var marks []string
		if s.XMapType != nil {
			marks = append(marks, "structType="+*s.XMapType) // mapType would be applied before the type is known
		}
		return opaque("runtime.RawExtension", s, append(facets(s, "", ofAny), marks...), "x-kubernetes-map-type")
	case field == "metadata" && len(facets(s, "", ofObject)) == 0 && s.XMapType == nil && len(remainder(s, ofObject)) == 0:
		return goType{expression: "metav1.ObjectMeta", opaque: true}
	}
	return goType{expression: k.structure(s, name, where), structure: true}
}

// element returns the Go type of values in a list or a map, which is a pointer if null is allowed.
func (t goType) element(expression string, s *apiextensionsv1.JSONSchemaProps) string {
	if s.Nullable && !t.nillable && expression != "apiextensionsv1.JSON" && expression != "runtime.RawExtension" {
		return "*" + expression
	}
	return expression
}

// structure queues a struct type, to be written after the current one, and returns its name.
func (k *kindFile) structure(s *apiextensionsv1.JSONSchemaProps, name, where string) string {
	name = unique(k.pkg.taken, name)
	k.queue = append(k.queue, func() {
		marks := append(facets(s, "", ofObject), topology(s)...)
		if preserves(s) {
			marks = append(marks, "kubebuilder:pruning:PreserveUnknownFields")
		}
		marks = append(marks, structPatch(s).markers()...)
		k.comment("", s.Description, marks)
		fmt.Fprintf(&k.body, "type %s struct {", name)
		taken := map[string]bool{unknownFields: true}
		known := sortedKeys(s.Properties)
		for _, property := range known {
			p := s.Properties[property]
			k.field(name, where+"."+property, property, &p, slices.Contains(s.Required, property), false, taken)
		}
		k.endStruct(name, s, known)
	})
	return name
}

const unknownFields = "UnknownFields"

// endStruct completes a struct type. If the schema preserves unknown fields, the type gets a field for them, and
// methods that encode and decode them.
func (k *kindFile) endStruct(name string, s *apiextensionsv1.JSONSchemaProps, known []string) {
	if !preserves(s) {
		k.body.WriteString("}\n")
		return
	}
	k.use(jsonPath, "apiextensionsv1")
	quoted := make([]string, len(known))
	for i, property := range known {
		quoted[i] = strconv.Quote(property)
	}
	fmt.Fprintf(&k.body, `
	// %[2]s holds, by name, the fields of the JSON object that no other field is for.
	%[2]s map[string]apiextensionsv1.JSON `+"`json:\"-\"`"+`
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *%[1]s) UnmarshalJSON(data []byte) error {
	type fields %[1]s
	return readFields(data, (*fields)(o), &o.%[2]s, %[3]s)
}

// MarshalJSON implements json.Marshaler.
func (o %[1]s) MarshalJSON() ([]byte, error) {
	type fields %[1]s
	return writeFields(fields(o), o.%[2]s)
}
`, name, unknownFields, strings.Join(quoted, ", "))
	folder, _ := k.place(k.definition, k.version.Name)
	k.keepUnknown(folder, k.definition.Spec.Group, k.version.Name)
}

// named writes a type for values whose markers need a declaration.
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

// comment writes a description and markers.
func (k *kindFile) comment(indent, description string, marks []string) {
	if indent == "" {
		k.body.WriteString("\n")
	}
	var lines []string
	for line := range strings.Lines(strings.TrimSpace(description)) {
		line = strings.TrimRight(strings.Map(printable, line), " \t\n")
		// A line like these would be read as a marker, or as the end of the description.
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
