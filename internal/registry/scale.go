package registry

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/internal/define"
)

// scaleREST is the /scale endpoint: the kind's replica counts seen as an
// autoscaling/v1 Scale.
type scaleREST struct {
	rest.TableConvertor
	store *genericregistry.Store
	kind  *define.Kind
}

// scaleColumns are those that Kubernetes prints a scale in.
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

// Destroy leaves the storage to the main endpoint.
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

func (r *scaleREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	scaled := &scaledObject{UpdatedObjectInfo: info, rest: r, gvk: r.requestedKind(ctx)}
	obj, _, err := r.store.Update(ctx, name, scaled, onScale(r, create), onScaleUpdate(r, update), false, options)
	if err != nil {
		return nil, false, err
	}
	scale, err := r.scaleOf(obj)
	return scale, false, err
}

// onScale lets admission see the scale, not the object.
func onScale(r *scaleREST, validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		scale, err := r.scaleOf(obj)
		if err != nil {
			return err
		}
		return validate(ctx, scale)
	}
}

func onScaleUpdate(r *scaleREST, validate rest.ValidateObjectUpdateFunc) rest.ValidateObjectUpdateFunc {
	return func(ctx context.Context, obj, old runtime.Object) error {
		scale, err := r.scaleOf(obj)
		if err != nil {
			return err
		}
		previous, err := r.scaleOf(old)
		if err != nil {
			return err
		}
		return validate(ctx, scale, previous)
	}
}

// requestedKind is the kind in the version that the request's path names.
func (r *scaleREST) requestedKind(ctx context.Context) schema.GroupVersionKind {
	version := r.kind.Hub().GroupVersion.Version
	if info, ok := request.RequestInfoFrom(ctx); ok && info.APIVersion != "" {
		version = info.APIVersion
	}
	return r.kind.GroupKind().WithVersion(version)
}

// replicasPaths maps each version to the path of its replica count, for
// translating field ownership between the object and its scale.
func (r *scaleREST) replicasPaths() managedfields.ResourcePathMappings {
	parts := make([]any, len(r.kind.Scale.SpecReplicas))
	for i, p := range r.kind.Scale.SpecReplicas {
		parts[i] = p
	}
	paths := managedfields.ResourcePathMappings{}
	for _, v := range r.kind.Versions {
		paths[v.GroupVersion.String()] = fieldpath.MakePathOrDie(parts...)
	}
	return paths
}

func (r *scaleREST) scaleOf(obj runtime.Object) (*autoscalingv1.Scale, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", r.kind.GroupResource(), err)
	}
	m := accessor(obj)
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{
		Name:              m.GetName(),
		Namespace:         m.GetNamespace(),
		UID:               m.GetUID(),
		ResourceVersion:   m.GetResourceVersion(),
		CreationTimestamp: m.GetCreationTimestamp(),
	}}
	if scale.Spec.Replicas, err = number(content, r.kind.Scale.SpecReplicas); err != nil {
		return nil, err
	}
	if scale.Status.Replicas, err = number(content, r.kind.Scale.StatusReplicas); err != nil {
		return nil, err
	}
	if len(r.kind.Scale.Selector) > 0 {
		if scale.Status.Selector, _, err = unstructured.NestedString(content, r.kind.Scale.Selector...); err != nil {
			return nil, err
		}
	}
	owners := managedfields.NewScaleHandler(m.GetManagedFields(), r.kind.Hub().GroupVersion, r.replicasPaths())
	if scale.ManagedFields, err = owners.ToSubresource(); err != nil {
		return nil, fmt.Errorf("field ownership of %s %s: %w", r.kind.GroupResource(), m.GetName(), err)
	}
	return scale, nil
}

func number(content map[string]any, path []string) (int32, error) {
	n, _, err := unstructured.NestedInt64(content, path...)
	return int32(n), err
}

// scaledObject turns an update of the scale into one of the object.
type scaledObject struct {
	rest.UpdatedObjectInfo
	rest *scaleREST
	gvk  schema.GroupVersionKind
}

func (s *scaledObject) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	m := accessor(old)
	if m.GetResourceVersion() == "" {
		return nil, apierrors.NewNotFound(s.rest.kind.GroupResource(), m.GetName())
	}
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
	if scale.Spec.Replicas < 0 {
		return nil, apierrors.NewInvalid(s.rest.kind.GroupKind(), m.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), scale.Spec.Replicas, "must be greater than or equal to 0"),
		})
	}
	if uid := scale.UID; uid != "" && uid != m.GetUID() {
		return nil, apierrors.NewConflict(s.rest.kind.GroupResource(), m.GetName(),
			fmt.Errorf("precondition failed: UID in precondition: %v, UID in object meta: %v", uid, m.GetUID()))
	}
	return s.rest.withReplicas(old, scale, s.gvk.GroupVersion())
}

// withReplicas returns the object with the scale's replica count and, if given,
// its resource version.
func (r *scaleREST) withReplicas(old runtime.Object, scale *autoscalingv1.Scale, requested schema.GroupVersion) (runtime.Object, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(old)
	if err != nil {
		return nil, err
	}
	if err := unstructured.SetNestedField(content, int64(scale.Spec.Replicas), r.kind.Scale.SpecReplicas...); err != nil {
		return nil, err
	}
	obj := r.kind.Hub().New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, obj); err != nil {
		return nil, err
	}
	if scale.ResourceVersion != "" {
		accessor(obj).SetResourceVersion(scale.ResourceVersion)
	}
	owners := managedfields.NewScaleHandler(accessor(old).GetManagedFields(), requested, r.replicasPaths())
	entries, err := owners.ToParent(scale.ManagedFields)
	if err != nil {
		return nil, err
	}
	accessor(obj).SetManagedFields(entries)
	return obj, nil
}
