package annex

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
)

// RESTBase implements the methods of a custom storage that are not verbs: the types, scope and names of the kind from
// its builder, and its table. Embed it; a method of the same name in the storage overrides it.
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

// New returns an empty object of the hub's type. It returns nil for a base that does not come from CustomStorage.
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

// Subresourcer is implemented by a storage returned to CustomStorage that has subresources, by name, such as status,
// scale or log. It is called once.
type Subresourcer interface {
	Subresources() map[string]rest.Storage
}

// CustomStorage serves the kind from a storage of the program, in place of the server's own. New calls make once for
// every server. The verb describe also calls it, and destroys the result at once.
//
// The storage gets and returns objects of the hub's type. Objects without a UID cannot be patched, because upstream
// treats them as missing. Its verbs are the interfaces of k8s.io/apiserver/pkg/registry/rest that it implements:
// Getter, Lister, Creater, Updater (patch and apply also need Getter), GracefulDeleter, CollectionDeleter, Watcher.
// The server answers all other verbs with 405, or with 404 at a path without any verb, and omits them from discovery.
// A Subresourcer also has subresources.
//
// All steps before the storage stay the same: decoding, conversion between versions, defaults, field validation,
// patches, mutating hooks, field ownership. Validating hooks run when the storage calls the validation functions in
// its arguments, which it must do. The storage is responsible for the other work of a store: resource versions, names,
// validation, dry runs, preconditions. Destroy is called when the server is closed, perhaps more than once.
func (k *KindBuilder[T]) CustomStorage(make func(env *Env, base RESTBase) (rest.Storage, error)) *KindBuilder[T] {
	k.kind().CustomStorage = func(env any, kind *define.Kind, table rest.TableConvertor) (rest.Storage, error) {
		if make == nil {
			return nil, errors.New("CustomStorage was given no function")
		}
		return make(env.(*Env), RESTBase{table, kind})
	}
	return k
}
