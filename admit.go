package annex

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/annexapi/annex/internal/define"
)

// Operation is what a request does to an object.
type Operation string

// The operations that admission hooks see. A patch is an update, or a create if
// it is applied to an object that does not exist.
const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
)

// Request is a write that asks for admission.
type Request[T any] struct {
	Operation Operation
	// Resource is what the client speaks of: the version, and the group and the name if
	// the objects are served in several.
	Resource schema.GroupVersionResource
	// Namespace is empty for cluster-scoped kinds. Name may be empty on a create
	// whose name is still to be generated.
	Namespace, Name string
	// Subresource is empty for the main endpoint, or status, or scale, or the custom
	// subresource that changes the object.
	Subresource string
	// Object is the object as it would be stored; nil on a delete.
	Object *T
	// Old is the object as it is stored; nil on a create.
	Old *T
	// User is who asks.
	User user.Info
	// DryRun says that nothing will be stored; a hook must then have no effects
	// either.
	DryRun bool
}

// AdmitFunc decides on a write: an error refuses it. The client gets a 403 with
// the error's text, or the error itself if it is or wraps an API status.
type AdmitFunc[T any] func(ctx context.Context, request Request[T]) error

// Admit adds a hook that decides, after validation, whether a write may happen:
// through the main endpoint, /status or /scale, by whatever verb. A change of the
// object has no effect.
func (k *KindBuilder[T]) Admit(admit AdmitFunc[T]) *KindBuilder[T] {
	return k.admission(false, func(*Host) (AdmitFunc[T], error) { return admit, nil })
}

// AdmitWith is Admit for a hook that uses the server it runs in, to look up other
// objects say. make is called once for every server, by New.
func (k *KindBuilder[T]) AdmitWith(make func(host *Host) (AdmitFunc[T], error)) *KindBuilder[T] {
	return k.admission(false, make)
}

// Mutate adds a hook that may change the object of a create or update, through the
// main endpoint or /status, before it is validated. It sees the object as the client
// wrote it: what the endpoint ignores, such as the status at the main endpoint, is
// still in it, and is still ignored afterwards. It does not run for deletes or
// /scale.
func (k *KindBuilder[T]) Mutate(mutate AdmitFunc[T]) *KindBuilder[T] {
	return k.admission(true, func(*Host) (AdmitFunc[T], error) { return mutate, nil })
}

// MutateWith is Mutate for a hook that uses the server it runs in.
func (k *KindBuilder[T]) MutateWith(make func(host *Host) (AdmitFunc[T], error)) *KindBuilder[T] {
	return k.admission(true, make)
}

func (k *KindBuilder[T]) admission(mutating bool, make func(host *Host) (AdmitFunc[T], error)) *KindBuilder[T] {
	k.kind.Admissions = append(k.kind.Admissions, func(host any) (define.Admission, error) {
		admit, err := make(host.(*Host))
		if err != nil {
			return define.Admission{}, err
		}
		return define.Admission{Mutating: mutating, Review: func(ctx context.Context, a admission.Attributes) error {
			name := a.GetName()
			if old, err := meta.Accessor(a.GetOldObject()); err == nil {
				// The deletion of a collection has no name, the objects in it have.
				name = old.GetName()
			}
			return admit(ctx, Request[T]{
				Operation:   Operation(a.GetOperation()),
				Resource:    a.GetResource(),
				Namespace:   a.GetNamespace(),
				Name:        name,
				Subresource: a.GetSubresource(),
				Object:      typed[T](a.GetObject()),
				Old:         typed[T](a.GetOldObject()),
				User:        a.GetUserInfo(),
				DryRun:      a.IsDryRun(),
			})
		}}, nil
	})
	return k
}

func typed[T any](obj runtime.Object) *T {
	t, _ := any(obj).(*T)
	return t
}
