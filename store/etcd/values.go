package etcd

import (
	"context"
	"fmt"
	"iter"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/store"
)

var _ store.ValueReader = (*Backend)(nil)

// valuesPage is the number of values per request.
const valuesPage = 500

// Values implements store.ValueReader. It reads page after page, each at the revision that etcd has then.
func (b *Backend) Values(ctx context.Context, prefix string) iter.Seq2[store.Value, error] {
	root := b.root()
	from := root + prefix + "/"
	return func(yield func(store.Value, error) bool) {
		if err := b.open(); err != nil {
			yield(store.Value{}, err)
			return
		}
		end := clientv3.GetPrefixRangeEnd(from)
		for more := true; more; {
			page, err := b.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(valuesPage))
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(store.Value{}, fmt.Errorf("read %s from etcd: %w", prefix, err))
				return
			}
			for _, kv := range page.Kvs {
				stored := store.Value{
					Key:      strings.TrimPrefix(string(kv.Key), root),
					Revision: uint64(kv.ModRevision),
					Data:     kv.Value,
					Context:  value.DefaultContext(kv.Key),
				}
				if !yield(stored, nil) {
					return
				}
				from = string(kv.Key) + "\x00"
			}
			more = page.More
		}
	}
}
