package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/wire/push"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// wholeLists answers lists of any version in one page. kube-apiserver's watch cache ignores their
// limit, and there are clients that count on it; a storage itself keeps to the limit.
type wholeLists struct{ storage.Interface }

// GetList implements storage.Interface.
func (w wholeLists) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	if opts.ResourceVersion == "0" && opts.Predicate.Continue == "" {
		opts.Predicate.Limit = 0
	}
	return w.Interface.GetList(ctx, key, opts, listObj)
}

// EncodedItems are the items of a list that was read from the storage of a kind.
type EncodedItems struct {
	// Form is how the objects of a kind of the definition are written. The storage of custom resources knows by itself.
	Form *verbatim.Form
	// Maker makes the items of the objects, if it is not nil: rows of a table, say.
	Maker *verbatim.Maker
	// Items are as upstream's handler would encode them. Nil until a list was read, and if it has its items itself. They have to be
	// closed.
	Items verbatim.Items
}

// EncodedGetter is an endpoint that knows an object as clients get it.
type EncodedGetter interface {
	// GetEncoded returns an object in a form; nothing if there is none, or if that is not how it is stored.
	GetEncoded(ctx context.Context, name string, form *verbatim.Form) verbatim.Piece
}

// EncodedLister is an endpoint that knows objects as clients get them.
type EncodedLister interface {
	// ListEncoded returns a list without its items, and these in a form, or as a maker makes them if that is not nil; no items if
	// they are not all known so. The items have to be closed.
	ListEncoded(
		ctx context.Context,
		options *metainternalversion.ListOptions,
		form *verbatim.Form,
		maker *verbatim.Maker,
	) (runtime.Object, verbatim.Items, error)
}

type encodedItemsKey struct{}

// WithEncodedItems returns a context in which a list of objects in the form that they are served in leaves its items
// empty, and gives them encoded instead.
func WithEncodedItems(ctx context.Context, items *EncodedItems) context.Context {
	return context.WithValue(ctx, encodedItemsKey{}, items)
}

type rememberedEventsKey struct{}

// WithRememberedEvents returns a context in which the initial events of a watch are
// encoded once for all watches of the same form. That may be none that tells the time, as tables do.
func WithRememberedEvents(ctx context.Context) context.Context {
	return context.WithValue(ctx, rememberedEventsKey{}, true)
}

// sharedLister is a storage that lists objects which it does not copy for the caller.
type sharedLister interface {
	ListShared(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) ([]runtime.Object, error)
}

// encodedReader is a storage that writes what it has stored, where that is what clients get.
type encodedReader interface {
	GetEncoded(ctx context.Context, key string, form *verbatim.Form) verbatim.Piece
	ListEncoded(
		ctx context.Context,
		key string,
		opts storage.ListOptions,
		listObj runtime.Object,
		form *verbatim.Form,
		maker *verbatim.Maker,
	) (verbatim.Items, error)
}

// sharedWatcher is a storage whose initial events have objects that it does not copy for the caller.
type sharedWatcher interface {
	WatchShared(ctx context.Context, key string, opts storage.ListOptions, wrap func(runtime.Object) runtime.Object) (watch.Interface, error)
	WatchInto(
		ctx context.Context,
		key string,
		opts storage.ListOptions,
		wrap func(runtime.Object) runtime.Object,
		out push.Output,
	) (watch.Interface, error)
}

// typedReads is the storage of a kind of the definition, for which objects need not be copied that are only encoded.
type typedReads struct {
	storage.Interface
	encoded encodedReader
	watches sharedWatcher
	events  *rememberedEvents
}

// withTypedReads returns a storage, with lists and watches of the one that is opened below it.
func withTypedReads(s, opened storage.Interface, items *convert.Items) storage.Interface {
	encoded, ok := opened.(encodedReader)
	watches, also := opened.(sharedWatcher)
	if !ok || !also {
		return s
	}
	return typedReads{s, encoded, watches, &rememberedEvents{items: items}}
}

// GetList implements storage.Interface.
func (t typedReads) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	answer, asked := ctx.Value(encodedItemsKey{}).(*EncodedItems)
	if !asked || answer.Form == nil {
		return t.Interface.GetList(ctx, key, opts, listObj)
	}
	items, err := t.encoded.ListEncoded(ctx, key, opts, listObj, answer.Form, answer.Maker)
	if apierrors.IsTooManyRequests(err) {
		return err // it has waited for memory for as long as a request may
	}
	if err != nil {
		// It says what could be read all the same, and what cannot be encoded.
		return t.Interface.GetList(ctx, key, opts, listObj)
	}
	verbatim.Close(answer.Items)
	answer.Items = items
	return nil
}

// Watch implements storage.Interface.
func (t typedReads) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if ctx.Value(rememberedEventsKey{}) == nil {
		return t.Interface.Watch(ctx, key, opts)
	}
	wrap := func(o runtime.Object) runtime.Object {
		accessor, ok := o.(metav1.Object)
		if !ok {
			return convert.Shallow(o)
		}
		var kind metav1.TypeMeta
		kind.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
		return rememberedObject{o, accessor, kind, convert.Shallow, t.events}
	}
	if out := push.OutputFrom(ctx); out != nil {
		return t.watches.WatchInto(ctx, key, opts, wrap, out)
	}
	return t.watches.WatchShared(ctx, key, opts, wrap)
}

// customLists is the storage of one version of a definition. What it remembers is of no other,
// since a definition that changes has its storage opened anew.
type customLists struct {
	storage.Interface
	apiVersion, kind string
	items            *convert.Items
	number           int
	form             *verbatim.Form
	events           *rememberedEvents
}

// rememberedEvents are what events are numbered by, as their encoders identify themselves.
type rememberedEvents struct {
	items   *convert.Items
	numbers sync.Map
}

func (e *rememberedEvents) number(id runtime.Identifier) int {
	number, known := e.numbers.Load(id)
	if !known {
		number, _ = e.numbers.LoadOrStore(id, e.items.Number())
	}
	return number.(int)
}

func encodedLists(opened storage.Interface, kind schema.GroupVersionKind, items *convert.Items) storage.Interface {
	c := customLists{opened, kind.GroupVersion().String(), kind.Kind, items, items.Number(), nil, &rememberedEvents{items: items}}
	c.form = verbatim.NewForm(
		fmt.Appendf(nil, `{"apiVersion":%q,`, c.apiVersion),
		0,
		c.encode,
		func(object runtime.Object, whole []byte) ([]byte, error) {
			encoded, err := items.Encode(c.number, []metav1.Object{object.(*unstructured.Unstructured)}, func(int) ([]byte, error) {
				if whole == nil {
					var err error
					if whole, err = c.encode(object); err != nil {
						return nil, err
					}
				}
				return bytes.Clone(bytes.TrimSuffix(whole, []byte("\n"))), nil
			})
			if err != nil {
				return nil, err
			}
			return encoded[0], nil
		},
	)
	return c
}

// errOtherForm says that upstream converts an object.
var errOtherForm = errors.New("an object is not in the form that it is served in")

func (c customLists) encode(object runtime.Object) ([]byte, error) {
	custom, ok := object.(*unstructured.Unstructured)
	if !ok || !c.asIs(custom) {
		return nil, errOtherForm
	}
	var whole bytes.Buffer
	err := json.NewEncoder(&whole).Encode(custom.Object)
	return whole.Bytes(), err
}

// Watch implements storage.Interface.
func (c customLists) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	shared, ok := c.Interface.(sharedWatcher)
	if ctx.Value(rememberedEventsKey{}) == nil || !ok {
		return c.Interface.Watch(ctx, key, opts)
	}
	return shared.WatchShared(ctx, key, opts, func(o runtime.Object) runtime.Object {
		if object, ok := o.(*unstructured.Unstructured); ok && c.asIs(object) {
			return rememberedObject{object, object, metav1.TypeMeta{APIVersion: c.apiVersion, Kind: c.kind}, asItIs, c.events}
		}
		return o.DeepCopyObject()
	})
}

// rememberedObject is the object of an initial event. It is shared and never changed.
type rememberedObject struct {
	object runtime.Object
	meta   metav1.Object // of the object
	kind   metav1.TypeMeta
	// forEncoding returns what an encoder may be given, which sets its kind.
	forEncoding func(runtime.Object) runtime.Object
	events      *rememberedEvents
}

// asItIs is for objects that have their kind, which no encoder changes.
func asItIs(object runtime.Object) runtime.Object { return object }

var _ runtime.CacheableObject = rememberedObject{}

// CacheEncode implements runtime.CacheableObject.
func (o rememberedObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	encoded, err := o.events.items.Encode(o.events.number(id), []metav1.Object{o.meta}, func(int) ([]byte, error) {
		var event bytes.Buffer
		err := encode(o.forEncoding(o.object), &event)
		return bytes.Clone(event.Bytes()), err
	})
	if err != nil {
		return err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(encoded[0])
		return nil
	}
	_, err = w.Write(encoded[0])
	return err
}

// GetObject implements runtime.CacheableObject.
func (o rememberedObject) GetObject() runtime.Object { return o.object.DeepCopyObject() }

// DeepCopyObject implements runtime.Object.
func (o rememberedObject) DeepCopyObject() runtime.Object { return o.GetObject() }

// GetObjectKind implements runtime.Object. It is a copy.
func (o rememberedObject) GetObjectKind() schema.ObjectKind {
	kind := o.kind
	return &kind
}

// GetObjectMeta implements metav1.ObjectMetaAccessor. It is a copy.
func (o rememberedObject) GetObjectMeta() metav1.Object { return o.GetObject().(metav1.Object) }

// GetList implements storage.Interface.
func (c customLists) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	answer, asked := ctx.Value(encodedItemsKey{}).(*EncodedItems)
	list, ok := listObj.(*unstructured.UnstructuredList)
	if !asked || !ok {
		return c.Interface.GetList(ctx, key, opts, listObj)
	}
	if encoded, ok := c.Interface.(encodedReader); ok {
		items, err := encoded.ListEncoded(ctx, key, opts, list, c.form, nil)
		if err == nil {
			list.Items = nil
			answer.Items = items
		}
		if !errors.Is(err, errOtherForm) {
			return err
		}
	}
	objects, err := c.list(ctx, key, opts, list)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(objects, func(o metav1.Object) bool { return !c.asIs(o) }) {
		list.Items = make([]unstructured.Unstructured, len(objects))
		for i, o := range objects {
			o.(*unstructured.Unstructured).DeepCopyInto(&list.Items[i])
		}
		return nil
	}
	encoded, err := c.items.Encode(c.number, objects, func(i int) ([]byte, error) {
		whole, err := c.encode(objects[i].(*unstructured.Unstructured))
		return bytes.Clone(bytes.TrimSuffix(whole, []byte("\n"))), err
	})
	if err != nil {
		return err
	}
	list.Items = nil
	items := make(verbatim.Pieces, len(encoded))
	for i, item := range encoded {
		items[i] = verbatim.Encoded(item)
	}
	answer.Items = items
	return nil
}

// list reads a list, whose items may be empty, and returns the objects.
func (c customLists) list(
	ctx context.Context,
	key string,
	opts storage.ListOptions,
	list *unstructured.UnstructuredList,
) ([]metav1.Object, error) {
	shared, ok := c.Interface.(sharedLister)
	if !ok {
		err := c.Interface.GetList(ctx, key, opts, list)
		objects := make([]metav1.Object, len(list.Items))
		for i := range objects {
			objects[i] = &list.Items[i]
		}
		return objects, err
	}
	selected, err := shared.ListShared(ctx, key, opts, list)
	objects := make([]metav1.Object, len(selected))
	for i := range objects {
		objects[i] = selected[i].(*unstructured.Unstructured)
	}
	return objects, err
}

// asIs says whether upstream's handler would encode the object as it is, with no conversion.
func (c customLists) asIs(o metav1.Object) bool {
	object := o.(*unstructured.Unstructured).Object
	return object["apiVersion"] == c.apiVersion && object["kind"] == c.kind
}
