package managed

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// readback describes the parts of a Go type whose values may change when they are encoded and decoded. apimachinery's
// manager does this: it converts the live object to a document, and that to an object. It is nil if no value changes.
type readback struct {
	kind   readbackKind
	fields []readbackField // of a struct
	elem   *readback       // of a pointer, map or list
}

type readbackKind uint8

const (
	readbackNested  readbackKind = iota // depends on the inner values
	readbackAlways                      // every value except the zero value may change
	readbackNullish                     // a pointer to a type whose zero value is written as null
)

type readbackField struct {
	index     int
	omitEmpty bool // an empty map or list is omitted, and decoded as nil
	*readback
}

// newReadback returns false for a type whose values may change in other ways: because some of them are not encoded, or
// are encoded in more than one form.
func newReadback(t reflect.Type, made map[reflect.Type]*readback) (*readback, bool) {
	if r, ok := made[t]; ok {
		return r, true
	}
	switch t {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[metav1.Duration](),
		reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.ManagedFieldsEntry]():
		return nil, true
	case reflect.TypeFor[*metav1.Time](), reflect.TypeFor[*metav1.MicroTime]():
		return &readback{kind: readbackNullish}, true
	case reflect.TypeFor[*metav1.Duration](), reflect.TypeFor[*resource.Quantity](), reflect.TypeFor[*intstr.IntOrString]():
		return nil, true
	}
	switch custom := value.TypeReflectEntryOf(t); {
	case custom.CanConvertToUnstructured():
		return &readback{kind: readbackAlways}, true
	case custom.CanConvertFromUnstructured():
		return nil, false // its own decoder may return another value
	}
	r, ok := &readback{}, true
	switch t.Kind() {
	case reflect.Pointer:
		switch t.Elem().Kind() {
		case reflect.Pointer, reflect.Map, reflect.Slice:
			return nil, false
		}
		fallthrough
	case reflect.Slice, reflect.Map:
		if t.Kind() == reflect.Map && t.Key().Kind() != reflect.String {
			return nil, false
		}
		made[t] = r
		if r.elem, ok = newReadback(t.Elem(), made); ok && r.elem == nil {
			made[t] = nil
			return nil, true
		}
		return r, ok
	case reflect.Struct:
		made[t] = r
		for i := range t.NumField() {
			f := t.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.IsExported() || name == "-" || f.Anonymous && f.Type.Kind() == reflect.Pointer {
				return nil, false
			}
			inner, ok := newReadback(f.Type, made)
			if !ok {
				return nil, false
			}
			omitEmpty := strings.Contains(","+options+",", ",omitempty,") && (f.Type.Kind() == reflect.Map || f.Type.Kind() == reflect.Slice)
			if inner != nil || omitEmpty {
				r.fields = append(r.fields, readbackField{i, omitEmpty, inner})
			}
		}
		if len(r.fields) == 0 {
			r, made[t] = nil, nil
		}
		return r, true
	case reflect.Interface, reflect.Array, reflect.Complex64, reflect.Complex128, reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return nil, false
	}
	return nil, true
}

// alike reports whether a value certainly stays the same when it is encoded and decoded.
func (r *readback) alike(v reflect.Value) bool {
	if r == nil {
		return true
	}
	switch r.kind {
	case readbackAlways:
		return v.IsZero()
	case readbackNullish:
		return v.IsNil() || !v.Interface().(interface{ IsZero() bool }).IsZero() // in any time zone
	}
	switch v.Kind() {
	case reflect.Pointer:
		return v.IsNil() || r.elem.alike(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			if !r.elem.alike(v.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if !r.elem.alike(it.Value()) {
				return false
			}
		}
	case reflect.Struct:
		for i := range r.fields {
			f := &r.fields[i]
			field := v.Field(f.index)
			if f.omitEmpty && field.Len() == 0 && !field.IsNil() || !f.alike(field) {
				return false
			}
		}
	}
	return true
}
