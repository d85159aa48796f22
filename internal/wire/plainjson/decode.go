package plainjson

import (
	"reflect"
	"strconv"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// Decode decodes JSON into a value, which must be a pointer to an empty struct. The result is that of sigs.k8s.io/json
// with case-sensitive names and preserved integers, for input without errors in its strict mode. Decode returns false,
// with the value empty again, if the library must decode the input.
func (p *Plans) Decode(data []byte, value any) bool {
	v := reflect.ValueOf(value)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Type().Elem().Kind() != reflect.Struct {
		return false
	}
	v = v.Elem()
	n := p.of(v.Type())
	if n == nil || !v.IsZero() {
		return false
	}
	d := decoder{data: data}
	d.space()
	if d.value(n, v) {
		if d.space(); d.at == len(d.data) {
			return true
		}
	}
	v.SetZero()
	return false
}

// decoder reads data from an index on. Its methods return false for input that is invalid or not supported.
type decoder struct {
	data  []byte
	at    int
	depth int
}

// next returns the next byte, 0 at the end.
func (d *decoder) next() byte {
	if d.at < len(d.data) {
		return d.data[d.at]
	}
	return 0
}

func (d *decoder) space() {
	for d.at < len(d.data) {
		switch d.data[d.at] {
		case ' ', '\n', '\t', '\r':
			d.at++
		default:
			return
		}
	}
}

// is skips space and reads b, if it is the next byte.
func (d *decoder) is(b byte) bool {
	d.space()
	if d.next() != b {
		return false
	}
	d.at++
	return true
}

// another reads the sign after an item: a comma if another item follows, or the closing sign. ok is false for any other
// byte.
func (d *decoder) another(end byte) (more, ok bool) {
	d.space()
	switch d.next() {
	case ',':
		d.at++
		return true, true
	case end:
		d.at++
		return false, true
	}
	return false, false
}

// word reads a literal such as null.
func (d *decoder) word(word string) bool {
	if len(d.data)-d.at < len(word) || string(d.data[d.at:d.at+len(word)]) != word {
		return false
	}
	d.at += len(word)
	return true
}

// value reads a value into v, which must be empty.
func (d *decoder) value(n *node, v reflect.Value) bool {
	switch c := d.next(); {
	case c == 'n':
		// null leaves the field empty. A type with its own decoder may handle null in another way.
		return n.kind != library && n.kind != managed && d.word("null")
	case n.kind == text:
		s, ok := d.text()
		if ok {
			v.SetString(s)
		}
		return ok
	case n.kind == boolean:
		v.SetBool(c == 't')
		return c == 't' && d.word("true") || c == 'f' && d.word("false")
	case n.kind == signed:
		number, ok := d.number()
		if !ok {
			return false
		}
		i, err := strconv.ParseInt(string(number), 10, 64)
		if err != nil || v.OverflowInt(i) {
			return false
		}
		v.SetInt(i)
		return true
	case n.kind == unsigned:
		number, ok := d.number()
		if !ok {
			return false
		}
		i, err := strconv.ParseUint(string(number), 10, 64)
		if err != nil || v.OverflowUint(i) {
			return false
		}
		v.SetUint(i)
		return true
	case n.kind == moment:
		return d.moment(v)
	}
	if d.depth++; d.depth > deepest {
		return false
	}
	ok := d.inner(n, v)
	d.depth--
	return ok
}

func (d *decoder) inner(n *node, v reflect.Value) bool {
	switch n.kind {
	case record:
		return d.record(n, v)
	case pointer:
		inner := reflect.New(n.elem.goType)
		if !d.value(n.elem, inner.Elem()) {
			return false
		}
		v.Set(inner)
		return true
	case list:
		return d.list(n, v)
	case strings_:
		return d.strings(v)
	case dictionary:
		return d.dictionary(n, v)
	}
	return d.library(n, v)
}

func (d *decoder) record(n *node, v reflect.Value) bool {
	if !d.is('{') {
		return false
	}
	var seen uint64 // set of the fields read; strict decoders reject duplicates
	if d.is('}') {
		return true
	}
	expected := 0
	for {
		d.space()
		key, ok := d.key()
		if !ok || !d.is(':') {
			return false
		}
		// Members are mostly in the order of the fields.
		i := -1
		for next := expected; next < len(n.fields) && next < expected+4; next++ {
			if n.fields[next].name == string(key) {
				i = next
				break
			}
		}
		if i < 0 {
			if i, ok = n.index[string(key)]; !ok {
				return false
			}
		}
		expected = i + 1
		if seen&(1<<i) != 0 {
			return false
		}
		seen |= 1 << i
		d.space()
		if f := &n.fields[i]; !d.value(f.node, fieldOf(v, f.index)) {
			return false
		}
		if more, ok := d.another('}'); !more {
			return ok
		}
	}
}

func (d *decoder) list(n *node, v reflect.Value) bool {
	if !d.is('[') {
		return false
	}
	if d.is(']') {
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		return true
	}
	for i := 0; ; i++ {
		d.space()
		if i >= v.Cap() {
			v.Grow(1)
		}
		v.SetLen(i + 1)
		if !d.value(n.elem, v.Index(i)) {
			return false
		}
		if more, ok := d.another(']'); !more {
			return ok
		}
	}
}

func (d *decoder) strings(v reflect.Value) bool {
	m := map[string]string{}
	ok := d.members(func(key string) bool {
		if _, twice := m[key]; twice {
			return false
		}
		if d.next() == 'n' {
			m[key] = ""
			return d.word("null")
		}
		s, ok := d.text()
		m[key] = s
		return ok
	})
	if ok {
		*v.Addr().Interface().(*map[string]string) = m
	}
	return ok
}

func (d *decoder) dictionary(n *node, v reflect.Value) bool {
	m := reflect.MakeMap(n.goType)
	ok := d.members(func(key string) bool {
		k := reflect.New(n.goType.Key()).Elem()
		k.SetString(key)
		if m.MapIndex(k).IsValid() {
			return false
		}
		inner := reflect.New(n.elem.goType).Elem()
		if !d.value(n.elem, inner) {
			return false
		}
		m.SetMapIndex(k, inner)
		return true
	})
	if ok {
		v.Set(m)
	}
	return ok
}

// members reads an object and calls read at the value of each member.
func (d *decoder) members(read func(key string) bool) bool {
	if !d.is('{') {
		return false
	}
	if d.is('}') {
		return true
	}
	for {
		d.space()
		key, ok := d.text()
		if !ok || !d.is(':') {
			return false
		}
		d.space()
		if !read(key) {
			return false
		}
		if more, ok := d.another('}'); !more {
			return ok
		}
	}
}

func (d *decoder) moment(v reflect.Value) bool {
	literal, plain, ok := d.literal()
	if !ok || !plain {
		return false
	}
	t, err := time.Parse(time.RFC3339, string(literal))
	if err != nil || !v.CanAddr() {
		return false
	}
	v.Addr().Interface().(*metav1.Time).Time = t.Local()
	return true
}

// library decodes a value by a library, or by the type's own method.
func (d *decoder) library(n *node, v reflect.Value) bool {
	begin := d.at
	if !d.skip() || !v.CanAddr() || !v.Addr().CanInterface() {
		return false
	}
	value, into := d.data[begin:d.at], v.Addr().Interface()
	if fields, ok := into.(*metav1.FieldsV1); ok && n.kind == managed {
		fields.SetRawBytes(value)
		return true
	}
	strict, err := kjson.UnmarshalStrict(value, into)
	return err == nil && len(strict) == 0
}

// key reads a key without escapes and in ASCII.
func (d *decoder) key() ([]byte, bool) {
	literal, plain, ok := d.literal()
	return literal, ok && plain
}

// text reads a string.
func (d *decoder) text() (string, bool) {
	begin := d.at
	literal, plain, ok := d.literal()
	if !ok {
		return "", false
	}
	if plain {
		return string(literal), true
	}
	var s string
	err := kjson.UnmarshalCaseSensitivePreserveInts(d.data[begin:d.at], &s)
	return s, err == nil
}

// literal reads a string. plain is set if the text between the quotation marks has no escapes and is ASCII.
func (d *decoder) literal() (literal []byte, plain, ok bool) {
	if d.next() != '"' {
		return nil, false, false
	}
	begin := d.at + 1
	plain = true
	for at := begin; at < len(d.data); at++ {
		switch c := d.data[at]; {
		case c == '"':
			d.at = at + 1
			return d.data[begin:at], plain, true
		case c == '\\':
			plain = false
			if at++; at == len(d.data) {
				return nil, false, false
			}
			switch d.data[at] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if len(d.data)-at < 5 {
					return nil, false, false
				}
				for _, h := range d.data[at+1 : at+5] {
					if (h < '0' || h > '9') && (h < 'a' || h > 'f') && (h < 'A' || h > 'F') {
						return nil, false, false
					}
				}
				at += 4
			default:
				return nil, false, false
			}
		case c < ' ':
			return nil, false, false
		case c >= utf8.RuneSelf:
			plain = false
		}
	}
	return nil, false, false
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

func (d *decoder) digits() bool {
	begin := d.at
	for isDigit(d.next()) {
		d.at++
	}
	return d.at > begin
}

// number reads a number.
func (d *decoder) number() ([]byte, bool) {
	begin := d.at
	if d.next() == '-' {
		d.at++
	}
	if d.next() == '0' {
		d.at++
	} else if !d.digits() {
		return nil, false
	}
	if d.next() == '.' {
		if d.at++; !d.digits() {
			return nil, false
		}
	}
	if c := d.next(); c == 'e' || c == 'E' {
		d.at++
		if c := d.next(); c == '+' || c == '-' {
			d.at++
		}
		if !d.digits() {
			return nil, false
		}
	}
	return d.data[begin:d.at], true
}

// skip reads a value of any kind, and reports whether it is valid.
func (d *decoder) skip() bool {
	if d.depth++; d.depth > deepest {
		return false
	}
	defer func() { d.depth-- }()
	switch c := d.next(); {
	case c == '{':
		d.at++
		if d.is('}') {
			return true
		}
		for {
			d.space()
			if _, _, ok := d.literal(); !ok || !d.is(':') {
				return false
			}
			d.space()
			if !d.skip() {
				return false
			}
			if more, ok := d.another('}'); !more {
				return ok
			}
		}
	case c == '[':
		d.at++
		if d.is(']') {
			return true
		}
		for {
			d.space()
			if !d.skip() {
				return false
			}
			if more, ok := d.another(']'); !more {
				return ok
			}
		}
	case c == '"':
		_, _, ok := d.literal()
		return ok
	case c == 't':
		return d.word("true")
	case c == 'f':
		return d.word("false")
	case c == 'n':
		return d.word("null")
	}
	_, ok := d.number()
	return ok
}
