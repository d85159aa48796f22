package serve

import (
	"context"
	"fmt"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/maintenance"
	"github.com/annexapi/annex/internal/storage/encryption"
	"github.com/annexapi/annex/store"
)

// rewritable enables tools to rewrite objects, in the storages that open returns.
func rewritable(local *maintenance.Local, keys *encryption.Encryption, open func(maintenance.Resource) (storage.Interface, error)) {
	local.Key, local.Custom = keys.Key, custom{keys}.resources
	for i := range local.Resources {
		r := &local.Resources[i]
		r.Open = func() (storage.Interface, error) { return open(*r) }
	}
}

// stopped holds the storages of a stopped server that tools have opened.
type stopped struct {
	local      *maintenance.Local
	definition *define.Server
}

var _ encryption.Stored = stopped{}

func (s stopped) backend(r maintenance.Resource) store.Backend {
	i := slices.IndexFunc(s.local.Storages, func(storage maintenance.Storage) bool { return storage.Name == r.In && storage.Backend != nil })
	if i < 0 {
		return nil
	}
	return s.local.Storages[i].Backend
}

// open opens the storage of a resource.
func (s stopped) open(r maintenance.Resource) (storage.Interface, error) {
	backend := s.backend(r)
	if backend == nil {
		return nil, fmt.Errorf("the storage of %s is not open", r.Resource)
	}
	newList := func() runtime.Object { return &corev1.NamespaceList{} }
	for _, k := range s.definition.Kinds() {
		if k.GroupResource() == r.Resource {
			newList = k.Hub().NewList
		}
	}
	return backend.Open(store.Resource{
		Resource: r.Resource, Prefix: r.Prefix, Codec: r.Codec, Transformer: r.Transformer, New: r.New, NewList: newList,
	})
}

// StoredResources implements encryption.Stored.
func (s stopped) StoredResources() []schema.GroupResource {
	var all []schema.GroupResource
	for _, r := range s.local.Resources {
		if s.backend(r) != nil {
			all = append(all, r.Resource)
		}
	}
	return all
}

// StoredValues implements encryption.Stored.
func (s stopped) StoredValues(ctx context.Context, resource schema.GroupResource) iter.Seq2[store.Value, error] {
	for _, r := range s.local.Resources {
		if reader, ok := s.backend(r).(store.ValueReader); ok && r.Resource == resource {
			return reader.Values(ctx, r.Prefix)
		}
	}
	return func(func(store.Value, error) bool) {}
}
