package plainjson

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deepest bounds the depth of values. The libraries must detect values that contain themselves.
const deepest = 200

var errUnknown = errors.New("the libraries have to say what is wrong")

// Append appends the encoding of a value, which must be a pointer to a struct, as an encoder of encoding/json writes
// it, with a line break at its end. It returns to unchanged and false if the library must encode the value.
func (p *Plans) Append(to []byte, value any) ([]byte, bool) {
	v := reflect.ValueOf(value)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Type().Elem().Kind() != reflect.Struct {
		return to, false
	}
	n := p.of(v.Type().Elem())
	if n == nil {
		return to, false
	}
	e := encoder{p, to, 0}
	if err := e.value(n, v.Elem()); err != nil {
		return to, false
	}
	return append(e.to, '\n'), true
}

type encoder struct {
	*Plans
	to    []byte
	depth int
}

func (e *encoder) value(n *node, v reflect.Value) error {
	switch n.kind {
	case text:
		return e.text(v.String())
	case boolean:
		e.to = strconv.AppendBool(e.to, v.Bool())
		return nil
	case signed:
		e.to = strconv.AppendInt(e.to, v.Int(), 10)
		return nil
	case unsigned:
		e.to = strconv.AppendUint(e.to, v.Uint(), 10)
		return nil
	case moment:
		e.moment(v)
		return nil
	case library:
		return e.library(v)
	}
	if e.depth++; e.depth > deepest {
		return errUnknown
	}
	err := e.inner(n, v)
	e.depth--
	return err
}

func (e *encoder) inner(n *node, v reflect.Value) error {
	switch n.kind {
	case record:
		return e.record(n, v)
	case pointer:
		if v.IsNil() {
			return e.null()
		}
		return e.value(n.elem, v.Elem())
	case managed:
		return e.managed(v)
	case list:
		if v.IsNil() {
			return e.null()
		}
		e.to = append(e.to, '[')
		for i := range v.Len() {
			if i > 0 {
				e.to = append(e.to, ',')
			}
			if err := e.value(n.elem, v.Index(i)); err != nil {
				return err
			}
		}
		e.to = append(e.to, ']')
		return nil
	}
	if v.IsNil() {
		return e.null()
	}
	if n.kind == strings_ && v.CanInterface() {
		return e.strings(v.Interface().(map[string]string))
	}
	return e.dictionary(n, v)
}

func (e *encoder) null() error {
	e.to = append(e.to, "null"...)
	return nil
}

func (e *encoder) record(n *node, v reflect.Value) error {
	e.to = append(e.to, '{')
	begin := len(e.to)
	for i := range n.fields {
		f := &n.fields[i]
		inner := fieldOf(v, f.index)
		if f.omitEmpty && isEmpty(inner) ||
			f.omitZero && (f.node.kind == moment && timeOf(inner).IsZero() || f.node.kind != moment && inner.IsZero()) {
			continue
		}
		if len(e.to) > begin {
			e.to = append(e.to, ',')
		}
		e.to = append(e.to, f.quote...)
		if err := e.value(f.node, inner); err != nil {
			return err
		}
	}
	e.to = append(e.to, '}')
	return nil
}

// isEmpty reports whether a field with omitempty is omitted.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String, reflect.Map, reflect.Slice, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// fewKeys is the number of keys that are sorted without an allocation.
const fewKeys = 16

func (e *encoder) strings(m map[string]string) error {
	var few [fewKeys]string
	keys := few[:0]
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	e.to = append(e.to, '{')
	for i, key := range keys {
		if i > 0 {
			e.to = append(e.to, ',')
		}
		if err := e.text(key); err != nil {
			return err
		}
		e.to = append(e.to, ':')
		if err := e.text(m[key]); err != nil {
			return err
		}
	}
	e.to = append(e.to, '}')
	return nil
}

func (e *encoder) dictionary(n *node, v reflect.Value) error {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		switch a, b := a.String(), b.String(); {
		case a < b:
			return -1
		case a > b:
			return 1
		}
		return 0
	})
	e.to = append(e.to, '{')
	for i, key := range keys {
		if i > 0 {
			e.to = append(e.to, ',')
		}
		if err := e.text(key.String()); err != nil {
			return err
		}
		e.to = append(e.to, ':')
		if err := e.value(n.elem, v.MapIndex(key)); err != nil {
			return err
		}
	}
	e.to = append(e.to, '}')
	return nil
}

func timeOf(v reflect.Value) time.Time {
	if v.CanAddr() {
		return v.Addr().Interface().(*metav1.Time).Time
	}
	return v.Interface().(metav1.Time).Time
}

func (e *encoder) moment(v reflect.Value) {
	t := timeOf(v)
	if t.IsZero() {
		e.to = append(e.to, "null"...)
		return
	}
	e.to = append(e.to, '"')
	e.to = t.UTC().AppendFormat(e.to, time.RFC3339)
	e.to = append(e.to, '"')
}

// managed encodes the fields of a manager. Nearly all objects of a kind have the same ones, so it is determined only
// once that they are valid and that encoding/json writes them unchanged.
func (e *encoder) managed(v reflect.Value) error {
	if !v.CanAddr() {
		return e.library(v)
	}
	raw := v.Addr().Interface().(*metav1.FieldsV1).GetRawBytes()
	if !e.isCompact(raw) {
		begin := len(e.to)
		if err := e.library(v); err != nil {
			return err
		}
		if string(e.to[begin:]) == string(raw) {
			e.addCompact(raw)
		}
		return nil
	}
	e.to = append(e.to, raw...)
	return nil
}

func (e *encoder) library(v reflect.Value) error {
	if v.CanAddr() { // so that methods of the pointer are used
		v = v.Addr()
	}
	if !v.CanInterface() {
		return errUnknown
	}
	encoded, err := json.Marshal(v.Interface())
	e.to = append(e.to, encoded...)
	return err
}

// plainText marks the bytes that encoding/json writes unchanged in a string.
var plainText = func() (plain [utf8.RuneSelf]bool) {
	for c := byte(' '); c < utf8.RuneSelf; c++ {
		plain[c] = c != '"' && c != '\\' && c != '<' && c != '>' && c != '&' && c != 0x7f
	}
	return plain
}()

func (e *encoder) text(s string) (err error) {
	e.to, err = AppendString(e.to, s)
	return err
}

// AppendString appends the encoding of a string by encoding/json.
func AppendString(to []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf || !plainText[s[i]] {
			quoted, err := json.Marshal(s)
			return append(to, quoted...), err
		}
	}
	return append(append(append(to, '"'), s...), '"'), nil
}

// rememberedBytes bounds the total size of the remembered fields of managers.
const rememberedBytes = 256 << 10

func (p *Plans) isCompact(raw []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.compact[string(raw)]
	return ok
}

func (p *Plans) addCompact(raw []byte) {
	if len(raw) > rememberedBytes/16 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.compact == nil || p.bytes > rememberedBytes {
		p.compact, p.bytes = map[string]struct{}{}, 0
	}
	if _, known := p.compact[string(raw)]; !known {
		p.compact[string(raw)] = struct{}{}
		p.bytes += len(raw)
	}
}
