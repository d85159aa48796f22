package etcd

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	etcd3metrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/store"
)

// resourceStorage reports writes to the backend, which waits for them when it is closed, and learns the newest
// revision from them.
type resourceStorage struct {
	storage.Interface
	backend  *Backend
	resource store.Resource
	reader   reader
	decoded  *sizes
	close    func()
}

var (
	_ store.ConditionalWriter = (*resourceStorage)(nil)
	_ store.DependentWriter   = (*resourceStorage)(nil)
	_ store.Closer            = (*resourceStorage)(nil)
)

// Close implements store.Closer. It ends the watch cache of the view.
func (r *resourceStorage) Close() { r.close() }

// Create implements storage.Interface.
func (r *resourceStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return r.write(out, func() error { return r.Interface.Create(ctx, key, obj, out, ttl) })
}

// CreateIf implements store.ConditionalWriter by an etcd transaction that compares the revisions of all keys of the
// resource.
func (r *resourceStorage) CreateIf(ctx context.Context, key string, obj, out runtime.Object, condition store.Unchanged) error {
	return r.write(out, func() error { return r.createIf(ctx, key, obj, out, condition) })
}

// UpdateIf implements store.ConditionalWriter in the same way.
func (r *resourceStorage) UpdateIf(
	ctx context.Context,
	key string,
	out runtime.Object,
	preconditions *storage.Preconditions,
	update store.ConditionalUpdate,
) error {
	return r.write(out, func() error { return r.updateIf(ctx, key, out, preconditions, update) })
}

// GetList implements storage.Interface. It reserves memory for the response once the number of objects is known: the
// objects of the watch cache are in memory anyway.
func (r *resourceStorage) GetList(ctx context.Context, key string, options storage.ListOptions, list runtime.Object) error {
	if err := r.Interface.GetList(ctx, key, options, list); err != nil {
		return err
	}
	account := budget.From(ctx)
	if account == nil {
		return nil
	}
	objects := int64(meta.LenList(list))
	return apierr.NoMemory(account.Hold(ctx, account.Answer().Of(objects, r.decoded.of(objects))))
}

// prepared returns a key relative to the root. It returns an error if etcd has not answered yet.
func (r *resourceStorage) prepared(key string) (string, error) {
	if err := r.answered(); err != nil {
		return "", err
	}
	return storage.PrepareKey(r.resource.Prefix+"/", key, false)
}

// answered returns an error if etcd has not answered yet.
func (r *resourceStorage) answered() error {
	p, ok := r.Interface.(*pending)
	if !ok {
		return nil
	}
	_, err := p.storage()
	return err
}

// encoded returns the output of the codec for an object, and its stored form.
func (r *resourceStorage) encoded(ctx context.Context, key string, obj runtime.Object) (data, stored []byte, err error) {
	if err := r.Versioner().PrepareObjectForStorage(obj); err != nil {
		return nil, nil, fmt.Errorf("prepare object for storage: %w", err)
	}
	if data, err = runtime.Encode(r.resource.Codec, obj); err != nil {
		return nil, nil, err
	}
	if r.resource.Transformer == nil {
		return data, data, nil
	}
	if stored, err = r.resource.Transformer.TransformToStorage(ctx, data, r.backend.ValueContext(key)); err != nil {
		return nil, nil, storage.NewInternalError(fmt.Errorf("encrypt %s: %w", key, err))
	}
	return data, stored, nil
}

// holds returns the comparison of a transaction for a condition. A comparison of a range holds if it holds for each
// key.
func (r *resourceStorage) holds(condition store.Unchanged) clientv3.Cmp {
	revision := clientv3.CreateRevision
	if condition.Updates {
		revision = clientv3.ModRevision
	}
	return clientv3.Compare(revision(r.backend.root()+r.resource.Prefix+"/"), "<", int64(condition.Since)+1).WithPrefix()
}

// conditional adds the cause to the error of a transaction.
func conditional(verb, key string, err error) error {
	if unsupported(err) {
		return fmt.Errorf(
			"%s %s beside other objects: the etcd endpoint cannot compare the revisions of a range of keys, such as kine: %w",
			verb,
			key,
			err,
		)
	}
	return fmt.Errorf("%s %s beside others: %w", verb, key, err)
}

// unsupported reports whether the server does not support such transactions, as kine supports only those of
// Kubernetes.
func unsupported(err error) bool {
	return strings.Contains(err.Error(), "unsupported operations in txn request")
}

func (r *resourceStorage) updateIf(
	ctx context.Context,
	key string,
	out runtime.Object,
	preconditions *storage.Preconditions,
	update store.ConditionalUpdate,
) error {
	key, err := r.prepared(key)
	if err != nil {
		return err
	}
	root := r.backend.root()
	response, err := r.backend.client.Get(ctx, root+key)
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	if len(response.Kvs) == 0 {
		return storage.NewKeyNotFoundError(key, 0)
	}
	read := response.Kvs[0]
	before, stale := read.Value, false
	if t := r.resource.Transformer; t != nil {
		if before, stale, err = t.TransformFromStorage(ctx, read.Value, r.backend.ValueContext(key)); err != nil {
			return storage.NewInternalError(fmt.Errorf("decrypt %s: %w", key, err))
		}
	}
	decoder := etcd3.NewDefaultDecoder(r.resource.Codec, r.Versioner())
	obj := r.resource.New()
	if err := decoder.Decode(before, obj, read.ModRevision); err != nil {
		return err
	}
	if err := preconditions.Check(key, obj); err != nil {
		return err
	}
	updated, since, err := update(obj, storage.ResponseMeta{ResourceVersion: uint64(read.ModRevision)})
	switch {
	case err != nil:
		return err
	case uint64(read.ModRevision) > since:
		return store.ErrConcurrentWrite
	}
	data, stored, err := r.encoded(ctx, key, updated)
	if err != nil {
		return err
	}
	if !stale && bytes.Equal(data, before) {
		return decoder.Decode(data, out, read.ModRevision)
	}
	written, err := r.backend.client.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(root+key), "=", read.ModRevision),
		r.holds(store.Unchanged{Since: since, Updates: true}),
	).Then(
		clientv3.OpPut(root+key, string(stored), clientv3.WithIgnoreLease()), // it keeps its time to live
	).Commit()
	switch {
	case err != nil:
		return conditional("update", key, err)
	case !written.Succeeded:
		return store.ErrConcurrentWrite
	}
	return decoder.Decode(data, out, written.Header.Revision)
}

// toCreate returns the prepared key of an object to create, the output of the codec and its stored form.
func (r *resourceStorage) toCreate(ctx context.Context, given string, obj runtime.Object) (key string, data, stored []byte, err error) {
	if key, err = r.prepared(given); err != nil {
		return "", nil, nil, err
	}
	if version, err := r.Versioner().ObjectResourceVersion(obj); err == nil && version != 0 {
		return "", nil, nil, storage.ErrResourceVersionSetOnCreate
	}
	data, stored, err = r.encoded(ctx, key, obj)
	return key, data, stored, err
}

func (r *resourceStorage) createIf(ctx context.Context, key string, obj, out runtime.Object, condition store.Unchanged) error {
	key, data, stored, err := r.toCreate(ctx, key, obj)
	if err != nil {
		return err
	}
	root := r.backend.root()
	response, err := r.backend.client.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(root+key), "=", 0),
		r.holds(condition),
	).Then(
		clientv3.OpPut(root+key, string(stored)),
	).Else(
		clientv3.OpGet(root+key, clientv3.WithCountOnly()),
	).Commit()
	switch {
	case err != nil:
		return conditional("create", key, err)
	case !response.Succeeded && response.Responses[0].GetResponseRange().Count > 0:
		return storage.NewKeyExistsError(key, 0)
	case !response.Succeeded:
		return store.ErrConcurrentWrite
	case out == nil:
		return nil
	}
	return etcd3.NewDefaultDecoder(r.resource.Codec, r.Versioner()).Decode(data, out, response.Header.Revision)
}

// See implements store.DependentWriter. It reads from the watch cache, if there is one.
func (r *resourceStorage) See(ctx context.Context, key string, out runtime.Object) (store.Seen, error) {
	prepared, err := r.prepared(key)
	if err != nil {
		return store.Seen{}, err
	}
	if err := r.Interface.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, out); err != nil {
		return store.Seen{}, err
	}
	revision, err := r.Versioner().ObjectResourceVersion(out)
	return store.Seen{Backend: r.backend, Key: r.backend.root() + prepared, Revision: revision}, err
}

// besideMost is the size up to which an object is created beside another. The comparison adds some hundred bytes to the
// request, whose size etcd limits to 1.5 MiB by default, and its client to 2 MiB.
const besideMost = 1 << 20

// CreateBeside implements store.DependentWriter by an etcd transaction that compares the revision of the other object. The
// read of that object and the write would be two requests, one after the other.
func (r *resourceStorage) CreateBeside(ctx context.Context, key string, obj, out runtime.Object, seen store.Seen) error {
	if seen.Backend != store.Backend(r.backend) || seen.Revision == 0 || r.backend.createsAlone.Load() {
		return store.ErrConcurrentWrite
	}
	return r.write(out, func() error { return r.createBeside(ctx, key, obj, out, seen) })
}

func (r *resourceStorage) createBeside(ctx context.Context, key string, obj, out runtime.Object, seen store.Seen) error {
	key, data, stored, err := r.toCreate(ctx, key, obj)
	if err != nil {
		return err
	}
	if len(stored) > besideMost {
		return store.ErrConcurrentWrite
	}
	root := r.backend.root()
	began := time.Now()
	response, err := r.backend.client.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(root+key), "=", 0),
		clientv3.Compare(clientv3.ModRevision(seen.Key), "=", int64(seen.Revision)),
	).Then(
		clientv3.OpPut(root+key, string(stored)),
	).Else(
		clientv3.OpGet(root+key, clientv3.WithKeysOnly()),
		clientv3.OpGet(seen.Key, clientv3.WithKeysOnly()),
	).Commit()
	if err != nil && unsupported(err) {
		r.backend.createsAlone.Store(true)
		return store.ErrConcurrentWrite
	}
	etcd3metrics.RecordEtcdRequest("create", r.resource.Resource, err, began)
	switch {
	case err != nil:
		return err // unchanged, because callers tell an object that is too large by the type of the error
	case !response.Succeeded:
		other := response.Responses[1].GetResponseRange().GetKvs()
		if len(other) == 0 || other[0].ModRevision != int64(seen.Revision) {
			return store.ErrConcurrentWrite
		}
		return storage.NewKeyExistsError(key, 0)
	case out == nil:
		return nil
	}
	return r.reader.decoder.Decode(data, out, response.Header.Revision)
}

// Delete implements storage.Interface.
func (r *resourceStorage) Delete(
	ctx context.Context,
	key string,
	out runtime.Object,
	preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc,
	cached runtime.Object,
	options storage.DeleteOptions,
) error {
	return r.write(out, func() error {
		return r.Interface.Delete(ctx, key, out, preconditions, validate, cached, options)
	})
}

// GuaranteedUpdate implements storage.Interface.
func (r *resourceStorage) GuaranteedUpdate(
	ctx context.Context,
	key string,
	out runtime.Object,
	ignoreNotFound bool,
	preconditions *storage.Preconditions,
	update storage.UpdateFunc,
	cached runtime.Object,
) error {
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
	// An object without a resource version is no reason to fail a write.
	if revision, err := r.Versioner().ObjectResourceVersion(out); err == nil {
		r.backend.seen(revision)
	}
	return nil
}
