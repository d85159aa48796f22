package resources_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/standalone/resources"
)

func group(name string, versions ...apidiscovery.APIVersionDiscovery) apidiscovery.APIGroupDiscovery {
	return apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}, Versions: versions}
}

func version(name string, all ...apidiscovery.APIResourceDiscovery) apidiscovery.APIVersionDiscovery {
	return apidiscovery.APIVersionDiscovery{Version: name, Freshness: apidiscovery.DiscoveryFreshnessCurrent, Resources: all}
}

func resource(name, kind string, verbs ...string) apidiscovery.APIResourceDiscovery {
	return apidiscovery.APIResourceDiscovery{
		Resource:     name,
		ResponseKind: &metav1.GroupVersionKind{Kind: kind},
		Scope:        apidiscovery.ScopeNamespace,
		Verbs:        verbs,
	}
}

func stale(v apidiscovery.APIVersionDiscovery) apidiscovery.APIVersionDiscovery {
	v.Freshness = apidiscovery.DiscoveryFreshnessStale
	return v
}

func TestSet_preferredVersion(t *testing.T) {
	only := apidiscovery.APIResourceDiscovery{Resource: "pods", Subresources: []apidiscovery.APISubresourceDiscovery{{Subresource: "exec"}}}
	set := resources.NewSet([]apidiscovery.APIGroupDiscovery{
		group(
			"a",
			version("v2", resource("apples", "Apple", "get", "list", "delete")),
			version("v1", resource("apples", "Apple", "get"), resource("pears", "Pear", "delete")),
		),
		group("b", stale(version("v3", resource("plums", "Plum"))), version("v2", resource("plums", "Plum"), only)),
	})
	var got []string
	for _, r := range set.All() {
		got = append(got, r.String())
	}
	if got, want := strings.Join(got, "; "), "a/v2, Resource=apples; a/v1, Resource=pears; b/v2, Resource=plums"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if r, ok := set.Get(
		schema.GroupResource{Group: "a", Resource: "apples"},
	); !ok || !r.Can("get", "list") || r.Can("get", "watch") ||
		!r.Namespaced {
		t.Errorf("apples: %v, %v", r, ok)
	}
	if _, ok := set.Get(schema.GroupResource{Group: "b", Resource: "apples"}); ok {
		t.Error("apples in another group")
	}
}

func TestSet_Of(t *testing.T) {
	set := resources.NewSet([]apidiscovery.APIGroupDiscovery{
		group("a", version("v2", resource("apples", "Apple", "get")), version("v1", resource("apples", "Apple", "get"))),
		group("b", version("v2", resource("plums", "Plum", "get")), version("v1", resource("damsons", "Plum", "get")), stale(version("v0"))),
		group("c", version("v1", resource("reviews", "Nut", "create"), resource("nuts", "Nut", "get"), resource("later", "Nut", "get"))),
	})
	for kind, want := range map[schema.GroupVersionKind]string{
		{Group: "a", Version: "v1", Kind: "Apple"}: "apples",
		{Group: "a", Version: "v0", Kind: "Apple"}: "apples", // all versions agree
		{Group: "a", Version: "v1", Kind: "Pear"}:  "",
		{Group: "b", Version: "v2", Kind: "Plum"}:  "plums",
		{Group: "b", Version: "v1", Kind: "Plum"}:  "damsons",
		{Group: "b", Version: "v9", Kind: "Plum"}:  "", // ambiguous
		{Group: "b", Version: "v0", Kind: "Plum"}:  "", // the discovery of that version failed
		{Group: "c", Version: "v1", Kind: "Nut"}:   "nuts",
		{Version: "v1", Kind: "Apple"}:             "",
	} {
		if r, ok := set.Of(kind); ok != (want != "") || r.Resource != want {
			t.Errorf("%s is %q, want %q", kind, r.Resource, want)
		}
	}
}

func TestSet_failedVersions(t *testing.T) {
	set := resources.NewSet([]apidiscovery.APIGroupDiscovery{group("a", stale(version("v1")), version("v2", resource("apples", "Apple")))})
	failed := &discovery.ErrGroupDiscoveryFailed{}
	if err := set.Err(); !errors.As(err, &failed) ||
		err.Error() != "unable to retrieve the complete list of server APIs: a/v1: stale GroupVersion discovery: a/v1" {
		t.Errorf("got %v", err)
	}
	if set := resources.NewSet(nil); set.Err() != nil {
		t.Errorf("got %v", set.Err())
	}
}

func TestSet_Content(t *testing.T) {
	cluster := resource("shelves", "Shelf", "delete")
	cluster.Scope = apidiscovery.ScopeCluster
	set := resources.NewSet([]apidiscovery.APIGroupDiscovery{
		group("a", version("v1", resource("apples", "Apple", "delete"), resource("reviews", "Review", "create"), cluster)),
	})
	if got := set.Content(); len(got) != 1 || got[0].Resource != "apples" {
		t.Errorf("got %v", got)
	}
}

const (
	mediaType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	apples    = `{"items":[{"metadata":{"name":"a"},"versions":[{"version":"v1",` +
		`"freshness":"Current","resources":[{"resource":"apples","responseKind":{"kind":"Apple"},"scope":"Namespaced","verbs":["get"]}]}]}]}`
)

func TestClient_Ask_unchanged(t *testing.T) {
	tag, body, full := `"1"`, apples, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/prefix/apis" {
			http.NotFound(w, req) // no core group
			return
		}
		w.Header().Set("ETag", tag)
		w.Header().Set("Content-Type", mediaType)
		if req.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		full++
		w.Write([]byte(body))
	}))
	defer server.Close()
	c, err := resources.NewClient(&rest.Config{Host: server.URL + "/prefix"})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() *resources.Set {
		t.Helper()
		set, err := c.Ask(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	first := ask()
	if again := ask(); again != first || full != 1 || len(first.All()) != 1 {
		t.Errorf("%v and %v, in %d answers", first.All(), again.All(), full)
	}
	tag, body = `"2"`, `{"items":[]}`
	if other := ask(); other == first || len(other.All()) != 0 || len(first.All()) != 1 {
		t.Errorf("%v and %v", first.All(), other.All())
	}
}

// Directly after a start, discovery may not show all custom resources yet.
func TestClient_AskForAll_hiddenCustomResources(t *testing.T) {
	crd := func(established string) string {
		return `{"spec":{"group":"x","versions":[{"name":"v1","served":true},{"name":"v0"}]},` +
			`"status":{"conditions":[{"type":"Established","status":"` + established + `"}]}}`
	}
	crds := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	discovered := func(all ...string) string {
		body, err := json.Marshal(apidiscovery.APIGroupDiscoveryList{Items: []apidiscovery.APIGroupDiscovery{
			group("apiextensions.k8s.io", version("v1", resource("customresourcedefinitions", "CustomResourceDefinition", "list"))),
			group("x", version("v1", resource("apples", "Apple", "delete"))),
		}[:1+len(all)]})
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	for name, test := range map[string]struct {
		answers map[string]string
		want    string
	}{
		"shown": {map[string]string{"/apis": discovered("x"), crds: `{"items":[{"metadata":{"name":"apples.x"}}]}`}, "[apples], <nil>"},
		"not shown": {map[string]string{"/apis": discovered(), crds: `{"items":[{"metadata":{"name":"apples.x"}}]}`, crds +
			"/apples.x": crd("True")}, "[], unable to retrieve the complete list of server APIs: x/v1: apples.x is not in discovery yet"},
		"not established": {map[string]string{"/apis": discovered(), crds: `{"items":[{"metadata":{"name":"apples.x"}}]}`, crds +
			"/apples.x": crd("False")}, "[], <nil>"},
		"gone meanwhile": {map[string]string{"/apis": discovered(), crds: `{"items":[{"metadata":{"name":"apples.x"}}]}`}, "[], <nil>"},
		"fails":          {map[string]string{"/apis": discovered(), crds: "{"}, "[], custom resources: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				body, ok := test.answers[req.URL.Path]
				if !ok {
					http.NotFound(w, req)
					return
				}
				w.Header().Set("Content-Type", mediaType)
				w.Write([]byte(body))
			}))
			defer server.Close()
			c, err := resources.NewClient(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			content, err := c.Content(t.Context())
			var names []string
			for _, r := range content {
				names = append(names, r.Resource)
			}
			if got := fmt.Sprintf("%v, %v", names, err); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestClient_Ask_invalidResponse(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"unaggregated": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte("{}"))
		}, "discovery at /api: the server answers with application/json, not with aggregated discovery v2"},
		"forbidden": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "discovery at /api: the server " +
			"answers 403 Forbidden"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			w.Write([]byte(`{"items":[`))
		}, "discovery at /api: decode the answer: unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.answer)
			defer server.Close()
			c, err := resources.NewClient(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Ask(t.Context()); err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}
