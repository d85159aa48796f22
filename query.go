package annex

import (
	"reflect"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/ordered"
)

// Query configures queries: pages of the objects of any kind, sorted by a field, filtered, counted and followed. The
// zero value serves them at /query. The operator may override the path with Options.QueryPrefix.
type Query struct {
	// Prefix is the path in front of groups, such as /kapis; empty means /query. Server.Handlers may have paths below
	// it that end in a slash. They answer all requests that are not queries. A query is a GET of GROUP/VERSION, of
	// GROUP/VERSION/RESOURCE, or of the latter in a namespace.
	Prefix string
	// Disabled serves no queries.
	Disabled bool
}

// QueryField is a field of a kind by which queries filter and count, and perhaps sort or search for words. Sortable,
// Filterable and Text make one.
type QueryField[T any] struct{ field ordered.Field }

// QueryValue is the type of a field's value: a string, a number, a boolean, or a time. Numbers compare by value,
// strings by their first 512 bytes, and false sorts before true. A zero time, a NaN and a nil pointer are no value;
// objects without a value come first.
type QueryValue interface {
	~string | ~bool | ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~float32 | ~float64 |
		time.Time | metav1.Time |
		*string | *bool | *int32 | *int64 | *float64 | *metav1.Time
}

// Sortable returns a field by which queries can also sort. The storage keeps an order by this field from the first
// query that needs it, at about 250 bytes an object, so that the cost of a page depends on its length and not on the
// length of the list. path, such as spec.cost, is the path in the hub; the field has this name in every version of the
// kind, whatever its path there. value must not change the object.
func Sortable[T any, V QueryValue](path string, value func(obj *T) V) QueryField[T] {
	f := Filterable(path, value)
	f.field.Sortable = true
	return f
}

// Filterable returns a field by which queries filter and count, but do not sort. It has no order, and needs no memory.
func Filterable[T any, V QueryValue](path string, value func(obj *T) V) QueryField[T] {
	f := QueryField[T]{ordered.Field{Name: strings.TrimPrefix(path, "."), Type: queryType(reflect.TypeFor[V]())}}
	if value != nil {
		f.field.Get = func(o runtime.Object) any { return plain(value(any(o).(*T))) }
	}
	return f
}

// Text returns a field that queries search for words. It is also Filterable.
func Text[T any](path string, value func(obj *T) string) QueryField[T] {
	f := Filterable(path, value)
	f.field.Text = true
	return f
}

// SearchedForWords makes queries search a string field for words, as Text does.
func (f QueryField[T]) SearchedForWords() QueryField[T] {
	f.field.Text = f.field.Type == ordered.String
	return f
}

// Description sets the description of the field that clients get.
func (f QueryField[T]) Description(text string) QueryField[T] {
	f.field.Description = text
	return f
}

// Query declares fields of the kind for queries. Selectable fields, the name, the namespace and the time of creation
// need no declaration.
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

// plain converts a value to a type that orders support; nil is no value.
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
