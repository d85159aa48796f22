package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

// greeter is a custom storage that makes up the objects that it returns.
type greeter struct {
	annex.RESTBase
	destroyed atomic.Int32
}

var (
	_ rest.Getter = (*greeter)(nil)
	_ rest.Lister = (*greeter)(nil)
)

func (g *greeter) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name == "absent" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: "shop.example.com", Resource: "widgets"}, name)
	}
	w := &v1.Widget{ObjectMeta: metav1.ObjectMeta{Namespace: request.NamespaceValue(ctx), Name: name, UID: types.UID("uid-of-" + name)}}
	w.Spec.Options = map[string]string{"hello": name}
	return w, nil
}

func (g *greeter) List(ctx context.Context, _ *metainternalversion.ListOptions) (runtime.Object, error) {
	list := &v1.WidgetList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for _, name := range []string{"world", "moon"} {
		w, err := g.Get(ctx, name, nil)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, *w.(*v1.Widget))
	}
	return list, nil
}

func (g *greeter) Destroy() { g.destroyed.Add(1) }

// writer can also be written to, and has a status.
type writer struct {
	greeter
	written atomic.Pointer[v1.Widget]
}

func (w *writer) Create(
	ctx context.Context,
	obj runtime.Object,
	valid rest.ValidateObjectFunc,
	_ *metav1.CreateOptions,
) (runtime.Object, error) {
	if err := valid(ctx, obj); err != nil {
		return nil, err
	}
	w.written.Store(obj.(*v1.Widget))
	return obj, nil
}

func (w *writer) Update(
	ctx context.Context,
	name string,
	info rest.UpdatedObjectInfo,
	_ rest.ValidateObjectFunc,
	valid rest.ValidateObjectUpdateFunc,
	_ bool,
	_ *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	old, err := w.Get(ctx, name, nil)
	if err != nil {
		return nil, false, err
	}
	obj, err := info.UpdatedObject(ctx, old)
	if err != nil {
		return nil, false, err
	}
	if err := valid(ctx, obj, old); err != nil {
		return nil, false, err
	}
	w.written.Store(obj.(*v1.Widget))
	return obj, false, nil
}

func (w *writer) Subresources() map[string]rest.Storage {
	return map[string]rest.Storage{"status": struct {
		rest.Storage
		rest.Getter
	}{w.RESTBase, w}}
}

func customStorage(make func(env *annex.Env, base annex.RESTBase) (rest.Storage, error)) *annex.KindBuilder[v1.Widget] {
	k := widgetsWithoutHooks()
	return k.CustomStorage(make)
}

// widgetsWithoutHooks are widgets with nothing that a custom storage does itself.
func widgetsWithoutHooks() *annex.KindBuilder[v1.Widget] {
	return annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		ShortNames("wd").
		Versions(betaWidgets()).
		Columns(annex.Column[v1.Widget]{Name: "Hello", Value: func(w *v1.Widget) any { return w.Spec.Options["hello"] }})
}

func TestCustomStorage_reads(t *testing.T) {
	t.Parallel()
	g := &greeter{}
	c := startKind(t, customStorage(func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) {
		g.RESTBase = base
		return g, nil
	}))
	if got := fmt.Sprint(discovered(c, "widgets"), discovered(c, "widgets/status")); got != "[get list] []" {
		t.Errorf("discovery: %s", got)
	}
	if w := c.widget("you"); w.Spec.Options["hello"] != "you" || w.Namespace != "default" {
		t.Errorf("got %+v", w)
	}
	c.get(widgetsPath+"/absent").refused(404, metav1.StatusReasonNotFound)
	if beta := c.get(widgetsBetaPath + "/you").want(200); beta.str("apiVersion") != "shop.example.com/v1beta1" {
		t.Errorf("not converted: %s", beta.raw)
	}
	table := c.get(widgetsPath, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").want(200)
	if !strings.Contains(string(table.raw), `"cells":["world","world"`) {
		t.Errorf("table: %s", table.raw)
	}
	for _, a := range []*answer{
		c.post(widgetsPath, widget("x")), c.put(widgetsPath+"/x", widget("x")), c.patch(mergePatch, widgetsPath+"/x", `{}`),
		c.delete(widgetsPath+"/x", nil), c.delete(widgetsPath, nil), c.get(widgetsPath + "?watch=1"),
	} {
		a.refused(405, metav1.StatusReasonMethodNotAllowed)
	}
	c.get(widgetsPath + "/x/status").want(404)
	if openapi := string(
		c.get("/openapi/v3/apis/shop.example.com/v1").want(200).raw,
	); strings.Contains(openapi, "createShopExampleComV1NamespacedWidget") ||
		!strings.Contains(openapi, "readShopExampleComV1NamespacedWidget") {
		t.Error("OpenAPI does not fit the verbs")
	}
	if !strings.Contains(string(c.get("/apis/shop.example.com/v1").raw), `"shortNames":["wd"]`) {
		t.Error("the short names are lost")
	}
}

func TestCustomStorage_writes(t *testing.T) {
	t.Parallel()
	w := &writer{}
	c := startKind(t, customStorage(func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) {
		w.RESTBase = base
		return w, nil
	}).Default(func(w *v1.Widget) {
		if w.Spec.Size == "" {
			w.Spec.Size = "medium"
		}
	}).Mutate(func(_ context.Context, r annex.Request[v1.Widget]) error {
		r.Object.Labels = map[string]string{"seen": "yes"}
		return nil
	}).Admit(func(_ context.Context, r annex.Request[v1.Widget]) error {
		if r.Object.Spec.Size == "small" {
			return errors.New("too small")
		}
		return nil
	}))
	if got := fmt.Sprint(discovered(c, "widgets"), discovered(c, "widgets/status")); got != "[create get list patch update] [get]" {
		t.Errorf("discovery: %s", got)
	}
	c.post(widgetsPath, widget("x")).want(201)
	if x := w.written.Load(); x.Spec.Size != "medium" || x.Labels["seen"] != "yes" {
		t.Errorf("created %+v", x)
	}
	c.post(widgetsPath, widget("x", spec(fields{"size": "small"}))).refused(403, metav1.StatusReasonForbidden, "too small")
	if beta := c.post(widgetsBetaPath, widgetBeta("x", spec(fields{"size": "large", "parts": []string{"a=1"}}))).
		want(201); beta.str(
		"apiVersion",
	) != "shop.example.com/v1beta1" {
		t.Errorf("got %s", beta.raw)
	}
	if x := w.written.Load(); len(x.Spec.Parts) != 1 || x.Spec.Parts[0].Count != 1 {
		t.Errorf("not converted: %+v", x.Spec)
	}
	c.post(widgetsPath+"?fieldValidation=Strict", widget("x", spec(fields{"colour": "red"}))).
		refused(400, metav1.StatusReasonBadRequest, "unknown field")
	c.patch(mergePatch, widgetsPath+"/x", `{"spec":{"size":"large"}}`).want(200)
	if x := w.written.Load(); x.Spec.Size != "large" || x.Spec.Options["hello"] != "x" {
		t.Errorf("patched %+v", x)
	}
	if a := c.apply(widgetsPath+"/x", "me", widget("x", spec(fields{"options": fields{"a": "b"}}))).
		want(200); len(
		a.widget().ManagedFields,
	) == 0 {
		t.Errorf("applied: %s", a.raw)
	}
	c.get(widgetsPath + "/x/status").want(200)
	c.put(widgetsPath+"/x/status", widget("x")).refused(405, metav1.StatusReasonMethodNotAllowed)
	c.delete(widgetsPath+"/x", nil).refused(405, metav1.StatusReasonMethodNotAllowed)
}

func TestCustomStorage_destroy(t *testing.T) {
	t.Parallel()
	g := &greeter{}
	kind := customStorage(func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) {
		g.RESTBase = base
		return g, nil
	})
	server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}}
	instance, err := annex.New(t.Context(), server, annex.Options{Storage: memory.Storage()})
	if err != nil {
		t.Fatal(err)
	}
	if n := g.destroyed.Load(); n != 0 {
		t.Errorf("destroyed %d times before its time", n)
	}
	if err := instance.Close(); err != nil {
		t.Error(err)
	}
	if g.destroyed.Load() == 0 {
		t.Error("not destroyed")
	}
}

// Storages that are wrong in one way each.
type (
	noScope    struct{ rest.Storage }
	wrongScope struct{ *greeter }
	wrongType  struct{ *greeter }
	wrongList  struct{ *greeter }
	noVerbs    struct{ annex.RESTBase }
	noTable    struct {
		noVerbs
		ConvertToTable struct{}
	}
	almost struct{ annex.RESTBase }
	linked struct{ *greeter }
	badSub struct{ *greeter }
)

func (wrongScope) NamespaceScoped() bool  { return false }
func (wrongType) New() runtime.Object     { return &v1.Shelf{} }
func (wrongList) NewList() runtime.Object { return &v1.ShelfList{} }
func (noTable) List(context.Context, *metainternalversion.ListOptions) (runtime.Object, error) {
	return nil, nil
}
func (almost) Get(context.Context, string) (runtime.Object, error) { return nil, nil }
func (linked) Connect(context.Context, string, runtime.Object, rest.Responder) (http.Handler, error) {
	return nil, nil
}
func (linked) NewConnectOptions() (runtime.Object, bool, string) { return nil, false, "" }
func (linked) ConnectMethods() []string                          { return nil }
func (badSub) Subresources() map[string]rest.Storage             { return map[string]rest.Storage{"log": nil} }

func TestCustomStorage_mistakes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		make func(base annex.RESTBase) (rest.Storage, error)
		want string
	}{
		"an error": {func(annex.RESTBase) (rest.Storage, error) { return nil, errors.New("no connection") },
			"storage of widgets.shop.example.com: no connection"},
		"nothing":       {func(annex.RESTBase) (rest.Storage, error) { return nil, nil }, "CustomStorage returned no storage"},
		"a nil pointer": {func(annex.RESTBase) (rest.Storage, error) { return (*greeter)(nil), nil }, "CustomStorage returned no storage"},
		"no scope": {func(b annex.RESTBase) (rest.Storage, error) { return noScope{b}, nil }, "apitest_test.noScope has no " +
			"NamespaceScoped: embed annex.RESTBase"},
		"the wrong scope": {func(b annex.RESTBase) (rest.Storage, error) { return wrongScope{&greeter{RESTBase: b}}, nil }, "is cluster-scoped, but the kind is not ClusterScoped"},
		"the wrong type": {func(b annex.RESTBase) (rest.Storage, error) { return wrongType{&greeter{RESTBase: b}}, nil },
			"New of apitest_test.wrongType returns *v1.Shelf, not the hub *v1.Widget"},
		"the wrong list": {func(b annex.RESTBase) (rest.Storage, error) { return wrongList{&greeter{RESTBase: b}}, nil },
			"NewList of apitest_test.wrongList returns *v1.ShelfList, not the hub's list *v1.WidgetList"},
		"no verbs": {func(b annex.RESTBase) (rest.Storage, error) { return noVerbs{b}, nil }, "has no verb: implement one of " +
			"rest.Getter"},
		"no table": {func(b annex.RESTBase) (rest.Storage, error) { return noTable{noVerbs: noVerbs{b}}, nil }, "has List but no " +
			"ConvertToTable: embed annex.RESTBase"},
		"almost a verb": {func(b annex.RESTBase) (rest.Storage, error) { return almost{b}, nil }, "method Get of apitest_test.almost " +
			"does not make it a rest.Getter: compare the signatures"},
		"connect": {func(b annex.RESTBase) (rest.Storage, error) { return linked{&greeter{RESTBase: b}}, nil }, "has Connect, which only " +
			"subresources support"},
		"a nil subresource": {func(b annex.RESTBase) (rest.Storage, error) { return badSub{&greeter{RESTBase: b}}, nil }, `subresource "log" ` +
			`of apitest_test.badSub is nil`},
		"a base of its own": {func(annex.RESTBase) (rest.Storage, error) { return &greeter{}, nil }, "embed the annex.RESTBase that " +
			"CustomStorage provides"},
		"names without base": {func(b annex.RESTBase) (rest.Storage, error) { return nameless{b, b, b, &greeter{RESTBase: b}}, nil },
			"ShortNames has no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			kind := customStorage(func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) { return test.make(base) })
			refusedByNew(t, kind, test.want)
		})
	}
	t.Run("no function", func(t *testing.T) { refusedByNew(t, customStorage(nil), "CustomStorage requires a function") })
	g := func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) { return &greeter{RESTBase: base}, nil }
	t.Run("a hook", func(t *testing.T) {
		refusedByNew(t, customStorage(g).Validate(validateWidget), "Validate has no effect: a custom storage handles this itself")
	})
	t.Run("a scale", func(t *testing.T) {
		refusedByNew(t, customStorage(g).Scale(".spec.replicas", ".status.replicas", ""), "Scale has no effect")
	})
	t.Run("another group", func(t *testing.T) {
		refusedByNew(
			t,
			customStorage(g).AlsoServedAs("store.example.com", "widgets", annex.SameVersion[v1.Widget, v1.Widget]("v1")),
			"AlsoServedAs has no effect",
		)
	})
	t.Run("a source", func(t *testing.T) {
		refusedByNew(t, customStorage(g).Virtual(newSystem().source()), "Virtual and CustomStorage exclude each other")
	})
}

// nameless has everything but the names that the builder was given.
type nameless struct {
	rest.Storage
	rest.Scoper
	rest.SingularNameProvider
	rest.Getter
}

func refusedByNew(t *testing.T, kind annex.Kind, want string) {
	t.Helper()
	server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}}
	_, err := annex.New(t.Context(), server, annex.Options{Storage: memory.Storage()})
	if err == nil {
		t.Fatal("accepted")
	}
	if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %q, want one line with %q", err, want)
	}
}

// other is a server that stores none of its kinds itself.
func other() annex.Server {
	reads := annex.Source[v1.Shelf]{
		Get:    func(context.Context, string, string) (*v1.Shelf, error) { return nil, annex.ErrNotFound },
		List:   func(context.Context) ([]v1.Shelf, error) { return nil, nil },
		Update: func(context.Context, *v1.Shelf, *v1.Shelf) error { return annex.ErrNotFound },
		Poll:   10 * time.Second,
	}
	return annex.Server{Name: "other", Groups: []annex.Group{{
		Name: "shop.example.com",
		Kinds: []annex.Kind{
			customStorage(func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) {
				return &writer{greeter: greeter{RESTBase: base}}, nil
			}),
			annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().Virtual(reads),
		},
	}}}
}

// foldered has a kind in files, beside one with a custom storage.
func foldered() annex.Server {
	return only(
		customStorage(func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) { return &greeter{RESTBase: base}, nil }),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().StoredIn(files.Dir("")),
	)
}
