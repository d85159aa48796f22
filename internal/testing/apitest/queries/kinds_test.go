package queries

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
)

func TestQuery_virtualKinds(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	shelves := map[string][]string{"left": {"hammer", "nails"}, "middle": nil, "right": {"saw"}}
	shelf := func(name string) v1.Shelf {
		return v1.Shelf{ObjectMeta: metav1.ObjectMeta{Name: name}, Widgets: shelves[name]}
	}
	kind := annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().
		Query(annex.Sortable("widgets", func(s *v1.Shelf) int { return len(s.Widgets) })).
		Virtual(annex.Source[v1.Shelf]{
			Get: func(_ context.Context, _, name string) (*v1.Shelf, error) {
				mu.Lock()
				defer mu.Unlock()
				if _, ok := shelves[name]; !ok {
					return nil, annex.ErrNotFound
				}
				s := shelf(name)
				return &s, nil
			},
			List: func(context.Context) ([]v1.Shelf, error) {
				mu.Lock()
				defer mu.Unlock()
				var all []v1.Shelf
				for name := range shelves {
					all = append(all, shelf(name))
				}
				return all, nil
			},
		})
	c := start(t, annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}}, annex.Options{})
	at := "/query/shop.example.com/v1/shelves"
	c.same(at+"?sortBy=widgets", "middle", "right", "left")
	c.same(at+"?widgets[gt]=0&sortBy=name&ascending=false", "right", "left")
	mu.Lock()
	shelves["middle"] = []string{"a", "b", "c"}
	mu.Unlock()
	c.same(at+"?sortBy=widgets&ascending=false&limit=1", "middle") // the source is asked each time
}

func TestNew_queryFields_mistakes(t *testing.T) {
	t.Parallel()
	size := func(w *v1.Widget) string { return w.Spec.Size }
	for want, field := range map[string]annex.QueryField[v1.Widget]{
		`query field "limit"`: annex.Sortable("limit", size),
		`"spec.weight" does not exist in version v1, the hub: Go type v1.WidgetSpec has no field "weight"; it has replicas, size, parts, options`: annex.Filterable("spec.weight", size),
		`"spec.sise" does not exist in version v1, the hub: Go type v1.WidgetSpec has no field "sise": did you mean spec.size?`:                   annex.Sortable("spec.sise", size),
		`"spec.size" has no function`:       annex.Text[v1.Widget]("spec.size", nil),
		`"spec.replicas" is declared twice`: annex.Sortable("spec.replicas", size),
	} {
		server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
			annex.KindOf[v1.Widget, v1.WidgetList](
				"widgets",
				v1.API,
			).Query(annex.Sortable("spec.replicas", func(w *v1.Widget) *int32 { return w.Spec.Replicas }), field),
		}}}}
		if _, err := annex.New(
			t.Context(),
			server,
			annex.Options{Storage: memory.Storage()},
		); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestMetrics_queriesCountForTheirResource covers code that attributes requests to a resource.
func TestMetrics_queriesCountForTheirResource(t *testing.T) {
	t.Parallel()
	c := stocked(t)
	c.names(widgets + "?sortBy=spec.replicas")
	metrics := string(c.must(http.MethodGet, "/metrics", nil))
	want := `apiserver_request_total{code="200",component="apiserver",dry_run="",` +
		`group="shop.example.com",resource="widgets",scope="cluster",subresource="",verb="LIST",version="v1"}`
	if !strings.Contains(metrics, want) {
		t.Error(fmt.Sprint("there is no ", want))
	}
}
