package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// sharedLister is a storage that lists objects which it does not copy for the caller.
type sharedLister interface {
	ListShared(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) ([]runtime.Object, error)
}

// customLists is the storage of one version of a definition. What it remembers is of no other,
// since a definition that changes has its storage opened anew.
type customLists struct {
	storage.Interface
	apiVersion, kind string
	items            *convert.Items
	number           int
}

func encodedLists(opened storage.Interface, kind schema.GroupVersionKind, items *convert.Items) storage.Interface {
	return customLists{opened, kind.GroupVersion().String(), kind.Kind, items, items.Number()}
}

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
