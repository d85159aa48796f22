// Package registry serves the objects of any kind from a store. Code that is the same for all kinds is written once,
// and the differences are read from the kind's definition.
//
// It holds the REST storages of the main endpoint, of /status, /scale and custom subresources, the strategies, graceful
// deletion, tables, and Stores, which opens a resource in its backend. It stores nothing itself: the backends do, see
// package store.
package registry

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
)

// strategy decides which objects the main endpoint of a kind accepts, and which of their fields it keeps.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	convertor runtime.ObjectConvertor
	validator Validator
	kind      *define.Kind
	// options are the options of the generated validation.
	options map[string]bool
	// unconditional accepts an update without a resource version.
	unconditional bool
}

var (
	_ rest.RESTCreateStrategy         = strategy{}
	_ rest.RESTUpdateStrategy         = strategy{}
	_ rest.RESTDeleteStrategy         = strategy{}
	_ rest.ResetFieldsStrategy        = strategy{}
	_ rest.RESTUpdateStrategy         = statusStrategy{}
	_ rest.ResetFieldsStrategy        = statusStrategy{}
	_ rest.RESTGracefulDeleteStrategy = gracefulStrategy{}
)

func newStrategy(k *define.Kind, options Options) strategy {
	validator := options.Validator
	if validator == nil {
		validator = runtime.NewScheme()
	}
	return strategy{
		validator:     validator,
		ObjectTyper:   options.Typer,
		NameGenerator: names.SimpleNameGenerator,
		convertor:     options.Convertor,
		kind:          k,
		options:       validationOptions(k, options.Gates),
		unconditional: options.UnconditionalUpdate || k.Unconditional,
	}
}

// apply sets the strategies of a store.
func (s strategy) apply(store *genericregistry.Store) {
	store.CreateStrategy, store.UpdateStrategy, store.DeleteStrategy, store.ResetFieldsStrategy = s, s, s, s
	if s.kind.Grace != nil {
		store.DeleteStrategy = gracefulStrategy{s}
	}
	store.AfterCreate, store.AfterUpdate, store.AfterDelete = nil, nil, nil
	if after := s.kind.AfterCreate; after != nil {
		store.AfterCreate = func(obj runtime.Object, options *metav1.CreateOptions) { afterWrite(after, obj, options.DryRun) }
	}
	if after := s.kind.AfterUpdate; after != nil {
		store.AfterUpdate = func(obj runtime.Object, options *metav1.UpdateOptions) { afterWrite(after, obj, options.DryRun) }
	}
	if after := s.kind.AfterDelete; after != nil {
		store.AfterDelete = func(obj runtime.Object, options *metav1.DeleteOptions) { afterWrite(after, obj, options.DryRun) }
	}
}

func afterWrite(after func(runtime.Object), obj runtime.Object, dryRun []string) {
	if !dryrun.IsDryRun(dryRun) {
		after(obj)
	}
}

func (s strategy) NamespaceScoped() bool                         { return !s.kind.ClusterScoped }
func (s strategy) AllowCreateOnUpdate(context.Context) bool      { return s.kind.CreateOnUpdate }
func (s strategy) AllowUnconditionalUpdate(context.Context) bool { return s.unconditional }

// Canonicalize implements rest.RESTCreateStrategy and rest.RESTUpdateStrategy.
func (s strategy) Canonicalize(obj runtime.Object) {
	if s.kind.Canonicalize != nil {
		s.kind.Canonicalize(obj)
	}
}

func (s strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if status := part(obj, "Status"); s.kind.Status && status.IsValid() {
		status.SetZero()
		if crdRules := s.kind.Hub().Structural; crdRules != nil {
			crdRules.FillStatus(obj)
		}
	}
	if !s.kind.WithoutGeneration {
		objects.Meta(obj).SetGeneration(1)
	}
	if s.kind.PrepareForCreate != nil {
		s.kind.PrepareForCreate(ctx, obj)
	}
}

func (s strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if status := part(obj, "Status"); s.kind.Status && status.IsValid() {
		status.Set(part(old, "Status"))
	}
	if s.kind.PrepareForUpdate != nil {
		s.kind.PrepareForUpdate(ctx, obj, old)
	}
	if !s.kind.WithoutGeneration {
		s.setGeneration(obj, old)
	}
}

// setGeneration increments the generation if a field has changed, other than the metadata and a status with its own
// endpoint. rest.BeforeUpdate has already set it to the generation of the old object.
func (s strategy) setGeneration(obj, old runtime.Object) {
	updated, previous := reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem()
	for i := range updated.NumField() {
		switch name := updated.Type().Field(i).Name; {
		case name == "TypeMeta", name == "ObjectMeta", name == "Status" && s.kind.Status:
			continue
		}
		if !apiequality.Semantic.DeepEqual(updated.Field(i).Interface(), previous.Field(i).Interface()) {
			objects.Meta(obj).SetGeneration(objects.Meta(old).GetGeneration() + 1)
			return
		}
	}
}

// Validate validates the object and its name. An update cannot change the name, and the API machinery validates the
// rest of the metadata for all strategies.
func (s strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	errs := s.validateMarked(ctx, obj, nil, false)
	passed, m := len(errs) == 0, objects.Meta(obj)
	more := s.validate(ctx, obj)
	if s.kind.ValidateCreate != nil {
		more = append(more, s.kind.ValidateCreate(ctx, obj)...)
	}
	// If no error is returned here, rest.BeforeCreate validates the metadata next, but not the kind's own rules for
	// names. So the metadata is validated here only beside other errors, or if the name may be invalid.
	if passed && (len(more) > 0 || s.kind.ValidateName != nil || !isPlainlyNamed(m)) {
		errs = validation.ValidateObjectMetaAccessor(m, s.NamespaceScoped(), s.validateName(), field.NewPath("metadata"))
	}
	return append(errs, more...)
}

// isPlainlyNamed reports whether the object's name is certainly a DNS subdomain. False means that it may not be one.
func isPlainlyNamed(m metav1.Object) bool {
	name := m.GetName()
	if m.GetGenerateName() != "" || name == "" || len(name) > 63 {
		return false
	}
	for i := range len(name) {
		c, inside := name[i], i > 0 && i < len(name)-1
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || !inside) {
			return false
		}
	}
	return true
}

func (s strategy) validateName() validation.ValidateNameFunc {
	if s.kind.ValidateName != nil {
		return s.kind.ValidateName
	}
	return validation.NameIsDNSSubdomain
}

func (s strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := append(s.validateMarked(ctx, obj, old, false), s.validate(ctx, obj)...)
	if s.kind.ValidateUpdate != nil {
		errs = append(errs, s.kind.ValidateUpdate(ctx, obj, old)...)
	}
	return errs
}

// validate runs the hub's validation for every request version, and the request version's own validation in addition,
// whose field paths are those of the client's version.
func (s strategy) validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	errs := s.validateFinalizers(obj)
	if s.kind.Validate != nil {
		errs = append(errs, s.kind.Validate(ctx, obj)...)
	}
	if v := s.requested(ctx); v != nil && v.Validate != nil {
		out, err := s.convertor.ConvertToVersion(obj, v.GroupVersion)
		if err != nil {
			return append(errs, field.InternalError(nil, err))
		}
		errs = append(errs, v.Validate(ctx, out)...)
	}
	return errs
}

// validateFinalizers rejects finalizers where they would be lost silently.
func (s strategy) validateFinalizers(obj runtime.Object) field.ErrorList {
	if keepsFinalizers(s.kind) || len(objects.Meta(obj).GetFinalizers()) == 0 {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers"),
		fmt.Sprintf("the source of %s does not store finalizers", s.kind.GroupResource()))}
}

// requested returns the version of the request, nil if it is the hub.
func (s strategy) requested(ctx context.Context) *define.Version {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		return nil
	}
	for _, v := range s.kind.Versions {
		if v != s.kind.Hub() && v.GroupVersion.Version == info.APIVersion && v.GroupVersion.Group == info.APIGroup {
			return v
		}
	}
	return nil
}

func (s strategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	return append(s.finalizerWarnings(obj, nil), s.warn(ctx, obj)...)
}

func (s strategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	warnings := s.finalizerWarnings(obj, objects.Meta(old).GetFinalizers())
	if s.kind.WarnsOfChanges && objects.Meta(obj).GetGeneration() == objects.Meta(old).GetGeneration() {
		return warnings
	}
	return append(warnings, s.warn(ctx, obj)...)
}

func (s strategy) warn(ctx context.Context, obj runtime.Object) []string {
	if s.kind.Warn == nil {
		return nil
	}
	return s.kind.Warn(ctx, obj)
}

func (s strategy) finalizerWarnings(obj runtime.Object, known []string) []string {
	var warnings []string
	for _, finalizer := range objects.Meta(obj).GetFinalizers() {
		if !slices.Contains(known, finalizer) && !strings.Contains(finalizer, "/") && !standardFinalizer(finalizer) {
			warnings = append(warnings, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name including a path (/) to "+
				"avoid accidental conflicts with other finalizer writers", finalizer))
		}
	}
	return warnings
}

func standardFinalizer(name string) bool {
	return name == metav1.FinalizerOrphanDependents || name == metav1.FinalizerDeleteDependents
}

// GetResetFields returns the fields that the main endpoint ignores, so that an apply request does not become their
// owner.
func (s strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.kind.Status {
		return nil
	}
	return resetFields(s.kind, fieldpath.MakePathOrDie("status"))
}

func resetFields(k *define.Kind, paths ...fieldpath.Path) map[fieldpath.APIVersion]*fieldpath.Set {
	fields := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, v := range k.AllVersions() {
		fields[fieldpath.APIVersion(v.GroupVersion.String())] = fieldpath.NewSet(paths...)
	}
	return fields
}

// statusStrategy decides what /status accepts: the status, and of the metadata only the managed fields unless the kind permits more.
type statusStrategy struct {
	strategy
}

func (s statusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	managers := objects.Meta(obj).GetManagedFields()
	updated, previous := reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem()
	for i := range updated.NumField() {
		name := updated.Type().Field(i).Name
		if name == "Status" || name == "ObjectMeta" && s.kind.StatusMetadata {
			continue
		}
		updated.Field(i).Set(previous.Field(i))
	}
	objects.Meta(obj).SetManagedFields(managers)
	if s.kind.PrepareForStatus != nil {
		s.kind.PrepareForStatus(ctx, obj, old)
	}
}

func (s statusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := s.validateMarked(ctx, obj, old, true)
	if s.kind.ValidateStatus != nil {
		errs = append(errs, s.kind.ValidateStatus(ctx, obj, old)...)
	}
	return errs
}

func (s statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields returns every field that /status ignores, one by one, because a set cannot express "all others".
func (s statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	fields := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, v := range s.kind.AllVersions() {
		set := fieldpath.NewSet()
		if !s.kind.StatusMetadata {
			set.Insert(fieldpath.MakePathOrDie("metadata"))
		}
		for _, name := range topFields(v.Type) {
			set.Insert(fieldpath.MakePathOrDie(name))
		}
		fields[fieldpath.APIVersion(v.GroupVersion.String())] = set
	}
	return fields
}

// gracefulStrategy adds graceful deletion to a strategy.
type gracefulStrategy struct {
	strategy
}

// CheckGracefulDelete sets the default grace period to the kind's. An object with the period 0 is also marked as
// deleted first, and then deleted at once.
func (s gracefulStrategy) CheckGracefulDelete(_ context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	if options == nil {
		return false
	}
	period, grace := s.kind.Grace.Period, s.kind.Grace
	if grace.Of != nil {
		period = grace.Of(obj)
	}
	seconds := max(0, int64(period.Seconds()))
	if options.GracePeriodSeconds == nil || grace.Of != nil && seconds == 0 {
		options.GracePeriodSeconds = &seconds
	}
	return true
}

// partStrategy is the strategy of a custom subresource that is a part of the object. It accepts the fields that the
// subresource's function copies from the object in the request.
type partStrategy struct {
	strategy
	part *define.Subresource
}

var _ rest.RESTUpdateStrategy = partStrategy{}

func (s partStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	sent := obj.DeepCopyObject()
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(old.DeepCopyObject()).Elem())
	objects.Meta(obj).SetManagedFields(objects.Meta(sent).GetManagedFields())
	objects.Meta(obj).SetResourceVersion(objects.Meta(sent).GetResourceVersion())
	s.part.Take(ctx, obj, sent)
	if !s.kind.WithoutGeneration {
		s.setGeneration(obj, old)
	}
}

func (s partStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := append(s.validateMarked(ctx, obj, old, false), s.validate(ctx, obj)...)
	if s.part.ValidateChange != nil {
		errs = append(errs, s.part.ValidateChange(ctx, obj, old)...)
	}
	return errs
}

// ValidateDeclaratively is like that of the main endpoint, with the rules of the subresource.
func (s partStrategy) ValidateDeclaratively(ctx context.Context, obj, old runtime.Object, errs field.ErrorList, op operation.Type,
	config rest.DeclarativeValidationConfig) field.ErrorList {
	return s.declarative(ctx, obj, old, errs, op, config, s.part.Name)
}

// GetResetFields returns nil, because only the subresource's function determines which fields it copies.
func (s partStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set { return nil }

// part returns a field of an object, or the zero Value if its Go type has no field of that name.
func part(obj runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName(name)
}
