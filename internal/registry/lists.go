package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/convert"
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

// EncodedItems are the items of a list that was read from the storage of custom resources.
type EncodedItems struct {
	// JSON are the items as upstream's handler would encode them, which must not be changed. Nil
	// until a list was read, and if it has its items itself; of an empty list it is not nil.
	JSON [][]byte
}

type encodedItemsKey struct{}

// WithEncodedItems returns a context in which a list of custom resources in the form that their
// definition gives them leaves its items empty, and gives them encoded instead.
func WithEncodedItems(ctx context.Context, items *EncodedItems) context.Context {
	return context.WithValue(ctx, encodedItemsKey{}, items)
}

type rememberedEventsKey struct{}

// WithRememberedEvents returns a context in which the initial events of a watch on custom resources are
// encoded once for all watches of the same form. That may be none that tells the time, as tables do.
func WithRememberedEvents(ctx context.Context) context.Context {
	return context.WithValue(ctx, rememberedEventsKey{}, true)
}

// sharedLister is a storage that lists objects which it does not copy for the caller.
type sharedLister interface {
	ListShared(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) ([]runtime.Object, error)
}

// sharedWatcher is a storage whose initial events have objects that it does not copy for the caller.
type sharedWatcher interface {
	WatchShared(ctx context.Context, key string, opts storage.ListOptions, wrap func(runtime.Object) runtime.Object) (watch.Interface, error)
}

// customLists is the storage of one version of a definition. What it remembers is of no other,
// since a definition that changes has its storage opened anew.
type customLists struct {
	storage.Interface
	apiVersion, kind string
	items            *convert.Items
	number           int
	events           *sync.Map // by identifiers of encoders, the numbers of their forms of events
}

func encodedLists(opened storage.Interface, kind schema.GroupVersionKind, items *convert.Items) storage.Interface {
	return customLists{opened, kind.GroupVersion().String(), kind.Kind, items, items.Number(), &sync.Map{}}
}

// Watch implements storage.Interface.
func (c customLists) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	shared, ok := c.Interface.(sharedWatcher)
	if ctx.Value(rememberedEventsKey{}) == nil || !ok {
		return c.Interface.Watch(ctx, key, opts)
	}
	return shared.WatchShared(ctx, key, opts, func(o runtime.Object) runtime.Object {
		if object, ok := o.(*unstructured.Unstructured); ok && c.asIs(object) {
			return rememberedObject{object, c}
		}
		return o.DeepCopyObject()
	})
}

// rememberedObject is the object of an initial event. It is shared and never changed.
type rememberedObject struct {
	object *unstructured.Unstructured
	of     customLists
}

var _ runtime.CacheableObject = rememberedObject{}

// CacheEncode implements runtime.CacheableObject.
func (o rememberedObject) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	number, known := o.of.events.Load(id)
	if !known {
		number, _ = o.of.events.LoadOrStore(id, o.of.items.Number())
	}
	encoded, err := o.of.items.Encode(number.(int), []metav1.Object{o.object}, func(int) ([]byte, error) {
		var event bytes.Buffer
		err := encode(o.object, &event)
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
func (o rememberedObject) GetObject() runtime.Object { return o.object.DeepCopy() }

// DeepCopyObject implements runtime.Object.
func (o rememberedObject) DeepCopyObject() runtime.Object { return o.GetObject() }

// GetObjectKind implements runtime.Object. It is a copy.
func (o rememberedObject) GetObjectKind() schema.ObjectKind {
	return &metav1.TypeMeta{APIVersion: o.of.apiVersion, Kind: o.of.kind}
}

// GetObjectMeta implements metav1.ObjectMetaAccessor. It is a copy.
func (o rememberedObject) GetObjectMeta() metav1.Object { return o.object.DeepCopy() }

// GetList implements storage.Interface.
func (c customLists) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	answer, asked := ctx.Value(encodedItemsKey{}).(*EncodedItems)
	list, ok := listObj.(*unstructured.UnstructuredList)
	if !asked || !ok {
		return c.Interface.GetList(ctx, key, opts, listObj)
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
		var item bytes.Buffer
		err := json.NewEncoder(&item).Encode(objects[i].(*unstructured.Unstructured).Object)
		return bytes.Clone(bytes.TrimSuffix(item.Bytes(), []byte("\n"))), err
	})
	if err != nil {
		return err
	}
	list.Items, answer.JSON = nil, encoded
	return nil
}

// list reads a list, whose items may be empty, and returns the objects.
func (c customLists) list(ctx context.Context, key string, opts storage.ListOptions, list *unstructured.UnstructuredList) ([]metav1.Object, error) {
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
