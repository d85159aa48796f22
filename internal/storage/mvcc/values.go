package mvcc

import (
	"context"
	"errors"
	"iter"
	"strings"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/store"
)

var _ store.ValueReader = (*Core)(nil)

// Values implements store.ValueReader. It yields one snapshot. An object that is replaced during the iteration, and
// whose old version leaves the history before its turn, is yielded at its latest version.
func (c *Core) Values(ctx context.Context, prefix string) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		for v := range c.snapshot().latest.from(prefix + "/") {
			if !strings.HasPrefix(v.key, prefix+"/") {
				return
			}
			if v.live() == 0 {
				continue
			}
			if err := ctx.Err(); err != nil {
				yield(store.Value{}, err)
				return
			}
			stored, err := c.value(v)
			if errors.Is(err, errCompacted) {
				if v, _ = c.get(v.key); v.live() == 0 {
					continue
				}
				stored, err = c.value(v)
			}
			if !yield(stored, err) || err != nil {
				return
			}
		}
	}
}

func (c *Core) value(v *version) (store.Value, error) {
	data, err := c.bytes(v)
	if err != nil {
		return store.Value{}, err
	}
	return store.Value{Key: v.key, Revision: v.revision, Expires: fromNano(v.expires), Data: data, Context: value.DefaultContext(v.key)}, nil
}
