package queries

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// inFive has widgets in five namespaces; jane may list them in two.
func inFive(t *testing.T) (c, jane *client) {
	c = start(t, shop(), annex.Options{})
	for i := range 5 {
		ns := fmt.Sprintf("ns%d", i)
		c.namespace(ns)
		for j := range 3 {
			c.create(ns, widget(fmt.Sprintf("w%d", j), object{"replicas": 10*j + i, "size": []string{"small", "large"}[j%2]}))
		}
	}
	c.create("default", widget("secret", object{"replicas": 50, "size": "medium"}))
	jane = c.as("secret")
	for _, ns := range []string{"ns3", "ns1"} {
		roles := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + ns
		c.must(http.MethodPost, roles+"/roles", object{"metadata": object{"name": "reader"}, "rules": []object{
			{"apiGroups": []string{"shop.example.com"}, "resources": []string{"widgets"}, "verbs": []string{"list", "watch"}},
		}})
		c.must(http.MethodPost, roles+"/rolebindings", object{
			"metadata": object{"name": "jane"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
			"subjects": []object{{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}},
		})
		testwait.Until(t, "jane may list in "+ns, func() bool {
			code, _ := jane.query("/query/shop.example.com/v1/namespaces/" + ns + "/widgets")
			return code == http.StatusOK
		})
	}
	return c, jane
}

func TestQuery_allNamespaces_onlyPermitted(t *testing.T) {
	t.Parallel()
	c, jane := inFive(t)
	for query, want := range map[string]string{
		"":                                     "ns1/w0 ns1/w1 ns1/w2 ns3/w0 ns3/w1 ns3/w2",
		"?sortBy=spec.replicas":                "ns1/w0 ns3/w0 ns1/w1 ns3/w1 ns1/w2 ns3/w2",
		"?sortBy=spec.replicas&page=2&limit=4": "ns1/w2 ns3/w2",
		"?sortBy=spec.replicas&ascending=false&limit=2": "ns3/w2 ns1/w2",
		"?spec.size=medium":                             "",
		"?spec.size=large":                              "ns1/w1 ns3/w1",
		"?spec.replicas[gt]=20&sortBy=spec.replicas":    "ns1/w2 ns3/w2",
		"?name=secret":                                  "",
		"?q=w2":                                         "ns1/w2 ns3/w2",
		"?namespace=ns2":                                "",
		"?namespace=ns1&limit=1":                        "ns1/w0",
		"?fieldSelector=spec.size%3Dlarge":              "ns1/w1 ns3/w1",
		"?fieldSelector=metadata.namespace%3Dns2":       "",
		"?fieldSelector=metadata.name%3Dw1":             "ns1/w1 ns3/w1",
	} {
		if got, want := jane.names(widgets+query), strings.Fields(want); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	if _, p := jane.query(widgets + "?limit=0&facets=namespace,spec.size"); p.TotalItems != 6 ||
		fmt.Sprint(p.counts("namespace")) != "[ns1=3 ns3=3]" || fmt.Sprint(p.counts("spec.size")) != "[small=4 large=2]" {
		t.Errorf("counts: %+v", p)
	}
	var walked []string
	cursor := ""
	for {
		_, p := jane.query(widgets + "?sortBy=spec.size&limit=1&cursor=" + cursor)
		if cursor == "" {
			_, p = jane.query(widgets + "?sortBy=spec.size&limit=1")
		}
		if p.TotalItems != 6 {
			t.Errorf("a total of %d", p.TotalItems)
		}
		walked = append(walked, p.names()...)
		if cursor = p.Cursor; cursor == "" {
			break
		}
	}
	if fmt.Sprint(walked) != "[ns1/w1 ns3/w1 ns1/w0 ns1/w2 ns3/w0 ns3/w2]" {
		t.Errorf("by cursor: %q", walked)
	}
	// jane can use the administrator's cursor, and still sees only the objects that she may list.
	_, p := c.query(widgets + "?limit=1&sortBy=spec.replicas")
	jane.same(widgets+"?limit=1&sortBy=spec.replicas&cursor="+p.Cursor, "ns1/w0")

	jane.refused(http.StatusForbidden, "/query/shop.example.com/v1/namespaces/ns2/widgets", `cannot list resource "widgets"`, `"ns2"`)
	jane.refused(http.StatusForbidden, "/query/shop.example.com/v1/shelves", "cannot list")
	jane.refused(http.StatusForbidden, "/query/core/v1/namespaces", "cannot list")
	jane.refused(http.StatusForbidden, "/query/rbac.authorization.k8s.io/v1/roles", "cannot list")
	jane.refused(http.StatusForbidden, "/query/shop.example.com/v1/gadgets", "cannot list")
}

func TestQuery_anonymousCallers(t *testing.T) {
	t.Parallel()
	c, jane := inFive(t)
	anonymous := c.as("")
	for _, path := range []string{"/query", "/query/", "/query/shop.example.com/v1", widgets, widgets + "?watch=true", "/query/nothing"} {
		if code, _ := anonymous.do(http.MethodGet, path, nil); code != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, code)
		}
	}
	if got := string(
		jane.must(http.MethodGet, "/query", nil),
	); strings.Count(got, `"path"`) != 2 ||
		!strings.Contains(got, `"/query/shop.example.com/v1beta1/widgets"`) {
		t.Errorf("jane sees %s", got)
	}
	if got := string(jane.must(http.MethodGet, "/query/rbac.authorization.k8s.io/v1", nil)); got != `{"resources":[]}`+"\n" {
		t.Errorf("jane sees %s", got)
	}
	if code, _ := jane.do(http.MethodPost, "/query", nil); code != http.StatusForbidden {
		t.Errorf("a post: %d", code)
	}
}
