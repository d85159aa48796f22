package annex

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
)

// RESTBase has the methods of a CustomStorage that are no verbs: the kind's types, scope and names from the
// builder, and its table. Embed it; methods of the embedding type take precedence.
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

// New returns an empty object of the hub's type; nil for the zero RESTBase.
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

// NamespaceScoped reports whether the kind is namespaced.
func (b RESTBase) NamespaceScoped() bool { return !b.kind.ClusterScoped }

// GetSingularName returns the resource's singular name.
func (b RESTBase) GetSingularName() string { return b.kind.Singular }

// ShortNames returns the abbreviations for kubectl.
func (b RESTBase) ShortNames() []string { return b.kind.ShortNames }

// Categories returns the groups of resources to which the kind belongs.
func (b RESTBase) Categories() []string { return b.kind.Categories }

// Subresourcer is a storage, returned to CustomStorage, with subresources: by name, such as status, scale or log.
// It is called once.
type Subresourcer interface {
	Subresources() map[string]rest.Storage
}

// CustomStorage serves the kind from a custom storage, instead of storing its objects. New calls make once for each
// server. The verb describe also calls it, and destroys the storage at once.
//
// The storage gets and returns objects of the hub's type. Objects without a UID cannot be patched, because upstream
// takes them for missing. Its verbs are the interfaces of k8s.io/apiserver/pkg/registry/rest that it implements:
// Getter, Lister, Creater, Updater (patch and apply need Getter too), GracefulDeleter, CollectionDeleter, Watcher.
// Other verbs get a 405, or a 404 at a path without any verb, and are not in discovery. A Subresourcer has
// subresources besides.
//
// All processing before the storage stays: decoding, conversion between versions, defaults, field validation,
// patches, mutating hooks, field ownership. Validating hooks run when the storage calls the validation functions in
// its arguments, which it must do. The storage is responsible for all other tasks of the store: resource versions,
// names, validation, dry runs, preconditions. Destroy is called when the server is closed, possibly more than once.
func (k *KindBuilder[T]) CustomStorage(make func(env *Env, base RESTBase) (rest.Storage, error)) *KindBuilder[T] {
	k.kind().CustomStorage = func(env any, kind *define.Kind, table rest.TableConvertor) (rest.Storage, error) {
		if make == nil {
			return nil, errors.New("CustomStorage requires a function")
		}
		return make(env.(*Env), RESTBase{table, kind})
	}
	return k
}
