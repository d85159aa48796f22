package workloads

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// withInternals passes objects to a plugin as the internal types of k8s.io/kubernetes, which all plugins of a
// kube-apiserver expect. Objects of the control plane's own kinds have the types of a version.
func withInternals(plugin admission.Interface) admission.Interface {
	own := internals{plugin}
	mutating, mutates := plugin.(admission.MutationInterface)
	validating, validates := plugin.(admission.ValidationInterface)
	switch {
	case mutates && validates:
		return struct {
			internals
			mutator
			validator
		}{own, mutator{mutating}, validator{validating}}
	case mutates:
		return struct {
			internals
			mutator
		}{own, mutator{mutating}}
	default:
		return struct {
			internals
			validator
		}{own, validator{validating}}
	}
}

type internals struct{ plugin admission.Interface }

// Handles implements admission.Interface.
func (i internals) Handles(operation admission.Operation) bool { return i.plugin.Handles(operation) }

type mutator struct{ plugin admission.MutationInterface }

// Admit implements admission.MutationInterface.
func (m mutator) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	converted := &internalAttributes{Attributes: a}
	if err := m.plugin.Admit(ctx, converted, o); err != nil {
		return err
	}
	return converted.apply()
}

type validator struct{ plugin admission.ValidationInterface }

// Validate implements admission.ValidationInterface.
func (v validator) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return v.plugin.Validate(ctx, &internalAttributes{Attributes: a}, o)
}

// internalAttributes convert an object when a plugin looks at it: most plugins look at the resource alone.
type internalAttributes struct {
	admission.Attributes
	object, old runtime.Object
	// err is the first error of a conversion.
	err error
}

// GetObject implements admission.Attributes.
func (a *internalAttributes) GetObject() runtime.Object {
	if a.object == nil {
		a.object = a.internal(a.Attributes.GetObject())
	}
	return a.object
}

// GetOldObject implements admission.Attributes.
func (a *internalAttributes) GetOldObject() runtime.Object {
	if a.old == nil {
		a.old = a.internal(a.Attributes.GetOldObject())
	}
	return a.old
}

// internal returns an object in its internal type. It returns objects unchanged that have none, such as custom resources.
func (a *internalAttributes) internal(obj runtime.Object) runtime.Object {
	if obj == nil {
		return nil
	}
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(obj)
	if err != nil || kinds[0].Version == runtime.APIVersionInternal {
		return obj
	}
	internal, err := legacyscheme.Scheme.ConvertToVersion(obj, schema.GroupVersion{Group: kinds[0].Group, Version: runtime.APIVersionInternal})
	if err != nil {
		a.err = fmt.Errorf("convert %s for the admission plugin: %w", kinds[0], err)
		return obj
	}
	return internal
}

// apply copies the changes of a mutating plugin to the object of the request.
func (a *internalAttributes) apply() error {
	if a.err != nil {
		return a.err
	}
	original := a.Attributes.GetObject()
	if a.object == nil || a.object == original {
		return nil
	}
	return legacyscheme.Scheme.Convert(a.object, original, nil)
}
