package etcd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/store"
)

var _ store.Maintenance = (*Backend)(nil)

// root returns the common beginning of all keys, without a slash at the end.
func (b *Backend) root() string { return root(b.options.Prefix) }

// compactRevKey is the key of the revision that upstream's compactor has compacted to. It is outside of the prefix,
// unless that is empty.
const compactRevKey = "compact_rev_key"

// snapshot reads etcd at one revision, page after page.
type snapshot struct {
	backend *Backend
	first   *clientv3.GetResponse
}

// Snapshot implements store.Maintenance. It does not keep etcd from being compacted: reading a snapshot fails if it
// takes longer than history is kept.
func (b *Backend) Snapshot(ctx context.Context) (store.Snapshot, error) {
	if err := b.open(); err != nil {
		return nil, err
	}
	first, err := b.page(ctx, b.root()+"/")
	if err != nil {
		return nil, err
	}
	return &snapshot{b, first}, nil
}

func (b *Backend) page(ctx context.Context, from string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	end := clientv3.GetPrefixRangeEnd(b.root() + "/")
	options = append(options, clientv3.WithRange(end), clientv3.WithLimit(valuesPage))
	page, err := b.client.Get(ctx, from, options...)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, rpctypes.ErrCompacted):
		return nil, fmt.Errorf(
			"read a snapshot of etcd: its history was compacted meanwhile; try again, with a longer compaction interval: %w",
			err,
		)
	case err != nil:
		return nil, fmt.Errorf("read a snapshot of etcd at %s: %w", b.endpoints(), err)
	}
	return page, nil
}

// Revision implements store.Snapshot.
func (s *snapshot) Revision() uint64 { return uint64(s.first.Header.Revision) }

// Values implements store.Snapshot.
func (s *snapshot) Values(ctx context.Context) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		leases := map[int64]time.Time{}
		for page := s.first; ; {
			from := ""
			for _, kv := range page.Kvs {
				from = string(kv.Key) + "\x00"
				if string(kv.Key) == s.backend.options.healthKey() {
					continue // kine keeps a value there
				}
				v, err := s.backend.stored(ctx, kv, leases)
				if !yield(v, err) || err != nil {
					return
				}
			}
			if !page.More {
				return
			}
			var err error
			if page, err = s.backend.page(ctx, from, clientv3.WithRev(s.first.Header.Revision)); err != nil {
				yield(store.Value{}, err)
				return
			}
		}
	}
}

// Close implements store.Snapshot.
func (s *snapshot) Close() {}

// stored returns a key and its value in etcd; leases caches the ends of known leases.
func (b *Backend) stored(ctx context.Context, kv *mvccpb.KeyValue, leases map[int64]time.Time) (store.Value, error) {
	v := store.Value{
		Key:      strings.TrimPrefix(string(kv.Key), b.root()),
		Revision: uint64(kv.ModRevision),
		Data:     kv.Value,
		Context:  value.DefaultContext(kv.Key),
	}
	if kv.Lease == 0 {
		return v, nil
	}
	expires, known := leases[kv.Lease]
	if !known {
		lease, err := b.client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
		if err != nil {
			return store.Value{}, fmt.Errorf("read the lease of %s: %w", v.Key, err)
		}
		expires = time.Now().Add(time.Duration(max(lease.TTL, 1)) * time.Second).UTC()
		leases[kv.Lease] = expires
	}
	v.Expires = expires
	return v, nil
}

// Put implements store.Maintenance. An object that expires gets a lease of its own.
func (b *Backend) Put(ctx context.Context, v store.Value, seen uint64) (uint64, error) {
	if err := b.beginWrite(); err != nil {
		return 0, err
	}
	defer b.writes.Done()
	key := b.root() + v.Key
	var options []clientv3.OpOption
	unused := func() {}
	if !v.Expires.IsZero() {
		left := time.Until(v.Expires) + time.Second - 1
		lease, err := b.client.Grant(ctx, int64(max(1, left/time.Second)))
		if err != nil {
			return 0, fmt.Errorf("put %s: lease: %w", v.Key, err)
		}
		options = append(options, clientv3.WithLease(lease.ID))
		unused = func() {
			// If the lease cannot be revoked, it ends by itself.
			_, _ = b.client.Revoke(context.WithoutCancel(ctx), lease.ID)
		}
	}
	response, err := b.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", int64(seen))).
		Then(clientv3.OpPut(key, string(v.Data), options...)).
		Commit()
	switch {
	case err != nil:
		return 0, fmt.Errorf("put %s: %w", v.Key, err)
	case !response.Succeeded:
		unused()
		return 0, fmt.Errorf("put %s: %w", v.Key, store.ErrChanged)
	}
	b.seen(uint64(response.Header.Revision))
	return uint64(response.Header.Revision), nil
}

// ValueContext implements store.Maintenance.
func (b *Backend) ValueContext(key string) value.DefaultContext {
	return value.DefaultContext(b.root() + key)
}

// Compact implements store.Maintenance. It compacts the whole of etcd, and returns when etcd can reuse the space; the
// database file does not shrink.
func (b *Backend) Compact(ctx context.Context, revision uint64) error {
	if err := b.open(); err != nil {
		return err
	}
	_, err := b.client.Compact(ctx, int64(revision), clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact revision %d: %w", revision, err)
	}
	return nil
}

// Status implements store.Maintenance. DiskBytes is the size of the answering member's database, Compacted the
// revision recorded by the servers' compactor.
func (b *Backend) Status(ctx context.Context) (store.Status, error) {
	if err := b.open(); err != nil {
		return store.Status{}, err
	}
	noted, err := b.client.Get(ctx, compactRevKey)
	if err != nil {
		return store.Status{}, fmt.Errorf("status of etcd at %s: %w", b.endpoints(), err)
	}
	status := store.Status{Revision: uint64(noted.Header.Revision)}
	for _, kv := range noted.Kvs {
		// A value that is no number does not come from a compactor.
		status.Compacted, _ = strconv.ParseUint(string(kv.Value), 10, 64)
	}
	member, err := etcdserverpb.NewMaintenanceClient(b.client.ActiveConnection()).Status(ctx, &etcdserverpb.StatusRequest{})
	if err == nil { // not every server with etcd's protocol has a status
		status.DiskBytes = uint64(member.DbSize)
	}
	return status, nil
}

// ValueContext returns the encryption context of the value at a key of an etcd that is used with a prefix, as in
// Options.
func ValueContext(prefix, key string) value.DefaultContext {
	return value.DefaultContext(root(prefix) + key)
}

// root returns the common beginning of the keys with a prefix, without a slash at the end.
func root(prefix string) string {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return strings.TrimSuffix(path.Join("/", prefix), "/")
}
