package aggregate

import (
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// Resolver finds the servers that Services name, as kube-apiserver does.
type Resolver struct{ services coreinformers.ServiceInformer }

// NewResolver looks at the Services of an informer, which the caller starts.
func NewResolver(services coreinformers.ServiceInformer) *Resolver {
	services.Informer() // so that it is started
	return &Resolver{services}
}

// ResolveEndpoint returns the https URL of a Service's server. It is an error if the Service is not
// there.
func (r *Resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return proxy.ResolveCluster(r.services.Lister(), namespace, name, port)
}

// noSlices are the EndpointSlices of a server without the kind, which upstream's controller looks at
// for Services in the network of a cluster.
type noSlices struct {
	discoveryinformers.EndpointSliceInformer // nil, and never asked
	informer                                 *emptyInformer
}

func newNoSlices() noSlices {
	return noSlices{informer: &emptyInformer{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}}
}

func (n noSlices) Informer() cache.SharedIndexInformer { return n.informer }

// emptyInformer has nothing to tell, at any time.
type emptyInformer struct {
	cache.SharedIndexInformer // nil, and never asked
	indexer                   cache.Indexer
}

func (e *emptyInformer) GetIndexer() cache.Indexer { return e.indexer }

func (e *emptyInformer) AddEventHandler(cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return told{}, nil
}

// told is a handler that was told of everything.
type told struct {
	cache.ResourceEventHandlerRegistration // nil, and never asked
}

func (told) HasSynced() bool { return true }
