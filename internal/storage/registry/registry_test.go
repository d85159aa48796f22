package registry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/model/define"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
)

// given is a generator of fixed names.
type given struct{ names []string }

func (g *given) GenerateName(string) string {
	name := g.names[0]
	if len(g.names) > 1 {
		g.names = g.names[1:]
	}
	return name
}

func TestCreate_generatedNameExists_isRetried(t *testing.T) {
	k := newKind(t, &define.Kind{})
	ctx := request.WithNamespace(t.Context(), "default")
	generate := func(names ...string) (string, error) {
		s := k.store.CreateStrategy.(strategy)
		s.NameGenerator = &given{names}
		k.store.CreateStrategy = s
		obj, err := k.store.Create(
			ctx,
			&v1.Widget{ObjectMeta: metav1.ObjectMeta{GenerateName: "w-"}},
			rest.ValidateAllObjectFunc,
			&metav1.CreateOptions{},
		)
		if err != nil {
			return "", err
		}
		return obj.(*v1.Widget).Name, nil
	}
	if name, err := generate("w-a"); name != "w-a" || err != nil {
		t.Fatalf("got %q, %v", name, err)
	}
	if name, err := generate("w-a", "w-a", "w-a", "w-b"); name != "w-b" || err != nil {
		t.Errorf("got %q, %v", name, err)
	}
	_, err := generate("w-a")
	if !apierrors.IsAlreadyExists(err) || !strings.Contains(err.Error(), "the server was not able to generate a unique name") {
		t.Errorf("without an end: %v", err)
	}
}

// Inlined is a struct whose fields are inlined into the kind that embeds it.
type Inlined struct {
	Colour string `json:"colour"`
}

func TestTopFields(t *testing.T) {
	type kind struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata,omitempty"`
		Inlined           `json:",inline"`
		Spec              v1.WidgetSpec `json:"spec,omitempty"`
		Data              map[string]string
		Hidden            string          `json:"-"`
		Extra             []int           `json:"extra"`
		Status            v1.WidgetStatus `json:"status"`
	}
	if got := topFields(reflect.TypeFor[kind]()); !slices.Equal(got, []string{"colour", "spec", "extra"}) {
		t.Errorf("got %v", got)
	}
}

func TestCell_types(t *testing.T) {
	n := int32(3)
	var none *int32
	for _, test := range []struct{ value, want any }{
		{nil, nil},
		{"a", "a"},
		{true, true},
		{3, int64(3)},
		{n, int64(3)},
		{&n, int64(3)},
		{none, nil},
		{int64(4), int64(4)},
		{1.5, 1.5},
		{metav1.Time{}, "<unknown>"},
		{(*metav1.Time)(nil), "<unknown>"},
		{context.Canceled, "context canceled"},
		{[]string{"a", "b"}, "[a b]"},
	} {
		if got := cell(test.value); got != test.want {
			t.Errorf("%T %v: got %v, want %v", test.value, test.value, got, test.want)
		}
	}
	if got := fmt.Sprint(cell(metav1.Now())); !strings.HasSuffix(got, "s") {
		t.Errorf("now: %s", got)
	}
}

func TestPredicate_labelOnly_readsNoFields(t *testing.T) {
	looked := 0
	k := &define.Kind{
		Selectable: []define.SelectableField{{Path: "spec.size", Value: func(runtime.Object) string { looked++; return "large" }}},
	}
	w := &v1.Widget{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "n", Labels: map[string]string{"a": "b"}}}
	of := predicate(k)
	label := func(text string) labels.Selector {
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return selector
	}
	field := func(text string) fields.Selector { return fields.ParseSelectorOrDie(text) }
	for _, test := range []struct {
		label  labels.Selector
		field  fields.Selector
		want   bool
		looked int
	}{
		{label("a=b"), fields.Everything(), true, 0},
		{label("a=b"), nil, true, 0},
		{label("a!=b"), fields.Everything(), false, 0},
		{label("a=b"), field("spec.size=large"), true, 1},
		{label("a=b"), field("spec.size=small"), false, 1},
		{labels.Everything(), field("metadata.name=w,metadata.namespace=n"), true, 1},
		{labels.Everything(), field("metadata.name!=w"), false, 1},
	} {
		looked = 0
		p := of(test.label, test.field)
		if got, err := p.Matches(w); got != test.want || err != nil || looked != test.looked {
			t.Errorf("%s, %s: %v, %v, looked at fields %d times", test.label, test.field, got, err, looked)
		}
	}
}

// TestValidate_metadata compares the errors with those for an object whose metadata is validated by the strategy and
// again by rest.BeforeCreate.
func TestValidate_metadata(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	one := func(of ...string) string { return of[dice.IntN(len(of))] }
	segment := func(name string, prefix bool) []string {
		if prefix {
			return content.IsPathSegmentPrefix(name)
		}
		return content.IsPathSegmentName(name)
	}
	refuse := func(context.Context, runtime.Object) field.ErrorList {
		if dice.IntN(2) == 0 {
			return nil
		}
		return field.ErrorList{field.Forbidden(field.NewPath("spec"), "refused")}
	}
	for _, scoped := range []bool{false, true} {
		for _, k := range []*define.Kind{{}, {ValidateName: segment}, {ValidateName: func(string, bool) []string { return nil }}} {
			k.ClusterScoped = scoped
			s := newKind(t, k).store.CreateStrategy.(strategy)
			refused := 0
			for range 3000 {
				w := &v1.Widget{ObjectMeta: metav1.ObjectMeta{
					Name: one(
						"a",
						"web-1",
						"a.b",
						"-a",
						"a-",
						"A",
						"a_b",
						"a/b",
						"..",
						"",
						"a%b",
						strings.Repeat("a", 63),
						strings.Repeat("a", 64),
						strings.Repeat("a", 254),
					),
					GenerateName: one("", "", "", "a-", "A", "a/"),
					Namespace:    one("default", "default", "", "A b"),
					Generation:   int64(dice.IntN(8) - 1),
				}}
				if dice.IntN(3) == 0 {
					w.Labels = map[string]string{one("a", "example.com/a", "a b", "/"): one("", "x", "-x", strings.Repeat("x", 64))}
				}
				if dice.IntN(3) == 0 {
					w.Annotations = map[string]string{one("a", "Example.com/A", "a b", "/"): "x"}
				}
				if dice.IntN(4) == 0 {
					w.Finalizers = []string{one("a", "example.com/a", "a b")}
				}
				if dice.IntN(4) == 0 {
					w.ManagedFields = []metav1.ManagedFieldsEntry{
						{Operation: metav1.ManagedFieldsOperationType(one("Update", "Else")), FieldsType: one("FieldsV1", "")},
					}
				}
				var more field.ErrorList
				s.kind.Validate = nil
				if more = refuse(t.Context(), w); len(more) > 0 {
					s.kind.Validate = func(context.Context, runtime.Object) field.ErrorList { return more }
				}
				want := append(validation.ValidateObjectMetaAccessor(w, s.NamespaceScoped(), s.validateName(), field.NewPath("metadata")), more...)
				if len(want) == 0 {
					want = validation.ValidateObjectMetaAccessor(w, s.NamespaceScoped(), segment, field.NewPath("metadata"))
				}
				got := rest.ValidateCreate(t.Context(), w, s)
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("%+v:\n got %v\nwant %v", w.ObjectMeta, got, want)
				}
				if len(got) > 0 {
					refused++
				}
			}
			if refused == 0 || refused == 3000 {
				t.Errorf("%d of 3000 are refused", refused)
			}
		}
	}
}
