package ordered

import (
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// Request is a query on its way through the handlers of lists and watches to a storage. A list with a query returns
// no items, but leaves them in Page; a watch sends events of the objects that the query selects.
type Request struct {
	Query
	// Page is the response to a list; nil until a storage has set it.
	Page *Page
}

type requestKey struct{}

// NewContext returns a context in which a list or a watch is a query.
func NewContext(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// IsQuery reports whether a list or a watch in a context is a query.
func IsQuery(ctx context.Context) bool { return requestOf(ctx) != nil }

func requestOf(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Answering wraps outer, and answers lists and watches that are queries: by inner's Querier, or else from lists of
// all objects.
func Answering(outer, inner storage.Interface) storage.Interface {
	querier, _ := inner.(Querier)
	return orderedStorage{outer, inner, querier}
}

type orderedStorage struct {
	storage.Interface
	inner   storage.Interface // has all items in its lists, whatever the context holds
	querier Querier           // nil if there is none
}

// Below implements store.Layer.
func (a orderedStorage) Below() storage.Interface { return a.Interface }

// GetList implements storage.Interface.
func (a orderedStorage) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	r := requestOf(ctx)
	if r == nil {
		return a.Interface.GetList(ctx, key, opts, list)
	}
	q := r.Query
	if a.querier != nil && opts.Recursive && opts.ResourceVersionMatch != metav1.ResourceVersionMatchExact {
		p := opts.Predicate
		if q.Search.Digest.Digest != nil && p.ShardSelector == nil {
			q.Search.Labels, p.Label = p.Label, labels.Everything()
		}
		if !p.Empty() {
			q.Matches = func(o runtime.Object) bool {
				selected, err := p.Matches(o)
				return err == nil && selected && (r.Matches == nil || r.Matches(o))
			}
		}
		page, err := a.querier.Query(ctx, key, &q)
		if err != nil {
			return err
		}
		r.Page = page
		return a.Versioner().UpdateList(list, page.Revision, "", nil)
	}
	opts.Predicate.Limit, opts.Predicate.Continue = 0, ""
	if err := a.inner.GetList(ctx, key, opts, list); err != nil {
		return err
	}
	return FromList(ctx, a.Versioner(), list)
}

// FromList answers the query in a context, if there is one, from a list of all objects, which it empties.
func FromList(ctx context.Context, versioner storage.Versioner, list runtime.Object) error {
	r := requestOf(ctx)
	if r == nil {
		return nil
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	page, err := PageOf(objects, &r.Query)
	if err != nil {
		return err
	}
	if page.Revision, err = versioner.ParseResourceVersion(m.GetResourceVersion()); err != nil {
		return err
	}
	r.Page = page
	return meta.SetList(list, nil)
}

// selectedField is a field of objects that a query selects.
const selectedField = "annex.query/selected"

// Watch implements storage.Interface.
func (a orderedStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	r := requestOf(ctx)
	if r == nil || r.selectsAll() {
		return a.Interface.Watch(ctx, key, opts)
	}
	if a.querier == nil {
		w, err := a.inner.Watch(ctx, key, opts)
		if err != nil {
			return nil, err
		}
		f := filter{sees: r.Selects, isIn: r.isIn}
		if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
			f.told = map[types.UID]struct{}{}
		}
		return watch.Filter(w, f.event), nil
	}
	attributes := opts.Predicate.GetAttrs
	opts.Predicate.GetAttrs = func(o runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := attributes(o)
		if err == nil && r.isIn(o) && r.Selects(o) {
			f = maps.Clone(f)
			if f == nil {
				f = fields.Set{}
			}
			f[selectedField] = "true"
		}
		return l, f, err
	}
	selected := fields.OneTermEqualSelector(selectedField, "true")
	if opts.Predicate.Field != nil {
		selected = fields.AndSelectors(opts.Predicate.Field, selected)
	}
	opts.Predicate.Field = selected
	return a.Interface.Watch(ctx, key, opts)
}

func (r *Request) selectsAll() bool {
	return r.Namespaces == nil && len(r.Where) == 0 && r.Search.Empty() && r.Matches == nil
}

// isIn reports whether an object is in one of the namespaces.
func (r *Request) isIn(o runtime.Object) bool {
	m, err := meta.Accessor(o)
	if err != nil {
		return false
	}
	_, in := slices.BinarySearch(r.Namespaces, m.GetNamespace())
	return in || r.Namespaces == nil
}

// filter translates events without the previous state of an object: an object that stops matching becomes DELETED,
// and a newly matching object becomes ADDED. After initial events, the filter knows which objects matched. Otherwise
// it assumes that an object matched before, except in other namespaces, of which it sends no events: the caller may
// not be allowed to see them.
type filter struct {
	isIn func(runtime.Object) bool
	sees func(runtime.Object) bool
	told map[types.UID]struct{} // nil without initial events
}

func (f filter) event(e watch.Event) (watch.Event, bool) {
	object := e.Object
	if shared, ok := object.(runtime.CacheableObject); ok {
		object = shared.GetObject()
	}
	m, err := meta.Accessor(object)
	if e.Type == watch.Bookmark || e.Type == watch.Error || err != nil {
		return e, true
	}
	if !f.isIn(object) {
		return e, false
	}
	_, told := f.told[m.GetUID()]
	selected, known := f.sees(object), f.told != nil
	switch {
	case e.Type == watch.Deleted || !selected:
		delete(f.told, m.GetUID())
		gone := selected || told || e.Type == watch.Modified
		e.Type = watch.Deleted
		return e, gone && (told || !known)
	case known && !told:
		f.told[m.GetUID()] = struct{}{}
		e.Type = watch.Added
	}
	return e, true
}
