package structural

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// A CRD server stores documents. Once defaults are filled in, a field with a default is always present: a zero from
// the client stays zero, and only an omitted field gets the default. In a Go value, an omitted field and a zero look
// the same unless the field is a pointer. Therefore this package treats a zero in a Go value as a value:
//
//   - When a document becomes a Go value, the document determines which fields are absent: see Fill.
//   - When a Go value becomes a document, a zero that encoding/json omits is written if its field has a default: see
//     Shape.

// Shape locates the fields with defaults in the JSON form of a Go type. It is read-only.
type Shape struct {
	// defaulted are the fields of a struct that have defaults.
	defaulted []defaultedField
	// inner are the fields of a struct whose values contain fields with defaults.
	inner map[string]innerField
	// elements is the shape of the elements of a list, or of the values of a map.
	elements *Shape
}

type defaultedField struct {
	name  string
	index []int
	// zero is the JSON that encoding/json omits for an empty field. It is empty if encoding/json writes the field, or
	// if the field is a pointer, whose nil means absent.
	zero string
}

type innerField struct {
	index []int
	shape *Shape
	// always is set if encoding/json writes the field even if it is empty.
	always bool
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// shapeOf returns the shape of a Go type with a schema; nil if nothing in it has a default.
func (fs fields) shapeOf(t reflect.Type, s *structuralschema.Structural) *Shape {
	if s == nil {
		return nil
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	// A struct with its own MarshalJSON, such as one with unknown fields, still has its fields in JSON. If it has
	// none of the schema's fields, like a quantity, it has no shape.
	if t.Kind() != reflect.Struct && reflect.PointerTo(t).Implements(marshaler) {
		return nil
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return fs.elementsOf(t.Elem(), s.Items)
	case reflect.Map:
		if s.AdditionalProperties == nil || t.Key().Kind() != reflect.String {
			return nil
		}
		return fs.elementsOf(t.Elem(), s.AdditionalProperties.Structural)
	case reflect.Struct:
		return fs.structShape(t, s)
	}
	return nil
}

func (fs fields) elementsOf(t reflect.Type, s *structuralschema.Structural) *Shape {
	if inner := fs.shapeOf(t, s); inner != nil {
		return &Shape{elements: inner}
	}
	return nil
}

func (fs fields) structShape(t reflect.Type, s *structuralschema.Structural) *Shape {
	shape := &Shape{inner: map[string]innerField{}}
	for name, property := range s.Properties {
		f, ok := fs.of(t, name)
		if !ok {
			continue
		}
		if property.Default.Object != nil {
			shape.defaulted = append(shape.defaulted, defaultedField{name, f.Index, leftOut(f)})
		}
		if inner := fs.shapeOf(f.Type, &property); inner != nil {
			always := f.Type.Kind() == reflect.Struct && !hasOption(f, "omitzero")
			shape.inner[name] = innerField{f.Index, inner, always}
		}
	}
	if len(shape.defaulted) == 0 && len(shape.inner) == 0 {
		return nil
	}
	slices.SortFunc(shape.defaulted, func(a, b defaultedField) int { return strings.Compare(a.name, b.name) })
	return shape
}

func hasOption(f reflect.StructField, option string) bool {
	_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return slices.Contains(strings.Split(options, ","), option)
}

// leftOut returns the JSON that encoding/json omits for an empty field. It returns an empty string if encoding/json
// omits nothing, or if the field is a pointer or an interface.
func leftOut(f reflect.StructField) string {
	switch f.Type.Kind() {
	case reflect.Pointer, reflect.Interface:
		return ""
	case reflect.Struct, reflect.Array:
		if !hasOption(f, "omitzero") {
			return ""
		}
	default:
		if !hasOption(f, "omitempty") && !hasOption(f, "omitzero") {
			return ""
		}
	}
	value := reflect.Zero(f.Type)
	switch f.Type.Kind() {
	case reflect.Slice:
		value = reflect.MakeSlice(f.Type, 0, 0)
	case reflect.Map:
		value = reflect.MakeMap(f.Type)
	}
	data, err := json.Marshal(value.Interface())
	if err != nil || string(data) == "null" {
		return ""
	}
	return string(data)
}

// List returns the shape of a list of such objects.
func (s *Shape) List() *Shape {
	if s == nil {
		return nil
	}
	return &Shape{inner: map[string]innerField{"items": {shape: &Shape{elements: s}}}}
}

// absent reports whether a field has no value even if zeros count as values.
func absent(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return v.IsNil()
	case reflect.Struct:
		return v.IsZero() // a zero time is null in JSON
	}
	return false
}

// some reports whether of is true for any field with a default in v.
func (s *Shape) some(v reflect.Value, of func(v reflect.Value) bool) bool {
	if s == nil {
		return false
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range s.defaulted {
			if field, err := v.FieldByIndexErr(f.index); err == nil && of(field) {
				return true
			}
		}
		for _, f := range s.inner {
			if field, err := v.FieldByIndexErr(f.index); err == nil && f.shape.some(field, of) {
				return true
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if s.elements.some(v.Index(i), of) {
				return true
			}
		}
	case reflect.Map:
		for iter := v.MapRange(); iter.Next(); {
			if s.elements.some(iter.Value(), of) {
				return true
			}
		}
	}
	return false
}

// everything stands for a document in which all fields are present, allBut for a document without a single field.
type (
	everything struct{}
	allBut     string
)

func memberOf(doc any, name string) any {
	switch doc := doc.(type) {
	case everything:
		return doc
	case allBut:
		if name != string(doc) {
			return everything{}
		}
	case map[string]any:
		return doc[name]
	}
	return nil
}

func elementOf(doc any, i int) any {
	switch doc := doc.(type) {
	case everything:
		return doc
	case []any:
		if i < len(doc) {
			return doc[i]
		}
	}
	return nil
}

// restore adds the zeros of v that its plain form omits, where doc has the fields.
func (s *Shape) restore(plain any, v reflect.Value, doc any) {
	if s == nil {
		return
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch plain := plain.(type) {
	case map[string]any:
		if v.Kind() == reflect.Map {
			for key, element := range plain {
				s.elements.restore(element, v.MapIndex(reflect.ValueOf(key).Convert(v.Type().Key())), memberOf(doc, key))
			}
			return
		}
		for _, f := range s.defaulted {
			if _, written := plain[f.name]; written || f.zero == "" || memberOf(doc, f.name) == nil {
				continue
			}
			if field, err := v.FieldByIndexErr(f.index); err == nil && !absent(field) {
				plain[f.name] = literal(f.zero)
			}
		}
		for name, f := range s.inner {
			if field, err := v.FieldByIndexErr(f.index); err == nil {
				if _, there := memberOf(doc, name).(map[string]any); there && plain[name] == nil && field.Kind() == reflect.Struct {
					plain[name] = map[string]any{} // omitted because of omitzero
				}
				f.shape.restore(plain[name], field, memberOf(doc, name))
			}
		}
	case []any:
		for i, element := range plain {
			s.elements.restore(element, v.Index(i), elementOf(doc, i))
		}
	}
}

func literal(text string) any {
	var value any
	// The text comes from json.Marshal.
	_ = utiljson.Unmarshal([]byte(text), &value)
	return value
}

// Complete reports whether a JSON document has all fields with defaults in the objects that it contains.
func (s *Shape) Complete(data []byte) bool {
	c := completer{data: data, checking: true}
	return c.value(s) && !c.incomplete
}

// WriteZeros adds the zeros of fields with defaults to a document that encoding/json has written without them. It
// returns invalid JSON unchanged.
func (s *Shape) WriteZeros(data []byte) []byte {
	c := completer{data: data}
	if !c.value(s) || c.out == nil {
		return data
	}
	return append(c.out, data[c.copied:]...)
}

// completer is a scanner over JSON.
type completer struct {
	data []byte
	at   int

	out    []byte // the output in place of data before copied
	copied int

	checking   bool
	incomplete bool
}

func (c *completer) space() {
	for c.at < len(c.data) {
		switch c.data[c.at] {
		case ' ', '\t', '\n', '\r':
			c.at++
		default:
			return
		}
	}
}

// next consumes a character after white space.
func (c *completer) next(char byte) bool {
	c.space()
	if c.at < len(c.data) && c.data[c.at] == char {
		c.at++
		return true
	}
	return false
}

// value consumes a value. It returns false for malformed JSON.
func (c *completer) value(s *Shape) bool {
	c.space()
	if c.at >= len(c.data) {
		return false
	}
	if s == nil {
		return c.skip()
	}
	switch c.data[c.at] {
	case '{':
		return c.object(s)
	case '[':
		return c.list(s)
	}
	return c.skip()
}

func (c *completer) list(s *Shape) bool {
	c.at++
	if c.next(']') {
		return true
	}
	for c.value(s.elements) {
		if c.next(']') {
			return true
		}
		if !c.next(',') {
			return false
		}
	}
	return false
}

func (c *completer) object(s *Shape) bool {
	c.at++
	var few [16]bool
	seen := few[:]
	if len(s.defaulted) > len(few) {
		seen = make([]bool, len(s.defaulted))
	}
	always := 0
	for members := 0; ; members++ {
		if c.next('}') {
			break
		}
		if members > 0 && !c.next(',') {
			return false
		}
		c.space()
		from := c.at
		if c.at >= len(c.data) || c.data[c.at] != '"' || !c.skip() {
			return false
		}
		name := string(c.data[from+1 : c.at-1])
		if i, ok := slices.BinarySearchFunc(
			s.defaulted,
			name,
			func(f defaultedField, name string) int { return strings.Compare(f.name, name) },
		); ok {
			seen[i] = true
		}
		inner := s.elements
		if f, ok := s.inner[name]; ok {
			inner = f.shape
			if f.always {
				always++
			}
		}
		if !c.next(':') || !c.value(inner) {
			return false
		}
	}
	if c.checking {
		for _, f := range s.inner {
			if f.always {
				always--
			}
		}
		c.incomplete = c.incomplete || always < 0
	}
	for i, f := range s.defaulted {
		switch {
		case seen[i]:
		case c.checking:
			c.incomplete = true
		case f.zero != "":
			c.insert(f.name, f.zero)
		}
	}
	return true
}

// insert writes a member at the end of the object that has just been consumed.
func (c *completer) insert(name, value string) {
	end := c.at - 1
	if c.copied < end {
		c.out = append(c.out, c.data[c.copied:end]...)
		c.copied = end
	}
	if c.out[len(c.out)-1] != '{' {
		c.out = append(c.out, ',')
	}
	key, _ := json.Marshal(name) // strings can be encoded
	c.out = append(append(append(c.out, key...), ':'), value...)
}

// skip consumes a value without parsing it.
func (c *completer) skip() bool {
	depth := 0
	for c.at < len(c.data) {
		switch char := c.data[c.at]; char {
		case '"':
			for c.at++; ; c.at++ {
				if c.at >= len(c.data) {
					return false
				}
				if c.data[c.at] == '\\' {
					c.at++
				} else if c.data[c.at] == '"' {
					break
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth < 0 {
				return false
			}
		case ',', ':', ' ', '\t', '\n', '\r':
		default:
			// A number or a literal.
			for c.at+1 < len(c.data) && !strings.ContainsRune(" \t\n\r,]}", rune(c.data[c.at+1])) {
				c.at++
			}
		}
		c.at++
		if depth == 0 {
			return true
		}
	}
	return false
}
