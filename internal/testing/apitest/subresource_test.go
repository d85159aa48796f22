package apitest_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/store/memory"
)

// badOptions cannot be read from a query.
type badOptions struct {
	metav1.TypeMeta `json:",inline"`
	Unnamed         string
	Nested          v1.Part `json:"nested"`
	small           bool
}

func (o *badOptions) DeepCopyObject() runtime.Object { return &badOptions{small: o.small} }

// TailOptions are registered by no package.
type TailOptions struct {
	metav1.TypeMeta `      json:",inline"`
	Lines           int64 `json:"lines,omitempty"`
}

func (o *TailOptions) DeepCopyObject() runtime.Object { copied := *o; return &copied }

// pathOptions hold the path after the subresource.
type pathOptions struct {
	metav1.TypeMeta `       json:",inline"`
	Path            string `json:"path,omitempty"`
}

func (o *pathOptions) DeepCopyObject() runtime.Object { copied := *o; return &copied }

func connectedNowhere[O any](context.Context, *annex.ConnectRequest[v1.Widget, O]) (http.Handler, error) {
	return http.NotFoundHandler(), nil
}

func TestNew_subresources_mistakes(t *testing.T) {
	taking := func(name string) *annex.ActionBuilder[v1.Widget, v1.Inspection] {
		return annex.Action(name, inspect)
	}
	connecting := func(name string) *annex.ConnectBuilder[v1.Widget, v1.LogOptions] {
		return annex.Connect(name, widgetLog)
	}
	none := func(name string) *annex.ConnectBuilder[v1.Widget, annex.NoOptions] {
		return annex.Connect[v1.Widget, annex.NoOptions](name, nil)
	}
	for name, test := range map[string]struct {
		subresources []annex.SubresourceOf[v1.Widget]
		want         []string
	}{
		"nil": {[]annex.SubresourceOf[v1.Widget]{nil}, []string{"kind Widget (widgets.shop.example.com): subresource 0 is nil"}},
		"twice": {[]annex.SubresourceOf[v1.Widget]{taking("check"), connecting("check")}, []string{`subresource "check": ` +
			`declared twice`}},
		"status and scale": {[]annex.SubresourceOf[v1.Widget]{taking("status"), connecting("scale")}, []string{`subresource "status": the ` +
			`name is reserved`, `subresource "scale": the name is reserved`}},
		"bad names": {[]annex.SubresourceOf[v1.Widget]{taking(""), taking("Check"), taking("a/b")}, []string{`subresource "": a ` +
			`DNS-1035 label`, `subresource "Check": a DNS-1035 label`, `subresource "a/b": a DNS-1035 label`}},
		"no functions": {
			[]annex.SubresourceOf[v1.Widget]{annex.Action[v1.Widget, v1.Inspection, v1.Inspection]("check", nil), none("log")},
			[]string{`subresource "check": the function is missing`, `subresource "log": the function is missing`},
		},
		"bad views": {
			[]annex.SubresourceOf[v1.Widget]{
				annex.View[v1.Widget, annex.NoOptions, v1.Inspection]("none", nil), annex.View("summary", summarize), annex.View("summary", twin),
				annex.View("verdict", func(context.Context, *annex.ViewRequest[v1.Widget, badOptions]) (*metav1.Status, error) {
					return nil, nil
				}),
			},
			[]string{
				`subresource "none": the function is missing`, `subresource "summary": declared twice`,
				`subresource "verdict": a view cannot return metav1.Status: return an error instead, or declare an Action`,
				`subresource "verdict": option Unnamed of Go type apitest_test.badOptions has no name: give it a json tag`,
				`subresource "verdict": option Nested of Go type apitest_test.badOptions cannot be a query parameter`,
			},
		},
		"bad operations": {
			[]annex.SubresourceOf[v1.Widget]{taking("a").On(), taking("b").On(annex.Delete), taking("c").On(annex.Create, annex.Create),
				taking("d").On(annex.Update)},
			[]string{
				`subresource "a": On: add at least one operation, Create or Update`, `subresource "b": On: unsupported operation "DELETE"`,
				`subresource "c": On: CREATE is named twice`, `subresource "d": On: an Update needs the name of an object, and Go type v1.Inspection has no name: embed metav1.ObjectMeta, or use Create`,
			},
		},
		"bad methods": {
			[]annex.SubresourceOf[v1.Widget]{connecting("a").Methods(), connecting("b").Methods("get"), connecting("c").Methods("GET", "GET"),
				connecting("d").Methods("CONNECT")},
			[]string{`subresource "a": Methods: add at least one method, such as GET`, `subresource "b": Methods: unsupported method "get": use GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS`, `subresource "c": ` +
				`Methods: duplicate method GET`, `subresource "d": Methods: unsupported method "CONNECT"`},
		},
		"types that no version has": {
			[]annex.SubresourceOf[v1.Widget]{
				annex.Action("check", func(context.Context,
					*annex.ActionRequest[v1.Widget, metav1.PartialObjectMetadata]) (*metav1.PartialObjectMetadata, error) {
					return nil, nil
				}),
			},
			[]string{`subresource "check": no package of a version registers Go type v1.PartialObjectMetadata: declare the type in such a package, with the ` +
				`comment +k8s:deepcopy-gen:interfaces=`},
		},
		"a type with another's name": {
			[]annex.SubresourceOf[v1.Widget]{
				annex.Action("check", func(context.Context, *annex.ActionRequest[v1.Widget, v1beta1.Widget]) (*v1.Widget, error) {
					return nil, nil
				}),
			},
			[]string{`subresource "check": version v1 has a Widget of its own, Go type v1.Widget`},
		},
		"options of one name": {
			func() []annex.SubresourceOf[v1.Widget] {
				first := annex.Connect("tail", connectedNowhere[TailOptions])
				type TailOptions struct{ pathOptions }
				return []annex.SubresourceOf[v1.Widget]{first, annex.Connect("other", connectedNowhere[TailOptions])}
			}(),
			[]string{`subresource "other": Go type github.com/annexapi/annex/internal/testing/apitest_test.TailOptions and Go type ` +
				`github.com/annexapi/annex/internal/testing/apitest_test.TailOptions of another subresource have the same name in version v1`},
		},
		"paths without an option": {
			[]annex.SubresourceOf[v1.Widget]{connecting("log").Subpaths(), annex.Connect("none", connectedNowhere[annex.NoOptions]).Subpaths()},
			[]string{`subresource "log": Subpaths: the options have no field for the path: add a string field with the json tag`, `subresource "none": Subpaths: the options have no ` +
				`field for the path`},
		},
		"options that no query can say": {
			[]annex.SubresourceOf[v1.Widget]{annex.Connect("log",
				func(context.Context, *annex.ConnectRequest[v1.Widget, badOptions]) (http.Handler, error) {
					return nil, nil
				})},
			[]string{"option Unnamed of Go type apitest_test.badOptions has no name: give it a json tag", "option Nested of Go type " +
				"apitest_test.badOptions cannot be a query parameter"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			kind := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
				Versions(annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub)).
				Subresources(test.subresources...)
			_, err := annex.New(
				t.Context(),
				annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}},
				annex.Options{Storage: memory.Storage()},
			)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want %q in:\n%v", want, err)
				}
			}
			if got := strings.Count(err.Error(), "\n") + 1; got != len(test.want) {
				t.Errorf("%d mistakes, not %d:\n%v", got, len(test.want), err)
			}
		})
	}
}

func TestCustomStorage_subresources(t *testing.T) {
	t.Parallel()
	kind := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		CustomStorage(func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) { return base, nil }).
		Subresources(annex.Action("inspection", inspect))
	_, err := annex.New(
		t.Context(),
		annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}},
		annex.Options{Storage: memory.Storage()},
	)
	if err == nil ||
		!strings.Contains(
			err.Error(),
			`subresource "inspection": has no effect: a custom storage has its own subresources, see Subresourcer`,
		) {
		t.Errorf("got %v", err)
	}
}

func TestNew_connectHooks_mistakes(t *testing.T) {
	t.Parallel()
	allowed := func(context.Context, annex.Connection[v1.Widget]) error { return nil }
	for want, kind := range map[string]*annex.KindBuilder[v1.Widget]{
		"AdmitConnect: the function is nil": annex.KindOf[v1.Widget, v1.WidgetList]("widgets",
			v1.API).Subresources(annex.Connect("log", widgetLog)).AdmitConnect(nil),
		"AdmitConnect: the kind has no subresource that connects": annex.KindOf[v1.Widget, v1.WidgetList]("widgets",
			v1.API).Subresources(annex.Action("inspection", inspect)).AdmitConnect(allowed),
		"AdmitConnectWith returned no hook": annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Subresources(annex.Connect("log", widgetLog)).
			AdmitConnectWith(func(*annex.Env) (annex.AdmitConnectFunc[v1.Widget], error) { return nil, nil }),
	} {
		_, err := annex.New(
			t.Context(),
			annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}},
			annex.Options{Storage: memory.Storage()},
		)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
