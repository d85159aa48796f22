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

// GetList implements storage.Interface. It reads one snapshot: at the latest
// revision, or at the one that the options or the continue token ask for.
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

// ListShared is GetList for callers that only read: it returns the objects, which are shared and
// must not be changed, and sets all of the list but its items. With an error, they are those that
// could be read, as the items of GetList are.
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

// ListEncoded is ListShared for callers that only write the objects in a form, or what a maker makes of them if that is not nil.
// Those whose stored bytes are known to be of use are not decoded, unless something is selected. Of a long list, most items are
// made when they are written, one after the other, and no object is held. The items have to be closed. With an error, nothing is
// returned.
func (s *resourceStore) ListEncoded(
	ctx context.Context,
	key string,
	opts storage.ListOptions,
	listObj runtime.Object,
	form *verbatim.Form,
	maker *verbatim.Maker,
) (verbatim.Items, error) {
	p, err := s.list(ctx, key, opts, listObj, &shape{form, maker})
	if err != nil {
		if p != nil && p.pin != nil {
			p.pin.Close()
		}
		return nil, err
	}
	return &encodedItems{*p.as, ctx, s, p.listed, p.sizes, kept{&s.core.decoded, p.kept.left, true}, p.pin}, nil
}

// list reads a page, to be encoded if that is not nil, and sets all of the list but its items.
func (s *resourceStore) list(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object, as *shape) (*page, error) {
	prefix, err := s.key(key, opts.Recursive)
	if err != nil {
		return nil, err
	}
	exact, continueKey, err := storage.ValidateListOptions(prefix, versioner, opts)
	if err != nil {
		return nil, err
	}
	plan, err := s.plan(ctx, prefix, opts.Predicate)
	if err != nil {
		return nil, err
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
			objects = slices.Values(slices.Collect(objects)) // they are gone through twice, and may have been looked up
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
	// The history may have moved on while it was read.
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

// under yields the objects with a prefix at a revision, from a key on that is not before the prefix, by key.
func (s *snapshot) under(prefix, from string, revision uint64) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		for latest := range s.latest.between(from, below(prefix)) {
			if v := latest.at(revision); v != nil && !yield(v) {
				return
			}
		}
	}
}

// below is the first key after all that have a prefix, which is not empty.
func below(prefix string) string { return prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1) }

// countFrom returns how many objects with a prefix there are at a revision, from a key
// on. It does not walk them.
func (s *resourceStore) countFrom(snapshot *snapshot, prefix, from string, revision uint64) int64 {
	below := below(prefix)
	count := snapshot.latest.objects(from, below)
	// Keys with later events may have had an object where they have none, and the
	// other way round.
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

// only yields the object with a key at a revision, if there is one.
func (s *snapshot) only(key string, revision uint64) iter.Seq[*version] {
	return func(yield func(*version) bool) {
		if v := s.latest.get(key).at(revision); v != nil {
			yield(v)
		}
	}
}

// page is one answer to a list request while it is put together.
type page struct {
	store     *resourceStore
	revision  uint64
	predicate storage.SelectionPredicate
	selects   bool                    // what is read may not be selected
	rest      func(from string) int64 // counts the objects from a key on
	as        *shape                  // nil if the objects are asked for
	holding   *holding                // nil if they are not, or nothing is counted

	selected   []runtime.Object // shared
	listed     []listed         // instead of them, to be encoded
	sizes      []int32          // of the items, if the shape is sized
	early      int64            // what is left of earlyBytes
	kept       kept             // how decoded objects are kept, if the objects are not asked for
	scratch    []byte           // the room in which items are made
	pin        *pinned          // nil while all values are in memory
	failed     error            // one could not be encoded
	unreadable unreadable
	lastKey    string // of the last object looked at
	more       bool   // there are objects after it
	crowded    bool   // what is selected needs more memory than there is just now
	count      int64  // of all objects from the first on; only known if nothing is filtered
}

// read takes objects until the page is full. It reads them in batches, which are
// decoded in parallel, but none that one after the other would not have been read.
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

// room is how many objects the page can still take.
func (p *page) room() int {
	if p.predicate.Limit <= 0 {
		return math.MaxInt
	}
	return int(p.predicate.Limit) - len(p.selected) - len(p.listed)
}

// take adds those objects that are selected. It returns false if the page is
// full or an error ends the list.
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
	// As everywhere, an object whose attributes cannot be told is not selected.
	matches, err := p.predicate.Matches(object)
	return err == nil && matches
}

// add puts an object into the page. It is false if it cannot be encoded.
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

// addListed adds an object that is to be encoded.
func (p *page) addListed(item sizedItem) {
	p.listed = append(p.listed, item.listed)
	if p.as.sized() {
		p.sizes = append(p.sizes, item.size)
	}
}

// assignItems sets a list's items to the reader's copies of the objects.
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
