package protobuf

import (
	"fmt"
	"iter"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/gengo/v2/namer"
	"k8s.io/gengo/v2/types"
)

// message is the protobuf message of one Go type.
type message struct {
	name     string
	comments []string
	options  []string
	fields   []*field // in the order of the Go fields
	reserved reservations

	// list is set for a named slice or map that is a message of its own, so that nil and empty differ. It has one
	// field, items.
	list bool
	// byHand is set for a type with +protobuf.options.marshal=false, whose methods are hand-written.
	byHand bool
	// recursive is set for a type that may contain itself.
	recursive bool
	// hidden are the methods that are not exported.
	hidden map[string]bool
}

// field is a field of a message.
type field struct {
	goName   string // empty for the items of a list
	name     string
	number   int
	comments []string
	tagged   bool // the number comes from a tag

	label  label
	goType *types.Type // the whole field's type; a map or slice may have another name
	key    value       // of a map
	elem   value
}

type label int

const (
	single label = iota
	repeated
	mapped
)

// value is the type of a single field, or of the elements of a repeated one.
type value struct {
	proto   string // the type in the .proto file
	from    string // import path of the type's package, if it is another package
	kind    kind
	goType  *types.Type // without the pointer
	pointer bool
	list    bool // a message that is a slice or map in Go
	local   string
}

type kind int

const (
	varint kind = iota
	boolean
	fixed32
	fixed64
	text
	octets
	embedded
)

var wireTypes = map[kind]int{varint: 0, boolean: 0, fixed32: 5, fixed64: 1, text: 2, octets: 2, embedded: 2}

// scalars are the Go types that protobuf has, too.
var scalars = map[string]value{
	"string":  {proto: "string", kind: text},
	"bool":    {proto: "bool", kind: boolean},
	"int":     {proto: "int64", kind: varint},
	"int32":   {proto: "int32", kind: varint},
	"rune":    {proto: "int32", kind: varint},
	"int64":   {proto: "int64", kind: varint},
	"uint":    {proto: "uint64", kind: varint},
	"uint32":  {proto: "uint32", kind: varint},
	"uint64":  {proto: "uint64", kind: varint},
	"uintptr": {proto: "uint64", kind: varint},
	"float32": {proto: "float", kind: fixed32},
	"float64": {proto: "double", kind: fixed64},
}

var typeMeta = types.Name{Package: "k8s.io/apimachinery/pkg/apis/meta/v1", Name: "TypeMeta"}

// messages returns the package's messages, by name.
func (g *generation) messages() []*message {
	pkg := g.Universe[g.Path]
	var all []*message
	for _, name := range slices.Sorted(maps.Keys(pkg.Types)) {
		t := pkg.Types[name]
		if t.Name.Package != g.Path || namer.IsPrivateGoName(name) || len(t.TypeParams) > 0 || !g.wanted(t) {
			continue
		}
		switch {
		case isList(t):
			items := types.Member{
				Name: "Items",
				Type: t.Underlying,
				CommentLines: []string{
					fmt.Sprintf(
						"items, if empty, will result in an empty %s",
						map[bool]string{true: "map", false: "slice"}[t.Underlying.Kind == types.Map],
					),
				},
			}
			m := &message{name: name, list: true}
			g.describe(m, t, []types.Member{items})
			all = append(all, m)
		case t.Kind == types.Struct:
			m := &message{name: name}
			g.describe(m, t, t.Members)
			all = append(all, m)
		case tagged(t, "protobuf.nullable"):
			g.problem(name, "", "+protobuf.nullable on type %s, which is neither a slice nor a map: remove it", name)
		}
	}
	return all
}

// wanted reports whether t gets methods.
func (g *generation) wanted(t *types.Type) bool {
	switch said, found := tagOf(t, "protobuf"); {
	case !found:
		return true
	case said == "true" || said == "false":
		return said == "true"
	default:
		g.problem(t.Name.Name, "", "+protobuf=%s: use true or false", said)
		return false
	}
}

// describe fills m from the members of t.
func (g *generation) describe(m *message, t *types.Type, members []types.Member) {
	m.comments = g.Comments(m.name)
	m.hidden = Hidden(t)
	for _, name := range needed {
		if m.hidden[name] && slices.ContainsFunc(t.Members, func(m types.Member) bool { return m.Embedded && m.Type.Name == typeMeta }) {
			g.problem(
				m.name,
				name,
				"field %s.%s: the generated protobuf methods include this name: rename the field; its JSON name may stay",
				m.name,
				name,
			)
		}
	}
	as, embed := "", ""
	for key, said := range tags(t) {
		option, isOption := strings.CutPrefix(key, "protobuf.options.")
		switch {
		case isOption && option == "marshal":
			m.byHand = said == "false"
		case isOption && strings.HasPrefix(option, "(gogoproto."):
		case isOption:
			m.options = append(m.options, option+" = "+said)
		case key == "protobuf.as":
			as = said
		case key == "protobuf.embed":
			embed = said
		case strings.HasPrefix(key, "protobuf.") && key != "protobuf.nullable":
			g.problem(m.name, "", "unknown marker +%s: use +protobuf.as, .embed, .nullable or .options", key)
		}
	}
	slices.Sort(m.options)
	switch {
	case (as != "" || embed != "") && !m.byHand:
		g.problem(
			m.name,
			"",
			"+protobuf.as and +protobuf.embed on type %s: add +protobuf.options.marshal=false and write the methods %s by hand",
			m.name,
			strings.Join(Methods, ", "),
		)
		return
	case m.byHand:
		for _, method := range Methods[1:] {
			if !g.Declares(m.name, method) {
				g.problem(m.name, "", "type %s has +protobuf.options.marshal=false but no method %s: write the method, or "+
					"remove the tag", m.name, method)
				return
			}
		}
	}
	if embed != "" {
		m.fields = []*field{{name: embed, number: 1, tagged: true, elem: value{proto: embed}}}
		return
	}
	if as != "" {
		other := g.Universe[g.Path].Types[as]
		if other == nil {
			g.problem(m.name, "", "+protobuf.as=%s: package has no such type", as)
			return
		}
		members = other.Members
	}
	seen := map[string]bool{}
	for _, member := range members {
		f := g.field(m, member)
		if f == nil {
			continue
		}
		if seen[f.name] {
			g.problem(
				m.name,
				member.Name,
				"field %s.%s: another field also has the name %s: set the name of one of them in its tag, protobuf:\"...,name=other\"",
				m.name,
				member.Name,
				f.name,
			)
		}
		seen[f.name] = true
		m.fields = append(m.fields, f)
	}
}

var protoName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// field returns the protobuf field of a Go field. It is nil if the Go field is skipped or has a problem.
func (g *generation) field(m *message, member types.Member) *field {
	problem := func(format string, args ...any) *field {
		g.problem(m.name, member.Name, "field %s.%s: "+format, append([]any{m.name, member.Name}, args...)...)
		return nil
	}
	structTag := reflect.StructTag(member.Tags)
	jsonName, _, _ := strings.Cut(structTag.Get("json"), ",")
	said, isTagged := structTag.Lookup("protobuf")
	switch {
	case said == "-" || member.Type.Name == typeMeta:
		return nil
	case namer.IsPrivateGoName(member.Name):
		if member.Embedded && jsonName != "-" && member.Type.Kind == types.Struct {
			return problem("the fields of an unexported struct would be lost: export the struct, or use the tag protobuf:\"-\"")
		}
		return nil
	case jsonName == "-" && !isTagged:
		return nil
	}
	f := &field{goName: member.Name, comments: member.CommentLines, goType: member.Type, tagged: isTagged && said != ""}
	if m.list {
		f.goName = ""
	}
	var tag fieldTag
	if f.tagged {
		var err error
		if tag, err = parseTag(said); err != nil {
			return problem("%v", err)
		}
		f.number, f.name = tag.number, tag.name
	}
	switch {
	case f.name != "":
	case protoName.MatchString(jsonName):
		f.name = jsonName
	default:
		f.name = namer.IL(member.Name)
	}
	if !protoName.MatchString(f.name) {
		return problem("%s is not a valid protobuf name: give the field a JSON name of English letters, digits and _", member.Name)
	}
	if err := g.fill(f, member.Type); err != nil {
		return problem("%v", err)
	}
	if f.tagged {
		if err := tag.check(f); err != nil {
			return problem("%v", err)
		}
		if tag.message != "" {
			f.elem.proto = tag.message
		}
	}
	return f
}

const wayOut = `, or exclude the field with protobuf:"-"`

// fill sets label and types of a field of type t.
func (g *generation) fill(f *field, t *types.Type) error {
	u := t
	for u.Kind == types.Alias && !isList(u) {
		u = u.Underlying
	}
	var err error
	switch {
	case u.Kind == types.Map && !isList(u):
		f.label = mapped
		if f.key, err = g.value(u.Key); err != nil {
			return err
		}
		if f.key.pointer || f.key.kind == embedded || f.key.kind == octets || f.key.kind == fixed32 || f.key.kind == fixed64 {
			return fmt.Errorf("%s cannot be the key of a map in protobuf: use a string or an integer%s", goString(u.Key), wayOut)
		}
		if f.elem, err = g.value(u.Elem); err == nil && f.elem.pointer && f.elem.kind != embedded {
			err = fmt.Errorf("%s cannot be the value of a map in protobuf: use %s%s", goString(u.Elem), goString(f.elem.goType), wayOut)
		}
		return err
	case u.Kind == types.Slice && !isList(u) && !isBytes(u):
		f.label = repeated
		if f.elem, err = g.value(u.Elem); err == nil && f.elem.pointer && f.elem.kind != embedded {
			err = fmt.Errorf("%s cannot be in a list in protobuf: use %s%s", goString(u.Elem), goString(f.elem.goType), wayOut)
		}
		return err
	}
	f.elem, err = g.value(t)
	return err
}

// value returns the protobuf type of a single value of type t.
func (g *generation) value(t *types.Type) (value, error) {
	if t.Kind == types.Pointer {
		v, err := g.value(t.Elem)
		switch {
		case err != nil:
			return value{}, err
		case v.pointer || v.list || v.kind == octets:
			return value{}, fmt.Errorf("a pointer to %s has no form in protobuf: use %s itself%s", goString(t.Elem), goString(t.Elem), wayOut)
		}
		v.pointer = true
		return v, nil
	}
	if t.Kind == types.Struct || isList(t) {
		return g.embedded(t)
	}
	u := t
	for u.Kind == types.Alias {
		u = u.Underlying
	}
	switch u.Kind {
	case types.Builtin, types.Unsupported:
		if v, ok := scalars[u.Name.Name]; ok {
			v.goType = t
			return v, nil
		}
		name := goString(t)
		if t == types.Byte {
			name = "a single byte or int8"
		}
		return value{}, fmt.Errorf("%s has no form in protobuf: use int32, int64 or uint32%s", name, wayOut)
	case types.Slice:
		if isBytes(u) {
			return value{proto: "bytes", kind: octets, goType: t}, nil
		}
		return value{}, fmt.Errorf("%s cannot be in a list or map, or behind a pointer, in protobuf: declare a type for it with "+
			"+protobuf.nullable=true%s", goString(t), wayOut)
	case types.Map:
		return value{}, fmt.Errorf("%s cannot be in a list or map, or behind a pointer, in protobuf: declare a type for it with "+
			"+protobuf.nullable=true%s", goString(t), wayOut)
	case types.Interface:
		return value{}, fmt.Errorf("an interface has no form in protobuf: for content of any kind use runtime.RawExtension%s", wayOut)
	case types.Array:
		return value{}, fmt.Errorf("an array has no form in protobuf: use a slice%s", wayOut)
	}
	return value{}, fmt.Errorf("%s has no form in protobuf: use another type%s", goString(t), wayOut)
}

// embedded returns the type of a field that holds a message.
func (g *generation) embedded(t *types.Type) (value, error) {
	v := value{kind: embedded, goType: t, list: isList(t)}
	switch {
	case t.Name.Package == "":
		return value{}, fmt.Errorf("a struct without a name has no form in protobuf: declare it as a type%s", wayOut)
	case namer.IsPrivateGoName(t.Name.Name):
		return value{}, fmt.Errorf("type %s is not exported, so it gets no protobuf methods: export it%s", t.Name.Name, wayOut)
	case len(t.TypeParams) > 0 || strings.Contains(t.Name.Name, "["):
		return value{}, fmt.Errorf("the generic type %s has no form in protobuf: use a type without parameters%s", t.Name.Name, wayOut)
	case t.Name.Package == g.Path:
		if !g.wanted(t) && !g.Declares(t.Name.Name, "MarshalToSizedBuffer") {
			return value{}, fmt.Errorf("type %s has no protobuf: remove +protobuf=false above it%s", t.Name.Name, wayOut)
		}
		v.proto, v.local = t.Name.Name, t.Name.Name
		return v, nil
	}
	if len(Hidden(t)) > 0 && g.Elsewhere(t.Name.Package) {
		return value{}, fmt.Errorf("type %s has a field with the name of a generated method, and so no methods that other packages can "+
			"use: rename its field (%s), or declare the type in this package%s", goString(t), strings.Join(Methods, ", "), wayOut)
	}
	v.proto, v.from = "."+protoPackage(t.Name.Package)+"."+t.Name.Name, t.Name.Package
	has := func(method string) bool { return t.Methods[method] != nil }
	if !g.Elsewhere(t.Name.Package) && (!has("Size") || !has("MarshalToSizedBuffer") || !has("Unmarshal")) {
		hint := "mark its package with +k8s:protobuf-gen=package, and generate code for that package too"
		if t.Name == (types.Name{Package: "time", Name: "Time"}) {
			hint = "use metav1.Time"
		}
		return value{}, fmt.Errorf("type %s has no protobuf methods: %s%s", goString(t), hint, wayOut)
	}
	return v, nil
}

// Hidden returns the methods of t that are not exported because t has a field with the name of a method: the method
// of that name, and the methods that are useless without each other. It is empty for other types.
func Hidden(t *types.Type) map[string]bool {
	hidden := map[string]bool{}
	for _, m := range t.Members {
		if slices.Contains(Methods, m.Name) {
			for _, name := range []string{m.Name, "Size", "MarshalTo", "MarshalToSizedBuffer"} {
				hidden[name] = true
			}
		}
	}
	return hidden
}

// needed are the methods that every server needs of an object.
var needed = []string{"Reset", "Marshal", "Unmarshal"}

// isList reports whether t is a named slice or map that is a message.
func isList(t *types.Type) bool {
	return t.Kind == types.Alias && (t.Underlying.Kind == types.Slice || t.Underlying.Kind == types.Map) && tagged(t, "protobuf.nullable")
}

// isBytes reports whether the slice t is a slice of bytes. gengo treats int8 as a byte.
func isBytes(t *types.Type) bool {
	return t.Elem == types.Byte && t.Name.Name != "[]int8"
}

func tagged(t *types.Type, name string) bool {
	said, found := tagOf(t, name)
	return found && said == "true"
}

// tagOf returns the value of a tag in the comments of t.
func tagOf(t *types.Type, name string) (string, bool) {
	for key, said := range tags(t) {
		if key == name {
			return said, true
		}
	}
	return "", false
}

// tags returns the tags in the comments of t, and their values.
func tags(t *types.Type) iter.Seq2[string, string] {
	return func(yield func(name, said string) bool) {
		for _, line := range slices.Concat(t.SecondClosestCommentLines, t.CommentLines) {
			tag, ok := strings.CutPrefix(strings.TrimSpace(line), "+")
			if name, said, _ := strings.Cut(tag, "="); ok && !yield(name, strings.TrimSpace(said)) {
				return
			}
		}
	}
}

// goString returns t in Go's syntax.
func goString(t *types.Type) string {
	switch t.Kind {
	case types.Pointer:
		return "*" + goString(t.Elem)
	case types.Slice:
		return "[]" + goString(t.Elem)
	case types.Map:
		return "map[" + goString(t.Key) + "]" + goString(t.Elem)
	}
	return t.Name.String()
}

// typeOf returns a field's type as written in the .proto file, without its label.
func (f *field) typeOf() string {
	if f.label == mapped {
		return "map<" + f.key.proto + ", " + f.elem.proto + ">"
	}
	return f.elem.proto
}

// declaration returns label and type as written in the .proto file.
func (f *field) declaration() string {
	switch f.label {
	case repeated:
		return "repeated " + f.typeOf()
	case mapped:
		return f.typeOf()
	}
	return "optional " + f.typeOf()
}

// wire returns the wire type in a field's key.
func (f *field) wire() int {
	if f.label == mapped {
		return 2
	}
	return wireTypes[f.elem.kind]
}

// markRecursive marks the messages that may contain themselves.
func markRecursive(messages []*message) {
	holds := map[string][]string{}
	for _, m := range messages {
		for _, f := range m.fields {
			if f.elem.local != "" {
				holds[m.name] = append(holds[m.name], f.elem.local)
			}
		}
	}
	for _, m := range messages {
		seen := map[string]bool{}
		var visit func(name string)
		visit = func(name string) {
			for _, held := range holds[name] {
				if !seen[held] {
					seen[held] = true
					visit(held)
				}
			}
		}
		visit(m.name)
		m.recursive = seen[m.name] && !m.byHand
	}
}
