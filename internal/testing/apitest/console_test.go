package apitest_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

func startConsole(t *testing.T, options annex.Options) *client {
	t.Helper()
	options.Storage, options.Console = memory.Storage(), new(true)
	return startWith(t, shop(), options)
}

func TestConsole_browsersAreRedirected(t *testing.T) {
	t.Parallel()
	c := startConsole(t, annex.Options{})
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	const html = "text/html,application/xhtml+xml,*/*;q=0.8"
	pages := map[string]string{"/": "/console/", "/console": "/console/", "/docs": "/swagger-ui/", "/swagger-ui": "/swagger-ui/"}
	for path, want := range pages {
		a := c.get(path, "Accept", html).want(302)
		if got := a.header.Get("Location"); got != want {
			t.Errorf("%s leads to %s", path, got)
		}
	}
	c.get("/nowhere", "Accept", html).want(404)
	c.get("/apis", "Accept", html).want(200)
	var paths struct{ Paths []string }
	if err := json.Unmarshal(c.get("/", "Accept", "application/json, */*").want(200).raw, &paths); err != nil || len(paths.Paths) < 10 {
		t.Errorf("other clients read %v, %v", paths, err)
	}
	if a := c.do(http.MethodPost, "/", nil, "Accept", html); a.code == 302 {
		t.Errorf("a write leads to %s", a.header.Get("Location"))
	}
}

type seenRequest struct {
	User, As, Verb, Resource, Name, URI, Reason string
	Code                                        int
	Causes                                      []string
}

func (c *client) requests(query string) []seenRequest {
	c.t.Helper()
	var answer struct{ Requests []seenRequest }
	if err := json.Unmarshal(c.get("/debug/requests"+query).want(200).raw, &answer); err != nil {
		c.t.Fatal(err)
	}
	return answer.Requests
}

func TestRequests_whoWhatAndWhy(t *testing.T) {
	t.Parallel()
	c := startConsole(t, annex.Options{})
	widget := map[string]any{"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}}
	c.post(widgetsPath, widget).want(201)
	c.get(widgetsPath + "/w?token=hunter2&pretty=true").want(200)
	c.get(widgetsPath + "/other").want(404)
	c.get(widgetsPath, "Impersonate-User", "joe").want(403)
	c.get("/apis", "Authorization", "Bearer wrong")
	all := c.requests("?resource=widgets.shop.example.com")
	if len(all) != 4 {
		t.Fatalf("seen are %+v", all)
	}
	for i, want := range []seenRequest{
		{Verb: "create", Code: 201, Resource: "widgets"},
		{Verb: "get", Code: 200, Resource: "widgets", Name: "w"},
		{Verb: "get", Code: 404, Resource: "widgets", Name: "other", Reason: "NotFound"},
		{Verb: "list", Code: 403, Resource: "widgets", As: "joe", Reason: "Forbidden"},
	} {
		got := all[i]
		if got.User == "" || strings.Contains(got.URI, "hunter2") {
			t.Errorf("%+v has no user, or a credential", got)
		}
		got.User, got.URI = "", ""
		if got.Verb != want.Verb || got.Code != want.Code || got.Name != want.Name || got.As != want.As || got.Reason != want.Reason {
			t.Errorf("request %d is %+v, want %+v", i, got, want)
		}
	}
	if refused := c.requests("?refused=true&user=joe"); len(refused) != 1 {
		t.Errorf("refused to joe are %+v", refused)
	}
}

func TestRequests_needARight(t *testing.T) {
	t.Parallel()
	c := startConsole(t, annex.Options{})
	c.get("/debug/requests", "Impersonate-User", "joe").want(403)
	c.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", map[string]any{
		"metadata": map[string]any{"name": "see"}, "rules": []any{map[string]any{"nonResourceURLs": []any{"/debug/requests"}, "verbs": []any{"get"}}},
	}).want(201)
	c.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", map[string]any{
		"metadata": map[string]any{"name": "see"}, "roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "see"},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "joe"}},
	}).want(201)
	c.until(200, func() *answer { return c.get("/debug/requests", "Impersonate-User", "joe") })
}

func TestRequests_withoutConsole_areNotKept(t *testing.T) {
	t.Parallel()
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), Console: new(false)})
	c.get("/debug/requests").want(404)
}
