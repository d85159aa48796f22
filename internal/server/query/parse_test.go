package query

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/base/ordered"
)

func pizzas() *Resource {
	of := func(get func(spec map[string]any) any) func(runtime.Object) any {
		return func(o runtime.Object) any { return get(o.(*unstructured.Unstructured).Object) }
	}
	return &Resource{
		GroupVersionResource: schema.GroupVersionResource{
			Group:    "example.com",
			Version:  "v1",
			Resource: "pizzas",
		},
		Kind:       "Pizza",
		Namespaced: true,
		Watched:    true,
		Fields: []ordered.Field{
			{Name: "spec.cost", Type: ordered.Number, Sortable: true, Get: of(func(o map[string]any) any { return o["cost"] })},
			{Name: "spec.text", Type: ordered.String, Text: true, Get: of(func(o map[string]any) any { return o["text"] })},
			{Name: "spec.hot", Type: ordered.Boolean, Get: of(func(o map[string]any) any { return o["hot"] })},
			{Name: "spec.at", Type: ordered.Time, Sortable: true, Get: of(func(map[string]any) any { panic("it cannot be told") })},
		},
	}
}

// FuzzParse checks that parsing never panics and never returns values out of bounds, and that the result can be
// applied to any object.
func FuzzParse(f *testing.F) {
	for _, query := range []string{
		"", "page=2&limit=5", "sortBy=spec.cost&ascending=false", "spec.cost[gt]=1&spec.cost[lte]=9.5&spec.cost[ne]=3", "q=a+b&name=c",
		"spec.text[contains]=x", "facets=spec.cost,name",
		"spec.hot=true&spec.at[gte]=2026-01-02T03:04:05Z", "watch=true&resourceVersion=7", "cursor=AQ", "fields=a.b,c", "limit=1000000000",
		"spec.cost[gt=1", "spec.cost]=1", "%zz", "labelSelector=a%3Db",
	} {
		f.Add(query)
	}
	object := &unstructured.Unstructured{
		Object: map[string]any{"cost": int64(5), "text": "a b c", "hot": true, "metadata": map[string]any{"name": "x"}},
	}
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.URL = &url.URL{Path: "/query/example.com/v1/pizzas", RawQuery: query}
		a, err := parse(r, place{group: "example.com", version: "v1", resource: "pizzas"}, pizzas())
		if err != nil {
			if len(err.Error()) > 4000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		q := a.request.Query
		if q.Limit < 0 || q.Limit > largestLimit || q.Offset < 0 || len(q.Counted) > mostFacets ||
			!a.tail && (!q.By.Sortable || q.By.Get == nil) {
			t.Errorf("%q is read as %+v", query, q)
		}
		q.Selects(object)
		if !a.tail {
			page, err := ordered.PageOf([]runtime.Object{object}, &q)
			if err != nil {
				t.Error(err)
			}
			if page.Total == 1 && len(page.Objects) == 1 {
				again, err := readCursor(writeCursor(page.Last, a.binding), a.binding)
				if err != nil || *again != page.Last {
					t.Errorf("a cursor behind %q: %v, %v", page.Last, again, err)
				}
			}
		}
		if a.projection != nil {
			if _, err := project([]byte(`{"a":{"b":[{"c":1},2]},"c":null,"metadata":{"name":"x"}}`), a.projection); err != nil {
				t.Error(err)
			}
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add("", "here")
	f.Add(writeCursor(ordered.Position{Value: ordered.Encode(int64(5)), Namespace: "ns", Name: "n"}, "here"), "there")
	f.Fuzz(func(t *testing.T, text, binding string) {
		p, err := readCursor(text, binding)
		if err == nil && writeCursor(*p, binding) != text {
			t.Errorf("%q is not what is written for %q", text, *p)
		}
	})
}

func TestCursor_otherQuery_isRefused(t *testing.T) {
	p := ordered.Position{Value: ordered.Encode(strings.Repeat("x", 600)), Namespace: "ns", Name: strings.Repeat("n", 253)}
	text := writeCursor(p, "here")
	if got, err := readCursor(text, "here"); err != nil || *got != p {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := readCursor(text, "there"); err == nil {
		t.Error("it is good elsewhere")
	}
	for i := range text {
		flipped := []byte(text)
		flipped[i] = "AB"[btoi(flipped[i] == 'A')]
		if _, err := readCursor(string(flipped), "here"); err == nil {
			t.Errorf("it is good with another byte %d", i)
		}
	}
	for n := range len(text) {
		if _, err := readCursor(text[:n], "here"); err == nil {
			t.Errorf("its first %d bytes are good", n)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestProject(t *testing.T) {
	const item = `{"apiVersion":"v1","kind":"Pizza","metadata":{"name":"a","uid":"1",` +
		`"labels":{"x":"y"}},"spec":{"cost":9007199254740993,"parts":[{"name":"a","n":1},{"name":"b"}],"none":null}}`
	for paths, want := range map[string]string{
		"spec.cost":         `"spec":{"cost":9007199254740993}`,
		"spec.parts.name":   `"spec":{"parts":[{"name":"a"},{"name":"b"}]}`,
		"spec.none,spec.no": `"spec":{"none":null}`,
		"metadata.labels":   `"labels":{"x":"y"}`,
		"spec,spec.cost":    `"none":null`,
		"spec.cost.deeper":  `"spec":{}`,
	} {
		projection, err := projectionOf(paths)
		if err != nil {
			t.Fatal(err)
		}
		got, err := project([]byte(item), projection)
		if err != nil || !bytes.Contains(got, []byte(want)) ||
			!bytes.Contains(got, []byte(`"name":"a","uid":"1"`)) && !bytes.Contains(got, []byte(`"name":"a"`)) ||
			!json.Valid(got) {
			t.Errorf("%s leaves %s, %v, want %s", paths, got, err, want)
		}
	}
	for _, bad := range []string{"", ".", "a..b", "a,,b", strings.Repeat("a.", 30) + "a", strings.Repeat("a,", 60) + "a"} {
		if _, err := projectionOf(bad); err == nil {
			t.Errorf("%q is taken for paths", bad)
		}
	}
}

func TestPlaceOf(t *testing.T) {
	a := New(Config{Prefix: "/query"})
	get := func(path string) *http.Request { return httptest.NewRequest(http.MethodGet, path, nil) }
	for path, want := range map[string]string{
		"/query": "/apis///", "/query/": "/apis///", "/query/core/v1/pods": "/api/v1/pods",
		"/query/g/v1/namespaces/n/pods": "/apis/g/v1/namespaces/n/pods",
		"/query/core/v1/namespaces":     "/api/v1/namespaces",
	} {
		p, ok := a.placeOf(get(path))
		if !ok || p.nowhere || p.isResource() && p.path() != want {
			t.Errorf("%s: %+v, %s", path, p, p.path())
		}
	}
	for _, path := range []string{"/query/g", "/query//v1/x", "/query/g/v1/x/y", "/query/g/v1/names/n/pods",
		"/query/g/v1/namespaces/n/pods/x"} {
		if p, ok := a.placeOf(get(path)); !ok || !p.nowhere {
			t.Errorf("%s: %+v", path, p)
		}
	}
	for _, path := range []string{"/queries", "/", "/apis/query"} {
		if _, ok := a.placeOf(get(path)); ok {
			t.Errorf("%s is taken for a query", path)
		}
	}
}

func TestParameters_areReserved(t *testing.T) {
	for _, name := range slices.Concat(common, ofPages, ofTails, names(metadata())) {
		if !ordered.Reserved(name) {
			t.Errorf("a kind may declare the field %s", name)
		}
	}
}
