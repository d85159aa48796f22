package annextest

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
)

// difference is a field in which two objects of one Go type differ.
type difference struct {
	// field is the path with [*] for elements; path has the index of the element.
	field, path string
	was, is     string
}

// differences compares two objects of one Go type, field by field. Values that encode to the same JSON are equal: an
// empty list and no list, or one instant in two time zones.
func differences(was, is any) []difference {
	var all []difference
	compare("", reflect.ValueOf(was), reflect.ValueOf(is), func(path string, was, is reflect.Value) {
		all = append(all, difference{field: general(path), path: path, was: show(was), is: show(is)})
	})
	return all
}

func compare(path string, a, b reflect.Value, differ func(path string, a, b reflect.Value)) {
	switch kind := a.Kind(); {
	case kind == reflect.Pointer && !a.IsNil() && !b.IsNil():
		compare(path, a.Elem(), b.Elem(), differ)
	case kind == reflect.Pointer && a.IsNil() && b.IsNil():
	case encodesItself(a.Type()):
		if !equality.Semantic.DeepEqual(a.Interface(), b.Interface()) && show(a) != show(b) {
			differ(path, a, b)
		}
	case kind == reflect.Struct:
		for i := range a.NumField() {
			f := a.Type().Field(i)
			if name, ok := fieldName(f); ok {
				compare(join(path, name), a.Field(i), b.Field(i), differ)
			}
		}
	case (kind == reflect.Slice || kind == reflect.Map) && a.Len() == 0 && b.Len() == 0:
	case kind == reflect.Slice && a.Type().Elem().Kind() != reflect.Uint8 && a.Len() == b.Len():
		for i := range a.Len() {
			compare(path+"["+strconv.Itoa(i)+"]", a.Index(i), b.Index(i), differ)
		}
	case kind == reflect.Map && sameKeys(a, b):
		for _, key := range sortedKeys(a) {
			compare(fmt.Sprintf("%s[%q]", path, key), a.MapIndex(key), b.MapIndex(key), differ)
		}
	default:
		if !equality.Semantic.DeepEqual(a.Interface(), b.Interface()) {
			differ(path, a, b)
		}
	}
}

// encodesItself reports whether a type has a JSON encoding of its own, instead of that of its fields.
func encodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// fieldName returns a field's JSON name, which is empty for an inlined field, and whether the field is in the JSON at
// all.
func fieldName(f reflect.StructField) (string, bool) {
	tag := f.Tag.Get("json")
	name, _, _ := strings.Cut(tag, ",")
	switch {
	case tag == "-" || !f.IsExported() && !f.Anonymous:
		return "", false
	case name == "" && !f.Anonymous:
		return f.Name, true
	}
	return name, true
}

func join(path, name string) string {
	if path == "" || name == "" {
		return path + name
	}
	return path + "." + name
}

func sameKeys(a, b reflect.Value) bool {
	return a.Len() == b.Len() && !slices.ContainsFunc(a.MapKeys(), func(key reflect.Value) bool { return !b.MapIndex(key).IsValid() })
}

func sortedKeys(m reflect.Value) []reflect.Value {
	return slices.SortedFunc(slices.Values(m.MapKeys()), func(a, b reflect.Value) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
}

// general replaces the indexes of a path by [*], as in spec.parts[*].count.
func general(path string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(path, "[")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		b.WriteString("[*]")
		end := strings.IndexByte(rest, ']')
		if quoted, err := strconv.QuotedPrefix(rest); err == nil {
			end = len(quoted)
		}
		path = rest[end+1:]
	}
}

// show formats a value as JSON and truncates long values.
func show(v reflect.Value) string {
	const most = 120
	encoded, err := json.Marshal(v.Interface())
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	if len(encoded) > most {
		return string(encoded[:most]) + "..."
	}
	return string(encoded)
}

// fieldsOf returns the paths of the fields that are set in an object.
func fieldsOf(obj any) map[string]bool {
	fields := map[string]bool{}
	v := reflect.ValueOf(obj)
	leaves("", v, func(path string) { fields[path] = true })
	return fields
}

func leaves(path string, v reflect.Value, leaf func(path string)) {
	switch kind := v.Kind(); {
	case v.IsZero():
	case kind == reflect.Pointer:
		leaves(path, v.Elem(), leaf)
	case encodesItself(v.Type()):
		leaf(path)
	case kind == reflect.Struct:
		for i := range v.NumField() {
			if name, ok := fieldName(v.Type().Field(i)); ok {
				leaves(join(path, name), v.Field(i), leaf)
			}
		}
	case kind == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8:
		for i := range v.Len() {
			leaves(path+"[*]", v.Index(i), leaf)
		}
	case kind == reflect.Map:
		for _, key := range v.MapKeys() {
			leaves(path+"[*]", v.MapIndex(key), leaf)
		}
	default:
		leaf(path)
	}
}
