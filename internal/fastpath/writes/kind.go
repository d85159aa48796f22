package writes

import (
	"bytes"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// prefixInterpreter reads the kind and API version of an object from the beginning of the body, where clients write them.
// Upstream's interpreter parses the whole object. It overlooks a field that the body repeats, so it must be used
// with a strict decoder, which rejects repeated fields.
type prefixInterpreter struct{}

// Interpret implements json.MetaFactory.
func (prefixInterpreter) Interpret(data []byte) (*schema.GroupVersionKind, error) {
	if kind, ok := prefixKind(data); ok {
		return &kind, nil
	}
	return json.DefaultMetaFactory.Interpret(data)
}

// prefixKind returns false if the body does not begin with both fields.
func prefixKind(data []byte) (kind schema.GroupVersionKind, ok bool) {
	first, rest, ok := readTypeField(data, '{')
	if !ok {
		return kind, false
	}
	second, _, ok := readTypeField(rest, ',')
	if !ok || first.name == second.name {
		return kind, false
	}
	if first.name == "kind" {
		first, second = second, first
	}
	gv, err := schema.ParseGroupVersion(first.value)
	return gv.WithKind(second.value), err == nil
}

// typeField is the field kind or apiVersion of a body.
type typeField struct{ name, value string }

// readTypeField reads a field kind or apiVersion at the front of data, behind the byte after. It knows only plain
// strings.
func readTypeField(data []byte, after byte) (f typeField, rest []byte, ok bool) {
	data = data[skipSpace(data, 0):]
	if len(data) == 0 || data[0] != after {
		return f, nil, false
	}
	if f.name, data, ok = readString(data[1:]); !ok || f.name != "kind" && f.name != "apiVersion" {
		return f, nil, false
	}
	data = data[skipSpace(data, 0):]
	if len(data) == 0 || data[0] != ':' {
		return f, nil, false
	}
	f.value, rest, ok = readString(data[1:])
	return f, rest, ok
}

func readString(data []byte) (string, []byte, bool) {
	data = data[skipSpace(data, 0):]
	if len(data) == 0 || data[0] != '"' {
		return "", nil, false
	}
	text, rest, ok := bytes.Cut(data[1:], []byte(`"`))
	for _, b := range text {
		if b == '\\' || b < ' ' || b > '~' {
			return "", nil, false
		}
	}
	return string(text), rest, ok
}
