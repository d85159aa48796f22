package convert

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/annexapi/annex/internal/model/define"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
)

// lists returns the machinery of widgets. Version v1beta1 cannot express some of them.
func lists(t testing.TB) *Machinery {
	t.Helper()
	k := &define.Kind{Resource: "widgets", Versions: []*define.Version{
		{Facts: v1.API, Type: reflect.TypeFor[v1.Widget](), ListType: reflect.TypeFor[v1.WidgetList]()},
		{
			Facts: v1beta1.API, Type: reflect.TypeFor[v1beta1.Widget](), ListType: reflect.TypeFor[v1beta1.WidgetList](),
			ToHub: func(in, hub runtime.Object) error { return v1beta1.WidgetToHub(in.(*v1beta1.Widget), hub.(*v1.Widget)) },
			FromHub: func(hub, out runtime.Object) error {
				if hub.(*v1.Widget).Spec.Size == "unspeakable" {
					return errUnspeakable
				}
				return v1beta1.WidgetFromHub(hub.(*v1.Widget), out.(*v1beta1.Widget))
			},
		},
	}}
	server := &define.Server{Name: "shop", Groups: []define.Group{{Name: "shop.example.com", Kinds: []*define.Kind{k}}}}
	if err := define.Check(server); err != nil {
		t.Fatal(err)
	}
	m, err := New(server)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var (
	errUnspeakable = errors.New("unspeakable")
	hubVersion     = schema.GroupVersion{Group: "shop.example.com", Version: "v1"}
	betaVersion    = schema.GroupVersion{Group: "shop.example.com", Version: "v1beta1"}
)

func widgets(count int, version string) *v1.WidgetList {
	list := &v1.WidgetList{ListMeta: metav1.ListMeta{ResourceVersion: version, Continue: "c<>"}, Items: []v1.Widget{}}
	for i := range count {
		list.Items = append(list.Items, v1.Widget{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("widget-%d", i), UID: types.UID(fmt.Sprint("u", i)), ResourceVersion: fmt.Sprint(10 + i),
				Annotations: map[string]string{"text": "<&>  \" ]}\n\u2028"},
			},
			Spec: v1.WidgetSpec{Size: "small", Parts: []v1.Part{{Name: "p", Count: int32(i)}}},
		})
	}
	return list
}

func plainJSON(m *Machinery) runtime.Serializer {
	info, _ := runtime.SerializerInfoForMediaType(m.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	return info.Serializer
}

// writes records the output and the sizes of its pieces.
type writes struct {
	bytes.Buffer
	sizes []int
}

func (w *writes) Write(p []byte) (int, error) {
	w.sizes = append(w.sizes, len(p))
	return w.Buffer.Write(p)
}

func TestListEncoder_likeUpstream(t *testing.T) {
	if testing.Short() {
		t.Skip("encodes lists of 1,000 objects in all forms")
	}
	m := lists(t)
	ours := m.Serializer()
	for _, gv := range []schema.GroupVersion{hubVersion, betaVersion} {
		for _, info := range m.Codecs.SupportedMediaTypes() {
			for _, s := range []runtime.Serializer{info.Serializer, info.PrettySerializer, info.StrictSerializer} {
				if s == nil || info.MediaType == runtime.ContentTypeProtobuf {
					continue
				}
				for _, count := range []int{0, 1, 2, 1000} {
					for range 2 { // the second round uses cached items
						list := widgets(count, "77")
						var want bytes.Buffer
						if err := m.Codecs.EncoderForVersion(s, gv).Encode(list.DeepCopyObject(), &want); err != nil {
							t.Fatal(err)
						}
						encoder := ours.EncoderForVersion(s, gv)
						got, allocated := &writes{}, &writes{}
						if err := encoder.Encode(list, got); err != nil || got.String() != want.String() {
							t.Fatalf("%s of %d items in %s: %v\n%.200s\nupstream:\n%.200s", info.MediaType, count, gv, err, got, &want)
						}
						if !reflect.DeepEqual(list, widgets(count, "77")) {
							t.Fatal("encoding has changed the list")
						}
						encoder = runtime.NewEncoderWithAllocator(encoder.(runtime.EncoderWithAllocator), &runtime.Allocator{})
						if err := encoder.Encode(list, allocated); err != nil || allocated.String() != want.String() {
							t.Fatalf("%s of %d items in %s with an allocator: %v", info.MediaType, count, gv, err)
						}
					}
				}
			}
		}
	}
}

// A first write of one byte makes the handler wait for more before it decides whether to compress the list.
func TestListEncoder_longList_isWrittenInPieces(t *testing.T) {
	m := lists(t)
	got := &writes{}
	if err := m.Serializer().EncoderForVersion(plainJSON(m), hubVersion).Encode(widgets(5000, "1"), got); err != nil {
		t.Fatal(err)
	}
	if len(got.sizes) < 4 || got.sizes[0] != 1 {
		t.Errorf("written in pieces of %v", got.sizes)
	}
	for _, size := range got.sizes {
		if size > ListPiece {
			t.Errorf("a piece of %d bytes", size)
		}
	}
}

func TestListEncoder_changedItem_isEncodedAgain(t *testing.T) {
	m := lists(t)
	ours, upstream := m.Serializer().EncoderForVersion(plainJSON(m), betaVersion), m.Codecs.EncoderForVersion(plainJSON(m), betaVersion)
	list := widgets(3, "1")
	for i, change := range []func(){
		func() {},
		func() { list.Items[1].Spec.Size, list.Items[1].ResourceVersion = "large", "100" },
		func() { list.Items[2].Spec.Size, list.Items[2].UID = "medium", "new" },
		func() { list.Items[0].Spec.Size, list.Items[0].ResourceVersion = "large", "" },
		func() { list.Items[0].Spec.Size = "medium" },
		func() { list.Items = list.Items[1:] },
	} {
		change()
		var got, want bytes.Buffer
		if err := errors.Join(ours.Encode(list, &got), upstream.Encode(list, &want)); err != nil {
			t.Fatal(err)
		}
		if got.String() != want.String() {
			t.Errorf("change %d: %s\nupstream: %s", i, &got, &want)
		}
	}
}

func TestListEncoder_unencodableItem(t *testing.T) {
	m := lists(t)
	list := widgets(3, "1")
	list.Items[1].Spec.Size = "unspeakable"
	for range 2 {
		got := &writes{}
		err := m.Serializer().EncoderForVersion(plainJSON(m), betaVersion).Encode(list, got)
		want := m.Codecs.EncoderForVersion(plainJSON(m), betaVersion).Encode(list, &writes{})
		if !errors.Is(err, errUnspeakable) || err.Error() != want.Error() || got.Len() > 0 {
			t.Errorf("%v after %q; upstream: %v", err, got, want)
		}
	}
}

func TestItems_bounded(t *testing.T) {
	r := &Items{budget: 10_000}
	var items []metav1.Object
	made := widgets(1000, "1").Items
	for i := range made {
		items = append(items, &made[i])
	}
	encodings := 0
	list := func(from, to int) {
		t.Helper()
		got, err := r.Encode(1, items[from:to], func(i int) ([]byte, error) {
			encodings++
			return fmt.Appendf(nil, "item %03d", from+i), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, item := range got {
			if want := fmt.Sprintf("item %03d", from+i); string(item) != want {
				t.Fatalf("%q is %q", want, item)
			}
		}
		if held := int64(len(r.cached)) * sizeOf(got[0]); held > r.budget || held != r.bytes || len(r.index) != len(r.cached) {
			t.Fatalf("%d items are remembered, with %d bytes of %d, of which %d are found", len(r.cached), r.bytes, r.budget, len(r.index))
		}
	}
	list(0, 20)
	list(0, 20)
	if encodings != 20 {
		t.Errorf("20 items were encoded %d times", encodings)
	}
	for i := range 900 { // items that are used again are rarely evicted
		list(100+i, 101+i)
		list(0, 10)
	}
	if encodings > 1000 {
		t.Errorf("what is used all the time was encoded anew: %d", encodings)
	}
	encodings = 0
	list(0, 1000)
	list(0, 1000)
	if least := 2000 - 2*10_000/sizeOf(nil); int64(encodings) < least {
		t.Errorf("only %d of 2000 items were encoded, with room for a few dozens", encodings)
	}
	none := &Items{}
	if got, err := none.Encode(
		1,
		items[:2],
		func(int) ([]byte, error) { return []byte("x"), nil },
	); err != nil || len(got) != 2 ||
		len(none.cached) != 0 {
		t.Errorf("without room: %q, %v", got, err)
	}
	r.Bound(1000)
	if r.bytes > 1000 || len(r.cached) == 0 {
		t.Errorf("of items with 10,000 bytes, %d with %d are left in 1,000", len(r.cached), r.bytes)
	}
	r.Bound(0)
	if r.bytes != 0 || len(r.cached) != 0 || len(r.index) != 0 {
		t.Errorf("%d items with %d bytes are remembered without room", len(r.cached), r.bytes)
	}
}

// If a list exceeds the cache, only the excess has to be encoded again.
func TestItems_longList_isCachedInPart(t *testing.T) {
	made := widgets(1000, "1").Items
	items := make([]metav1.Object, len(made))
	for i := range made {
		items[i] = &made[i]
	}
	for _, c := range []struct {
		room int64
		most int
	}{{1000, 0}, {900, 400}, {500, 850}} {
		r := &Items{budget: c.room * sizeOf([]byte("item"))}
		encodings := 0
		for round := range 20 {
			if round == 10 {
				encodings = 0
			}
			if _, err := r.Encode(1, items, func(int) ([]byte, error) { encodings++; return []byte("item"), nil }); err != nil {
				t.Fatal(err)
			}
		}
		if encodings/10 > c.most {
			t.Errorf("with room for %d of 1000, each list encodes %d items, wanted %d at most", c.room, encodings/10, c.most)
		} else {
			t.Logf("with room for %d of 1000, each list encodes %d items", c.room, encodings/10)
		}
	}
}

// The cache is bounded per server, not per group.
func TestItems_sharedByGroups(t *testing.T) {
	m := lists(t)
	one, other := m.Serializer().(listSerializer), m.Serializer().(listSerializer)
	if one.items == nil || one.items != other.items {
		t.Error("each serializer remembers items of its own")
	}
}

// An unchanged list is copied from the cache.
func BenchmarkLists(b *testing.B) {
	for _, c := range []struct {
		name   string
		budget int64
	}{{"remembered", rememberedBytes}, {"encoded", 0}} {
		b.Run(c.name, func(b *testing.B) {
			m := lists(b)
			m.items.budget = c.budget
			list := widgets(10_000, "1")
			encoder := m.Serializer().EncoderForVersion(plainJSON(m), hubVersion)
			for b.Loop() {
				if err := encoder.Encode(list, io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
