package registry

import (
	"context"
	"fmt"
	"reflect"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
)

// scaleREST is the /scale endpoint. It shows the kind's replica counts as an autoscaling/v1 Scale.
type scaleREST struct {
	rest.TableConvertor
	store  *genericregistry.Store
	kind   *define.Kind
	dryRun dryRunHooks
}

// scaleColumns returns the columns in which Kubernetes prints a scale.
func scaleColumns() []define.Column {
	return []define.Column{
		{Name: "Desired", Type: "integer", Description: "Number of desired replicas", Value: func(obj runtime.Object) any {
			return obj.(*autoscalingv1.Scale).Spec.Replicas
		}},
		{Name: "Available", Type: "integer", Description: "Number of actual replicas", Value: func(obj runtime.Object) any {
			return obj.(*autoscalingv1.Scale).Status.Replicas
		}},
	}
}

var (
	_ rest.Getter                   = (*scaleREST)(nil)
	_ rest.Updater                  = (*scaleREST)(nil)
	_ rest.Patcher                  = (*scaleREST)(nil)
	_ rest.GroupVersionKindProvider = (*scaleREST)(nil)
	_ rest.TableConvertor           = (*scaleREST)(nil)
)

func (r *scaleREST) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy does nothing: the main endpoint destroys the storage.
func (r *scaleREST) Destroy() {}

func (r *scaleREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

func (r *scaleREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.store.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return r.scaleOf(obj)
}

func (r *scaleREST) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	_ rest.ValidateObjectFunc,
	admitted rest.ValidateObjectUpdateFunc,
	_ bool,
	options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	scaled := &scaledObject{UpdatedObjectInfo: info, rest: r, version: r.requested(ctx)}
	obj, _, err := r.store.Update(ctx, name, scaled, nil, r.dryRun.update(r.admission(admitted), options.DryRun), false, options)
	if err != nil {
		return nil, false, err
	}
	scale, err := r.scaleOf(obj)
	return scale, false, err
}

// admission passes the scale to admission, and the object behind it to the hooks of its kind.
func (r *scaleREST) admission(admitted rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, obj, old runtime.Object) error {
		scale, err := r.scaleOf(obj)
		if err != nil {
			return err
		}
		previous, err := r.scaleOf(old)
		if err != nil {
			return err
		}
		return admitted(admit.WithScaled(ctx, obj, old), scale, previous)
	}
}

// requested returns the version in the request's path.
func (r *scaleREST) requested(ctx context.Context) schema.GroupVersion {
	if info, ok := request.RequestInfoFrom(ctx); ok && info.APIVersion != "" {
		return schema.GroupVersion{Group: r.kind.Group, Version: info.APIVersion}
	}
	return r.kind.Versions[0].GroupVersion
}

// replicasPaths maps each version to the path of its replica count, for converting field ownership between the object
// and its scale.
func (r *scaleREST) replicasPaths() managedfields.ResourcePathMappings {
	parts := make([]any, len(r.kind.Scale.SpecReplicas))
	for i, p := range r.kind.Scale.SpecReplicas {
		parts[i] = p
	}
	paths := managedfields.ResourcePathMappings{}
	for _, v := range r.kind.AllVersions() {
		paths[v.GroupVersion.String()] = fieldpath.MakePathOrDie(parts...)
	}
	return paths
}

func (r *scaleREST) scaleOf(obj runtime.Object) (*autoscalingv1.Scale, error) {
	m := objects.Meta(obj)
	owners := managedfields.NewScaleHandler(m.GetManagedFields(), r.kind.Hub().GroupVersion, r.replicasPaths())
	entries, err := owners.ToSubresource()
	if err != nil {
		return nil, fmt.Errorf("field ownership of %s %s: %w", r.kind.GroupResource(), m.GetName(), err)
	}
	scale := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name:              m.GetName(),
			Namespace:         m.GetNamespace(),
			UID:               m.GetUID(),
			ResourceVersion:   m.GetResourceVersion(),
			CreationTimestamp: m.GetCreationTimestamp(),
			ManagedFields:     entries,
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: number(obj, r.kind.Scale.SpecReplicas)},
		Status: autoscalingv1.ScaleStatus{Replicas: number(obj, r.kind.Scale.StatusReplicas)},
	}
	if selector := define.ValueAt(reflect.ValueOf(obj), r.kind.Scale.Selector, false); len(r.kind.Scale.Selector) > 0 && selector.IsValid() {
		if scale.Status.Selector, err = selectorText(selector); err != nil {
			return nil, fmt.Errorf("selector of %s %s: %w", r.kind.GroupResource(), m.GetName(), err)
		}
	}
	return scale, nil
}

// selectorText returns a selector in the form that autoscalers read: a string unchanged, a label selector as a string.
func selectorText(v reflect.Value) (string, error) {
	of, ok := v.Interface().(metav1.LabelSelector)
	if !ok {
		return v.String(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(&of)
	if err != nil {
		return "", err
	}
	return selector.String(), nil
}

func number(obj runtime.Object, path []string) int32 {
	if n := define.ValueAt(reflect.ValueOf(obj), path, false); n.IsValid() {
		return int32(n.Int())
	}
	return 0
}

// scaledObject converts an update of the scale into an update of the object.
type scaledObject struct {
	rest.UpdatedObjectInfo
	rest    *scaleREST
	version schema.GroupVersion
}

func (s *scaledObject) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	m := objects.Meta(old)
	before, err := s.rest.scaleOf(old)
	if err != nil {
		return nil, err
	}
	updated, err := s.UpdatedObjectInfo.UpdatedObject(ctx, before)
	if err != nil {
		return nil, err
	}
	scale, ok := updated.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected a Scale, got %T", updated))
	}
	if errs := s.rest.validateScale(scale); len(errs) > 0 {
		return nil, apierrors.NewInvalid(s.rest.GroupVersionKind(s.version).GroupKind(), m.GetName(), errs)
	}
	if scale.UID != "" && scale.UID != m.GetUID() {
		return nil, apierrors.NewConflict(s.rest.kind.GroupResource(), m.GetName(),
			//lint:ignore ST1005 clients know these words from the main endpoint
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, m.GetUID()))
	}
	return s.rest.withReplicas(old, scale, s.version)
}

// validateScale validates the fields that only a scale has. If markers declare the scale, a negative number is left to
// the validation of the object, which reports it together with all other errors of the object.
func (r *scaleREST) validateScale(scale *autoscalingv1.Scale) field.ErrorList {
	errs := validation.ValidateObjectMeta(&scale.ObjectMeta, !r.kind.ClusterScoped, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	marked := r.kind.Hub().Structural
	if scale.Spec.Replicas < 0 && (marked == nil || marked.Scale() == nil) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "replicas"), scale.Spec.Replicas, "must be greater than or equal to 0"))
	}
	return errs
}

// withReplicas returns the object with the scale's replica count and, if it is set, the scale's resource version.
func (r *scaleREST) withReplicas(old runtime.Object, scale *autoscalingv1.Scale, requested schema.GroupVersion) (runtime.Object, error) {
	obj := old.DeepCopyObject()
	define.ValueAt(reflect.ValueOf(obj), r.kind.Scale.SpecReplicas, true).SetInt(int64(scale.Spec.Replicas))
	m := objects.Meta(obj)
	if scale.ResourceVersion != "" {
		m.SetResourceVersion(scale.ResourceVersion)
	}
	owners := managedfields.NewScaleHandler(m.GetManagedFields(), requested, r.replicasPaths())
	entries, err := owners.ToParent(scale.ManagedFields)
	if err != nil {
		return nil, fmt.Errorf("field ownership of %s %s: %w", r.kind.GroupResource(), m.GetName(), err)
	}
	m.SetManagedFields(entries)
	return obj, nil
}
