package annex

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/model/define"
)

// The errors by which the functions of a Source report the state of an object. An API status with the same reason,
// such as those of NotFound and Conflict, is equivalent. All of them may be wrapped.
var (
	// ErrNotFound means that the object does not exist.
	ErrNotFound = define.ErrNotFound
	// ErrAlreadyExists means that the object to create exists already.
	ErrAlreadyExists = define.ErrAlreadyExists
	// ErrConflict means that the object to update or delete has changed since the caller read it. The server then
	// decides again: it rejects a write with a resource version, and applies a patch again to the newer object.
	ErrConflict = define.ErrConflict
)

// Source is another system that holds the objects of a kind: a table, a directory, a vendor's API. Get and List are
// required; a verb without its function is not served and gets a 405.
//
// The functions are called concurrently and must return when their context ends. An error that is or wraps an API
// status, such as the one Forbidden returns, is the response to the client. Any other error of Get and List becomes
// a 503, and any other error of a write a 500, with the error's text; see docs/reference/errors.md. A panic is a
// 500 for its request only.
//
// Returned objects need a name and, unless the kind is cluster-scoped, a namespace; all other data belongs into the
// same fields as in any object. The server makes the API's resource versions. An object's ResourceVersion is the
// system's own: any text that changes whenever the object changes. It is optional but makes polls cheap, and the
// objects that Update and Delete get have it, for comparison. If an object has no UID, the server derives one from
// the kind, the names and the creation time, the same each time.
//
// Returned objects must not be changed afterwards; the functions may change their arguments.
type Source[T any] struct {
	// Get returns the current object, or ErrNotFound. The namespace is empty for cluster-scoped kinds.
	Get func(ctx context.Context, namespace, name string) (*T, error)

	// List returns all current objects of all namespaces, in any order.
	List func(ctx context.Context) ([]T, error)

	// Create creates an object that Get did not find just before. When Create has returned, Get must find the
	// object.
	Create func(ctx context.Context, obj *T) error

	// Update replaces old by obj, for all writes: update, patch, apply and /status. When Update has returned, Get
	// must return the resulting object. If possible, it compares the resource version, which is the same in both,
	// with the system's, and returns ErrConflict if they differ; without that, it overwrites a change that the
	// system makes between the server's read and this call.
	Update func(ctx context.Context, obj, old *T) error

	// Delete deletes old, with the same comparison. An object that Get still finds afterwards stays visible until
	// Get or List no longer return it.
	Delete func(ctx context.Context, old *T) error

	// KeepsMetadata promises that Get and List return all metadata of objects passed to Create and Update: labels,
	// annotations, finalizers and deletion times, owners, generation, managedFields. Without it, finalizers get a
	// 422, other metadata that does not come back is lost with a warning to the client, and server-side apply takes
	// every field for another manager's: it must be forced, and does not remove fields that are no longer applied.
	KeepsMetadata bool

	// Changes watches the system: until its context ends, it calls changed with the names of every object that may
	// have been created, changed or deleted. Empty names mean that any object may have changed. Changes must begin
	// with that call, as soon as it no longer misses changes. It runs while there are watches. If it returns early,
	// for example on an error, it is called again after a while.
	Changes func(ctx context.Context, changed func(namespace, name string)) error

	// Poll is the interval between calls of List while there are watches, at least a millisecond; 0 disables
	// polling. Without Poll and Changes the kind cannot be watched.
	Poll time.Duration
}

// Virtual serves the objects of another system; the server stores none of them. Clients get the same features as
// with any kind: selectors, pages, tables, patches, and watches that informers can use.
//
// A get or list without a resource version reads the source. A read at resource version 0, and every watch, uses a
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
