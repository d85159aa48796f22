package etcd

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"

	"github.com/annexapi/annex/store"
)

// resourceStorage lets the backend know of writes: it waits for them when it is
// closed, and learns the newest revision from them.
type resourceStorage struct {
	storage.Interface
	backend  *Backend
	resource store.Resource
}

var _ store.ConditionalCreator = (*resourceStorage)(nil)

// Create implements storage.Interface.
func (r *resourceStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return r.write(out, func() error { return r.Interface.Create(ctx, key, obj, out, ttl) })
}

// CreateIfUnchangedSince implements store.ConditionalCreator. It is a transaction of etcd, which looks
// at the revisions of all keys of the resource.
func (r *resourceStorage) CreateIfUnchangedSince(ctx context.Context, key string, obj, out runtime.Object, since uint64) error {
	return r.write(out, func() error { return r.createAlone(ctx, key, obj, out, since) })
}

func (r *resourceStorage) createAlone(ctx context.Context, key string, obj, out runtime.Object, since uint64) error {
	if p, ok := r.Interface.(*pending); ok {
		if _, err := p.storage(); err != nil {
			return err
		}
	}
	prefix := r.resource.Prefix + "/"
	key, err := storage.PrepareKey(prefix, key, false)
	if err != nil {
		return err
	}
	if version, err := r.Versioner().ObjectResourceVersion(obj); err == nil && version != 0 {
		return storage.ErrResourceVersionSetOnCreate
	}
	if err := r.Versioner().PrepareObjectForStorage(obj); err != nil {
		return fmt.Errorf("prepare object for storage: %w", err)
	}
	codec := guardedCodec{r.resource.Codec}
	data, err := runtime.Encode(codec, obj)
	if err != nil {
		return err
	}
	stored := data
	if r.resource.Transformer != nil {
		if stored, err = r.resource.Transformer.TransformToStorage(ctx, data, r.backend.ValueContext(key)); err != nil {
			return storage.NewInternalError(fmt.Errorf("encrypt %s: %w", key, err))
		}
	}

	root := r.backend.root()
	response, err := r.backend.client.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(root+key), "=", 0),
		clientv3.Compare(clientv3.CreateRevision(root+prefix), "<", int64(since)+1).WithPrefix(),
	).Then(
		clientv3.OpPut(root+key, string(stored)),
	).Else(
		clientv3.OpGet(root+key, clientv3.WithCountOnly()),
	).Commit()
	switch {
	case err != nil && strings.Contains(err.Error(), "unsupported operations in txn request"):
		return fmt.Errorf("create %s beside others: what is used as etcd cannot compare the revisions of a range of keys, as kine cannot: %w", key, err)
	case err != nil:
		return fmt.Errorf("create %s beside others: %w", key, err)
	case !response.Succeeded && response.Responses[0].GetResponseRange().Count > 0:
		return storage.NewKeyExistsError(key, 0)
	case !response.Succeeded:
		return store.ErrConcurrentCreate
	case out == nil:
		return nil
	}
	return etcd3.NewDefaultDecoder(codec, r.Versioner()).Decode(data, out, response.Header.Revision)
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
