// Package objects has helpers for packages that handle API objects of any type: their metadata, nil values,
// finalizers, and objects that are read on demand.
package objects

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Meta returns the metadata of an object of a declared kind. It panics if the object has none, which the check of the
// definition excludes: kinds embed ObjectMeta.
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

// standardFinalizers are the finalizers of Kubernetes that have no domain.
var standardFinalizers = []string{"kubernetes", metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}

// ValidateFinalizers rejects names without a domain, as kube-apiserver does only for kinds of its core group. Another
// check ensures that the names are qualified names, for all kinds alike.
func ValidateFinalizers(finalizers []string) field.ErrorList {
	var errs field.ErrorList
	for i, name := range finalizers {
		if !strings.Contains(name, "/") && !slices.Contains(standardFinalizers, name) {
			errs = append(
				errs,
				field.Invalid(
					field.NewPath("metadata", "finalizers").Index(i),
					name,
					"name is neither a standard finalizer name nor is it fully qualified",
				),
			)
		}
	}
	return errs
}
