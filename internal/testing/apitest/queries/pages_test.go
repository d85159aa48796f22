package queries

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// stocked has six widgets in one namespace.
func stocked(t *testing.T) *client {
	c := start(t, shop(), annex.Options{})
	for i, spec := range []object{
		{"replicas": 10, "size": "small", "options": object{"note": "The Red Brick"}},
		{"replicas": 9, "size": "large", "options": object{"note": "a green brick"}},
		{"replicas": -1, "size": "small"},
		{"replicas": 9, "size": "medium"},
		{"size": "large"},
		{"replicas": 100, "size": "small", "options": object{"note": "red"}},
	} {
		c.create("default", widget(fmt.Sprintf("w%d", i), spec, "odd", fmt.Sprint(i%2 == 1)))
	}
	return c
}

func TestQuery_sortsFiltersAndCounts(t *testing.T) {
	t.Parallel()
	c := stocked(t)
	for path, want := range map[string]string{
		"":                                            "w0 w1 w2 w3 w4 w5",
		"?sortBy=spec.replicas":                       "w4 w2 w1 w3 w0 w5",
		"?sortBy=spec.replicas&ascending=false":       "w5 w0 w3 w1 w2 w4",
		"?sortBy=spec.replicas&page=2&limit=2":        "w1 w3",
		"?sortBy=spec.size&limit=3":                   "w1 w4 w3",
		"?sortBy=name&ascending=false&limit=1":        "w5",
		"?page=4&limit=2":                             "",
		"?spec.replicas=9":                            "w1 w3",
		"?spec.replicas=9&spec.replicas=100":          "w1 w3 w5",
		"?spec.replicas[ne]=9":                        "w0 w2 w4 w5",
		"?spec.replicas[gt]=9":                        "w0 w5",
		"?spec.replicas[gte]=9&spec.replicas[lt]=100": "w0 w1 w3",
		"?spec.replicas[lte]=9.5":                     "w1 w2 w3",
		"?spec.size=small&sortBy=spec.replicas":       "w2 w0 w5",
		"?spec.size[contains]=mall":                   "w0 w2 w5",
		"?name=w1":                                    "w1",
		"?name=w&labelSelector=odd%3Dtrue":            "w1 w3 w5",
		"?fieldSelector=spec.size%3Dlarge":            "w1 w4",
		"?fieldSelector=metadata.name%3Dw2":           "w2",
		"?q=RED":                                      "w0 w5",
		"?q=brick+red":                                "w0",
		"?q=red+w5":                                   "w5",
		"?q=odd%3Dtrue":                               "w1 w3 w5",
		"?q=default+w4":                               "w4",
		"?q=odd%3Dtrue+red":                           "w5",
		"?failing=true":                               "",
		"?namespace=default&limit=1":                  "w0",
		"?creationTimestamp[gt]=2020-01-01T00:00:00Z&limit=1": "w0",
		"?creationTimestamp[lt]=2020-01-01T00:00:00Z":         "",
		"?sortBy=spec.replicas&spec.replicas[gt]=9&limit=1":   "w0",
	} {
		want := strings.Fields(want)
		if got := c.names(widgets + path); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
		in := "/query/shop.example.com/v1/namespaces/default/widgets" + path
		if got := c.names(in); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
	if _, p := c.query(
		widgets + "?limit=0&facets=spec.size,spec.replicas&name=w",
	); p.TotalItems != 6 || len(p.Items) != 0 || p.Cursor != "" ||
		fmt.Sprint(
			p.counts("spec.size"),
		) != "[small=3 large=2 medium=1]" ||
		fmt.Sprint(p.counts("spec.replicas")) != "[9=2 null=1 -1=1 10=1 100=1]" {
		t.Errorf("counts: %+v", p)
	}
	_, p := c.query(widgets + "?sortBy=spec.replicas&spec.replicas[gt]=5&limit=1")
	if p.TotalItems != 4 || p.Cursor == "" {
		t.Errorf("one of four: %+v", p)
	}
}

func (p page) counts(field string) []string {
	var all []string
	for _, f := range p.Facets[field] {
		value := "null"
		if f.Value != nil {
			value = *f.Value
		}
		all = append(all, fmt.Sprintf("%s=%d", value, f.Count))
	}
	return all
}

func TestQuery_items_likeList(t *testing.T) {
	t.Parallel()
	c := stocked(t)
	for _, version := range []string{"v1", "v1beta1"} {
		var list page
		if err := json.Unmarshal(c.must(http.MethodGet, "/apis/shop.example.com/"+version+"/widgets", nil), &list); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second response comes from the cache
			_, p := c.query("/query/shop.example.com/" + version + "/widgets")
			for i, item := range p.Items {
				if item["kind"] != "Widget" || item["apiVersion"] != "shop.example.com/"+version {
					t.Errorf("%s: kind and version are %v and %v", version, item["kind"], item["apiVersion"])
				}
				delete(item, "kind")
				delete(item, "apiVersion")
				if m := item["metadata"].(object); m["managedFields"] != nil {
					t.Errorf("%s: managed fields are not left out: %v", version, m)
				}
				delete(list.Items[i]["metadata"].(object), "managedFields")
				delete(list.Items[i], "kind")
				delete(list.Items[i], "apiVersion")
				if got, want := fmt.Sprint(item), fmt.Sprint(list.Items[i]); got != want {
					t.Errorf("%s: got %s, want %s", version, got, want)
				}
			}
		}
	}
	_, p := c.query(widgets + "?fields=spec.size,metadata.labels&limit=1")
	m := p.Items[0]["metadata"].(object)
	if fmt.Sprint(p.Items[0]["spec"]) != "map[size:small]" || m["uid"] == nil || m["labels"] == nil || m["creationTimestamp"] != nil ||
		p.Items[0]["kind"] != "Widget" {
		t.Errorf("a projection: %v", p.Items[0])
	}
}

func TestQuery_managedFields(t *testing.T) {
	t.Parallel()
	c := stocked(t)
	for parameters, want := range map[string]bool{
		"":                                        false,
		"&showManagedFields=false":                false,
		"&showManagedFields=true":                 true,
		"&fields=spec":                            false,
		"&fields=metadata":                        false,
		"&fields=metadata.managedFields":          true,
		"&fields=metadata.managedFields.manager":  true,
		"&fields=metadata&showManagedFields=true": true,
	} {
		_, p := c.query(widgets + "?limit=1" + parameters)
		if got := p.Items[0]["metadata"].(object)["managedFields"] != nil; got != want {
			t.Errorf("%q: managed fields are there: %t, want %t", parameters, got, want)
		}
		e := c.tail(widgets + "?watch=true&name=w0" + parameters).next()
		if got := e.object["metadata"].(object)["managedFields"] != nil; got != want {
			t.Errorf("%q: managed fields are in the tail: %t, want %t", parameters, got, want)
		}
	}
}

func TestQuery_cursors(t *testing.T) {
	t.Parallel()
	c := stocked(t)
	for _, query := range []string{"?limit=1", "?limit=4&sortBy=spec.replicas&ascending=false", "?limit=2&spec.size=small&q=red",
		"?limit=1&sortBy=spec.size&fields=spec"} {
		_, rest, _ := strings.Cut(query, "&")
		want := c.names(widgets + "?limit=50&" + rest)
		var got []string
		for cursor := ""; ; {
			at := widgets + query
			if cursor != "" {
				at += "&cursor=" + cursor
			}
			code, p := c.query(at)
			if code != 200 {
				t.Fatalf("%s: %s", at, p.Message)
			}
			got = append(got, p.names()...)
			if cursor = p.Cursor; cursor == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

func TestQuery_badQueries(t *testing.T) {
	t.Parallel()
	c := stocked(t)
	_, p := c.query(widgets + "?limit=1&sortBy=spec.replicas")
	cursor := p.Cursor
	flipped := []byte(cursor)
	flipped[4] ^= 1
	for path, words := range map[string]string{
		"?sortBy=spec.cost":                "spec.replicas",
		"?sortBy=status.phase":             "sortBy: unknown field",
		"?limit=1000000000":                "0 to 1000",
		"?limit=-1":                        "0 to 1000",
		"?limit=x":                         "is not a number",
		"?page=0":                          "1 to",
		"?ascending=maybe":                 "must be true or false",
		"?spec.cost=1":                     "spec.replicas, status.phase",
		"?spec.replicas=many":              "is not a number",
		"?spec.replicas=NaN":               "is not a number",
		"?spec.replicas[near]=1":           "[contains]",
		"?spec.replicas[gt=1":              "alone, or one of",
		"?spec.replicas[contains]=1":       "does not support contains",
		"?creationTimestamp[gt]=yesterday": "is not a time",
		"?facets=spec.nothing":             "spec.replicas",
		"?facets=name,name":                "twice",
		"?limit=1&limit=2":                 "2 times",
		"?fields=spec..size":               "is not a path",
		"?labelSelector=%3D%3D":            "",
		"?fieldSelector=spec.nothing%3Dx":  "spec.nothing",
		"?cursor=%20":                      "cursor",
		"?cursor=AAAA":                     "cursor",
		"?resourceVersion=5":               "requires watch=true",
		"?watch=true&limit=5":              "limit is not supported with watch=true",
		"?watch=true&resourceVersion=x":    "is not a resource version",
		"?page=2&cursor=" + cursor:         "exclude",
		"?sortBy=spec.replicas&limit=1&page=1&cursor=" + cursor:  "exclude",
		"?sortBy=spec.replicas&ascending=false&cursor=" + cursor: "cursor",
		"?sortBy=spec.replicas&spec.size=small&cursor=" + cursor: "cursor",
		"?cursor=" + cursor: "cursor",
		"?sortBy=spec.replicas&cursor=" + url.QueryEscape(string(flipped)): "cursor",
		"?spec.size=" + strings.Repeat("x", 600):                           "511",
		"?" + strings.Repeat("spec.size=a&", 201):                          "more than 200",
		"?%zz": "cannot be read",
	} {
		c.refused(http.StatusBadRequest, widgets+path, words)
	}
	c.refused(http.StatusBadRequest, "/query/shop.example.com/v1/namespaces/default/widgets?sortBy=spec.replicas&cursor="+cursor, "cursor")
	c.refused(http.StatusNotFound, "/query/shop.example.com/v1/gadgets", "/query")
	c.refused(http.StatusNotFound, "/query/shop.example.com/v2/widgets", "v2")
	c.refused(http.StatusNotFound, "/query/shop.example.com/v1/namespaces/default/shelves", "no namespace")
	c.refused(http.StatusNotFound, "/query/shop.example.com/v2", "/query")
	c.refused(http.StatusNotFound, "/query/a/b/c/d", "/query")
	c.refused(http.StatusBadRequest, "/query?x=1", `"x"`)
	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut} {
		if code, _ := c.do(method, widgets, nil); code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, code)
		}
	}
	if code, raw := c.do(http.MethodGet, widgets+"?watch=true", nil, "Accept", "application/json"); code != http.StatusNotAcceptable {
		t.Errorf("a tail as JSON: %d %s", code, raw)
	}
}

// The cost of a request is bounded, whatever it contains.
func TestQuery_hostileQueries(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	c.create("default", widget("w", object{"replicas": 1, "options": object{"note": "a b c"}}))
	repeated := func(parameter string, n int) string { return widgets + "?" + strings.Repeat("&"+parameter, n)[1:] }
	c.refused(http.StatusBadRequest, repeated("spec.size=x", 10_000), "more than 200 values")
	c.refused(http.StatusBadRequest, repeated("spec.size[contains]=x", 10_000), "more than 200 values")
	c.refused(http.StatusBadRequest, repeated("spec.size[contains]=x", 51), "51 substrings; the maximum is 50")
	c.refused(http.StatusBadRequest, repeated("spec.size[contains]=x", 50)+"&name=x", "51 substrings")
	c.same(repeated("name[contains]=w", 50), "w")
	c.refused(http.StatusBadRequest, widgets+"?q="+strings.Repeat("a+", 100_000), "words")
	c.refused(http.StatusBadRequest, widgets+"?fields="+strings.Repeat("a.", 10_000)+"a", "paths")
	c.refused(http.StatusBadRequest, widgets+"?fields="+strings.Repeat("a,", 10_000)+"a", "paths")
	c.refused(http.StatusBadRequest, widgets+"?facets="+strings.Repeat("name,", 10), "twice")
	c.refused(http.StatusBadRequest, widgets+"?cursor="+strings.Repeat("A", 100_000), "cursor")
	c.refused(http.StatusBadRequest, widgets+"?page=1000000000", "1000000")
	c.same(widgets + "?page=1000000&limit=1000")
	// No input is taken for a pattern.
	for _, text := range []string{".*", "(a+)+$", "%", "*", "\\", "'; --", "{{7*7}}", "\x00", "\xff"} {
		c.same(widgets + "?name=" + url.QueryEscape(text))
		c.same(widgets + "?q=" + url.QueryEscape(text))
		c.same(widgets + "?spec.size[contains]=" + url.QueryEscape(text))
		c.same(widgets + "?spec.size=" + url.QueryEscape(text))
	}
}

func TestQuery_descriptionOfFields(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	type described struct {
		Resources []struct {
			Group, Version, Name, Kind, Path string
			Namespaced                       bool
			Fields                           []struct {
				Name, Type, Description             string
				Sortable, Filterable, Text, Indexed bool
			}
		}
	}
	var all, one described
	if err := json.Unmarshal(c.must(http.MethodGet, "/query", nil), &all); err != nil {
		t.Fatal(err)
	}
	paths := []string{}
	for _, r := range all.Resources {
		paths = append(paths, r.Path)
	}
	for _, want := range []string{widgets, "/query/shop.example.com/v1beta1/widgets", "/query/core/v1/namespaces",
		"/query/rbac.authorization.k8s.io/v1/roles"} {
		if !slices.Contains(paths, want) {
			t.Errorf("%q lack %s", paths, want)
		}
	}
	if err := json.Unmarshal(c.must(http.MethodGet, "/query/shop.example.com/v1beta1", nil), &one); err != nil {
		t.Fatal(err)
	}
	for i := range one.Resources[0].Fields { // etcd keeps no orders
		if f := &one.Resources[0].Fields[i]; os.Getenv(onEtcd) != "" {
			f.Indexed = f.Sortable
		}
	}
	if got := fmt.Sprint(one.Resources[0]); got != "{  widgets Widget /query/shop.example.com/v1beta1/widgets true ["+
		"{name string metadata.name true true true true} {namespace string metadata.namespace true true false true} "+
		"{creationTimestamp time metadata.creationTimestamp true true false true} {spec.replicas number how many true true false true} "+
		"{status.phase string  false true false false} {spec.options string  false true true false} {spec.size string  true true false true} "+
		"{failing boolean "+
		"whether a condition in the status fails: one such as Ready is False, or one such as Degraded is True false true false false}]}" {
		t.Errorf("got %s", got)
	}
	for _, r := range all.Resources {
		if code, p := c.query(r.Path + "?sortBy=creationTimestamp&limit=2"); code != 200 {
			t.Errorf("%s: %d %s", r.Path, code, p.Message)
		}
	}
}

func TestQuery_prefixAndDisabled(t *testing.T) {
	t.Parallel()
	server := shop()
	server.Query.Prefix = "/kapis"
	c := start(t, server, annex.Options{})
	c.same("/kapis/shop.example.com/v1/widgets")
	if code, _ := c.do(http.MethodGet, widgets, nil); code != 404 {
		t.Errorf("where it was: %d", code)
	}
	none := start(t, server, annex.Options{QueryPrefix: new("")})
	if code, _ := none.do(http.MethodGet, "/kapis/shop.example.com/v1/widgets", nil); code != 404 {
		t.Errorf("where there is none: %d", code)
	}
	beside := shop()
	beside.Handlers = []annex.Handler{{Path: "/query/widgets", Handler: http.NotFoundHandler()}}
	if _, err := annex.New(
		t.Context(),
		beside,
		annex.Options{Storage: memory.Storage()},
	); err == nil ||
		!strings.Contains(err.Error(), "with a slash") {
		t.Errorf("a handler at what may be a query's path: %v", err)
	}
	for _, prefix := range []string{"query", "/", "/apis/x", "/q/", "/a b"} {
		if _, err := annex.New(
			t.Context(),
			server,
			annex.Options{Storage: memory.Storage(), QueryPrefix: &prefix},
		); err == nil ||
			!strings.Contains(err.Error(), "Options.QueryPrefix") {
			t.Errorf("%q: %v", prefix, err)
		}
		moved := shop()
		moved.Query.Prefix = prefix
		if _, err := annex.New(
			t.Context(),
			moved,
			annex.Options{Storage: memory.Storage()},
		); err == nil ||
			!strings.Contains(err.Error(), "Server.Query") {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}

// A server may answer other requests below the prefix itself: queries stay unchanged, with the rights of their list.
func TestQuery_handlersBelowPrefix(t *testing.T) {
	t.Parallel()
	server := shop()
	server.Query.Prefix = "/kapis"
	const below = "/kapis/shop.example.com/v1/"
	server.Handlers = []annex.Handler{{
		Path:    below,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", r.Method, r.URL.Path) }),
		Resource: func(r *http.Request) *authorizationv1.ResourceAttributes {
			return &authorizationv1.ResourceAttributes{
				Verb:        "get",
				Group:       "shop.example.com",
				Version:     "v1",
				Resource:    "widgets",
				Subresource: "made-by-hand",
			}
		},
	}}
	c := start(t, server, annex.Options{})
	c.create("default", widget("w0", object{"size": "small"}))
	for user, rule := range map[string]object{
		"reader":  {"apiGroups": []string{"shop.example.com"}, "resources": []string{"widgets"}, "verbs": []string{"list"}},
		"crafter": {"apiGroups": []string{"shop.example.com"}, "resources": []string{"widgets/made-by-hand"}, "verbs": []string{"get"}},
	} {
		const roles = "/apis/rbac.authorization.k8s.io/v1/"
		c.must(http.MethodPost, roles+"clusterroles", object{"metadata": object{"name": user}, "rules": []object{rule}})
		c.must(http.MethodPost, roles+"clusterrolebindings", object{
			"metadata": object{"name": user}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
			"subjects": []object{{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}},
		})
	}
	testwait.Until(t, "the users have their roles", func() bool {
		read, _ := c.do(http.MethodGet, below+"widgets", nil, "Impersonate-User", "reader")
		made, _ := c.do(http.MethodPost, below+"widgets", nil, "Impersonate-User", "crafter")
		return read == http.StatusOK && made == http.StatusOK
	})
	for _, test := range []struct{ user, method, path, want string }{
		{"reader", "GET", below + "widgets", `"totalItems":1`},
		{"reader", "GET", below + "namespaces/default/widgets?limit=0", `"totalItems":1`},
		{"reader", "GET", "/kapis/shop.example.com/v1", `"widgets"`},
		{"reader", "GET", below + "none", `cannot list resource`},
		{"reader", "GET", below + "namespaces/default/widgets/w0", "widgets/made-by-hand"},
		{"reader", "POST", below + "widgets", "widgets/made-by-hand"},
		{"crafter", "GET", below + "namespaces/default/widgets/w0", "GET " + below + "namespaces/default/widgets/w0"},
		{"crafter", "POST", below + "widgets", "POST " + below + "widgets"},
		{"crafter", "PUT", below, "PUT " + below},
		{"crafter", "GET", below + "widgets", "cannot list resource"},
		{"crafter", "GET", below + "namespaces/default/widgets", "cannot list resource"},
		{"crafter", "POST", "/kapis/shop.example.com/v1beta1/widgets", "cannot post path"},
		{"crafter", "GET", below + "namespaces//widgets", "empty or dotted"},
	} {
		if code, body := c.do(test.method, test.path, nil, "Impersonate-User", test.user); !strings.Contains(string(body), test.want) {
			t.Errorf("%s %s by %s: %d %s", test.method, test.path, test.user, code, body)
		}
	}
}
