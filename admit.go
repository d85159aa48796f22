package annex

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/annexapi/annex/internal/model/define"
)

// Operation is the operation of a request on an object.
type Operation string

// The operations that admission hooks see. A patch is an update, or a create if an apply creates the object.
const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
)

// Request is a write that a hook admits or rejects.
type Request[T any] struct {
	Operation Operation
	// Resource is the requested resource: its version, and its group and name if the objects are served in several
	// groups.
	Resource schema.GroupVersionResource
	// Namespace is empty for cluster-scoped kinds. Name may be empty on a create with a generateName.
	Namespace, Name string
	// Subresource is empty for the main endpoint; otherwise it is status, scale, or the custom subresource that
	// changes the object.
	Subresource string
	// Object is the object to store; nil on a delete.
	Object *T
	// Old is the stored object; nil on a create.
	Old *T
	// User is the caller.
	User user.Info
	// DryRun is set if the write will not be stored. The hook must then have no side effects.
	DryRun bool
}

// AdmitFunc decides on a write: an error rejects it. The response is a 403 with the error's text, or the error
// itself if it is or wraps an API status, such as the one Invalid returns. A hook that cannot decide, because a
// lookup has failed, returns Unavailable.
type AdmitFunc[T any] func(ctx context.Context, request Request[T]) error

// Admit adds a hook that admits or rejects a write after validation, through the main endpoint, /status or /scale,
// by any verb. A change of the object has no effect.
//
// The hook is called for the operations in on, or for all operations if there are none. The server need not even
// decode the object of a deletion that no hook reviews.
func (k *KindBuilder[T]) Admit(admit AdmitFunc[T], on ...Operation) *KindBuilder[T] {
	return k.admission("Admit", false, always(admit), on)
}

// AdmitWith is Admit for a hook that uses its server, for example to look up other objects. New calls make once for
// each server.
func (k *KindBuilder[T]) AdmitWith(make func(env *Env) (AdmitFunc[T], error), on ...Operation) *KindBuilder[T] {
	return k.admission("AdmitWith", false, make, on)
}

// Connection is a connect request on a T that a hook admits or rejects.
type Connection[T any] struct {
	// Resource is the requested resource.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Subresource is the name of the connecting subresource, such as exec.
	Subresource string
	// Object is the object as of the start of the request. The hook owns it.
	Object *T
	// Options is a pointer to the Go type of the subresource's options, such as *stream.ExecOptions, with defaults
	// filled in; nil if the subresource has none. It must not be changed.
	Options runtime.Object
	// User is the caller.
	User user.Info
}

// AdmitConnectFunc decides on a connection: an error rejects it, as the error of an AdmitFunc does.
type AdmitConnectFunc[T any] func(ctx context.Context, connection Connection[T]) error

// AdmitConnect adds a hook that admits or rejects connections to subresources of an object: those of Connect, and
// those of package stream. It runs after authorization and the admission plugins, which see the connection but not
// the object. It runs before anything is written to the client, so a rejection is an ordinary response, even to an
// upgrade request. A CustomStorage has no such hooks.
func (k *KindBuilder[T]) AdmitConnect(admit AdmitConnectFunc[T]) *KindBuilder[T] {
	if admit == nil {
		k.kind().ConnectAdmissions = append(k.kind().ConnectAdmissions, nil)
		return k
	}
	return k.AdmitConnectWith(func(*Env) (AdmitConnectFunc[T], error) { return admit, nil })
}

// AdmitConnectWith is AdmitConnect for a hook that uses its server. New calls make once for each server.
func (k *KindBuilder[T]) AdmitConnectWith(make func(env *Env) (AdmitConnectFunc[T], error)) *KindBuilder[T] {
	if make == nil {
		k.kind().ConnectAdmissions = append(k.kind().ConnectAdmissions, nil)
		return k
	}
	k.kind().ConnectAdmissions = append(k.kind().ConnectAdmissions, func(env any) (define.Admission, error) {
		admit, err := make(env.(*Env))
		if err != nil {
			return define.Admission{}, err
		}
		if admit == nil {
			return define.Admission{}, errors.New("AdmitConnectWith returned no hook")
		}
		return define.Admission{Review: func(ctx context.Context, a admission.Attributes) error {
			return admit(ctx, connectionOf[T](a))
		}}, nil
	})
	return k
}

func connectionOf[T any](a admission.Attributes) Connection[T] {
	return Connection[T]{
		Resource:    a.GetResource(),
		Namespace:   a.GetNamespace(),
		Name:        a.GetName(),
		Subresource: a.GetSubresource(),
		Object:      typed[T](a.GetOldObject()),
		Options:     a.GetObject(),
		User:        a.GetUserInfo(),
	}
}

// AdmitCreateFunc decides on a create with the existing objects at hand: see KindBuilder.AdmitCreate.
type AdmitCreateFunc[T any] func(ctx context.Context, request Request[T], existing []*T) error

// AdmitCreate adds a hook that admits or rejects a create by the existing objects: for example, if there are fewer
// than ten, or if none has the same host. existing has all objects of the kind, in all namespaces, without the new
// object, in no particular order. An error rejects the create, as the error of an AdmitFunc does.
//
// The decision is atomic with the write. If another object is created in between, by this server or by a replica
// with the same storage, nothing is written and the hook is called again; so it must have no side effects. Objects
// may be deleted in between, or change, unless the kind has a hook of AdmitUpdate. The repeated call is the only
// cost of concurrency; there is nothing to lock or to clean up.
//
// The hook runs last, after validation and all other admission, for creates by any verb, including dry runs. It is
// not called for a name that exists, which gets a 409. Each create reads all objects of the kind, and the creates
// of one process wait for each other: the hook is for kinds with hundreds or a few thousand objects. The hook's
// arguments are shared and must not be changed.
//
// AdmitCreate is not available for virtual kinds and for kinds with a CustomStorage. With the storage etcd it needs
// etcd's range comparisons, which kine does not have. Files that a user writes into the storage Files pass the
// hook, as they pass all hooks.
func (k *KindBuilder[T]) AdmitCreate(admit AdmitCreateFunc[T]) *KindBuilder[T] {
	if admit == nil {
		k.kind().CreateAdmissions = append(k.kind().CreateAdmissions, nil)
		return k
	}
	return k.AdmitCreateWith(func(*Env) (AdmitCreateFunc[T], error) { return admit, nil })
}

// AdmitCreateWith is AdmitCreate for a hook that uses its server, for example to look up referenced objects:
// Lister.GetLatest sees the latest writes. New calls make once for each server. Only the decision on existing is
// atomic; other objects may change before the object is written.
func (k *KindBuilder[T]) AdmitCreateWith(make func(env *Env) (AdmitCreateFunc[T], error)) *KindBuilder[T] {
	k.kind().CreateAdmissions = append(k.kind().CreateAdmissions, beside("AdmitCreateWith", make))
	return k
}

// AdmitUpdateFunc decides on an update with the other objects at hand: see KindBuilder.AdmitUpdate.
type AdmitUpdateFunc[T any] func(ctx context.Context, request Request[T], others []*T) error

// AdmitUpdate adds a hook that admits or rejects an update by the other objects: for example, if all of them
// together request less than a hundred. others has all objects of the kind without the updated object, as existing
// of AdmitCreate has. An error rejects the update, as the error of an AdmitFunc does.
//
// The decision is atomic with the write. If an object of the kind is created or updated in between, the same or
// another, by this server or by a replica with the same storage, nothing is written and the hook is called again;
// so it must have no side effects. Objects may be deleted in between.
//
// The hook runs last, for updates by any verb: through the main endpoint, /status, /scale and custom subresources,
// including dry runs. The deletion of an object with finalizers or a grace period is no update, although it changes
// the object. The hook is not called for creates. An invariant of creates and updates also needs AdmitCreate, whose
// decision is then atomic with updates, too. The cost, the requirements on storages and the unsupported kinds are
// those of AdmitCreate.
func (k *KindBuilder[T]) AdmitUpdate(admit AdmitUpdateFunc[T]) *KindBuilder[T] {
	if admit == nil {
		k.kind().UpdateAdmissions = append(k.kind().UpdateAdmissions, nil)
		return k
	}
	return k.AdmitUpdateWith(func(*Env) (AdmitUpdateFunc[T], error) { return admit, nil })
}

// AdmitUpdateWith is AdmitUpdate for a hook that uses its server, as AdmitCreateWith is for AdmitCreate.
func (k *KindBuilder[T]) AdmitUpdateWith(make func(env *Env) (AdmitUpdateFunc[T], error)) *KindBuilder[T] {
	k.kind().UpdateAdmissions = append(k.kind().UpdateAdmissions, beside("AdmitUpdateWith", make))
	return k
}

// beside returns the constructor of a hook that sees the other objects; nil for a nil hook.
func beside[T any, F ~func(context.Context, Request[T], []*T) error](
	name string,
	make func(env *Env) (F, error),
) func(env any) (define.BesideAdmission, error) {
	if make == nil {
		return nil
	}
	return func(env any) (define.BesideAdmission, error) {
		admit, err := make(env.(*Env))
		if err != nil {
			return nil, err
		}
		if admit == nil {
			return nil, errors.New(name + " returned no hook")
		}
		return func(ctx context.Context, a admission.Attributes, existing []runtime.Object) error {
			others := []*T{}
			for _, other := range existing {
				others = append(others, typed[T](other))
			}
			return admit(ctx, requestOf[T](a), others)
		}, nil
	}
}

// Mutate adds a hook that may change the object of a create or update, through the main endpoint or /status, before
// validation. It sees the object as the client wrote it, including fields that the endpoint ignores, such as the
// status at the main endpoint; these are still ignored afterwards. It does not run for deletes or /scale.
func (k *KindBuilder[T]) Mutate(mutate AdmitFunc[T]) *KindBuilder[T] {
	return k.admission("Mutate", true, always(mutate), nil)
}

// MutateWith is Mutate for a hook that uses its server.
func (k *KindBuilder[T]) MutateWith(make func(env *Env) (AdmitFunc[T], error)) *KindBuilder[T] {
	return k.admission("MutateWith", true, make, nil)
}

// always returns a constructor that returns the given hook; nil for a nil hook.
func always[T any](hook AdmitFunc[T]) func(*Env) (AdmitFunc[T], error) {
	if hook == nil {
		return nil
	}
	return func(*Env) (AdmitFunc[T], error) { return hook, nil }
}

func (k *KindBuilder[T]) admission(name string, mutating bool, make func(env *Env) (AdmitFunc[T], error), on []Operation) *KindBuilder[T] {
	if make == nil {
		k.kind().Admissions = append(k.kind().Admissions, nil)
		return k
	}
	k.kind().Admissions = append(k.kind().Admissions, func(env any) (define.Admission, error) {
		admit, err := make(env.(*Env))
		if err != nil {
			return define.Admission{}, err
		}
		if admit == nil {
			return define.Admission{}, errors.New(name + " returned no hook")
		}
		hook := define.Admission{Mutating: mutating, Review: func(ctx context.Context, a admission.Attributes) error {
			return admit(ctx, requestOf[T](a))
		}}
		for _, o := range on {
			if o != Create && o != Update && o != Delete {
				return define.Admission{}, fmt.Errorf("%s: unknown operation %q; operations are %s, "+
					"%s and %s", name, o, Create, Update, Delete)
			}
			hook.On = append(hook.On, admission.Operation(o))
		}
		return hook, nil
	})
	return k
}

func requestOf[T any](a admission.Attributes) Request[T] {
	name := a.GetName()
	if old, err := meta.Accessor(a.GetOldObject()); err == nil {
		// The deletion of a collection has no name, but its objects have.
		name = old.GetName()
	}
	return Request[T]{
		Operation:   Operation(a.GetOperation()),
		Resource:    a.GetResource(),
		Namespace:   a.GetNamespace(),
		Name:        name,
		Subresource: a.GetSubresource(),
		Object:      typed[T](a.GetObject()),
		Old:         typed[T](a.GetOldObject()),
		User:        a.GetUserInfo(),
		DryRun:      a.IsDryRun(),
	}
}

func typed[T any](obj runtime.Object) *T {
	t, _ := any(obj).(*T)
	return t
}
