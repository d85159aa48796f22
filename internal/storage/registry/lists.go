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

// wholeLists returns a list with the resource version "0" in one page. The watch cache of kube-apiserver ignores the
// limit of such lists, and there are clients that depend on it; a storage itself would apply the limit.
type wholeLists struct{ storage.Interface }

// Below implements store.Layer.
func (w wholeLists) Below() storage.Interface { return w.Interface }

// GetList implements storage.Interface.
func (w wholeLists) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	if opts.ResourceVersion == "0" && opts.Predicate.Continue == "" {
		opts.Predicate.Limit = 0
	}
	return w.Interface.GetList(ctx, key, opts, listObj)
}

// EncodedItems are the encoded items of a list that is read from the storage of a kind.
type EncodedItems struct {
	// Encoding is the encoding in which objects of a kind of the definition are written. It is unused for custom resources,
	// whose storage has its own encoding.
	Encoding *verbatim.Encoding
	// Maker, if it is not nil, makes the items from the objects, for example rows of a table.
	Maker *verbatim.Maker
	// Items are encoded as the handlers of the API machinery would encode them. They are nil before a list is read, and
	// if the list itself holds its items. They must be closed.
	Items verbatim.Items
}

// EncodedGetter is an endpoint that can return the encoded object as clients receive it.
type EncodedGetter interface {
	// GetEncoded returns an object in a form. It returns the empty piece if there is no object, or if the stored value
	// does not fit the form.
	GetEncoded(ctx context.Context, name string, encoding *verbatim.Encoding) verbatim.Fragment
}

// EncodedLister is an endpoint that can return encoded objects as clients receive them.
type EncodedLister interface {
	// ListEncoded returns a list without its items, and the items in a form, or as maker makes them if it is not nil.
	// It returns no items if they cannot all be returned this way. The items must be closed.
	ListEncoded(
		ctx context.Context,
		options *metainternalversion.ListOptions,
		encoding *verbatim.Encoding,
		maker *verbatim.Maker,
	) (runtime.Object, verbatim.Items, error)
}

type encodedItemsKey struct{}

// WithEncodedItems returns a context in which a list of objects in their served form leaves its items empty and sets
// items.Items instead.
func WithEncodedItems(ctx context.Context, items *EncodedItems) context.Context {
	return context.WithValue(ctx, encodedItemsKey{}, items)
}

type rememberedEventsKey struct{}

// WithRememberedEvents returns a context in which the initial events of a watch are encoded once for all watches of the
// same form. The form must not depend on the time, as tables do.
func WithRememberedEvents(ctx context.Context) context.Context {
	return context.WithValue(ctx, rememberedEventsKey{}, true)
}

// sharedLister is a storage that can list objects without copying them for the caller.
type sharedLister interface {
	ListShared(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) ([]runtime.Object, error)
}

// encodedReader is a storage that can return stored bytes where they are what clients receive.
type encodedReader interface {
	GetEncoded(ctx context.Context, key string, encoding *verbatim.Encoding) verbatim.Fragment
	ListEncoded(
		ctx context.Context,
		key string,
		opts storage.ListOptions,
		listObj runtime.Object,
		encoding *verbatim.Encoding,
		maker *verbatim.Maker,
	) (verbatim.Items, error)
}

// sharedWatcher is a storage that can send initial events without copying their objects for the caller.
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

// typedReads is the storage of a kind of the definition. It avoids copying objects that are only encoded.
type typedReads struct {
	storage.Interface
	encoded encodedReader
	watches sharedWatcher
	events  *rememberedEvents
}

// withTypedReads returns the storage s, with lists and watches that read from opened, the storage below it.
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
	if !asked || answer.Encoding == nil {
		return t.Interface.GetList(ctx, key, opts, listObj)
	}
	items, err := t.encoded.ListEncoded(ctx, key, opts, listObj, answer.Encoding, answer.Maker)
	if apierrors.IsTooManyRequests(err) {
		return err // the request has waited for memory as long as it may
	}
	if err != nil {
		// This list returns the readable objects, and encodes objects in another way.
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

// customLists is the storage of one version of a definition. Its remembered encodings are of that version only: when
// the definition changes, its storage is opened anew.
type customLists struct {
	storage.Interface
	apiVersion, kind string
	items            *convert.Items
	number           int
	encoding         *verbatim.Encoding
	events           *rememberedEvents
}

// rememberedEvents assigns a number to each encoder of events, by the identifier of the encoder.
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
	c.encoding = verbatim.NewEncoding(
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

// errOtherEncoding reports that an object needs a conversion by the API machinery.
var errOtherEncoding = errors.New("an object is not encoded in its served form")

func (c customLists) encode(object runtime.Object) ([]byte, error) {
	custom, ok := object.(*unstructured.Unstructured)
	if !ok || !c.asIs(custom) {
		return nil, errOtherEncoding
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
			return rememberedObject{object, object, metav1.TypeMeta{APIVersion: c.apiVersion, Kind: c.kind}, serveUnchanged, c.events}
		}
		return o.DeepCopyObject()
	})
}

// rememberedObject is the object of an initial event. It is shared and never changed.
type rememberedObject struct {
	object runtime.Object
	meta   metav1.Object // of the object
	kind   metav1.TypeMeta
	// forEncoding returns the object to pass to an encoder, which may set its kind.
	forEncoding func(runtime.Object) runtime.Object
	events      *rememberedEvents
}

// serveUnchanged is for objects that have their kind already, which no encoder changes.
func serveUnchanged(object runtime.Object) runtime.Object { return object }

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

// GetObjectKind implements runtime.Object. The result is a copy.
func (o rememberedObject) GetObjectKind() schema.ObjectKind {
	kind := o.kind
	return &kind
}

// GetObjectMeta implements metav1.ObjectMetaAccessor. The result is a copy.
func (o rememberedObject) GetObjectMeta() metav1.Object { return o.GetObject().(metav1.Object) }

// Below implements store.Layer.
func (c customLists) Below() storage.Interface { return c.Interface }

// GetList implements storage.Interface.
func (c customLists) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	answer, asked := ctx.Value(encodedItemsKey{}).(*EncodedItems)
	list, ok := listObj.(*unstructured.UnstructuredList)
	if !asked || !ok {
		return c.Interface.GetList(ctx, key, opts, listObj)
	}
	if encoded, ok := c.Interface.(encodedReader); ok {
		items, err := encoded.ListEncoded(ctx, key, opts, list, c.encoding, nil)
		if err == nil {
			list.Items = nil
			answer.Items = items
		}
		if !errors.Is(err, errOtherEncoding) {
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
	items := make(verbatim.Fragments, len(encoded))
	for i, item := range encoded {
		items[i] = verbatim.NewFragment(item)
	}
	answer.Items = items
	return nil
}

// list reads a list and returns its objects. The items of list may stay empty.
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

// asIs reports whether the API machinery would encode the object without a conversion.
func (c customLists) asIs(o metav1.Object) bool {
	object := o.(*unstructured.Unstructured).Object
	return object["apiVersion"] == c.apiVersion && object["kind"] == c.kind
}
