package maintenance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/store"
)

// Source is what is copied from.
type Source struct {
	// Name says in errors what it is.
	Name string
	// Revision is the highest that clients have seen of it.
	Revision uint64
	// Values yields what is to be copied, the same every time.
	Values func(ctx context.Context) iter.Seq2[store.Value, error]
}

// Copied says what a copy has done.
type Copied struct {
	// Objects are those of the source, Written what had to be written of them.
	Objects int64 `json:"objects"`
	Written int64 `json:"written"`
	// Revision is the target's after it.
	Revision uint64 `json:"revision"`
	// Aside is where the storage was moved that was there before.
	Aside string `json:"aside,omitempty"`
}

var (
	// ErrNotEmpty is returned for a target that has other objects.
	ErrNotEmpty = errors.New("there is something else already")
	// ErrBehind is returned for a target whose revisions clients would take for older
	// than what they know.
	ErrBehind = errors.New("its revisions are lower")
)

// maxRevision is the highest that clients can be told.
const maxRevision = math.MaxInt64

// Above returns the revision above which objects are copied from a source to a
// target that was at a revision before.
func Above(source, target, bump uint64) (uint64, error) {
	base := max(source, target)
	if bump > maxRevision/2 || base > maxRevision/2 {
		return 0, fmt.Errorf("revision %d raised by %d is more than there can be", base, bump)
	}
	return base + bump, nil
}

// Recoded yields values as they have to be stored at another place, where a value's
// Context is another: what is encrypted is decrypted and encrypted anew. Where objects
// are stored as JSON, others become JSON, in the version that they are stored in. What
// is JSON stays so everywhere: every storage reads it.
func (l *Local) Recoded(
	ctx context.Context,
	values iter.Seq2[store.Value, error],
	at func(key string) value.DefaultContext,
) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		for v, err := range values {
			if err == nil {
				v, err = l.recode(ctx, v, at(v.Key))
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

func (l *Local) recode(ctx context.Context, v store.Value, at value.DefaultContext) (store.Value, error) {
	from, moves := v.Context, !bytes.Equal(v.Context, at)
	v.Context = at
	resource, _ := l.resource(v.Key)
	text := resource.Form.MediaType == runtime.ContentTypeJSON
	if resource.Transformer == nil {
		var err error
		switch {
		case moves && bytes.HasPrefix(v.Data, encryptedPrefix):
			return v, fmt.Errorf("%s: %w: it could not be read where it is copied to; name the Options.EncryptionConfigFile", v.Key, ErrEncrypted)
		case text:
			v.Data, err = l.text(v.Key, v.Data)
		}
		return v, err
	}
	if !moves && !text {
		return v, nil
	}
	plain, _, err := resource.Transformer.TransformFromStorage(ctx, v.Data, from)
	if err != nil {
		return v, fmt.Errorf("%s: decrypt: %w", v.Key, err)
	}
	if !moves && convert.IsStoredJSON(plain) {
		return v, nil
	}
	if text {
		if plain, err = l.text(v.Key, plain); err != nil {
			return v, err
		}
	}
	if v.Data, err = resource.Transformer.TransformToStorage(ctx, plain, at); err != nil {
		return v, fmt.Errorf("%s: encrypt: %w", v.Key, err)
	}
	return v, nil
}

// text is a value as JSON.
func (l *Local) text(key string, data []byte) ([]byte, error) {
	text, err := l.JSON(data)
	if err != nil {
		return nil, fmt.Errorf("%s: it is stored as JSON where it is copied to: %w", key, err)
	}
	return text, nil
}

// CopyOptions say how values are copied into a backend that is open.
type CopyOptions struct {
	// Overwrite replaces objects that differ.
	Overwrite bool
	// ResetWatches accepts that revisions are lower than before.
	ResetWatches bool
}

// copyWriters is how many objects are written at once.
const copyWriters = 32

// Copy copies a source into a backend. Objects that are there already and the same
// are left alone, so that a copy that was interrupted can be done again. Nothing is
// written if there are others, or if the backend's revisions are lower, unless the
// options accept that. Afterwards the backend is read again and compared.
func (l *Local) Copy(ctx context.Context, source Source, name string, target store.Maintenance, options CopyOptions) (Copied, error) {
	c := &copying{local: l, source: source, name: name, target: target, options: options}
	if err := c.compare(ctx); err != nil {
		return Copied{}, err
	}
	if err := c.write(ctx); err != nil {
		return Copied{}, fmt.Errorf("%w; what was written is right and stays: do it again to go on", err)
	}
	if err := c.verify(ctx); err != nil {
		return Copied{}, err
	}
	return c.done, nil
}

type copying struct {
	local   *Local
	source  Source
	name    string
	target  store.Maintenance
	options CopyOptions

	present map[string]present // in the target
	done    Copied
}

// present is an object in the target.
type present struct {
	revision uint64
	sum      [sha256.Size]byte
}

// sum is what an object is compared by: what is stored, without its encryption.
func (c *copying) sum(ctx context.Context, v store.Value) ([sha256.Size]byte, error) {
	data := v.Data
	if resource, ok := c.local.resource(v.Key); ok && resource.Transformer != nil {
		var err error
		if data, _, err = resource.Transformer.TransformFromStorage(ctx, data, v.Context); err != nil {
			return [sha256.Size]byte{}, fmt.Errorf("%s: decrypt: %w", v.Key, err)
		}
	}
	return sha256.Sum256(data), nil
}

func (c *copying) look(ctx context.Context) (uint64, error) {
	snapshot, err := c.target.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	defer snapshot.Close()
	c.present = map[string]present{}
	for v, err := range snapshot.Values(ctx) {
		if err != nil {
			return 0, err
		}
		sum, err := c.sum(ctx, v)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", c.name, err)
		}
		c.present[v.Key] = present{v.Revision, sum}
	}
	return snapshot.Revision(), nil
}

// compare refuses what must not be done, before anything is written.
func (c *copying) compare(ctx context.Context) error {
	revision, err := c.look(ctx)
	if err != nil {
		return err
	}
	if revision < c.source.Revision && !c.options.ResetWatches {
		return fmt.Errorf(
			"%s is at revision %d, %s at %d: %w, and clients would wait for revisions that they know already",
			c.name,
			revision,
			c.source.Name,
			c.source.Revision,
			ErrBehind,
		)
	}
	var differ, missing []string
	known := map[string]bool{}
	// What cannot be encrypted for its place is found out now, too.
	for v, err := range c.local.Recoded(ctx, c.source.Values(ctx), c.target.ValueContext) {
		if err != nil {
			return err
		}
		known[v.Key] = true
		sum, err := c.sum(ctx, v)
		if err != nil {
			return fmt.Errorf("%s: %w", c.source.Name, err)
		}
		if there, ok := c.present[v.Key]; ok && there.sum != sum {
			differ = append(differ, v.Key)
		}
	}
	for key := range c.present {
		if !known[key] {
			missing = append(missing, key)
		}
	}
	if c.options.Overwrite {
		return nil
	}
	switch {
	case len(differ) > 0:
		return fmt.Errorf("%s: %w: %s", c.name, ErrNotEmpty, some(differ, "differs", "differ"))
	case len(missing) > 0:
		return fmt.Errorf("%s: %w: %s", c.name, ErrNotEmpty, some(missing, "is not in "+c.source.Name, "are not in "+c.source.Name))
	}
	return nil
}

// some names one of several keys.
func some(keys []string, one, many string) string {
	if len(keys) == 1 {
		return keys[0] + " " + one
	}
	least := keys[0]
	for _, key := range keys {
		least = min(least, key)
	}
	return fmt.Sprintf("%d objects %s, the first is %s", len(keys), many, least)
}

func (c *copying) write(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan store.Value)
	var written atomic.Int64
	var writers sync.WaitGroup
	for range copyWriters {
		writers.Go(func() {
			for v := range work {
				if _, err := c.target.Put(ctx, v, c.present[v.Key].revision); err != nil {
					cancel(err)
					continue
				}
				written.Add(1)
			}
		})
	}
	err := c.feed(ctx, work)
	close(work)
	writers.Wait()
	c.done.Written = written.Load()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// feed sends what has to be written.
func (c *copying) feed(ctx context.Context, work chan<- store.Value) error {
	for v, err := range c.local.Recoded(ctx, c.source.Values(ctx), c.target.ValueContext) {
		if err != nil {
			return err
		}
		c.done.Objects++
		there, ok := c.present[v.Key]
		if ok {
			sum, err := c.sum(ctx, v)
			if err != nil {
				return err
			}
			if sum == there.sum {
				continue
			}
		}
		select {
		case work <- v:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// verify compares the target, read anew, with the source.
func (c *copying) verify(ctx context.Context) error {
	revision, err := c.look(ctx)
	if err != nil {
		return err
	}
	c.done.Revision = revision
	count := int64(0)
	var wrong []string
	for v, err := range c.local.Recoded(ctx, c.source.Values(ctx), c.target.ValueContext) {
		if err != nil {
			return err
		}
		sum, err := c.sum(ctx, v)
		if err != nil {
			return err
		}
		if there, ok := c.present[v.Key]; !ok || there.sum != sum {
			wrong = append(wrong, v.Key)
		}
		count++
	}
	switch {
	case len(wrong) > 0:
		return fmt.Errorf(
			"%s: read again, %s: was another program writing?",
			c.name,
			some(wrong, "is not as it was copied", "are not as they were copied"),
		)
	case count != c.done.Objects:
		return fmt.Errorf("%s has %d objects, and had %d before: was another program writing?", c.source.Name, count, c.done.Objects)
	}
	return nil
}

// In yields the values whose keys belong to resources that are kept in a storage.
func (l *Local) In(storage string, values iter.Seq2[store.Value, error]) iter.Seq2[store.Value, error] {
	return func(yield func(store.Value, error) bool) {
		for v, err := range values {
			if err == nil && l.storageOf(v.Key) != storage {
				continue
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// storageOf is where an object belongs.
func (l *Local) storageOf(key string) string {
	if resource, ok := l.resource(key); ok {
		return resource.In
	}
	return l.Default
}
