package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
)

// Call rebuilds the call of a long action from its record, with the object in its current state. The returned context
// is for the action: it carries the caller and the namespace. The error is an API status: NotFound if the object is
// gone, Conflict if another object has its name now, BadRequest if the recorded request cannot be decoded any more. Or
// it matches define.ErrUnknownAction.
func (k *Kind) Call(ctx context.Context, recorded define.Recorded) (context.Context, *define.Call, error) {
	resource := k.Definition.GroupResource()
	i := slices.IndexFunc(
		k.Definition.CustomSubresources,
		func(s *define.Subresource) bool { return s.Name == recorded.Subresource && s.Long != nil },
	)
	if i < 0 || k.own != nil {
		return nil, nil, fmt.Errorf(
			"%w: %s have no action %s for operations",
			define.ErrUnknownAction,
			resource,
			recorded.Subresource,
		)
	}
	version := k.Definition.Hub()
	for _, v := range k.Definition.Versions {
		if v.GroupVersion == recorded.Resource.GroupVersion() && !v.Unserved {
			version = v
		}
	}
	r := &requestREST{kind: k, sub: k.Definition.CustomSubresources[i], version: version}
	ctx = request.WithUser(request.WithNamespace(ctx, recorded.Namespace), recorded.User)
	parent, err := k.parent(ctx, recorded.Name)
	if err != nil {
		return nil, nil, err
	}
	if uid := objects.Meta(parent).GetUID(); uid != recorded.UID {
		return nil, nil, apierrors.NewConflict(
			resource,
			recorded.Name,
			errors.New("the object of the action was deleted, and another object has its name"),
		)
	}
	obj := r.sub.New()
	if err := json.Unmarshal(recorded.Request, obj); err != nil {
		return nil, nil, apierrors.NewBadRequest(
			fmt.Sprintf("the recorded request of the operation is not a valid %s any more: %v", r.sub.Object.Name(), err),
		)
	}
	return ctx, r.call(ctx, admission.Create, parent, obj, nil, r.sub.Name, &metav1.Preconditions{UID: uidOf(parent)}), nil
}
