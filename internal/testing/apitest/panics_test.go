package apitest_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/store/etcd"
)

// Watches run users' functions outside of any request.
func TestWatch_panic_endsOnlyThatWatch(t *testing.T) {
	t.Parallel()
	notOn(t, "the watch cache is read for all watches at once; etcdtest says what happens there", etcd.Name)
	marked := metadata(fields{"annotations": fields{"panic": "please"}})
	panics := func(w metav1.Object) {
		if w.GetAnnotations()["panic"] != "" {
			panic("a mistake")
		}
	}
	for name, kind := range map[string]*annex.KindBuilder[v1.Widget]{
		"selectable field": annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
			SelectableField("spec.size", func(w *v1.Widget) string { panics(w); return w.Spec.Size }).IndexFields("spec.size"),
		"conversion": annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).StoredAs("v1beta1").
			Versions(annex.Version(v1beta1.API, func(in *v1beta1.Widget, hub *v1.Widget) error {
				panics(in)
				return v1beta1.WidgetToHub(in, hub)
			}, v1beta1.WidgetFromHub)).
			SelectableField("spec.size", func(w *v1.Widget) string { return w.Spec.Size }),
	} {
		t.Run(name, func(t *testing.T) {
			c := startKind(t, kind)
			w := c.watch(widgetsPath + "?watch=1&fieldSelector=spec.size%3Dmedium")
			c.create("before")
			w.want("ADDED before")
			c.post(widgetsPath, widget("w", marked))
			if e := w.next(); e.Type != "ERROR" || !strings.Contains(text(e.Object, "message"), "a mistake") {
				t.Errorf("got %v", e.Object)
			}
			w.ends()
			c.create("after")
			c.get("/readyz").want(http.StatusOK)
		})
	}
}

// A column is a function of the user's. A table that has begun is cut off at a panic, so that no client takes it for
// a whole one; a shorter one is an error, as upstream's are.
func TestTables_panicInColumn(t *testing.T) {
	t.Parallel()
	notOn(t, "tables are upstream's there", etcd.Name)
	if slow() {
		t.Skip("upstream's handler makes the table before it answers")
	}
	c := startKind(t, annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Columns(annex.Column[v1.Widget]{
		Name: "Size", Type: "string", Value: func(w *v1.Widget) any {
			if w.Annotations["panic"] != "" {
				panic("a mistake")
			}
			return w.Spec.Size
		},
	}))
	table := func() (code int, read []byte, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		response := c.send(ctx, http.MethodGet, widgetsPath, nil, "Accept", tableType, "Accept-Encoding", "identity")
		defer response.Body.Close()
		read, err = io.ReadAll(response.Body)
		return response.StatusCode, read, err
	}
	c.post(widgetsPath, widget("zz", metadata(fields{"annotations": fields{"panic": "please"}}))).want(201)
	code, read, err := table()
	if want := c.get(
		widgetsPath,
		"Accept",
		tableType+";answered=upstream",
	); err != nil || code != 500 || want.code != 500 ||
		string(read) != string(want.raw) {
		t.Errorf("answered %d %s, %v; upstream: %d %s", code, read, err, want.code, want.raw)
	}
	long := fields{"annotations": fields{"long": strings.Repeat("x", 50<<10)}}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		c.post(widgetsPath, widget(name, metadata(long))).want(201)
	}
	if code, read, err = table(); code != 200 || err == nil || len(read) == 0 {
		t.Errorf("answered %d and %d bytes as if they were all: %v", code, len(read), err)
	}
	c.get("/readyz").want(http.StatusOK)
}
