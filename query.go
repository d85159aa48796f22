package annex

import (
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/ordered"
)

// Query configures the query API of a server: it pages through any kind's objects in the order of a field, with
// filters and counts, and watches them. The zero value serves it at /query. Options.QueryPrefix, the operator's
// option, takes precedence.
type Query struct {
	// Prefix is the path prefix before the group, such as /kapis; empty means /query. Server.Handlers may have
	// paths below it that end in a slash: they serve all requests that are no query. A query is a GET of
	// GROUP/VERSION, of GROUP/VERSION/RESOURCE, or of that in a namespace.
	Prefix string
	// Disabled disables the query API.
	Disabled bool
}

// QueryField is a field of a kind by which queries filter, count, sort or search for words. Sortable, Filterable
// and Text create one.
type QueryField[T any] struct{ field ordered.Field }

// QueryValue is the type of a field's values: strings, numbers, booleans or times. Numbers are compared by value,
// strings by their first 512 bytes, and false sorts before true. A zero time, a NaN and a nil pointer mean no
// value; objects without a value come first.
type QueryValue interface {
	~string | ~bool | ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~float32 | ~float64 |
		time.Time | metav1.Time |
		*string | *bool | *int32 | *int64 | *float64 | *metav1.Time
}

// Sortable returns a field by which queries can also sort. From the first query that sorts by the field on, the
// storage keeps its order, at about 250 bytes an object, so that a page costs its own length and not that of the
// whole list. The path, such as spec.cost, is that of the hub; the field has this name in every version of the
// kind, wherever that version has the value. value must not change the object.
func Sortable[T any, V QueryValue](path string, value func(obj *T) V) QueryField[T] {
	f := Filterable(path, value)
	f.field.Sortable = true
	return f
}

// Filterable returns a field by which queries filter and count, but do not sort. It keeps no order and takes no
// memory.
func Filterable[T any, V QueryValue](path string, value func(obj *T) V) QueryField[T] {
	f := QueryField[T]{ordered.Field{Name: strings.TrimPrefix(path, "."), Type: queryType(reflect.TypeFor[V]())}}
	if value != nil {
		f.field.Get = func(o runtime.Object) any { return plain(value(any(o).(*T))) }
	}
	return f
}

// Text returns a field that can be searched for words and filtered.
func Text[T any](path string, value func(obj *T) string) QueryField[T] {
	f := Filterable(path, value)
	f.field.Text = true
	return f
}

// SearchedForWords makes a string field searchable for words, as Text does.
func (f QueryField[T]) SearchedForWords() QueryField[T] {
	f.field.Text = f.field.Type == ordered.String
	return f
}

// Description sets the description of the field for clients.
func (f QueryField[T]) Description(text string) QueryField[T] {
	f.field.Description = text
	return f
}

// Query declares fields of the kind for queries. Selectable fields, the name, the namespace and the creation time
// need no declaration.
func (k *KindBuilder[T]) Query(fields ...QueryField[T]) *KindBuilder[T] {
	for _, f := range fields {
		k.kind().QueryFields = append(k.kind().QueryFields, f.field)
	}
	return k
}

// queryType returns the type of a field for a type of values.
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

// plain converts a value to one of the types that orders support; nil means no value.
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
