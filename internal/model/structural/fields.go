package structural

import (
	"reflect"
	"slices"
	"strings"
)

// fields maps Go structs to their fields by JSON name, including the fields of inlined structs. It is read-only.
type fields map[reflect.Type]map[string]reflect.StructField

// fieldsOf returns the fields of all structs in a Go type.
func fieldsOf(t reflect.Type) fields {
	fs := fields{}
	fs.add(t)
	return fs
}

// of returns the field of a struct with a JSON name.
func (fs fields) of(t reflect.Type, name string) (reflect.StructField, bool) {
	f, ok := fs[t][name]
	return f, ok
}

func (fs fields) add(t reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		fs.add(t.Elem())
	case reflect.Struct:
		if fs[t] != nil {
			return
		}
		byName := map[string]reflect.StructField{}
		fs[t] = byName
		// The first of two fields with the same name wins.
		named := func(name string, f reflect.StructField) {
			if _, taken := byName[name]; !taken {
				byName[name] = f
			}
		}
		for f := range t.Fields() {
			tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if tag == "-" || !f.IsExported() && !f.Anonymous {
				continue
			}
			fs.add(f.Type)
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if f.Anonymous && inner.Kind() == reflect.Struct && (tag == "" || strings.Contains(options, "inline")) {
				for name, within := range fs[inner] {
					within.Index = slices.Concat(f.Index, within.Index)
					named(name, within)
				}
				continue
			}
			if tag == "" {
				tag = f.Name
			}
			named(tag, f)
		}
	}
}
