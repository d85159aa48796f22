package annex

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/model/define"
)

// The errors by which the functions of a Source report the state of an object. They may be wrapped. An API status with
// the same reason, such as those of NotFound and Conflict, has the same effect.
var (
	// ErrNotFound reports that the object does not exist.
	ErrNotFound = define.ErrNotFound
	// ErrAlreadyExists reports that an object to create exists already.
	ErrAlreadyExists = define.ErrAlreadyExists
	// ErrConflict reports that an object to update or delete has changed since the caller read it. The server then
	// decides the write anew: it rejects a write that names a resource version, and applies a patch again to the newer
	// object.
	ErrConflict = define.ErrConflict
)

// Source is another system that holds the objects of a kind: a table, a directory, the API of a vendor. Get and List
// are required. A verb without its function is not served, and answered with 405.
//
// The functions are called concurrently, and must return when their context ends. An error that is or wraps an API
// status, such as those of Forbidden, becomes the response. Any other error is answered with its text, as 503 for Get
// and List and as 500 for writes; see docs/reference/errors.md. A panic is a 500 for that request alone.
//
// Returned objects need a name and, unless the kind is cluster-scoped, a namespace. All other data of the system
// belongs into the same fields as in any object. The server makes the resource versions of the API. ResourceVersion of
// a returned object is a text of the system that changes whenever the object changes. It is optional, but makes polls
// cheap. Update and Delete get it back in their objects for comparison. For an object without a UID, the server
// derives one from the kind, the names and the creation time, so that it is always the same.
//
// Do not change objects after returning them. The functions may change their arguments.
type Source[T any] struct {
	// Get returns the current state of one object, or ErrNotFound. The namespace is empty for cluster-scoped kinds.
	Get func(ctx context.Context, namespace, name string) (*T, error)

	// List returns the current state of all objects, of all namespaces, in any order.
	List func(ctx context.Context) ([]T, error)

	// Create creates an object that Get has just not found. After it, Get must find the object.
	Create func(ctx context.Context, obj *T) error

	// Update replaces old by obj, for all writes: update, patch, apply and /status. After it, Get must return the
	// resulting object. If possible, compare the resource version, which is the same in both, with that of the system,
	// and return ErrConflict if they differ. Otherwise Update overwrites changes that the system makes between the
	// server's read and this call.
	Update func(ctx context.Context, obj, old *T) error

	// Delete deletes old, with the same comparison. An object that Get still returns afterwards stays visible until
	// neither Get nor List returns it.
	Delete func(ctx context.Context, old *T) error

	// KeepsMetadata promises that Get and List return all metadata of the objects passed to Create and Update: labels,
	// annotations, finalizers and deletion times, owners, generation, managedFields. Without it, finalizers are
	// rejected with 422, and the writer of other metadata that is lost gets a warning. Server-side apply then treats
	// every field as owned by another manager: it must be forced, and does not remove fields that are no longer
	// applied.
	KeepsMetadata bool

	// Changes watches the system: until its context ends, it calls changed with the names of every object that may
	// have been created, changed or deleted. Empty names mean that any object may have changed. Changes begins with
	// such a call, as soon as it would miss no further change. It runs while there are watches. If it returns early,
	// with or without an error, it is called again after a while.
	Changes func(ctx context.Context, changed func(namespace, name string)) error

	// Poll is the time between two calls of List while there are watches, at least a millisecond; 0 means no polling.
	// A kind without Poll and Changes cannot be watched.
	Poll time.Duration
}

// Virtual serves the objects of another system as objects of the kind; the server stores none of them. Clients get the
// features of any other kind: selectors, pages, tables, patches, and watches for informers.
//
// A get or list without a resource version reads the source. A read at resource version 0, and every watch, reads a
// mirror in memory, which is as old as the last poll or change. The mirror is lost with the process: watches that
// resume after a restart get 410, and clients list again.
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
