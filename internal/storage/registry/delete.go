package registry

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"github.com/annexapi/annex/internal/base/objects"
)

// errHeld reports that an object cannot be deleted in one step.
var errHeld = errors.New("the object has finalizers")

// Delete implements rest.GracefulDeleter. It deletes an object without finalizers in one step of the storage.
// genericregistry would read the object first, to determine whether it must only be marked; here the storage step
// determines that, and leaves such an object to genericregistry.
func (r *mainREST) Delete(
	ctx context.Context,
	name string,
	valid rest.ValidateObjectFunc,
	options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	if !r.deletesAtOnce(options) {
		return r.Store.Delete(ctx, name, valid, options)
	}
	key, err := r.KeyFunc(ctx, name)
	if err != nil {
		return nil, false, err
	}
	var asked bool
	var details metav1.StatusDetails
	err = r.Storage.Delete(
		objects.WithDeletedUnread(ctx),
		key,
		r.NewFunc(),
		&storage.Preconditions{},
		func(ctx context.Context, obj runtime.Object) error {
			unread, ok := obj.(*objects.Unread)
			if !ok {
				m := objects.Meta(obj)
				unread = objects.NewUnread(m.GetName(), m.GetUID(), len(m.GetFinalizers()) > 0, nil, nil)
			}
			if unread.Held {
				return errHeld
			}
			asked, details.Name, details.UID = true, unread.Name, unread.UID
			if ok && !objects.ValidatesUnread(ctx) {
				obj = unread.Object()
			}
			err := valid(ctx, obj)
			if unread.Err() != nil {
				asked = false
				return unread.Err()
			}
			return err
		},
		false,
		nil,
		storage.DeleteOptions{},
	)
	if errors.Is(err, errHeld) || err != nil && !asked && !storage.IsNotFound(err) {
		return r.Store.Delete(ctx, name, valid, options) // nothing has been deleted
	}
	resource := r.DefaultQualifiedResource
	if info, ok := request.RequestInfoFrom(ctx); ok {
		resource = schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	}
	if err != nil {
		return nil, false, storeerr.InterpretDeleteError(err, resource, name)
	}
	details.Group, details.Kind = resource.Group, resource.Resource
	return &metav1.Status{Status: metav1.StatusSuccess, Details: &details}, true, nil
}

// deletesAtOnce reports whether a deletion always removes the object and returns a status, unless the object has
// finalizers. It returns false for virtual kinds, because only the storage above the source knows the effect of a
// deletion.
func (r *mainREST) deletesAtOnce(options *metav1.DeleteOptions) bool {
	if r.kind.Grace != nil || r.kind.Primary().Source != nil || r.ReturnDeletedObject || r.AfterDelete != nil || r.Decorator != nil ||
		options == nil {
		return false
	}
	if len(options.DryRun) > 0 || options.Preconditions != nil || options.IgnoreStoreReadErrorWithClusterBreakingPotential != nil {
		return false
	}
	//lint:ignore SA1019 clients of long ago still say so
	if options.OrphanDependents != nil || options.GracePeriodSeconds != nil && *options.GracePeriodSeconds < 0 {
		return false
	}
	policy := options.PropagationPolicy
	return policy == nil || *policy == metav1.DeletePropagationBackground
}
