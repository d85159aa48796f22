package generate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/api"
	byhandv1 "github.com/annexapi/annex/cmd/annex/internal/generate/testdata/byhand/v1"
	kubebuilderv1 "github.com/annexapi/annex/cmd/annex/internal/generate/testdata/kubebuilder/v1"
	"github.com/annexapi/annex/cmd/annex/internal/generate/testdata/shop/shared"
	shopv1 "github.com/annexapi/annex/cmd/annex/internal/generate/testdata/shop/v1"
	shopv2 "github.com/annexapi/annex/cmd/annex/internal/generate/testdata/shop/v2"
)

func order() *shopv1.Order {
	attempts, budget := int32(2), resource.MustParse("3")
	due := metav1.NewTime(time.Unix(1, 0))
	return &shopv1.Order{
		TypeMeta:   metav1.TypeMeta{Kind: "Order"},
		ObjectMeta: metav1.ObjectMeta{Name: "o", Labels: map[string]string{"a": "b"}},
		Spec: shopv1.OrderSpec{
			Items:    []shopv1.Item{{Name: "i"}},
			Attempts: &attempts,
			Notes:    shopv1.Notes{"k": "v"},
			Budget:   &budget,
			Port:     intstr.FromString("http"),
			Voucher:  &corev1.LocalObjectReference{Name: "v"},
			Extra:    runtime.RawExtension{Raw: []byte("{}")},
			Due:      &due,
			Seal:     []byte{1},
			Grid:     [][]int64{{1}, {2}},
			ByShop:   map[string][]shopv1.Item{"s": {{Name: "i"}}},
			Address:  shared.Address{Lines: []string{"l"}},
			Gift:     &shopv1.Gift{Inside: &shopv1.Gift{Wrapped: true}},
			Hidden:   map[int]string{1: "h"},
		},
		Status: shopv1.OrderStatus{Conditions: []metav1.Condition{{Type: "Ready"}}},
	}
}

func TestDeepCopy_sharesNothing(t *testing.T) {
	list := &shopv1.OrderList{Items: []shopv1.Order{*order()}}
	clone := list.DeepCopyObject().(*shopv1.OrderList)
	if !reflect.DeepEqual(list, clone) {
		t.Errorf("got %+v, want %+v", clone, list)
	}
	if path := sharedMemory(reflect.ValueOf(list), reflect.ValueOf(clone)); path != "" {
		t.Errorf("original and copy share %s", path)
	}
	if (*shopv1.Order)(nil).DeepCopy() != nil {
		t.Error("copy of nil is not nil")
	}
}

// sharedMemory returns the path of the first pointer, slice or map that a and b share. Unexported fields, such as a
// time's location, may be shared.
func sharedMemory(a, b reflect.Value) string {
	switch a.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if a.IsNil() || a.Kind() != reflect.Pointer && a.Len() == 0 {
			return ""
		}
		if a.Pointer() == b.Pointer() {
			return a.Type().String()
		}
	}
	under := func(name string, a, b reflect.Value) string {
		if path := sharedMemory(a, b); path != "" {
			return name + " " + path
		}
		return ""
	}
	switch a.Kind() {
	case reflect.Pointer:
		return sharedMemory(a.Elem(), b.Elem())
	case reflect.Slice:
		for i := range a.Len() {
			if path := under("[]", a.Index(i), b.Index(i)); path != "" {
				return path
			}
		}
	case reflect.Map:
		for _, k := range a.MapKeys() {
			if path := under("[key]", a.MapIndex(k), b.MapIndex(k)); path != "" {
				return path
			}
		}
	case reflect.Struct:
		for i := range a.NumField() {
			if f := a.Type().Field(i); f.IsExported() {
				if path := under(f.Name, a.Field(i), b.Field(i)); path != "" {
					return path
				}
			}
		}
	}
	return ""
}

func TestDeepCopy_handWritten_isUsed(t *testing.T) {
	tool := &byhandv1.Tool{}
	if got := tool.DeepCopy().Parts.Copies; got != 1 {
		t.Errorf("the hand-written DeepCopyInto ran %d times, want 1", got)
	}
	if _, ok := definitionsOf(byhandv1.API())["com.example.Edge"]; !ok {
		t.Errorf("no definition under the hand-written model name: %q", sortedKeys(definitionsOf(byhandv1.API())))
	}
}

func TestAddToScheme_repeated(t *testing.T) {
	for _, c := range []struct {
		facts   api.Facts
		gv      schema.GroupVersion
		objects []runtime.Object
	}{
		{shopv1.API(), schema.GroupVersion{Group: "shop.example.com", Version: "v1"},
			[]runtime.Object{&shopv1.Order{}, &shopv1.OrderList{}, &shopv1.Refund{}}},
		{shopv2.API(), schema.GroupVersion{Group: "shop.example.com", Version: "v2beta1"}, []runtime.Object{&shopv2.Order{}}},
		{byhandv1.API(), schema.GroupVersion{Group: "byhand.example.com", Version: "v1"},
			[]runtime.Object{&byhandv1.Tool{}, &byhandv1.ToolList{}}},
		{kubebuilderv1.API(), schema.GroupVersion{Group: "kb.example.com", Version: "v1"},
			[]runtime.Object{&kubebuilderv1.Job{}, &kubebuilderv1.JobList{}}},
	} {
		t.Run(c.gv.String(), func(t *testing.T) {
			if c.facts.GroupVersion != c.gv {
				t.Errorf("group version %v", c.facts.GroupVersion)
			}
			scheme := runtime.NewScheme()
			for range 2 {
				if err := c.facts.AddToScheme(scheme); err != nil {
					t.Fatal(err)
				}
			}
			for _, o := range c.objects {
				kind := reflect.TypeOf(o).Elem().Name()
				if gvks, _, err := scheme.ObjectKinds(o); err != nil || !slices.Equal(gvks, []schema.GroupVersionKind{c.gv.WithKind(kind)}) {
					t.Errorf("%s is registered as %v, %v", kind, gvks, err)
				}
			}
			if !scheme.Recognizes(c.gv.WithKind("ListOptions")) {
				t.Error("the meta types are not registered")
			}
		})
	}
}

func TestAddDefaults_everyDepth(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := shopv1.API().AddDefaults(scheme); err != nil {
		t.Fatal(err)
	}
	list := &shopv1.OrderList{Items: []shopv1.Order{
		{Spec: shopv1.OrderSpec{Items: []shopv1.Item{{}, {Quantity: 7}}}},
		{Spec: shopv1.OrderSpec{Voucher: &corev1.LocalObjectReference{}}},
	}}
	scheme.Default(list)

	got := list.Items[0].Spec
	if got.Delivery != "standard" || got.Attempts == nil || *got.Attempts != 3 || got.Address.Country != "NZ" ||
		got.Size != shopv1.SizeSmall {
		t.Errorf("tags and functions gave %+v", got)
	}
	if got.BoxSize != shopv1.SizeLarge || got.Origin != shared.DefaultCountry || got.Bonus == nil || !got.Bonus.Wrapped {
		t.Errorf("constants and structs gave %+v", got)
	}
	if got.Items[0].Quantity != 1 || got.Items[1].Quantity != 7 {
		t.Errorf("tags within a list gave %+v", got.Items)
	}
	if delivery := list.Items[1].Spec.Delivery; delivery != "voucher" {
		t.Errorf("the function did not run before the tag: %q", delivery)
	}
	if _, ok := got.Notes["size"]; !ok {
		t.Error("a second function of the same type did not run")
	}
}

func TestAddDefaults_handWritten_areRegistered(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := byhandv1.API().AddDefaults(scheme); err != nil {
		t.Fatal(err)
	}
	tool, list := &byhandv1.Tool{}, &byhandv1.ToolList{Items: []byhandv1.Tool{{}}}
	scheme.Default(tool)
	scheme.Default(list)
	if !tool.Edge.Sharp || !list.Items[0].Edge.Sharp {
		t.Error("SetObjectDefaults_Tool did not run for the object and for its list")
	}
}

func TestAddDefaults_packageWithout_isNil(t *testing.T) {
	if kubebuilderv1.API().AddDefaults != nil {
		t.Error("AddDefaults is not nil")
	}
}

func definitionsOf(f api.Facts) map[string]common.OpenAPIDefinition {
	return f.OpenAPI(func(path string) spec.Ref { return spec.MustCreateRef("#/definitions/" + path) })
}

func TestOpenAPI_definesReachableTypes(t *testing.T) {
	const testdata = "github.com/annexapi/annex/cmd/annex/internal/generate/testdata/"
	for name, c := range map[string]struct {
		facts api.Facts
		want  []string
	}{
		"of v1": {shopv1.API(), []string{
			"com.example.shop.v1.Gift", "com.example.shop.v1.Item", "com.example.shop.v1.Order", "com.example.shop.v1.OrderList",
			"com.example.shop.v1.OrderSpec", "com.example.shop.v1.OrderStatus", "com.example.shop.v1.Receipt", "com.example.shop.v1.Refund",
			testdata + "shop/shared.Address", "io.k8s.api.core.v1.LocalObjectReference",
		}},
		"of v2": {shopv2.API(), []string{
			"com.example.models.Order", "com.example.shop.v1.Item", testdata + "shop/shared.Address",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			definitions := definitionsOf(c.facts)
			if got := sortedKeys(definitions); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			for name, d := range definitions {
				for _, on := range d.Dependencies {
					if _, ok := definitions[on]; !ok && !strings.HasPrefix(on, "io.k8s.apimachinery.pkg.") {
						t.Errorf("%s refers to %s, which is not defined", name, on)
					}
				}
			}
		})
	}
}

func TestOpenAPI_tagsAndComments(t *testing.T) {
	definitions := definitionsOf(shopv1.API())
	properties := definitions["com.example.shop.v1.OrderSpec"].Schema.Properties

	if got := properties["items"]; got.Description != "items are what is ordered." || got.Extensions["x-kubernetes-list-type"] != "map" {
		t.Errorf("items: %q, %v", got.Description, got.Extensions)
	}
	if got := properties["size"].Enum; !reflect.DeepEqual(got, []any{"Large", "Small"}) {
		t.Errorf("values of size: %v", got)
	}
	if _, ok := properties["hidden"]; ok {
		t.Error("a property that is switched off is defined")
	}
	quantity := definitions["com.example.shop.v1.Item"].Schema.Properties["quantity"]
	if quantity.Maximum == nil || *quantity.Maximum != 100 || fmt.Sprint(quantity.Default) != "1" {
		t.Errorf("quantity: maximum %v, default %v", quantity.Maximum, quantity.Default)
	}
	if got := definitions["io.k8s.api.core.v1.LocalObjectReference"].Schema.Description; !strings.HasPrefix(
		got,
		"LocalObjectReference contains",
	) {
		t.Errorf("a type of another package is described as %q", got)
	}
	if got := definitions["com.example.shop.v1.OrderSpec"].Schema.Required; !slices.Equal(got, []string{"size"}) {
		t.Errorf("required: %q", got)
	}
}
