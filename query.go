package annex

import (
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/ordered"
)

// Query says where a server answers queries: pages of any kind's objects in the order of a field,
// filtered, counted, and followed. The zero value is /query. The operator may say otherwise with
// Options.QueryPrefix.
type Query struct {
	// Prefix is the path before groups, such as /kapis; empty is /query. Server.Handlers may have
	// paths below it that end in a slash: they answer what is no query, which is a GET of
	// GROUP/VERSION, of GROUP/VERSION/RESOURCE, or of that in a namespace.
	Prefix string
	// Disabled answers none.
	Disabled bool
}

// QueryField is a field of a kind that queries filter by, count, and sort by or search for words.
// Sortable, Filterable and Text make one.
type QueryField[T any] struct{ field ordered.Field }

// QueryValue is what a field may have: a string, a number, a boolean, or a time. Numbers compare
// as such, strings by their bytes, of which the first 512 decide, and false comes before true. A
// zero time, a NaN, and a nil pointer are no value; objects without one come first.
type QueryValue interface {
	~string | ~bool | ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~float32 | ~float64 |
		time.Time | metav1.Time |
		*string | *bool | *int32 | *int64 | *float64 | *metav1.Time
}

// Sortable is a field that queries sort by as well. The storage keeps an order of it from the
// first query that asks for one, at about 250 bytes an object, so that a page costs its length and
// not that of the whole list. The path, such as spec.cost, is in the hub; the field has that name in
// every version of the kind, wherever the version has the value. value must not change the object.
func Sortable[T any, V QueryValue](path string, value func(obj *T) V) QueryField[T] {
	f := Filterable(path, value)
	f.field.Sortable = true
	return f
}

// Filterable is a field that queries filter by and count, but do not sort by: it has no order, and
// takes no memory.
func Filterable[T any, V QueryValue](path string, value func(obj *T) V) QueryField[T] {
	f := QueryField[T]{ordered.Field{Name: strings.TrimPrefix(path, "."), Type: queryType(reflect.TypeFor[V]())}}
	if value != nil {
		f.field.Get = func(o runtime.Object) any { return plain(value(any(o).(*T))) }
	}
	return f
}

// Text is a field that is searched for words, and is Filterable, too.
func Text[T any](path string, value func(obj *T) string) QueryField[T] {
	f := Filterable(path, value)
	f.field.Text = true
	return f
}

// SearchedForWords has a field that is a string searched for words as Text is.
func (f QueryField[T]) SearchedForWords() QueryField[T] {
	f.field.Text = f.field.Type == ordered.String
	return f
}

// Description is what clients are told of a field.
func (f QueryField[T]) Description(text string) QueryField[T] {
	f.field.Description = text
	return f
}

// Query declares fields of the kind that queries are about, beside the selectable fields and the
// name, namespace and time of creation, which need no declaration.
func (k *KindBuilder[T]) Query(fields ...QueryField[T]) *KindBuilder[T] {
	for _, f := range fields {
		k.kind().QueryFields = append(k.kind().QueryFields, f.field)
	}
	return k
}

// queryType is the type of a field by that of its values.
func queryType(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[metav1.Time]():
		return ordered.Time
	case t.Kind() == reflect.String:
		return ordered.String
	case t.Kind() == reflect.Bool:
		return ordered.Boolean
	}
	return ordered.Number
}

// plain is a value as one of those that orders know; nil is none.
func plain(value any) any {
	switch v := value.(type) {
	case string, bool, int64, float64, time.Time:
		return v
	case metav1.Time:
		return v.Time
	}
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return plain(v.Elem().Interface())
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return v.Bool()
	case reflect.Float32, reflect.Float64:
		return v.Float()
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return int64(v.Uint())
	}
	return v.Int()
}
