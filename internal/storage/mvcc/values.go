package mvcc

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/internal/base/parallel"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/journal"
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

// readTogether is the number of values that ValuesInAnyOrder reads at once, if they are not larger than readBytes together. A recovery
// of the journal waits for that long.
const readTogether, readBytes = 1024, 4 << 20

// ValuesInAnyOrder yields as Values does, but first the values in memory, and then the others in the order in which the journal holds
// them, which takes a tenth of the time if they are many. The data of those others is valid until the next value.
func (c *Core) ValuesInAnyOrder(ctx context.Context, prefix string) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		var others []*version
		var values [valueBatch]*stored
		for versions := range parallel.Batches(c.snapshot().latest.between(prefix+"/", prefix+"0"), valueBatch) {
			if err := ctx.Err(); err != nil {
				yield(store.Value{}, err)
				return
			}
			// The processor waits for the memory of many versions, and then of many values, at once.
			for i, v := range versions {
				values[i] = v.value.Load()
			}
			for i, v := range versions {
				switch value := values[i]; {
				case v.live() == 0:
				case value == nil:
					others = append(others, v)
				default:
					if !yield(v.stored(value.data), nil) {
						return
					}
				}
			}
		}
		slices.SortFunc(others, func(a, b *version) int { return cmp.Compare(a.revision, b.revision) })
		var data []byte
		for len(others) > 0 {
			n, size := 1, int64(others[0].size)
			for ; n < min(len(others), readTogether) && size+int64(others[n].size) <= readBytes; n++ {
				size += int64(others[n].size)
			}
			together := others[:n]
			others = others[n:]
			if err := ctx.Err(); err != nil {
				yield(store.Value{}, err)
				return
			}
			var found []store.Value
			var unread []*version
			found, unread, data = c.readMany(together, data[:0])
			for _, value := range found {
				if !yield(value, nil) {
					return
				}
			}
			for _, v := range unread {
				if value, live, err := c.valueOrNewer(v); live && (!yield(value, err) || err != nil) {
					return
				}
			}
		}
	}
}

// readMany appends the data of versions, which are in the order of their revisions, and returns their values and those versions that
// it could not read.
func (c *Core) readMany(versions []*version, data []byte) (found []store.Value, unread []*version, _ []byte) {
	c.open.RLock()
	defer c.open.RUnlock()
	reader, ok := c.journal().(journal.ManyReader)
	if !ok || c.closed {
		return nil, versions, data
	}
	revisions := make([]uint64, len(versions))
	for i, v := range versions {
		revisions[i] = v.revision
	}
	next := 0
	// An error is that of reading the first one that is left.
	_ = reader.ReadMany(revisions, func(r journal.Record) bool {
		for versions[next].revision != r.Revision {
			unread = append(unread, versions[next])
			next++
		}
		begin := len(data)
		data = append(data, r.Value...)
		found = append(found, versions[next].stored(data[begin:len(data):len(data)]))
		next++
		return true
	})
	return found, append(unread, versions[next:]...), data
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
	return v.stored(data), nil
}

// stored returns a value of the version.
func (v *version) stored(data []byte) store.Value {
	return store.Value{Key: v.key, Revision: v.revision, Expires: fromNano(v.expires), Data: data, Context: value.DefaultContext(v.key)}
}
