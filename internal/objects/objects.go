// Package objects has what every package that handles API objects of any type needs.
package objects

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Meta returns the metadata of an object of a declared kind. It panics if the object has
// none, which the check of the definition excludes: kinds embed ObjectMeta.
func Meta(object runtime.Object) metav1.Object {
	m, err := meta.Accessor(object)
	if err != nil {
		panic(err)
	}
	return m
}

// IsNil reports whether v is nil or an interface that holds a nil pointer.
func IsNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
