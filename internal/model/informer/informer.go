// Package informer provides the caches through which hooks read other kinds. They are filled by watches of the server
// on itself, over its loopback.
package informer

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/model/define"
)

// Set contains the informers of one server. They have to be requested before Run.
type Set struct {
	client *rest.Config
	codecs serializer.CodecFactory

	mu        sync.Mutex
	informers map[schema.GroupVersionResource]*Informer
	running   bool
}

// NewSet returns an empty set whose informers watch with client.
func NewSet(client *rest.Config, codecs serializer.CodecFactory) *Set {
	return &Set{client: client, codecs: codecs, informers: map[schema.GroupVersionResource]*Informer{}}
}

// For returns the informer of a kind in a version, the same one each time. After Run has been called, requesting a
// new informer is an error.
func (s *Set) For(k *define.Kind, v *define.Version) (*Informer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gvr := v.GroupVersion.WithResource(k.Resource)
	if i, ok := s.informers[gvr]; ok {
		return i, nil
	}
	if s.running {
		return nil, fmt.Errorf("the cache of %s cannot be created: the server is already running", gvr.GroupResource())
	}
	i := &Informer{resource: gvr, version: v, synced: make(chan struct{})}
	i.client = sync.OnceValues(func() (*rest.RESTClient, error) { return clientFor(gvr, s.client, s.codecs) })
	s.informers[gvr] = i
	return i, nil
}

// Run fills all caches and keeps them current until the context ends.
func (s *Set) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = true
	for _, i := range s.informers {
		synced, err := i.connect()
		if err != nil {
			return fmt.Errorf("informer of %s: %w", i.resource, err)
		}
		all.Go(func() { i.shared.RunWithContext(ctx) })
		all.Go(func() {
			if cache.WaitFor(ctx, "", synced...) {
				close(i.synced)
			}
		})
	}
	return nil
}

// Informer is the cache of one resource.
type Informer struct {
	resource schema.GroupVersionResource
	version  *define.Version
	synced   chan struct{}
	handlers []cache.ResourceEventHandler
	client   func() (*rest.RESTClient, error)
	// shared is set before synced is closed.
	shared cache.SharedIndexInformer
}

// clientFor returns a client of one resource.
func clientFor(resource schema.GroupVersionResource, client *rest.Config, codecs serializer.CodecFactory) (*rest.RESTClient, error) {
	config := rest.CopyConfig(client)
	gv := resource.GroupVersion()
	config.GroupVersion = &gv
	config.APIPath = "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = codecs.WithoutConversion()
	config.QPS = -1
	return rest.RESTClientFor(config)
}

// OnChange registers handlers: set is called for each existing, created or updated object, remove for each deleted
// one, sequentially. The objects are shared and must not be modified. WaitForSync also waits for the initial calls.
// OnChange must be called before Run.
func (i *Informer) OnChange(set, remove func(obj runtime.Object)) {
	i.handlers = append(i.handlers, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { set(obj.(runtime.Object)) },
		UpdateFunc: func(_, obj any) { set(obj.(runtime.Object)) },
		DeleteFunc: func(obj any) {
			if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = missed.Obj
			}
			remove(obj.(runtime.Object))
		},
	})
}

// connect creates the informer. The returned checkers are done when the informer and its handlers have received the
// existing objects.
func (i *Informer) connect() ([]cache.DoneChecker, error) {
	restClient, err := i.client()
	if err != nil {
		return nil, err
	}
	source := cache.NewListWatchFromClient(restClient, i.resource.Resource, "", fields.Everything())
	i.shared = cache.NewSharedIndexInformer(source, i.version.New(), 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	synced := []cache.DoneChecker{i.shared.HasSyncedChecker()}
	for _, handler := range i.handlers {
		registration, err := i.shared.AddEventHandler(handler)
		if err != nil {
			return nil, err
		}
		synced = append(synced, registration.HasSyncedChecker())
	}
	return synced, i.shared.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		// Watches fail while the server shuts down; such errors are not logged.
		if ctx.Err() == nil {
			cache.DefaultWatchErrorHandler(ctx, r, err)
		}
	})
}

// Resource returns the resource, for errors.
func (i *Informer) Resource() schema.GroupResource { return i.resource.GroupResource() }

// WaitForSync waits until the cache is filled. It returns the cause of the context if that ends first.
func (i *Informer) WaitForSync(ctx context.Context) error {
	select {
	case <-i.synced:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Get returns the cached object, after WaitForSync.
func (i *Informer) Get(namespace, name string) (runtime.Object, bool) {
	obj, ok, err := i.shared.GetStore().GetByKey(cache.NewObjectName(namespace, name).String())
	if err != nil || !ok {
		return nil, false
	}
	return obj.(runtime.Object), true
}

// List calls yield with the matching cached objects, after WaitForSync.
func (i *Informer) List(namespace string, selector labels.Selector, yield func(runtime.Object)) {
	for _, item := range i.candidates(namespace) {
		m, err := meta.Accessor(item)
		if err == nil && selector.Matches(labels.Set(m.GetLabels())) {
			yield(item.(runtime.Object))
		}
	}
}

// GetLatest reads the current object from the server, bypassing the cache.
func (i *Informer) GetLatest(ctx context.Context, namespace, name string) (runtime.Object, error) {
	client, err := i.client()
	if err != nil {
		return nil, err
	}
	obj := i.version.New()
	err = client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(i.resource.Resource).Name(name).Do(ctx).Into(obj)
	return obj, err
}

// ListLatest calls yield with the matching objects, which it reads from the server at one resource version that is
// not older than the call.
func (i *Informer) ListLatest(ctx context.Context, namespace string, selector labels.Selector, yield func(runtime.Object)) error {
	client, err := i.client()
	if err != nil {
		return err
	}
	list := i.version.NewList()
	err = client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(i.resource.Resource).
		VersionedParams(&metav1.ListOptions{LabelSelector: selector.String()}, metav1.ParameterCodec).Do(ctx).Into(list)
	if err != nil {
		return err
	}
	return meta.EachListItem(list, func(obj runtime.Object) error {
		yield(obj)
		return nil
	})
}

func (i *Informer) candidates(namespace string) []any {
	if namespace == "" {
		return i.shared.GetStore().List()
	}
	// ByIndex fails only for an index that does not exist.
	items, _ := i.shared.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	return items
}
