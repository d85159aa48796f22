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

// Source is the source of a copy.
type Source struct {
	// Name names the source in errors.
	Name string
	// Revision is the highest revision of the source that clients may have seen.
	Revision uint64
	// Values yields the values to copy, the same values each time.
	Values func(ctx context.Context) iter.Seq2[store.Value, error]
}

// Copied is the result of a copy.
type Copied struct {
	// Objects counts the objects of the source; Written counts the objects that differed in the target.
	Objects int64 `json:"objects"`
	Written int64 `json:"written"`
	// Revision is the target's revision after the copy.
	Revision uint64 `json:"revision"`
	// Aside is the path to which a previous storage was moved.
	Aside string `json:"aside,omitempty"`
}

var (
	// ErrNotEmpty is returned if the target has other objects.
	ErrNotEmpty = errors.New("a different object exists already")
	// ErrBehind is returned if the target's revisions are lower than revisions that clients may have seen: clients
	// would take new objects for old.
	ErrBehind = errors.New("its revisions are lower")
)

// maxRevision is the highest revision that the API can represent.
const maxRevision = math.MaxInt64

// Above returns the revision above which the objects of a source are copied. source and target are their revisions;
// bump is added to the higher of them.
func Above(source, target, bump uint64) (uint64, error) {
	base := max(source, target)
	if bump > maxRevision/2 || base > maxRevision/2 {
		return 0, fmt.Errorf("revision %d plus %d exceeds the maximum revision", base, bump)
	}
	return base + bump, nil
}

// Recoded yields values in the form in which another place stores them. A value's encryption is bound to its
// Context, which differs there, so encrypted values are decrypted and encrypted anew. If the place stores JSON,
// values in other media types are converted to JSON, in the version in which they are stored. JSON values stay JSON
// everywhere, since every storage can read them.
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
			return v, fmt.Errorf("%s: %w: the target could not read the object: set Options.EncryptionConfigFile", v.Key, ErrEncrypted)
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

// text returns a value as JSON.
func (l *Local) text(key string, data []byte) ([]byte, error) {
	text, err := l.JSON(data)
	if err != nil {
		return nil, fmt.Errorf("%s: the target stores the object as JSON: %w", key, err)
	}
	return text, nil
}

// CopyOptions are the options of a copy into an open backend.
type CopyOptions struct {
	// Overwrite replaces objects that differ from the source's.
	Overwrite bool
	// ResetWatches accepts a target whose revisions are lower than the source's.
	ResetWatches bool
}

// copyWriters is the number of concurrent writes.
const copyWriters = 32

// Copy copies a source into a backend. It does not write objects that are already equal, so an interrupted copy can
// be repeated. Before it writes, it returns ErrNotEmpty if the backend has other objects, and ErrBehind if the
// backend's revisions are lower, unless the options accept that. At the end it reads the backend again and compares
// it with the source.
func (l *Local) Copy(ctx context.Context, source Source, name string, target store.Maintenance, options CopyOptions) (Copied, error) {
	c := &copying{local: l, source: source, name: name, target: target, options: options}
	if err := c.compare(ctx); err != nil {
		return Copied{}, err
	}
	if err := c.write(ctx); err != nil {
		return Copied{}, fmt.Errorf("%w; the objects written so far are complete: run the command again to continue", err)
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

	present map[string]present // the target's objects, by key
	done    Copied
}

// present is an object in the target.
type present struct {
	revision uint64
	sum      [sha256.Size]byte
}

// sum returns the hash by which objects are compared: the hash of the stored value, decrypted.
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

// compare rejects a copy that the options do not permit, before anything is written.
func (c *copying) compare(ctx context.Context) error {
	revision, err := c.look(ctx)
	if err != nil {
		return err
	}
	if revision < c.source.Revision && !c.options.ResetWatches {
		return fmt.Errorf(
			"%s is at revision %d, %s at %d: %w, and clients would wait for revisions that they have seen already",
			c.name,
			revision,
			c.source.Name,
			c.source.Revision,
			ErrBehind,
		)
	}
	var differ, missing []string
	known := map[string]bool{}
	// Also find values now that cannot be encrypted for the target.
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

// some names one of several keys and counts the rest.
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

// feed sends the values to write.
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

// verify reads the target again and compares it with the source.
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
			"%s: after reading again, %s: is another program writing?",
			c.name,
			some(wrong, "is not as it was copied", "differ from the copied objects"),
		)
	case count != c.done.Objects:
		return fmt.Errorf("%s has %d objects, and had %d before: is another program writing?", c.source.Name, count, c.done.Objects)
	}
	return nil
}

// In yields the values whose resources are kept in the given storage.
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

// storageOf returns the storage of an object by its key.
func (l *Local) storageOf(key string) string {
	if resource, ok := l.resource(key); ok {
		return resource.In
	}
	return l.Default
}
