package mvcc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/wire/verbatim"
)

// GetList implements storage.Interface. It reads one snapshot: at the latest revision, or at the revision of the
// options or the continue token.
func (s *resourceStore) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	items, err := itemsOf(listObj)
	if err != nil {
		return err
	}
	objects, listErr := s.ListShared(ctx, key, opts, listObj)
	if err := s.assignItems(items, objects); err != nil {
		return err
	}
	return listErr
}

// ListShared is like GetList for callers that only read. It returns the objects, which are shared and must not be
// changed, and sets every field of the list except its items. If some objects cannot be read, it returns an error
// together with the readable objects, like the items of GetList.
func (s *resourceStore) ListShared(
	ctx context.Context,
	key string,
	opts storage.ListOptions,
	listObj runtime.Object,
) ([]runtime.Object, error) {
	p, err := s.list(ctx, key, opts, listObj, nil)
	if p == nil {
		return nil, err
	}
	return p.selected, err
}

// ListEncoded is like ListShared for callers that only write the objects in an encoding, or the results of maker if that
// is not nil. It does not decode objects whose stored bytes are known to match, unless the list has a selector. Most
// items of a long list are encoded one after the other while they are written, and no decoded object is held. The caller
// must close the items. If ListEncoded returns an error, it returns no items.
func (s *resourceStore) ListEncoded(
	ctx context.Context,
	key string,
	opts storage.ListOptions,
	listObj runtime.Object,
	encoding *verbatim.Encoding,
	maker *verbatim.Maker,
) (verbatim.Items, error) {
	p, err := s.list(ctx, key, opts, listObj, &shape{encoding, maker})
	if err != nil {
		if p != nil && p.pin != nil {
			p.pin.Close()
		}
		return nil, err
	}
	return &encodedItems{*p.as, ctx, s, p.listed, p.sizes, kept{&s.core.decoded, p.kept.left, true}, p.pin}, nil
}

// list reads one page and sets every field of the list except its items. as is the shape to encode the page in, nil to
// return objects.
func (s *resourceStore) list(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object, as *shape) (*page, error) {
	prefix, err := s.key(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	exact, continueKey, err := storage.ValidateListOptions(prefix, versioner, opts)
	if err != nil {
		return nil, err
	}
	plan, err := s.indexes.Plan(ctx, prefix, opts.Predicate)
	if err != nil {
		return nil, tooSlow(s.keyspace.prefix)
	}
	snapshot := s.core.snapshot()
	revision := snapshot.revision
	if exact > 0 {
		revision = uint64(exact)
	}
	if revision > snapshot.revision {
		return nil, storage.NewTooLargeResourceVersionError(revision, snapshot.revision, tooLargeRetrySeconds)
	}
	if exact == 0 {
		if err := notOlderThan(opts.ResourceVersion, revision); err != nil {
			return nil, err
		}
	}
	if s.core.compacted.Load() > revision {
		return nil, listCompacted(continueKey, prefix)
	}

	objects, selects := snapshot.only(prefix, revision), !opts.Predicate.Empty()
	if opts.Recursive {
		var selected bool
		objects, selected = s.candidates(plan, snapshot, prefix, max(prefix, continueKey), revision)
		if opts.Predicate.Limit <= 0 && selects {
			objects = slices.Values(slices.Collect(objects)) // they are iterated twice, and may come from an index
		}
		selects = selects && !selected
	}
	p := &page{store: s, revision: revision, predicate: opts.Predicate, selects: selects, as: as, rest: func(from string) int64 {
		return s.countFrom(snapshot, prefix, from, revision)
	}}
	if as != nil {
		p.early, p.kept = earlyBytes, kept{&s.core.decoded, keptBytes, !selects}
		expected, err := s.holdListed(ctx, objects, p)
		if err != nil {
			return nil, err
		}
		p.listed = make([]listed, 0, expected)
		if as.sized() {
			p.sizes = make([]int32, 0, expected)
		}
	} else if p.holding, err = newHolding(ctx, objects, opts.Predicate.Limit, selects); err != nil {
		return nil, err
	}
	again := *p
	p.read(ctx, objects)
	if p.crowded {
		*p = again
		if err := p.holding.holdAll(ctx); err != nil {
			return nil, err
		}
		p.read(ctx, objects)
	}
	// The history may have been compacted during the read.
	if exact > 0 && s.core.compacted.Load() > revision || errors.Is(p.unreadable.abort, errCompacted) || errors.Is(p.failed, errCompacted) {
		return p, listCompacted(continueKey, prefix)
	}
	if p.failed != nil {
		return p, p.failed
	}
	if err := p.unreadable.err(s.resource.Resource); err != nil {
		return p, err
	}
	token, remaining, err := storage.PrepareContinueToken(p.lastKey, prefix, int64(revision), p.count, p.more, opts)
	if err != nil {
		return p, err
	}
	opts.Predicate.SetShardInfoOnList(listObj)
	return p, versioner.UpdateList(listObj, revision, token, remaining)
}

// itemsOf returns the settable slice of a list's items.
func itemsOf(listObj runtime.Object) (reflect.Value, error) {
	pointer, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return reflect.Value{}, err
	}
	items, err := conversion.EnforcePtr(pointer)
	if err != nil {
		return reflect.Value{}, err
	}
	if items.Kind() != reflect.Slice {
		return reflect.Value{}, fmt.Errorf("items of %T are a %s, not a slice", listObj, items.Kind())
	}
	return items, nil
}

// under yields the objects with a prefix at a revision, ordered by key, starting at from, which must not be below the
// prefix.
func (s *snapshot) under(prefix, from string, revision uint64) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		for latest := range s.latest.between(from, below(prefix)) {
			if v := latest.at(revision); v != nil && !yield(v) {
				return
			}
		}
	}
}

// below returns the first key above all keys with the prefix, which must not be empty.
func below(prefix string) string { return prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1) }

// countFrom returns the number of objects with a prefix at a revision, from a key on. It does not walk them.
func (s *resourceStore) countFrom(snapshot *snapshot, prefix, from string, revision uint64) int64 {
	below := below(prefix)
	count := snapshot.latest.objects(from, below)
	// Keys with later events may have gained or lost an object since the revision.
	log := s.keyspace.log.snapshot.Load()
	seen := map[string]struct{}{}
	for _, v := range log.events[log.after(revision):log.after(snapshot.revision)] {
		if _, again := seen[v.key]; again || v.key < from || v.key >= below {
			continue
		}
		seen[v.key] = struct{}{}
		latest := snapshot.latest.get(v.key)
		if latest.live() != 0 {
			count--
		}
		if latest.at(revision) != nil {
			count++
		}
	}
	return int64(count)
}

// only yields the object with a key at a revision, if it exists.
func (s *snapshot) only(key string, revision uint64) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		if v := s.latest.get(key).at(revision); v != nil {
			yield(v)
		}
	}
}

// page is the response to a list request under construction.
type page struct {
	store     *resourceStore
	revision  uint64
	predicate storage.SelectionPredicate
	selects   bool                    // objects may have to be filtered by the predicate
	rest      func(from string) int64 // counts the objects from a key on
	as        *shape                  // nil to return objects
	holding   *holding                // nil if objects are encoded, or the request has no memory account

	selected   []runtime.Object // shared
	listed     []listed         // used instead of selected if objects are encoded
	sizes      []int32          // of listed, if the shape is sized
	early      int64            // the unused part of earlyBytes
	kept       kept             // the rule for keeping decoded objects, if objects are encoded
	scratch    []byte           // buffer in which items are encoded
	pin        *pinned          // nil while all values are in memory
	failed     error            // error of an object that could not be encoded
	unreadable unreadable
	lastKey    string // of the last object read
	more       bool   // there are objects after lastKey
	crowded    bool   // the selected objects need more memory than is free now
	count      int64  // of all objects from the first on; valid only without a filter
}

// read takes objects until the page is full. It decodes them in parallel batches, but never reads an object that a
// sequential read would not have read.
func (p *page) read(ctx context.Context, objects iter.Seq[*version]) {
	batch, bytes, most := make([]*version, 0, min(p.room(), decodeBatch)), 0, decodeBytes
	if p.as != nil {
		most = listedBatch
	}
	for v := range objects {
		p.count++
		if p.room() == 0 {
			p.more = true
			if p.predicate.Empty() {
				p.count += p.rest(v.key) - 1
			}
			return
		}
		bytes += int(v.size)
		if batch = append(batch, v); len(batch) < min(p.room(), decodeBatch) && bytes < most {
			continue
		}
		if !p.take(ctx, batch) {
			return
		}
		batch, bytes = batch[:0], 0
	}
	if len(batch) > 0 {
		p.take(ctx, batch)
	}
}

// room returns the number of objects that still fit into the page.
func (p *page) room() int {
	if p.predicate.Limit <= 0 {
		return math.MaxInt
	}
	return int(p.predicate.Limit) - len(p.selected) - len(p.listed)
}

// take adds the selected objects of a batch. It returns false if the page is complete, lacks memory, or ends with an
// error.
func (p *page) take(ctx context.Context, batch []*version) bool {
	if ctx.Err() != nil {
		p.unreadable.abort = tooSlow(p.store.keyspace.prefix)
		return false
	}
	known, unknown := p.known(batch)
	keep := p.store.core.decoded.attach
	if p.as != nil {
		keep = p.kept.keep(p.store.estimated(unknown...))
	}
	read := p.store.readFor(ctx, unknown, keep)
	for i, v := range batch {
		p.lastKey = v.key
		if known != nil && known[i].version != nil {
			p.addListed(known[i])
			continue
		}
		found := read[0]
		read = read[1:]
		if found.err != nil {
			if !p.unreadable.add(v.key, found.err) {
				return false
			}
			continue
		}
		if !p.isSelected(found.object) {
			continue
		}
		if !p.holding.room(v) {
			p.crowded = true
			return false
		}
		if !p.add(v, found.object) {
			return false
		}
	}
	return true
}

func (p *page) isSelected(object runtime.Object) bool {
	if !p.selects {
		return true
	}
	// As everywhere, an object whose attributes cannot be computed is not selected.
	matches, err := p.predicate.Matches(object)
	return err == nil && matches
}

// add adds an object to the page. It returns false if the object cannot be encoded.
func (p *page) add(v *version, object runtime.Object) bool {
	if p.as == nil {
		p.selected = append(p.selected, object)
		return true
	}
	item, err := p.listedOf(v, object)
	if err != nil {
		p.failed = err
		return false
	}
	p.addListed(item)
	return true
}

// addListed adds an item that is to be encoded.
func (p *page) addListed(item sizedItem) {
	p.listed = append(p.listed, item.listed)
	if p.as.sized() {
		p.sizes = append(p.sizes, item.size)
	}
}

// assignItems sets the list's items to copies of the objects.
func (s *resourceStore) assignItems(items reflect.Value, objects []runtime.Object) error {
	copies := reflect.MakeSlice(items.Type(), len(objects), len(objects))
	for i, object := range objects {
		item, ok := copies.Index(i).Addr().Interface().(runtime.Object)
		if !ok {
			return fmt.Errorf("%s are no objects", items.Type())
		}
		if err := s.copyTo(item, object); err != nil {
			return err
		}
	}
	items.Set(copies)
	return nil
}
