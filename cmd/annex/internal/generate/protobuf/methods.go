package protobuf

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/gengo/v2/types"
)

// maxDepth bounds the nesting of messages of recursive types. Kubernetes' JSON decoder has the same bound.
const maxDepth = 10000

// coder writes Go code.
type coder struct {
	strings.Builder
	path    string
	imports map[string]string // path by name
	// recursive are the package's types whose Unmarshal counts the depth; hidden are the types' methods that are not
	// exported.
	recursive map[string]bool
	hidden    map[string]map[string]bool
}

// part returns a coder for code that is inserted into c's.
func (c *coder) part() *coder {
	return &coder{path: c.path, imports: c.imports, recursive: c.recursive, hidden: c.hidden}
}

// method returns the name of a method of v.
func (c *coder) method(v value, name string) string {
	if c.hidden[v.local][name] {
		return "protobuf" + name
	}
	return name
}

// code returns the methods of all messages and the functions that they share.
func (g *generation) code(messages []*message) (string, map[string]string) {
	c := &coder{path: g.Path, imports: map[string]string{}, recursive: map[string]bool{}, hidden: map[string]map[string]bool{}}
	for _, m := range messages {
		m.recursive = m.recursive && !g.Declares(m.name, "Unmarshal")
		c.recursive[m.name], c.hidden[m.name] = m.recursive, m.hidden
	}
	for _, m := range messages {
		if m.byHand {
			c.reset(m)
		} else {
			c.message(m)
		}
	}
	c.helpers()
	return c.String(), c.imports
}

func (c *coder) p(format string, args ...any) {
	fmt.Fprintf(c, format+"\n", args...)
}

// pkg returns the name of the package with that path in the code.
func (c *coder) pkg(path string) string {
	name := notIdentifier.ReplaceAllString(path, "_")
	c.imports[name] = path
	return name
}

var notIdentifier = regexp.MustCompile(`[^A-Za-z0-9]`)

// goType returns t as written in the package's code.
func (c *coder) goType(t *types.Type) string {
	switch {
	case t.Name.Package == c.path && t.Name.Package != "":
		return t.Name.Name
	case t.Name.Package != "":
		return c.pkg(t.Name.Package) + "." + t.Name.Name
	}
	switch t.Kind {
	case types.Pointer:
		return "*" + c.goType(t.Elem)
	case types.Slice:
		return "[]" + c.goType(t.Elem)
	case types.Map:
		return "map[" + c.goType(t.Key) + "]" + c.goType(t.Elem)
	}
	return t.Name.Name
}

func (c *coder) wire() string { return c.pkg(WirePackage) }

// message writes the methods of one type. The methods of a list that only read have a value receiver, as gogo's do.
func (c *coder) message(m *message) {
	reader, whole := "*"+m.name, "m"
	if m.list {
		reader = m.name
	}
	fields := slices.Clone(m.fields)
	slices.SortStableFunc(fields, func(a, b *field) int { return a.number - b.number })

	name := func(method string) string { return c.method(value{local: m.name}, method) }
	if !m.hidden["Reset"] {
		c.reset(m)
	}
	c.p("// %s returns how many bytes m has in protobuf.", name("Size"))
	c.p("func (m %s) %s() int {\nif m == nil {\nreturn 0\n}", reader, name("Size"))
	c.size(fields, whole)
	c.p("}\n")
	if !m.hidden["Marshal"] {
		c.p("// Marshal returns m in protobuf.")
		c.p("func (m %s) Marshal() ([]byte, error) {\ndata := make([]byte, m.%s())\nn, err := m.%s(data)\nif err != nil {\nreturn nil, "+
			"err\n}\nreturn data[len(data)-n:], nil\n}\n",
			reader, name("Size"), name("MarshalToSizedBuffer"))
	}
	if !m.hidden["MarshalTo"] {
		c.p("// MarshalTo writes m to the start of data, which must have room for Size bytes.")
		c.p("func (m %s) MarshalTo(data []byte) (int, error) {\nreturn m.MarshalToSizedBuffer(data[:m.Size()])\n}\n", reader)
	}
	c.p("// %s writes m to the end of data, which must have room for %s bytes.", name("MarshalToSizedBuffer"), name("Size"))
	c.p("func (m %s) %s(data []byte) (int, error) {", reader, name("MarshalToSizedBuffer"))
	c.marshal(fields, whole)
	c.p("}\n")
	c.p("// %s merges data into m. It keeps no part of data.", name("Unmarshal"))
	c.p("func (m *%s) %s(data []byte) error {", m.name, name("Unmarshal"))
	if m.recursive {
		c.p("return m.unmarshalProtobuf(data, %d)\n}\n", maxDepth)
		c.p("func (m *%s) unmarshalProtobuf(data []byte, depth int) error {", m.name)
		c.p("if depth == 0 {\nreturn %s.New(\"proto: %s: more than %d messages within each other\")\n}", c.pkg("errors"), m.name, maxDepth)
	}
	c.unmarshal(m, fields)
	c.p("}\n")
}

func (c *coder) reset(m *message) {
	c.p("// Reset makes m the zero value.")
	c.p("func (m *%s) Reset() { *m = %s }\n", m.name, map[bool]string{false: m.name + "{}", true: "nil"}[m.list])
}

// of returns the Go expression of a field.
func (f *field) of(whole string) string {
	if f.goName == "" {
		return whole
	}
	return whole + "." + f.goName
}

func (f *field) key64() uint64 { return uint64(f.number)<<3 | uint64(f.wire()) }

func keyOf(number int, k kind) uint64 { return uint64(number)<<3 | uint64(wireTypes[k]) }

func sizeOfVarint(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// size writes the body of Size behind its check for nil. Constant sizes are added up at generation time.
func (c *coder) size(fields []*field, whole string) {
	constant := 0
	rest := c.part()
	for _, f := range fields {
		constant += rest.sizeOf(f, f.of(whole))
	}
	if rest.Len() == 0 {
		c.p("return %d", constant)
		return
	}
	c.p("n := %d", constant)
	c.WriteString(rest.String())
	c.p("return n")
}

// sizeOf writes the code that adds the size of f to n, and returns the constant part of the size, for which it writes
// no code.
func (c *coder) sizeOf(f *field, x string) int {
	key := sizeOfVarint(f.key64())
	v := f.elem
	switch f.label {
	case mapped:
		c.p("for k, v := range %s {", x)
		// For a blank key or value only the type matters.
		c.p("entry := %d", 2+fixedSize(f.key.kind)+fixedSize(v.kind))
		if s := c.sizeOfValue(f.key, "k"); s != "" {
			c.p("entry += %s", s)
		} else {
			c.p("_ = k")
		}
		switch s := c.sizeOfValue(v, "v"); {
		case v.kind == octets || v.pointer:
			c.p("if v != nil {\nentry += %s\n} else {\nentry--\n}", s)
		case s != "":
			c.p("entry += %s", s)
		default:
			c.p("_ = v")
		}
		c.p("n += %d + %s.SizeBytes(entry)\n}", key, c.wire())
		return 0
	case repeated:
		switch fixed := fixedSize(v.kind); {
		case fixed > 0:
			c.p("n += %d * len(%s)", key+fixed, x)
		case v.kind == embedded && v.pointer:
			c.p("for _, v := range %s {\nl := 0\nif v != nil {\nl = v.%s()\n}\nn += %d + %s.SizeBytes(l)\n}", x, c.method(v, "Size"), key, c.wire())
		case v.kind == embedded:
			c.p("for i := range %s {\nn += %d + %s\n}", x, key, c.sizeOfValue(v, x+"[i]"))
		default:
			c.p("for _, v := range %s {\nn += %d + %s\n}", x, key, c.sizeOfValue(v, "v"))
		}
		return 0
	}
	fixed := key + fixedSize(v.kind)
	at := x
	if v.pointer && v.kind != embedded {
		at = "*" + x
	}
	s := c.sizeOfValue(v, at)
	switch optional := v.pointer || v.list || v.kind == octets; {
	case optional && s == "":
		c.p("if %s != nil {\nn += %d\n}", x, fixed)
		return 0
	case optional:
		c.p("if %s != nil {\nn += %d + %s\n}", x, fixed, s)
		return 0
	case s != "":
		c.p("n += %s", s)
	}
	return fixed
}

// fixedSize returns the size of a kind whose values all have the same size, or zero.
func fixedSize(k kind) int { return map[kind]int{boolean: 1, fixed32: 4, fixed64: 8}[k] }

// sizeOfValue returns the expression for the size of a value with its length, or nothing if the size is fixed.
func (c *coder) sizeOfValue(v value, x string) string {
	switch v.kind {
	case varint:
		return fmt.Sprintf("%s.SizeVarint(uint64(%s))", c.wire(), x)
	case text, octets:
		return fmt.Sprintf("%s.SizeBytes(len(%s))", c.wire(), x)
	case embedded:
		return fmt.Sprintf("%s.SizeBytes(%s.%s())", c.wire(), x, c.method(v, "Size"))
	}
	return ""
}

// marshal writes the body of MarshalToSizedBuffer, which begins with the last field.
func (c *coder) marshal(fields []*field, whole string) {
	if len(fields) == 0 {
		c.p("return 0, nil")
		return
	}
	c.p("i := len(data)")
	if slices.ContainsFunc(fields, func(f *field) bool { return f.elem.kind == embedded }) {
		c.p("var n int\nvar err error")
	}
	for _, f := range slices.Backward(fields) {
		c.marshalField(f, f.of(whole))
	}
	c.p("return len(data) - i, nil")
}

func (c *coder) marshalField(f *field, x string) {
	v := f.elem
	switch f.label {
	case mapped:
		c.p("if len(%s) > 0 {", x)
		if f.key.kind == boolean {
			c.p("for _, k := range []%s{true, false} {\nv, ok := %s[k]\nif !ok {\ncontinue\n}", c.goType(f.key.goType), x)
		} else {
			c.p(
				"keys := make([]%s, 0, len(%s))\nfor k := range %s {\nkeys = append(keys, k)\n}\n%s.Sort(keys)",
				c.goType(f.key.goType),
				x,
				x,
				c.pkg("slices"),
			)
			c.p("for j := len(keys) - 1; j >= 0; j-- {\nk := keys[j]\nv := %s[k]", x)
		}
		c.p("end := i")
		if v.pointer || v.kind == octets {
			c.p("if v != nil {")
		}
		c.marshalValue(v, "v")
		c.marshalKey(keyOf(2, v.kind))
		if v.pointer || v.kind == octets {
			c.p("}")
		}
		c.marshalValue(f.key, "k")
		c.marshalKey(keyOf(1, f.key.kind))
		c.p("i = protobufVarint(data, i, uint64(end-i))")
		c.marshalKey(f.key64())
		c.p("}\n}")
	case repeated:
		c.p("for j := len(%s) - 1; j >= 0; j-- {", x)
		if v.kind == embedded && v.pointer {
			c.p(
				"n = 0\nif v := %s[j]; v != nil {\nif n, err = v.%s(data[:i]); err != nil {\nreturn 0, err\n}\n}",
				x,
				c.method(v, "MarshalToSizedBuffer"),
			)
			c.p("i = protobufVarint(data, i-n, uint64(n))")
		} else {
			c.marshalValue(v, x+"[j]")
		}
		c.marshalKey(f.key64())
		c.p("}")
	default:
		optional := v.pointer || v.list || v.kind == octets
		if optional {
			c.p("if %s != nil {", x)
		}
		if v.pointer && v.kind != embedded {
			x = "*" + x
		}
		c.marshalValue(v, x)
		c.marshalKey(f.key64())
		if optional {
			c.p("}")
		}
	}
}

// marshalKey writes the code that puts a field's number and wire type in front of its value.
func (c *coder) marshalKey(key uint64) {
	var wire []byte
	for ; key >= 0x80; key >>= 7 {
		wire = append(wire, byte(key)|0x80)
	}
	wire = append(wire, byte(key))
	for _, b := range slices.Backward(wire) {
		c.p("i--\ndata[i] = 0x%02x", b)
	}
}

func (c *coder) marshalValue(v value, x string) {
	cast := func(to string) string {
		if v.goType.Name.Package == "" && v.goType.Name.Name == to {
			return x
		}
		return to + "(" + x + ")"
	}
	switch v.kind {
	case varint:
		c.p("i = protobufVarint(data, i, uint64(%s))", x)
	case boolean:
		c.p("i--\ndata[i] = 0\nif %s {\ndata[i] = 1\n}", x)
	case fixed32:
		c.p("i -= 4\n%s.LittleEndian.PutUint32(data[i:], %s.Float32bits(%s))", c.pkg("encoding/binary"), c.pkg("math"), cast("float32"))
	case fixed64:
		c.p("i -= 8\n%s.LittleEndian.PutUint64(data[i:], %s.Float64bits(%s))", c.pkg("encoding/binary"), c.pkg("math"), cast("float64"))
	case text:
		c.p("i = protobufString(data, i, %s)", cast("string"))
	case octets:
		c.p("i = protobufBytes(data, i, %s)", x)
	case embedded:
		if !v.pointer && x == "v" && v.goType.Kind == types.Struct {
			x = "(&v)"
		}
		c.p(
			"if n, err = %s.%s(data[:i]); err != nil {\nreturn 0, err\n}\ni = protobufVarint(data, i-n, uint64(n))",
			x,
			c.method(v, "MarshalToSizedBuffer"),
		)
	}
}

// unmarshal writes the body of Unmarshal.
func (c *coder) unmarshal(m *message, fields []*field) {
	whole := "m"
	if m.list {
		whole = "(*m)"
	}
	cases := c.part()
	var numbers []string
	for _, f := range fields {
		cases.unmarshalField(f, f.of(whole), m.recursive)
		numbers = append(numbers, strconv.Itoa(f.number))
	}
	c.p(
		"for len(data) > 0 {\nkey, %s, %s, n := protobufNext(data)",
		blankUnless("v", slices.ContainsFunc(fields, func(f *field) bool { return f.wire() != 2 })),
		blankUnless("b", slices.ContainsFunc(fields, func(f *field) bool { return f.wire() == 2 || f.label == repeated })),
	)
	c.p("if n < 0 {\nreturn %s.ParseError(n)\n}\ndata = data[n:]", c.wire())
	if len(fields) == 0 {
		c.p("_ = key\n}\nreturn nil")
		return
	}
	c.p("switch key {")
	c.WriteString(cases.String())
	c.p("default:\nswitch key >> 3 {\ncase %s:\nreturn protobufWireType(%q, key)\n}\n}\n}\nreturn nil", strings.Join(numbers, ", "), m.name)
}

// blankUnless returns name if it is used, and otherwise the blank identifier.
func blankUnless(name string, used bool) string {
	if used {
		return name
	}
	return "_"
}

func (c *coder) unmarshalField(f *field, x string, recursive bool) {
	v := f.elem
	call := func(on, data string) string {
		if recursive && c.recursive[v.local] {
			return fmt.Sprintf("if err := %s.unmarshalProtobuf(%s, depth-1); err != nil {\nreturn err\n}", on, data)
		}
		return fmt.Sprintf("if err := %s.%s(%s); err != nil {\nreturn err\n}", on, c.method(v, "Unmarshal"), data)
	}
	c.p("case 0x%02x: // %s", f.key64(), f.name)
	switch {
	case f.label == mapped:
		c.p("var key %s", c.goType(f.key.goType))
		switch {
		case v.kind == octets || v.list:
			c.p("value := %s{}", c.goType(v.goType))
		case v.pointer:
			c.p("var value *%s", c.goType(v.goType))
		default:
			c.p("var value %s", c.goType(v.goType))
		}
		cases := c.part()
		cases.p("case 0x%02x:\nkey = %s", keyOf(1, f.key.kind), c.decode(f.key, "v", "e"))
		cases.p("case 0x%02x:", keyOf(2, v.kind))
		switch {
		case v.kind == embedded && v.pointer:
			cases.p("value = new(%s)\n%s", c.goType(v.goType), call("value", "e"))
		case v.kind == embedded:
			cases.p("value = %s{}\n%s", c.goType(v.goType), call("value", "e"))
		default:
			cases.p("value = %s", c.decode(v, "v", "e"))
		}
		c.p(
			"for len(b) > 0 {\nk, %s, %s, n := protobufNext(b)",
			blankUnless("v", wireTypes[f.key.kind] != 2 || wireTypes[v.kind] != 2),
			blankUnless("e", f.key.kind == text || wireTypes[v.kind] == 2),
		)
		c.p("if n < 0 {\nreturn %s.ParseError(n)\n}\nb = b[n:]\nswitch k {", c.wire())
		c.WriteString(cases.String())
		c.p("default:\nswitch k >> 3 {\ncase 1, 2:\nreturn protobufWireType(%q, k)\n}\n}\n}", f.name)
		c.p("if %s == nil {\n%s = %s{}\n}\n%s[key] = value", x, x, c.goType(f.goType), x)
	case f.label == repeated && v.kind == embedded && v.pointer:
		c.p("e := new(%s)\n%s = append(%s, e)\n%s", c.goType(v.goType), x, x, call("e", "b"))
	case f.label == repeated && v.kind == embedded:
		c.p("%s = append(%s, %s{})\n%s", x, x, c.goType(v.goType), call(fmt.Sprintf("%s[len(%s)-1]", x, x), "b"))
	case f.label == repeated:
		c.p("%s = append(%s, %s)", x, x, c.decode(v, "v", "b"))
		if v.kind != text && v.kind != octets {
			c.packed(f, x)
		}
	case v.kind == embedded && v.pointer:
		c.p("if %s == nil {\n%s = new(%s)\n}\n%s", x, x, c.goType(v.goType), call(x, "b"))
	case v.list:
		c.p("if %s == nil {\n%s = %s{}\n}\n%s", x, x, c.goType(v.goType), call(x, "b"))
	case v.kind == embedded:
		c.p("%s", call(x, "b"))
	case v.pointer:
		c.p("x := %s\n%s = &x", c.decode(v, "v", "b"), x)
	default:
		c.p("%s = %s", x, c.decode(v, "v", "b"))
	}
}

// packed writes the case for a list of numbers that another writer has packed into one value.
func (c *coder) packed(f *field, x string) {
	c.p("case 0x%02x: // %s, packed\nfor len(b) > 0 {", uint64(f.number)<<3|2, f.name)
	consume := map[kind]string{fixed32: "ConsumeFixed32", fixed64: "ConsumeFixed64"}[f.elem.kind]
	if consume == "" {
		consume = "ConsumeVarint"
	}
	decoded := c.decode(f.elem, "v", "b")
	if f.elem.kind == fixed32 {
		decoded = strings.Replace(decoded, "uint32(v)", "v", 1)
	}
	c.p(
		"v, n := %s.%s(b)\nif n < 0 {\nreturn %s.ParseError(n)\n}\nb = b[n:]\n%s = append(%s, %s)\n}",
		c.wire(),
		consume,
		c.wire(),
		x,
		x,
		decoded,
	)
}

// decode returns the expression that converts number or data to v's Go type.
func (c *coder) decode(v value, number, data string) string {
	name := c.goType(v.goType)
	cast := func(from, x string) string {
		if name == from {
			return x
		}
		return name + "(" + x + ")"
	}
	switch v.kind {
	case varint:
		return cast("uint64", number)
	case boolean:
		return cast("bool", number+" != 0")
	case fixed32:
		return cast("float32", fmt.Sprintf("%s.Float32frombits(uint32(%s))", c.pkg("math"), number))
	case fixed64:
		return cast("float64", fmt.Sprintf("%s.Float64frombits(%s)", c.pkg("math"), number))
	case text:
		return name + "(" + data + ")"
	}
	return fmt.Sprintf("append(%s{}, %s...)", name, data)
}

// helpers writes the helper functions that the methods call.
func (c *coder) helpers() {
	for _, name := range Helpers { // helpers that others call come last
		if !strings.Contains(c.String(), name+"(") {
			continue
		}
		switch name {
		case "protobufNext":
			c.p(strings.ReplaceAll(nextHelper, "protowire.", c.wire()+"."))
		case "protobufVarint":
			c.p(strings.ReplaceAll(varintHelper, "protowire.", c.wire()+"."))
		case "protobufString":
			c.p(bytesHelper, "protobufString", "string")
		case "protobufBytes":
			c.p(bytesHelper, "protobufBytes", "[]byte")
		case "protobufWireType":
			c.p(wireTypeHelper, c.pkg("fmt"))
		}
	}
}

const nextHelper = `// protobufNext takes the first field from data, which is not empty: its key, its
// value, which is a number or bytes of data, and its length, negative for what
// protowire.ParseError explains.
func protobufNext(data []byte) (key, v uint64, b []byte, n int) {
	// Most fields have a short key, and a small number or few bytes.
	if key = uint64(data[0]); len(data) > 1 && key >= 1<<3 && key < 0x80 && data[1] < 0x80 {
		switch v = uint64(data[1]); protowire.Type(key & 7) {
		case protowire.VarintType:
			return key, v, nil, 2
		case protowire.BytesType:
			if n = 2 + int(v); n <= len(data) {
				return key, 0, data[2:n], n
			}
		}
	}
	number, typ, n := protowire.ConsumeTag(data)
	if n < 0 {
		return 0, 0, nil, n
	}
	rest, l := data[n:], 0
	switch typ {
	case protowire.VarintType:
		v, l = protowire.ConsumeVarint(rest)
	case protowire.BytesType:
		b, l = protowire.ConsumeBytes(rest)
	case protowire.Fixed64Type:
		v, l = protowire.ConsumeFixed64(rest)
	case protowire.Fixed32Type:
		var v32 uint32
		v32, l = protowire.ConsumeFixed32(rest)
		v = uint64(v32)
	default:
		l = protowire.ConsumeFieldValue(number, typ, rest)
	}
	if l < 0 {
		return 0, 0, nil, l
	}
	return protowire.EncodeTag(number, typ), v, b, n + l
}
`

const varintHelper = `// protobufVarint writes v before data[i] and returns where it begins.
func protobufVarint(data []byte, i int, v uint64) int {
	if v < 0x80 {
		i--
		data[i] = byte(v)
		return i
	}
	i -= protowire.SizeVarint(v)
	j := i
	for ; v >= 0x80; v >>= 7 {
		data[j] = byte(v) | 0x80
		j++
	}
	data[j] = byte(v)
	return i
}
`

const bytesHelper = `// %[1]s writes s and its length before data[i] and returns where they begin.
func %[1]s(data []byte, i int, s %[2]s) int {
	i -= len(s)
	copy(data[i:], s)
	if len(s) < 0x80 {
		i--
		data[i] = byte(len(s))
		return i
	}
	return protobufVarint(data, i, uint64(len(s)))
}
`

const wireTypeHelper = `// protobufWireType is the error of a field that has another type than ours.
func protobufWireType(of string, key uint64) error {
	return %s.Errorf("proto: %%s: wrong wire type %%d of field %%d", of, key&7, key>>3)
}
`
