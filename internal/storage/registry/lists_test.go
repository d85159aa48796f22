package registry

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/internal/wire/verbatim"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
)

// copying is a storage that copies listed objects, like the storage in etcd.
type copying struct{ storage.Interface }

// Lists return encoded items, whether the storage shares its objects or not, and plain items where the API machinery
// would convert an object.
func TestCustomLists_encodedItems(t *testing.T) {
	core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.Close(); err != nil {
			t.Error(err)
		}
	})
	opened, err := core.Open(store.Resource{
		Resource:     schema.GroupResource{Group: "example.com", Resource: "widgets"},
		Prefix:       "/widgets",
		Codec:        unstructured.UnstructuredJSONScheme,
		New:          func() runtime.Object { return &unstructured.Unstructured{} },
		NewList:      func() runtime.Object { return &unstructured.UnstructuredList{} },
		Unstructured: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	machinery, err := convert.New(&define.Server{})
	if err != nil {
		t.Fatal(err)
	}
	create := func(name, version string) {
		t.Helper()
		w := &unstructured.Unstructured{
			Object: map[string]any{
				"apiVersion": "example.com/" + version,
				"kind":       "Widget",
				"metadata":   map[string]any{"name": name, "uid": "uid-" + name},
				"html":       "<",
			},
		}
		if err := opened.Create(t.Context(), "/widgets/"+name, w, &unstructured.Unstructured{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	list := func(s storage.Interface, asked bool) (encoded string, given bool, items int) {
		t.Helper()
		ctx, answer, list := t.Context(), &EncodedItems{}, &unstructured.UnstructuredList{}
		if asked {
			ctx = WithEncodedItems(ctx, answer)
		}
		if err := s.GetList(ctx, "/widgets", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list); err != nil {
			t.Fatal(err)
		}
		if list.GetResourceVersion() == "" {
			t.Error("the list has no resource version")
		}
		var encodings []string
		for i := 0; answer.Items != nil && i < answer.Items.Len(); i++ {
			item, err := answer.Items.Append(nil, i)
			if err != nil {
				t.Fatal(err)
			}
			encodings = append(encodings, string(item))
		}
		return fmt.Sprint(encodings), answer.Items != nil, len(list.Items)
	}
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	for name, s := range map[string]storage.Interface{
		"a storage that shares": encodedLists(opened, kind, machinery.Items()),
		"a storage that copies": encodedLists(copying{opened}, kind, machinery.Items()),
	} {
		for _, step := range []struct {
			create, version string
			want            string
			given           bool
			items           int
		}{
			{"", "", "[]", true, 0},
			{"a", "v1", `[{"apiVersion":"example.com/v1","html":"\u003c","kind":"Widget",` +
				`"metadata":{"name":"a","resourceVersion":"%s","uid":"uid-a"}}]`, true, 0},
			{"b", "v2", "[]", false, 2}, // must be converted
		} {
			revision := ""
			if step.create != "" {
				create(step.create, step.version)
				revision = fmt.Sprint(core.Revision())
			}
			want := step.want
			if step.create == "a" {
				want = fmt.Sprintf(want, revision)
			}
			for range 2 { // the second time, the encodings are remembered
				if encoded, given, items := list(s, true); encoded != want || given != step.given || items != step.items {
					t.Errorf("%s: after %q: %s, %t, and %d items; not %s, %t, %d", name, step.create, encoded, given, items, want, step.given, step.items)
				}
			}
		}
		if _, given, items := list(s, false); given || items != 2 {
			t.Errorf("%s: a list that is not asked for encoded items gives %t and has %d items", name, given, items)
		}
		for _, object := range []string{"a", "b"} {
			if err := opened.Delete(
				t.Context(),
				"/widgets/"+object,
				&unstructured.Unstructured{},
				nil,
				storage.ValidateAllObjectFunc,
				nil,
				storage.DeleteOptions{},
			); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// busy is a storage that has no memory for lists.
type busy struct {
	storage.Interface
	encodedReader
	asked int
}

func (b *busy) GetList(context.Context, string, storage.ListOptions, runtime.Object) error {
	b.asked++
	return nil
}

func (b *busy) ListEncoded(
	context.Context,
	string,
	storage.ListOptions,
	runtime.Object,
	*verbatim.Encoding,
	*verbatim.Maker,
) (verbatim.Items, error) {
	b.asked++
	return nil, apierrors.NewTooManyRequests("busy", 7)
}

// A list that has waited for memory in vain fails, instead of waiting a second time.
func TestTypedReads_noMemory_failsOnce(t *testing.T) {
	storages := &busy{}
	reads := typedReads{Interface: storages, encoded: storages}
	answer := &EncodedItems{Encoding: verbatim.NewEncoding(nil, 0, nil, nil)}
	err := reads.GetList(WithEncodedItems(t.Context(), answer), "/widgets", storage.ListOptions{}, &unstructured.UnstructuredList{})
	if !apierrors.IsTooManyRequests(err) || storages.asked != 1 || answer.Items != nil {
		t.Errorf("%v after %d attempts, with %v", err, storages.asked, answer.Items)
	}
}
