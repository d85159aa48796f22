package apitest_test

import (
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/shop/v1"
	"github.com/annexapi/annex/internal/shop/v1beta1"
	"github.com/annexapi/annex/store/etcd"
)

// Watches run users' functions outside of any request.
func TestPanicsInAWatchEndItAlone(t *testing.T) {
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
