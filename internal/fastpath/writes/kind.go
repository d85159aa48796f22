package writes

import (
	"bytes"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// front reads the kind and API version of an object from the beginning of the body, where clients write them.
// Upstream's interpreter parses the whole object. front overlooks a field that the body repeats, so it must be used
// with a strict decoder, which rejects repeated fields.
type front struct{}

// Interpret implements json.MetaFactory.
func (front) Interpret(data []byte) (*schema.GroupVersionKind, error) {
	if kind, ok := frontKind(data); ok {
		return &kind, nil
	}
	return json.DefaultMetaFactory.Interpret(data)
}

// frontKind returns false if the body does not begin with both fields.
func frontKind(data []byte) (kind schema.GroupVersionKind, ok bool) {
	first, rest, ok := frontField(data, '{')
	if !ok {
		return kind, false
	}
	second, _, ok := frontField(rest, ',')
	if !ok || first.name == second.name {
		return kind, false
	}
	if first.name == "kind" {
		first, second = second, first
	}
	gv, err := schema.ParseGroupVersion(first.value)
	return gv.WithKind(second.value), err == nil
}

type frontal struct{ name, value string }

// frontField reads a field kind or apiVersion at the front of data, behind the byte after. It knows only plain
// strings.
func frontField(data []byte, after byte) (f frontal, rest []byte, ok bool) {
	data = data[space(data, 0):]
	if len(data) == 0 || data[0] != after {
		return f, nil, false
	}
	if f.name, data, ok = frontString(data[1:]); !ok || f.name != "kind" && f.name != "apiVersion" {
		return f, nil, false
	}
	data = data[space(data, 0):]
	if len(data) == 0 || data[0] != ':' {
		return f, nil, false
	}
	f.value, rest, ok = frontString(data[1:])
	return f, rest, ok
}

func frontString(data []byte) (string, []byte, bool) {
	data = data[space(data, 0):]
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
