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
// the error's text, or the error itself if it is or wraps an API status, such as Invalid makes.
// A hook that cannot decide, because a look-up fails say, returns Unavailable.
type AdmitFunc[T any] func(ctx context.Context, request Request[T]) error

// Admit adds a hook that decides, after validation, whether a write may happen:
// through the main endpoint, /status or /scale, by whatever verb. A change of the
// object has no effect.
//
// on are the operations that the hook is asked about; none are all of them. A deletion that
// no hook is asked about need not even decode the object.
func (k *KindBuilder[T]) Admit(admit AdmitFunc[T], on ...Operation) *KindBuilder[T] {
	return k.admission("Admit", false, always(admit), on)
}

// AdmitWith is Admit for a hook that uses the server it runs in, to look up other
// objects say. make is called once for every server, by New.
func (k *KindBuilder[T]) AdmitWith(make func(env *Env) (AdmitFunc[T], error), on ...Operation) *KindBuilder[T] {
	return k.admission("AdmitWith", false, make, on)
}

// Connection is a request to be connected with a T that asks for admission.
type Connection[T any] struct {
	// Resource is what the client speaks of.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Subresource is the name of what connects, such as exec.
	Subresource string
	// Object is the object as it was when the request came. It is the hook's own.
	Object *T
	// Options are a pointer to the Go type of the subresource's options, such as
	// *stream.ExecOptions, with defaults filled in; nil if it has none. They must not be changed.
	Options runtime.Object
	// User is who asks.
	User user.Info
}

// AdmitConnectFunc decides on a connection: an error refuses it, as that of an AdmitFunc does.
type AdmitConnectFunc[T any] func(ctx context.Context, connection Connection[T]) error

// AdmitConnect adds a hook that decides whether clients may be connected with an object by the
// subresources that connect: all of Connect, and those of package stream. It comes after
// authorization and the plugins of admission, which see a connection as well but not the
// object, and before anything is written to the client: a refusal is an ordinary answer, also
// of what asks for an upgrade. A storage of one's own has no such hooks.
func (k *KindBuilder[T]) AdmitConnect(admit AdmitConnectFunc[T]) *KindBuilder[T] {
	if admit == nil {
		k.kind().ConnectAdmissions = append(k.kind().ConnectAdmissions, nil)
		return k
	}
	return k.AdmitConnectWith(func(*Env) (AdmitConnectFunc[T], error) { return admit, nil })
}

// AdmitConnectWith is AdmitConnect for a hook that uses the server it runs in. make is called
// once for every server, by New.
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

// AdmitCreateFunc decides on a create beside the objects that exist: see
// KindBuilder.AdmitCreate.
type AdmitCreateFunc[T any] func(ctx context.Context, request Request[T], existing []*T) error

// AdmitCreate adds a hook that decides whether an object may be created beside those
// that exist: whether there are fewer than ten, say, or none with the same host.
// existing are all objects of the kind, in all namespaces, without the one in question,
// and in no order that means something. An error refuses the create, as that of an
// AdmitFunc does.
//
// The decision is exact, whatever happens at the same time: the hook looks and the
// object is written in one step. If another object is created in between, by this
// server or by a replica with the same storage, nothing is written, and the hook is asked
// again; so it must have no effects. Objects may go in between, or change, unless the kind
// has a hook of AdmitUpdate. To be asked again is the only price of concurrency; there is
// nothing to lock or to clean up.
//
// The hook comes last, after validation and all other admission, for creates by
// whatever verb, also for dry runs. It is not asked about a name that is taken, which is
// answered with 409. Each create reads all objects of the kind, and creates of one
// process wait for each other: it is for kinds of which there are hundreds or a few
// thousand. What the hook is given is shared and must not be changed.
//
// It is not for virtual kinds and those with a storage of their own. With the storage
// etcd it needs etcd's range comparisons, which kine does not have. Files that people
// put into the storage Files pass it, as they pass all hooks.
func (k *KindBuilder[T]) AdmitCreate(admit AdmitCreateFunc[T]) *KindBuilder[T] {
	if admit == nil {
		k.kind().CreateAdmissions = append(k.kind().CreateAdmissions, nil)
		return k
	}
	return k.AdmitCreateWith(func(*Env) (AdmitCreateFunc[T], error) { return admit, nil })
}

// AdmitCreateWith is AdmitCreate for a hook that uses the server it runs in, to look up
// what an object refers to say: Lister.GetLatest sees what has just been written. make is
// called once for every server, by New. Only what the hook decides upon existing is exact;
// what it looks up may change before the object is written.
func (k *KindBuilder[T]) AdmitCreateWith(make func(env *Env) (AdmitCreateFunc[T], error)) *KindBuilder[T] {
	k.kind().CreateAdmissions = append(k.kind().CreateAdmissions, beside("AdmitCreateWith", make))
	return k
}

// AdmitUpdateFunc decides on an update beside the other objects: see
// KindBuilder.AdmitUpdate.
type AdmitUpdateFunc[T any] func(ctx context.Context, request Request[T], others []*T) error

// AdmitUpdate adds a hook that decides whether an object may become what an update makes of
// it, beside the others: whether all of them together ask for less than a hundred, say.
// others are all objects of the kind without the one in question, as those that AdmitCreate
// gives. An error refuses the update, as that of an AdmitFunc does.
//
// The decision is exact: the hook looks and the object is written in one step. If an object
// of the kind is created or updated in between, this one or another, by this server or by a
// replica with the same storage, nothing is written and the hook is asked again; so it must
// have no effects. Objects may go in between.
//
// The hook comes last, for updates by whatever verb: through the main endpoint, /status,
// /scale and custom subresources, also for dry runs. What a deletion does to an object that
// has finalizers or a grace period is no update. A create is not asked about, either: what
// is to hold after both needs AdmitCreate besides, which then decides as exactly, beside
// objects that do not change meanwhile. What AdmitCreate says of its price, of storages, and
// of kinds that it is not for, holds here.
func (k *KindBuilder[T]) AdmitUpdate(admit AdmitUpdateFunc[T]) *KindBuilder[T] {
	if admit == nil {
		k.kind().UpdateAdmissions = append(k.kind().UpdateAdmissions, nil)
		return k
	}
	return k.AdmitUpdateWith(func(*Env) (AdmitUpdateFunc[T], error) { return admit, nil })
}

// AdmitUpdateWith is AdmitUpdate for a hook that uses the server it runs in, as that of
// AdmitCreateWith does.
func (k *KindBuilder[T]) AdmitUpdateWith(make func(env *Env) (AdmitUpdateFunc[T], error)) *KindBuilder[T] {
	k.kind().UpdateAdmissions = append(k.kind().UpdateAdmissions, beside("AdmitUpdateWith", make))
	return k
}

// beside returns the constructor of a hook that sees the other objects; nil for none.
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

// Mutate adds a hook that may change the object of a create or update, through the
// main endpoint or /status, before it is validated. It sees the object as the client
// wrote it: what the endpoint ignores, such as the status at the main endpoint, is
// still in it, and is still ignored afterwards. It does not run for deletes or
// /scale.
func (k *KindBuilder[T]) Mutate(mutate AdmitFunc[T]) *KindBuilder[T] {
	return k.admission("Mutate", true, always(mutate), nil)
}

// MutateWith is Mutate for a hook that uses the server it runs in.
func (k *KindBuilder[T]) MutateWith(make func(env *Env) (AdmitFunc[T], error)) *KindBuilder[T] {
	return k.admission("MutateWith", true, make, nil)
}

// always returns what makes a hook that is there already; nil for none.
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
