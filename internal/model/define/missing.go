package define

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/annexapi/annex/internal/base/typo"
)

// mostNamed is the maximum number of fields that a message about a missing field lists.
const mostNamed = 12

// missing returns the reason why a path of JSON names does not lead to a field of a type: the type without the field,
// and its most similar field.
func missing(t reflect.Type, path []string) string {
	for i, name := range path {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if index, ok := indexOf(t, name); ok {
			t = t.FieldByIndex(index).Type
			continue
		}
		before, names := path[:i], fieldNames(t)
		at := func(rest ...string) string { return strings.Join(slices.Concat(before, rest), ".") }
		why := fmt.Sprintf("Go type %s has no field %q", t, name)
		if near := typo.Nearest(name, names); near != "" {
			return fmt.Sprintf("%s: did you mean %s?", why, at(near))
		}
		for _, between := range names { // a path without its beginning, such as size for spec.size
			if inner := slices.Concat([]string{between}, path[i:]); exists(t, inner) {
				return fmt.Sprintf("%s: did you mean %s?", why, at(inner...))
			}
		}
		switch {
		case len(names) == 0:
			return fmt.Sprintf("Go type %s, of %s, has no fields that a path can name", t, at())
		case len(names) > mostNamed:
			return fmt.Sprintf("%s; it has %s and %d more", why, strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
		}
		return fmt.Sprintf("%s; it has %s", why, strings.Join(names, ", "))
	}
	return ""
}

func exists(t reflect.Type, path []string) bool {
	_, ok := FieldAt(t, path)
	return ok
}

// fieldNames returns the JSON names that indexOf finds in a type.
func fieldNames(t reflect.Type) []string {
	if t.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for f := range t.Fields() {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag != "" && tag != "-":
			names = append(names, tag)
		case f.Anonymous && (tag == "" || strings.Contains(options, "inline")):
			names = append(names, fieldNames(f.Type)...)
		}
	}
	return names
}
