package annex

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
)

// RESTBase is what a storage of one's own needs beside its verbs: the kind's types,
// scope and names as the builder says them, and its table. Embed it; a method of the
// same name that the storage has itself wins.
type RESTBase struct {
	rest.TableConvertor
	kind *define.Kind
}

var (
	_ rest.Storage              = RESTBase{}
	_ rest.Scoper               = RESTBase{}
	_ rest.SingularNameProvider = RESTBase{}
	_ rest.ShortNamesProvider   = RESTBase{}
	_ rest.CategoriesProvider   = RESTBase{}
	_ rest.TableConvertor       = RESTBase{}
)

// New returns an empty object of the hub's type; nil if the base is not one that
// CustomStorage has handed out.
func (b RESTBase) New() runtime.Object {
	if b.kind == nil {
		return nil
	}
	return b.kind.Hub().New()
}

// NewList returns an empty list of the hub's objects.
func (b RESTBase) NewList() runtime.Object { return b.kind.Hub().NewList() }

// Destroy does nothing.
func (b RESTBase) Destroy() {}

// NamespaceScoped is false if the kind is ClusterScoped.
func (b RESTBase) NamespaceScoped() bool { return !b.kind.ClusterScoped }

// GetSingularName returns the resource's singular name.
func (b RESTBase) GetSingularName() string { return b.kind.Singular }

// ShortNames returns the abbreviations that kubectl understands.
func (b RESTBase) ShortNames() []string { return b.kind.ShortNames }

// Categories returns the groups of resources that the kind belongs to.
func (b RESTBase) Categories() []string { return b.kind.Categories }

// Subresourcer is a storage, returned to CustomStorage, that has subresources: by name,
// such as status, scale or log. It is asked once.
type Subresourcer interface {
	Subresources() map[string]rest.Storage
}

// CustomStorage serves the kind from a storage of one's own, in place of one that stores
// its objects. make is called once for every server, by New, and by the verb
// describe, which destroys what it returns at once.
//
// The storage gets and returns objects of the hub's type; those without a UID cannot
// be patched, for upstream takes them to be not there. Its verbs are the
// interfaces of k8s.io/apiserver/pkg/registry/rest that it implements: Getter,
// Lister, Creater, Updater (patch and apply need Getter too), GracefulDeleter,
// CollectionDeleter, Watcher. All others are answered with 405, or with 404 at a path
// that has no verb at all, and are not in discovery. A Subresourcer has subresources
// besides.
//
// Everything before the storage stays: decoding, conversion between versions,
// defaults, field validation, patches, hooks that mutate, field ownership. Deciding
// hooks run when the storage calls the validation functions that it is given, as it
// must. Everything that else the store does is up to it: resource versions, names,
// validation, dry runs, preconditions. Destroy is called when the server is closed,
// perhaps more than once.
func (k *KindBuilder[T]) CustomStorage(make func(env *Env, base RESTBase) (rest.Storage, error)) *KindBuilder[T] {
	k.kind().CustomStorage = func(env any, kind *define.Kind, table rest.TableConvertor) (rest.Storage, error) {
		if make == nil {
			return nil, errors.New("CustomStorage was given no function")
		}
		return make(env.(*Env), RESTBase{table, kind})
	}
	return k
}
