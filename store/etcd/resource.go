package etcd

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// resourceStorage lets the backend know of writes: it waits for them when it is
// closed, and learns the newest revision from them.
type resourceStorage struct {
	storage.Interface
	backend *Backend
}

// Create implements storage.Interface.
func (r *resourceStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return r.write(out, func() error { return r.Interface.Create(ctx, key, obj, out, ttl) })
}

// Delete implements storage.Interface.
func (r *resourceStorage) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validate storage.ValidateObjectFunc, cached runtime.Object, options storage.DeleteOptions) error {
	return r.write(out, func() error {
		return r.Interface.Delete(ctx, key, out, preconditions, validate, cached, options)
	})
}

// GuaranteedUpdate implements storage.Interface.
func (r *resourceStorage) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return r.write(out, func() error {
		return r.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, cached)
	})
}

func (r *resourceStorage) write(out runtime.Object, write func() error) error {
	if err := r.backend.beginWrite(); err != nil {
		return err
	}
	defer r.backend.writes.Done()
	if err := write(); err != nil || out == nil {
		return err
	}
	// An object without a version tells nothing; that is no reason to fail a write.
	if revision, err := r.Versioner().ObjectResourceVersion(out); err == nil {
		r.backend.seen(revision)
	}
	return nil
}
