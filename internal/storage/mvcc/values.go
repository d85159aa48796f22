package mvcc

import (
	"context"
	"errors"
	"iter"
	"strings"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/internal/base/parallel"
	"github.com/annexapi/annex/store"
)

var _ store.ValueReader = (*Core)(nil)

// valueBatch is the number of values that are read at once.
const valueBatch = 64

// Values implements store.ValueReader. It yields one snapshot. An object that is replaced during the iteration, and
// whose old version leaves the history before its turn, is yielded at its latest version. Values that are not in memory are read on
// all processors.
func (c *Core) Values(ctx context.Context, prefix string) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		type read struct {
			value store.Value
			live  bool
			err   error
		}
		var found [valueBatch]read
		for versions := range parallel.Batches(c.snapshot().latest.liveIn(prefix+"/"), valueBatch) {
			if err := ctx.Err(); err != nil {
				yield(store.Value{}, err)
				return
			}
			parallel.Do(len(versions), func(i int) {
				f := &found[i]
				f.value, f.live, f.err = c.valueOrNewer(versions[i])
			})
			for _, f := range found[:len(versions)] {
				if f.live && (!yield(f.value, f.err) || f.err != nil) {
					return
				}
			}
		}
	}
}

// liveIn yields the newest versions under a prefix that are objects.
func (t *tree) liveIn(prefix string) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		for v := range t.from(prefix) {
			if !strings.HasPrefix(v.key, prefix) || v.live() != 0 && !yield(v) {
				return
			}
		}
	}
}

// valueOrNewer returns the value of a version or, if the history has been compacted past it, of the newest one; live is false if
// that is a tombstone.
func (c *Core) valueOrNewer(v *version) (found store.Value, live bool, err error) {
	found, err = c.value(v)
	if errors.Is(err, errCompacted) {
		if v, _ = c.get(v.key); v.live() == 0 {
			return store.Value{}, false, nil
		}
		found, err = c.value(v)
	}
	return found, true, err
}

func (c *Core) value(v *version) (store.Value, error) {
	data, err := c.bytes(v)
	if err != nil {
		return store.Value{}, err
	}
	return store.Value{Key: v.key, Revision: v.revision, Expires: fromNano(v.expires), Data: data, Context: value.DefaultContext(v.key)}, nil
}
