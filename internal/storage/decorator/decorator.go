// Package decorator opens storages for upstream's registry, which passes a resource to its StorageDecorator as eight
// parameters.
package decorator

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/store"
)

// New returns a decorator that calls open with the resource.
func New(open func(store.Resource) (storage.Interface, factory.DestroyFunc, error)) generic.StorageDecorator {
	return func(
		config *storagebackend.ConfigForResource,
		prefix string,
		keyFunc func(obj runtime.Object) (string, error),
		newFunc func() runtime.Object,
		newListFunc func() runtime.Object,
		attributes storage.AttrFunc,
		triggers storage.IndexerFuncs,
		indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		_, unstructured := newFunc().(runtime.Unstructured)
		return open(store.Resource{
			Resource:     config.GroupResource,
			Prefix:       prefix,
			Codec:        config.Codec,
			Transformer:  config.Transformer,
			New:          newFunc,
			NewList:      newListFunc,
			KeyFunc:      keyFunc,
			Attributes:   attributes,
			Triggers:     triggers,
			Indexers:     indexers,
			Unstructured: unstructured,
		})
	}
}
