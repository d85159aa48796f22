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

// The operations that admission hooks see. A patch is an update, or a create if its object does not exist.
const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
)

// Request is a write under admission.
type Request[T any] struct {
	Operation Operation
	// Resource is the requested resource. Its version is that of the client, and so are its group and name if several
	// groups serve the objects.
	Resource schema.GroupVersionResource
	// Namespace is empty for cluster-scoped kinds. Name may be empty on a create whose name is not yet generated.
	Namespace, Name string
	// Subresource is empty for the main endpoint, or else status, scale, or the custom subresource that changes the
	// object.
	Subresource string
	// Object is the object as it would be stored; nil on a delete.
	Object *T
	// Old is the stored object; nil on a create.
	Old *T
	// User is the caller.
	User user.Info
	// DryRun is true if nothing will be stored. A hook must then have no side effects.
	DryRun bool
}

// AdmitFunc decides on a write. An error rejects it: the client gets 403 with the text of the error, or the error
// itself if it is or wraps an API status, such as that of Invalid. A hook that cannot decide, because a lookup fails
// for example, returns Unavailable.
type AdmitFunc[T any] func(ctx context.Context, request Request[T]) error

// Admit adds a hook that decides, after validation, whether a write may happen, through the main endpoint, /status or
// /scale, by any verb. Its changes of the object have no effect.
//
// on lists the operations for which the hook is called; none means all. A deletion for which no hook is called need
// not even decode the object.
func (k *KindBuilder[T]) Admit(admit AdmitFunc[T], on ...Operation) *KindBuilder[T] {
	return k.admission("Admit", false, always(admit), on)
}

// AdmitWith is Admit for a hook that uses its server, to look up other objects for example. New calls make once for
// every server.
func (k *KindBuilder[T]) AdmitWith(make func(env *Env) (AdmitFunc[T], error), on ...Operation) *KindBuilder[T] {
	return k.admission("AdmitWith", false, make, on)
}

// Connection is a request for a connection with a T, under admission.
type Connection[T any] struct {
	// Resource is the requested resource, in the client's version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Subresource is the name of the connecting subresource, such as exec.
	Subresource string
	// Object is the object at the time of the request. The hook owns it.
	Object *T
	// Options are a pointer to the Go type of the subresource's options, such as *stream.ExecOptions, with defaults;
	// nil if it has none. They are read-only.
	Options runtime.Object
	// User is the caller.
	User user.Info
}

// AdmitConnectFunc decides on a connection. An error rejects it, as that of an AdmitFunc does.
type AdmitConnectFunc[T any] func(ctx context.Context, connection Connection[T]) error

// AdmitConnect adds a hook that decides whether clients may connect with an object through subresources of Connect and
// of package stream. It runs after authorization and after the admission plugins, which see the connection but not the
// object, and before anything is written to the client: a rejection is an ordinary response, even to an upgrade
// request. A CustomStorage has no such hooks.
func (k *KindBuilder[T]) AdmitConnect(admit AdmitConnectFunc[T]) *KindBuilder[T] {
	if admit == nil {
		k.kind().ConnectAdmissions = append(k.kind().ConnectAdmissions, nil)
		return k
	}
	return k.AdmitConnectWith(func(*Env) (AdmitConnectFunc[T], error) { return admit, nil })
}

// AdmitConnectWith is AdmitConnect for a hook that uses its server. New calls make once for every server.
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
			return define.Admission{}, errors.New("AdmitConnectWith made no hook")
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

// AdmitCreateFunc decides on a create with respect to the existing objects: see KindBuilder.AdmitCreate.
type AdmitCreateFunc[T any] func(ctx context.Context, request Request[T], existing []*T) error

// AdmitCreate adds a hook that decides whether an object may be created, given the existing ones: whether there are
// fewer than ten, for example, or none with the same host. existing holds all other objects of the kind, in all
// namespaces, in no particular order. An error rejects the create, as that of an AdmitFunc does.
//
// The decision is exact under concurrency: the read of existing and the write are one atomic step. If this server, or
// a replica with the same storage, creates another object in between, nothing is written and the hook is called again,
// so it must have no side effects. Objects may be deleted in between, or changed, unless the kind has an AdmitUpdate
// hook. These repeated calls are the only cost of concurrency; there is nothing to lock or to clean up.
//
// The hook runs last, after validation and all other admission, for creates by any verb, and also for dry runs. It is
// not called for a name that is taken, which is answered with 409. Each create reads all objects of the kind, and
// creates of one process wait for each other, so the hook suits kinds with hundreds or a few thousand objects. The
// objects in existing are shared and read-only.
//
// The hook is not available for virtual kinds and a CustomStorage. With the storage etcd it needs etcd's range
// comparisons, which kine does not have. Files that people add to the storage files bypass it, as they bypass all
// hooks.
func (k *KindBuilder[T]) AdmitCreate(admit AdmitCreateFunc[T]) *KindBuilder[T] {
	if admit == nil {
		k.kind().CreateAdmissions = append(k.kind().CreateAdmissions, nil)
		return k
	}
	return k.AdmitCreateWith(func(*Env) (AdmitCreateFunc[T], error) { return admit, nil })
}

// AdmitCreateWith is AdmitCreate for a hook that uses its server, to look up referenced objects for example:
// Lister.GetLatest sees the most recent writes. New calls make once for every server. Only the decision about existing
// is exact; other objects may change before the object is written.
func (k *KindBuilder[T]) AdmitCreateWith(make func(env *Env) (AdmitCreateFunc[T], error)) *KindBuilder[T] {
	k.kind().CreateAdmissions = append(k.kind().CreateAdmissions, beside("AdmitCreateWith", make))
	return k
}

// AdmitUpdateFunc decides on an update with respect to the other objects: see KindBuilder.AdmitUpdate.
type AdmitUpdateFunc[T any] func(ctx context.Context, request Request[T], others []*T) error

// AdmitUpdate adds a hook that decides whether an object may be updated, given the other objects: whether the sum of
// all requests stays below a hundred, for example. others holds all other objects of the kind, as existing of
// AdmitCreate does. An error rejects the update, as that of an AdmitFunc does.
//
// The decision is exact: the read of others and the write are one atomic step. If this server, or a replica with the
// same storage, creates or updates an object of the kind in between, nothing is written and the hook is called again,
// so it must have no side effects. Objects may be deleted in between.
//
// The hook runs last, for updates by any verb, through the main endpoint, /status, /scale and custom subresources, and
// also for dry runs. The change by which a deletion marks an object with finalizers or a grace period is not an
// update. Neither is a create: an invariant of both also needs AdmitCreate, whose decision is then equally exact,
// among objects that do not change meanwhile. The cost of AdmitCreate, and its limits for storages and kinds, apply
// here, too.
func (k *KindBuilder[T]) AdmitUpdate(admit AdmitUpdateFunc[T]) *KindBuilder[T] {
	if admit == nil {
		k.kind().UpdateAdmissions = append(k.kind().UpdateAdmissions, nil)
		return k
	}
	return k.AdmitUpdateWith(func(*Env) (AdmitUpdateFunc[T], error) { return admit, nil })
}

// AdmitUpdateWith is AdmitUpdate for a hook that uses its server, as that of AdmitCreateWith does.
func (k *KindBuilder[T]) AdmitUpdateWith(make func(env *Env) (AdmitUpdateFunc[T], error)) *KindBuilder[T] {
	k.kind().UpdateAdmissions = append(k.kind().UpdateAdmissions, beside("AdmitUpdateWith", make))
	return k
}

// beside returns the constructor of a hook that sees the other objects; nil without a hook.
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
			return nil, errors.New(name + " made no hook")
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
// validation. The hook sees the object as the client wrote it: it still contains the fields that the endpoint ignores,
// such as the status at the main endpoint, and the endpoint still ignores them afterwards. The hook does not run for
// deletes and /scale.
func (k *KindBuilder[T]) Mutate(mutate AdmitFunc[T]) *KindBuilder[T] {
	return k.admission("Mutate", true, always(mutate), nil)
}

// MutateWith is Mutate for a hook that uses its server.
func (k *KindBuilder[T]) MutateWith(make func(env *Env) (AdmitFunc[T], error)) *KindBuilder[T] {
	return k.admission("MutateWith", true, make, nil)
}

// always returns a constructor of an existing hook; nil without a hook.
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
			return define.Admission{}, errors.New(name + " made no hook")
		}
		hook := define.Admission{Mutating: mutating, Review: func(ctx context.Context, a admission.Attributes) error {
			return admit(ctx, requestOf[T](a))
		}}
		for _, o := range on {
			if o != Create && o != Update && o != Delete {
				return define.Admission{}, fmt.Errorf("%s: there is no operation %q; there are %s, %s and %s", name, o, Create, Update, Delete)
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
		// The deletion of a collection has no name, the objects in it have.
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
