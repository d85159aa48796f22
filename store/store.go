// Package store is the contract between the API machinery and a storage backend. A backend stores the objects of any
// number of resources under one rising revision.
//
// A backend is either the project's revisioned core above a journal (see package store/journal; memory and embedded
// are journals) or a system that numbers revisions itself, such as etcd.
//
// The package holds interfaces and their data types, and no implementation.
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
	// Prefix is the resource's part of the key space. It begins with a slash and does not end with one. No resource's
	// prefix lies within another's.
	Prefix string
	// Codec encodes objects into their stored form and decodes them into the type that New returns.
	Codec runtime.Codec
	// Transformer encrypts the output of Codec. Nil stores the output unencrypted.
	Transformer value.Transformer
	// New and NewList return an empty object and an empty list.
	New     func() runtime.Object
	NewList func() runtime.Object
	// KeyFunc returns the key of an object, Prefix included, and Attributes its labels and fields for selectors.
	// Backends that index objects in a cache of their own need both, and have no cache if either is nil. The
	// revisioned core needs neither.
	KeyFunc    func(object runtime.Object) (string, error)
	Attributes storage.AttrFunc
	// Indexers return the values of labels and fields by which lists find objects, under the names that
	// storage.LabelIndex and storage.FieldIndex make, and only labels and fields that selectors see. They must not
	// change the object, and are called concurrently. With nil Indexers, a list by field reads every object.
	// Selectors see the labels of the metadata, so a backend may index other labels as well.
	Indexers *cache.Indexers
	// Triggers return values by which a watch cache quickly finds the watches interested in an event. There is at
	// most one trigger; nil is none. The revisioned core needs none.
	Triggers storage.IndexerFuncs
	// Retention is how long the revisions of the resource's objects are kept for clients, by backends that can. Nil leaves the
	// retention as it is, for a view that is not the resource's own.
	Retention *Retention
	// Unstructured reports that the content of New's objects is a shared map, so that a shallow copy does not isolate
	// two readers from each other.
	Unstructured bool
}

// Backend stores resources. All methods may be called concurrently.
type Backend interface {
	// Open returns the storage of one resource. Opening a prefix again returns another view of the same objects. The
	// storage stays valid until the backend is closed, or until the view is closed if it is a Closer.
	Open(resource Resource) (storage.Interface, error)

	// Revision returns the newest revision that readers can see. It never falls, not even across a restart of a
	// durable backend.
	Revision() uint64

	// Health returns nil if the backend accepts reads and writes, and otherwise the reason.
	Health() error

	// Close ends all watches, waits for writes in progress and releases the backend's resources.
	Close() error
}

// Closer is a view of a resource that can be closed before its backend, for resources that appear and disappear while
// the server runs. Close ends the watches that began at this view, and releases the view's own resources; other views
// of the same objects stay open. It is idempotent.
type Closer interface{ Close() }

// ErrConcurrentWrite is returned by conditional writes if another object of the resource has been written since.
var ErrConcurrentWrite = errors.New("another object was written meanwhile")

// Unchanged is a condition on all objects of a resource.
type Unchanged struct {
	// Since is the resource version of a consistent list, not in the future. The condition holds if no process has
	// created an object of the resource after it.
	Since uint64
	// Updates extends the condition to updates. Deletions never break it.
	Updates bool
}

// ConditionalWriter is a storage.Interface whose writes can depend on the other objects of the resource. A caller
// that decides by a list whether there is room for one more object writes it on the condition that the list is still
// current.
type ConditionalWriter interface {
	storage.Interface

	// CreateIf is Create, without a time to live, under a condition on the other objects of the resource, checked
	// atomically with the write. If the condition does not hold, nothing is written and the error matches
	// ErrConcurrentWrite. That error may also be a false alarm: the newer object may have been deleted since, or the
	// only newer write may be a deletion.
	CreateIf(ctx context.Context, key string, obj, out runtime.Object, condition Unchanged) error

	// UpdateIf is a single attempt of GuaranteedUpdate on an existing object, whose time to live, if any, continues.
	// update also returns a revision since which no object of the resource may have been created or updated, as in
	// Unchanged; the object itself must not have been updated since update was called. An update without a change
	// writes nothing and succeeds.
	UpdateIf(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, update ConditionalUpdate) error
}

// Seen is the state of an object at a revision, which need not be the newest. Only the backend that returned it reads it.
type Seen struct {
	Backend  Backend
	Key      string // within the backend
	Revision uint64
}

// DependentWriter is a storage.Interface whose creates can depend on an object of another resource, such as the namespace of
// the created object. The other resource may be in another backend; then no condition holds.
type DependentWriter interface {
	storage.Interface

	// See reads an object of this storage into out, from a cache if there is one, and returns the state that it has read.
	See(ctx context.Context, key string, out runtime.Object) (Seen, error)

	// CreateBeside is Create, without a time to live, on the condition that the other object still has the state seen, checked
	// atomically with the write. If the condition does not hold, or cannot be checked, nothing is written and the error matches
	// ErrConcurrentWrite.
	CreateBeside(ctx context.Context, key string, obj, out runtime.Object, seen Seen) error
}

// A Layer is a storage.Interface above another storage, to which it passes creates and reads of single objects unchanged.
type Layer interface {
	storage.Interface
	// Below returns the other storage.
	Below() storage.Interface
}

// DependentOf returns the DependentWriter that s is, or that is below the layers of s; nil if there is none.
func DependentOf(s storage.Interface) DependentWriter {
	for {
		if dependent, ok := s.(DependentWriter); ok {
			return dependent
		}
		layer, ok := s.(Layer)
		if !ok {
			return nil
		}
		s = layer.Below()
	}
}

// ConditionalUpdate returns the new state of an object, which it may change in place, and the revision of the
// condition: see ConditionalWriter.
type ConditionalUpdate func(existing runtime.Object, meta storage.ResponseMeta) (updated runtime.Object, since uint64, err error)
