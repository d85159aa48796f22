package coreapi

import (
	"context"
	"errors"
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

	"github.com/annexapi/annex/store"
)

// Guard returns getter with storages that create an object only in an existing namespace that is not being deleted.
// All kinds except namespaces must be opened through it. Cluster-scoped kinds are not affected.
//
// Admission makes the same check earlier, in the right order with other admission, and also for dry runs. But it
// cannot be exact: between its read of the namespace and the write of the object, the namespace may be deleted, found
// empty and removed, and the object would be written into a namespace that no longer exists. Here the read and the
// write are atomic with respect to the namespace's deletion:
//
//  1. A create announces itself as in flight, then reads the namespace, then writes the object, and then withdraws the
//     announcement.
//  2. The deletion observes the namespace as Terminating, then waits for every create that is announced at that moment,
//     and only then lists the content.
//
// A create that the deletion does not wait for has announced itself later. So it reads the namespace after that
// became Terminating, and is rejected. A create that the deletion waits for is either rejected, or its object is in
// the list.
//
// The proof requires of storage only that a read of the namespace returns earlier writes, and that a list contains
// the object once its write has returned. So namespaces and their content may be in different storages.
//
// The proof holds within one process, and therefore for every store that only one process uses. If several servers
// share a store, a create of another server can still come in between, as with several kube-apiservers.
//
// A storage that is a store.DependentWriter, and has the namespaces in the same backend, does not read the namespace
// before the write: the write itself succeeds only if the namespace still has the revision at which a cache saw it, and
// at which it was not Terminating. So no such write follows the one that makes the namespace Terminating, of whichever
// server, and an earlier one is in the list. If the namespace has changed, the steps above decide.
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
		guarded := &guardedStorage{Interface: inner, namespaces: g.namespaces, resource: resource}
		if g.namespaces.dependent != nil {
			guarded.dependent = store.DependentOf(inner)
		}
		if guarded.dependent != nil {
			g.namespaces.checkedLate.Store(resource, true)
		}
		return guarded, destroy, nil
	}
	return options, nil
}

// guardedStorage is the storage of one resource.
type guardedStorage struct {
	storage.Interface
	namespaces *Namespaces
	resource   schema.GroupResource
	// dependent is nil unless the storage and that of namespaces can check the namespace in the write.
	dependent store.DependentWriter
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
	if s.dependent != nil && ttl == 0 {
		if seen, ok := s.namespaces.see(ctx, m.GetNamespace()); ok {
			if err := s.dependent.CreateBeside(ctx, key, obj, out, seen); !errors.Is(err, store.ErrConcurrentWrite) {
				return err
			}
		}
	}
	if err := s.check(ctx, m.GetNamespace(), m.GetName()); err != nil {
		return err
	}
	return s.Interface.Create(ctx, key, obj, out, ttl)
}

// GuaranteedUpdate is guarded as well if it may create the object, as an apply does.
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

// withTerminatingCause adds the cause by which clients recognize the error.
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

// drain waits for the end of every create that is announced now, regardless of later ones.
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
