package coreapi

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/internal/base/objects"
)

// strategy lets users modify the metadata of a namespace. The finalizers in its spec are set at creation and removed
// by /finalize.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

var (
	_ rest.RESTCreateStrategy            = strategy{}
	_ rest.RESTUpdateStrategy            = strategy{}
	_ rest.RESTDeleteStrategy            = strategy{}
	_ rest.DeclarativeValidationStrategy = strategy{}
	_ rest.ResetFieldsStrategy           = strategy{}
	_ rest.RESTUpdateStrategy            = statusStrategy{}
	_ rest.RESTUpdateStrategy            = finalizeStrategy{}
)

func (strategy) NamespaceScoped() bool                         { return false }
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// Canonicalize sets the label of a namespace whose name was generated.
func (strategy) Canonicalize(obj runtime.Object) { setNameLabel(obj.(*corev1.Namespace)) }

func (strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	ns := obj.(*corev1.Namespace)
	ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
}

func (strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	ns, previous := obj.(*corev1.Namespace), old.(*corev1.Namespace)
	ns.Spec.Finalizers = previous.Spec.Finalizers
	ns.Status = previous.Status
}

func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	ns := obj.(*corev1.Namespace)
	errs := validation.ValidateObjectMeta(&ns.ObjectMeta, false, validation.ValidateNamespaceName, field.NewPath("metadata"))
	errs = append(errs, objects.ValidateFinalizers(ns.Finalizers)...)
	return append(errs, validateFinalizers(ns)...)
}

// ValidateUpdate validates only the finalizers: the rest of the metadata is validated for all kinds.
func (strategy) ValidateUpdate(_ context.Context, obj, _ runtime.Object) field.ErrorList {
	return objects.ValidateFinalizers(obj.(*corev1.Namespace).Finalizers)
}

// ValidateDeclaratively removes duplicate errors, as kube-apiserver does for namespaces: the common validation of all
// kinds validates labels twice.
func (strategy) ValidateDeclaratively(
	_ context.Context,
	_, _ runtime.Object,
	errs field.ErrorList,
	_ operation.Type,
	_ rest.DeclarativeValidationConfig,
) field.ErrorList {
	var once field.ErrorList
	for _, err := range errs {
		if !slices.ContainsFunc(once, func(told *field.Error) bool { return told.Error() == err.Error() }) {
			once = append(once, err)
		}
	}
	return once
}

// DeclarativeValidationConfig implements rest.DeclarativeValidationStrategy.
func (strategy) DeclarativeValidationConfig(context.Context, runtime.Object, runtime.Object) rest.DeclarativeValidationConfig {
	return rest.DeclarativeValidationConfig{}
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return reset(fieldpath.MakePathOrDie("status"), fieldpath.MakePathOrDie("spec", "finalizers"))
}

func reset(paths ...fieldpath.Path) map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{"v1": fieldpath.NewSet(paths...)}
}

// validateFinalizers accepts qualified names and the finalizers of Kubernetes itself.
func validateFinalizers(ns *corev1.Namespace) field.ErrorList {
	path := field.NewPath("spec", "finalizers")
	var errs field.ErrorList
	for i, finalizer := range ns.Spec.Finalizers {
		name := string(finalizer)
		errs = append(errs, validation.ValidateFinalizerName(name, path.Index(i))...)
		switch {
		case strings.Contains(name, "/"),
			finalizer == corev1.FinalizerKubernetes,
			name == metav1.FinalizerOrphanDependents,
			name == metav1.FinalizerDeleteDependents:
		default:
			errs = append(errs, field.Invalid(path.Index(i), name, "name is neither a standard finalizer name nor is it fully qualified"))
		}
	}
	return errs
}

// statusStrategy is for /status.
type statusStrategy struct{ strategy }

func (statusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	obj.(*corev1.Namespace).Spec = old.(*corev1.Namespace).Spec
}

func (statusStrategy) ValidateUpdate(_ context.Context, obj, _ runtime.Object) field.ErrorList {
	ns := obj.(*corev1.Namespace)
	path := field.NewPath("status", "Phase") // as kube-apiserver spells it
	switch deleting := !ns.DeletionTimestamp.IsZero(); {
	case deleting && ns.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(path, ns.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	case !deleting && ns.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(path, ns.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	}
	return nil
}

func (statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return reset(fieldpath.MakePathOrDie("spec"))
}

// finalizeStrategy is for /finalize.
type finalizeStrategy struct{ strategy }

func (finalizeStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	obj.(*corev1.Namespace).Status = old.(*corev1.Namespace).Status
}

func (finalizeStrategy) ValidateUpdate(_ context.Context, obj, _ runtime.Object) field.ErrorList {
	return validateFinalizers(obj.(*corev1.Namespace))
}

func (finalizeStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return reset(fieldpath.MakePathOrDie("status"))
}

// attributes returns the labels and fields of a namespace for selectors.
func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	ns := obj.(*corev1.Namespace)
	return ns.Labels, fields.Set{
		"metadata.name": ns.Name,
		"status.phase":  string(ns.Status.Phase),
	}, nil
}

func predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attributes}
}
