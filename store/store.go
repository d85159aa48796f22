// Package store is the contract between the API machinery and a storage
// backend: something that stores the objects of any number of resources under
// one rising revision.
//
// A backend is either the project's revisioned core above a journal (see the
// package store/journal; memory and embedded are journals) or a system with
// revisions of its own.
package store

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
)

// Resource describes one resource to a backend.
type Resource struct {
	// Resource names the resource in errors and metrics.
	Resource schema.GroupResource
	// Prefix is the resource's own part of the key space; it starts with a slash
	// and does not end with one. No resource's prefix lies within another's.
	Prefix string
	// Codec encodes objects as they are stored and decodes them to the type that
	// New returns.
	Codec runtime.Codec
	// Transformer encrypts what Codec wrote; nil stores it as it is.
	Transformer value.Transformer
	// New and NewList return an empty object and an empty list.
	New     func() runtime.Object
	NewList func() runtime.Object
	// KeyFunc returns the key that an object is stored at, Prefix included, and
	// Attributes the labels and fields that selectors look at. They serve backends
	// that index objects in a cache of their own, which is not to be had where one
	// of them is nil. The revisioned core needs neither.
	KeyFunc    func(object runtime.Object) (string, error)
	Attributes storage.AttrFunc
	// Indexers return the values of labels and fields by which lists find objects,
	// under the names that storage.LabelIndex and storage.FieldIndex make, and no
	// others than selectors see. They must not change the object, and are called by
	// many goroutines at once. Nil is none: lists by fields look at every object. Labels
	// that selectors see are those of the metadata: a backend may index others as well.
	Indexers *cache.Indexers
	// Triggers are values by which a watch cache finds the watches of an event fast;
	// nil is none, and there is at most one. The revisioned core needs none.
	Triggers storage.IndexerFuncs
	// Unstructured says that New returns objects whose content is a shared map, so
	// that a shallow copy does not separate two readers.
	Unstructured bool
}

// Backend stores resources. All methods may be called concurrently.
type Backend interface {
	// Open returns the storage of one resource. Opening a prefix again gives
	// another view of the same objects. The storage stays valid until the backend
	// is closed, or the view is, if it is a Closer.
	Open(resource Resource) (storage.Interface, error)

	// Revision returns the newest revision that readers can see. It never falls,
	// not even across a restart of a durable backend.
	Revision() uint64

	// Health is nil if the backend takes reads and writes, and otherwise the
	// reason why it does not.
	Health() error

	// Close ends all watches, waits for writes in progress and releases the
	// backend's resources.
	Close() error
}

// Closer is a view of a resource that can be closed before its backend is, for resources that
// come and go while the server runs. Close ends the watches that began with it, and releases
// what only the view holds; other views of the same objects go on. It is idempotent.
type Closer interface{ Close() }

// ErrConcurrentWrite is what conditional writes return when another object has been
// written in the meantime.
var ErrConcurrentWrite = errors.New("another object has been written meanwhile")

// Unchanged is a condition on all objects of a resource.
type Unchanged struct {
	// Since is the revision after which none has been created, by any process: the
	// resource version of a consistent list, not in the future.
	Since uint64
	// Updates says that none has been updated either. Objects may always go.
	Updates bool
}

// ConditionalWriter is a storage.Interface whose writes can depend on the other
// objects of the resource: a caller that decides upon a list whether there is room for
// one more object writes it on the condition that the list still holds.
type ConditionalWriter interface {
	storage.Interface

	// CreateIf is Create, without a time to live, in one step with a look at the other
	// objects of the resource: if the condition does not hold, nothing is written and
	// the error matches ErrConcurrentWrite. That may also be so if what has been created
	// or updated is deleted since then, or if something else has been.
	CreateIf(ctx context.Context, key string, obj, out runtime.Object, condition Unchanged) error

	// UpdateIf is a single try of GuaranteedUpdate on an object that exists, whose time to
	// live, if it has one, goes on. update also returns a revision since which no object of
	// the resource may have been created or updated, as in Unchanged; this one may not have
	// been since update was called. An update that changes nothing writes nothing and
	// succeeds.
	UpdateIf(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, update ConditionalUpdate) error
}

// ConditionalUpdate says what an object, which is its own, is to be, and on which
// condition: see ConditionalWriter.
type ConditionalUpdate func(existing runtime.Object, meta storage.ResponseMeta) (updated runtime.Object, since uint64, err error)
