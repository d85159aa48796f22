package annex

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/model/define"
)

// The errors by which the functions of a Source report the state of an object. An API status of the
// same reason does as well, such as NotFound and Conflict make, and all may be wrapped.
var (
	// ErrNotFound says that there is no such object.
	ErrNotFound = define.ErrNotFound
	// ErrAlreadyExists says that an object to create is there already.
	ErrAlreadyExists = define.ErrAlreadyExists
	// ErrConflict says that an object to update or delete is no longer the one that
	// the caller has seen. The write is then decided anew: one that named a resource
	// version is refused, a patch is made again on the newer object.
	ErrConflict = define.ErrConflict
)

// Source is another system that the objects of a kind are in: a table, a directory,
// the API of a vendor. Get and List are needed; a verb without its function is not
// served, and answered with 405.
//
// The functions are called concurrently, and have to return when their context
// ends. An error that is or wraps an API status, such as Forbidden makes, is the
// answer to the client. Any other error of Get and List is a 503, and one of the writes a 500,
// with the error's text; see docs/reference/errors.md. A panic is a 500 for the request alone.
//
// Objects that the functions return need a name and, unless the kind is
// cluster-scoped, a namespace; what else the system knows belongs into the same
// places as in any object. The API's own resource versions are made by the server.
// An object's ResourceVersion is the system's own: any text that is another one
// whenever the object is. It is optional, but makes polls cheap, and it comes back
// in the objects given to Update and Delete, for comparing. Without a UID the server
// makes one of the kind, the names and the creation time, the same each time.
//
// Objects must not be changed after they were returned; those passed to the
// functions may be.
type Source[T any] struct {
	// Get returns one object as it is now, or ErrNotFound. The namespace is empty for
	// cluster-scoped kinds.
	Get func(ctx context.Context, namespace, name string) (*T, error)

	// List returns all objects, of all namespaces, as they are now, in any order.
	List func(ctx context.Context) ([]T, error)

	// Create makes an object that Get has just not found. After it, Get must find
	// the object.
	Create func(ctx context.Context, obj *T) error

	// Update replaces old by obj, for all writes: update, patch, apply and /status.
	// After it, Get must return what became of the object. If it can, it compares the
	// resource version, which is the same in both, with the system's, and returns
	// ErrConflict if they differ; otherwise a change that the system makes between
	// the server's look and this call is overwritten.
	Update func(ctx context.Context, obj, old *T) error

	// Delete deletes old, with the same comparison. An object that Get still finds
	// afterwards stays visible until Get or List no longer show it.
	Delete func(ctx context.Context, old *T) error

	// KeepsMetadata promises that all metadata in objects given to Create and Update
	// comes back from Get and List: labels, annotations, finalizers and deletion
	// times, owners, generation, managedFields. Without it, finalizers are refused
	// with 422, whatever else does not come back is lost with a warning to its
	// writer, and server-side apply takes every field to be another manager's: it needs
	// to be forced, and does not remove what is no longer applied.
	KeepsMetadata bool

	// Changes tells what happens in the system: until its context ends, it calls
	// changed with the names of every object that may have been created, changed or
	// deleted. Empty names mean that any may have; Changes begins with that call, as
	// soon as it would not miss a change any more. It runs while there are watches. If
	// it returns early, for an error say, it is called again after a while.
	Changes func(ctx context.Context, changed func(namespace, name string)) error

	// Poll is how long to wait between two calls of List while there are watches, at
	// least a millisecond; 0 does not poll. Without Poll and Changes the kind cannot
	// be watched.
	Poll time.Duration
}

// Virtual makes the kind's objects those of another system; the server stores none
// of them. Clients get what they get of any kind: selectors, pages, tables, patches,
// watches that informers can use.
//
// A get or list without a resource version asks the source. A read at resource
// version 0, and every watch, sees a mirror in memory, as old as the last poll or
// change allows. The mirror is lost with the process: watches that come back after a
// restart get 410, and clients list anew.
//
// A virtual kind has no GracePeriod.
func (k *KindBuilder[T]) Virtual(source Source[T]) *KindBuilder[T] {
	s := &define.Source{
		KeepsMetadata: source.KeepsMetadata,
		Changes:       source.Changes,
		Poll:          source.Poll,
	}
	if source.Get != nil {
		s.Get = func(ctx context.Context, namespace, name string) (runtime.Object, error) {
			obj, err := source.Get(ctx, namespace, name)
			return any(obj).(runtime.Object), err
		}
	}
	if source.List != nil {
		s.List = func(ctx context.Context) ([]runtime.Object, error) {
			items, err := source.List(ctx)
			objs := make([]runtime.Object, len(items))
			for i := range items {
				objs[i] = any(&items[i]).(runtime.Object)
			}
			return objs, err
		}
	}
	if source.Create != nil {
		s.Create = func(ctx context.Context, obj runtime.Object) error {
			return source.Create(ctx, any(obj).(*T))
		}
	}
	if source.Update != nil {
		s.Update = func(ctx context.Context, obj, old runtime.Object) error {
			return source.Update(ctx, any(obj).(*T), any(old).(*T))
		}
	}
	if source.Delete != nil {
		s.Delete = func(ctx context.Context, old runtime.Object) error {
			return source.Delete(ctx, any(old).(*T))
		}
	}
	k.kind().Source = s
	return k
}
