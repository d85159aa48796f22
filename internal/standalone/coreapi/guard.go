package coreapi

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// Guard returns getter with storages that create an object only in a namespace
// that exists and is not being deleted. Open all kinds but namespaces through it;
// cluster-scoped ones pass unchanged.
//
// Admission checks the same earlier and in the right order with other admission,
// also for a dry run, but it cannot be exact: between its look at the namespace and
// the write, the namespace may be deleted, found empty and removed, and the object
// would land in a namespace that is gone. Here the look and the write are one step
// for the namespace's deletion:
//
//  1. A create announces itself as in flight, then looks at the namespace, then writes, and
//     then takes the announcement back.
//  2. The deletion sees the namespace Terminating, then waits for every create
//     announced at that moment, and only then looks for what to delete.
//
// A create that the deletion does not wait for announced itself later, hence looks
// after the namespace became Terminating, and is refused. A create that it waits
// for is either refused, or its object is there to be found.
//
// The argument needs no more of storage than that a read of the namespace sees what
// has been written before, and that a list sees the object once its write returned.
// So namespaces and what is in them may be in different storages.
//
// It holds within one process, and so for every store that only one process
// uses. Where several servers share one store, a create of another server can
// still slip in, as it can with several kube-apiservers.
func (n *Namespaces) Guard(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return guardedOptions{namespaces: n, getter: getter}
}

type guardedOptions struct {
	namespaces *Namespaces
	getter     generic.RESTOptionsGetter
}

func (g guardedOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.getter.GetRESTOptions(resource, example)
	if err != nil || options.Decorator == nil {
		return options, err
	}
	open := options.Decorator
	options.Decorator = func(
		config *storagebackend.ConfigForResource,
		prefix string,
		keyFunc func(obj runtime.Object) (string, error),
		newFunc func() runtime.Object,
		newListFunc func() runtime.Object,
		getAttrs storage.AttrFunc,
		triggers storage.IndexerFuncs,
		indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		inner, destroy, err := open(config, prefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
		if err != nil {
			return nil, nil, err
		}
		return &guardedStorage{Interface: inner, namespaces: g.namespaces, resource: resource}, destroy, nil
	}
	return options, nil
}

// guardedStorage is the storage of one resource.
type guardedStorage struct {
	storage.Interface
	namespaces *Namespaces
	resource   schema.GroupResource
}

func (s *guardedStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("metadata of the object to create: %w", err)
	}
	if m.GetNamespace() == "" {
		return s.Interface.Create(ctx, key, obj, out, ttl)
	}
	defer s.namespaces.inFlight.enter(m.GetNamespace())()
	if err := s.check(ctx, m.GetNamespace(), m.GetName()); err != nil {
		return err
	}
	return s.Interface.Create(ctx, key, obj, out, ttl)
}

// GuaranteedUpdate creates, too, when it may: that is how apply makes an object.
func (s *guardedStorage) GuaranteedUpdate(
	ctx context.Context,
	key string,
	destination runtime.Object,
	ignoreNotFound bool,
	preconditions *storage.Preconditions,
	update storage.UpdateFunc,
	cached runtime.Object,
) error {
	namespace := request.NamespaceValue(ctx)
	if !ignoreNotFound || namespace == "" {
		return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, cached)
	}
	defer s.namespaces.inFlight.enter(namespace)()
	return s.Interface.GuaranteedUpdate(
		ctx,
		key,
		destination,
		ignoreNotFound,
		preconditions,
		func(existing runtime.Object, response storage.ResponseMeta) (runtime.Object, *uint64, error) {
			revision, err := s.Versioner().ObjectResourceVersion(existing)
			if err != nil {
				return nil, nil, fmt.Errorf("resource version of the object to update: %w", err)
			}
			obj, ttl, err := update(existing, response)
			if err != nil || revision != 0 {
				return obj, ttl, err
			}
			m, err := meta.Accessor(obj)
			if err != nil {
				return nil, nil, fmt.Errorf("metadata of the object to create: %w", err)
			}
			if err := s.check(ctx, namespace, m.GetName()); err != nil {
				return nil, nil, err
			}
			return obj, ttl, nil
		},
		cached,
	)
}

// check returns nil if the object may be created in the namespace.
func (s *guardedStorage) check(ctx context.Context, namespace, name string) error {
	ns, err := s.namespaces.get(ctx, namespace)
	if err != nil {
		return err
	}
	if isTerminating(ns) {
		resource := s.resource
		if info, ok := request.RequestInfoFrom(ctx); ok && info.IsResourceRequest {
			// Another group may serve the same objects.
			resource = schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
		}
		return withTerminatingCause(apierrors.NewForbidden(resource, name, errTerminating(namespace)), namespace)
	}
	return nil
}

func errTerminating(namespace string) error {
	return fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace)
}

// withTerminatingCause adds the cause by which clients know the refusal.
func withTerminatingCause(err error, namespace string) error {
	if status, ok := err.(*apierrors.StatusError); ok && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", namespace),
			Field:   "metadata.namespace",
		})
	}
	return err
}

// inFlight are the creates in progress, by namespace.
type inFlight struct {
	mu      sync.Mutex
	creates map[string]map[*create]struct{}
}

// create is a create in progress; done is closed at its end.
type create struct{ done chan struct{} }

// enter announces a create in a namespace until leave is called.
func (f *inFlight) enter(namespace string) (leave func()) {
	c := &create{done: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.creates == nil {
		f.creates = map[string]map[*create]struct{}{}
	}
	if f.creates[namespace] == nil {
		f.creates[namespace] = map[*create]struct{}{}
	}
	f.creates[namespace][c] = struct{}{}
	return func() {
		close(c.done)
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.creates[namespace], c)
		if len(f.creates[namespace]) == 0 {
			delete(f.creates, namespace)
		}
	}
}

// drain waits until every create that is announced now has ended, however many
// are announced later.
func (f *inFlight) drain(ctx context.Context, namespace string) error {
	f.mu.Lock()
	creates := make([]*create, 0, len(f.creates[namespace]))
	for c := range f.creates[namespace] {
		creates = append(creates, c)
	}
	f.mu.Unlock()
	for _, c := range creates {
		select {
		case <-c.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
