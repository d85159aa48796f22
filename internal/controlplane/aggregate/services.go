package aggregate

import (
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// Resolver finds the servers of Services, as kube-apiserver does.
type Resolver struct{ services coreinformers.ServiceInformer }

// NewResolver returns a Resolver over an informer, which the caller starts.
func NewResolver(services coreinformers.ServiceInformer) *Resolver {
	services.Informer() // makes the factory start it
	return &Resolver{services}
}

// ResolveEndpoint returns the https URL of a Service's server. It reports an error if the Service does not exist.
func (r *Resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveCluster(r.services.Lister(), namespace, name, port)
}

// noSlices is an empty informer of EndpointSlices, for a server without the kind. Upstream's controller reads them
// for Services in a cluster network.
type noSlices struct {
	discoveryinformers.EndpointSliceInformer // nil, never used
	informer                                 *emptyInformer
}

func newNoSlices() noSlices {
	return noSlices{informer: &emptyInformer{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}}
}

func (n noSlices) Informer() cache.SharedIndexInformer { return n.informer }

// emptyInformer never has an object.
type emptyInformer struct {
	cache.SharedIndexInformer // nil, never used
	indexer                   cache.Indexer
}

func (e *emptyInformer) GetIndexer() cache.Indexer { return e.indexer }

func (e *emptyInformer) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return syncedRegistration{}, nil
}

// A handler registration that has always synced.
type syncedRegistration struct {
	cache.ResourceEventHandlerRegistration // nil, never used
}

func (syncedRegistration) HasSynced() bool { return true }
