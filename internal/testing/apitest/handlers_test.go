package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// withMenu is a shop that has paths beside the API.
func withMenu() annex.Server {
	server := shop()
	said := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			caller := annex.Caller(r.Context())
			fmt.Fprintf(w, "%s for %s", text, caller.GetName())
		})
	}
	server.Handlers = []annex.Handler{
		{Path: "/menu", Handler: said("the menu")},
		{Path: "/menu/", Handler: said("part of the menu")},
		{Path: "/menu/today/", Handler: said("today's menu")},
		{
			Path: "/order",
			New: func(env *annex.Env) (http.Handler, error) {
				own, err := dynamic.NewForConfig(env.ClientConfig())
				if err != nil {
					return nil, err
				}
				caller, err := dynamic.NewForConfig(env.CallerConfig())
				if err != nil {
					return nil, err
				}
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					client := caller
					if r.URL.Query().Get("as") == "server" {
						client = own
					}
					ctx := r.Context()
					if r.URL.Query().Has("detached") {
						ctx = context.Background()
					}
					list, err := client.Resource(widgetResource).Namespace(r.URL.Query().Get("namespace")).List(ctx, metav1.ListOptions{})
					if err != nil {
						http.Error(w, err.Error(), http.StatusTeapot)
						return
					}
					fmt.Fprintf(w, "%d widgets", len(list.Items))
				}), nil
			},
			Resource: func(r *http.Request) *authorizationv1.ResourceAttributes {
				if namespace := r.URL.Query().Get("namespace"); namespace != "" {
					return &authorizationv1.ResourceAttributes{
						Verb:      "order",
						Group:     "shop.example.com",
						Version:   "v1",
						Resource:  "widgets",
						Namespace: namespace,
					}
				}
				return nil
			},
		},
	}
	return server
}

func TestHandlers_authorization(t *testing.T) {
	t.Parallel()
	server := withMenu()
	c := startWith(t, server, annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t)})
	jane := c.stranger("secret")
	c.stranger("").get("/menu").want(401)
	c.stranger("wrong").get("/menu").want(401)
	jane.get("/menu").refused(403, metav1.StatusReasonForbidden, `cannot get path "/menu"`)
	c.post(clusterRolesPath, rbacObject("ClusterRole", "guest",
		rules(fields{"verbs": []string{"get"}, "nonResourceURLs": []string{"/menu", "/menu/*"}}))).
		want(201)
	c.post(clusterBindings, bind("ClusterRoleBinding", "guest", "ClusterRole/guest", "jane")).want(201)
	c.until(200, func() *answer { return jane.get("/menu") })
	for path, want := range map[string]string{
		"/menu": "the menu for jane", "/menu/pizza": "part of the menu for jane", "/menu/": "part of the menu for jane",
		"/menu/today/soup": "today's menu for jane", "/menu/today": "part of the menu for jane",
	} {
		if a := jane.get(path).want(200); string(a.raw) != want {
			t.Errorf("%s: %q, want %q", path, a.raw, want)
		}
	}
	jane.post("/menu", "x").refused(403, metav1.StatusReasonForbidden, `cannot post path "/menu"`)
	jane.get("/menus").want(403)
	c.get("/menus").want(404)
	if a := c.get("/menu", "Impersonate-User", "jane").want(200); string(a.raw) != "the menu for jane" {
		t.Errorf("impersonated: %s", a.raw)
	}
	if got := c.metric(
		`apiserver_request_total{code="200",component="apiserver",dry_run="",group="",` +
			`resource="",scope="",subresource="/menu/today/",verb="GET",version=""}`,
	); got == "" {
		t.Error("no metric")
	}
}

func TestHandlers_resourceRequests(t *testing.T) {
	t.Parallel()
	c := startWith(t, withMenu(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t)})
	jane := c.stranger("secret")
	c.create("w")
	jane.get("/order?namespace=default").
		refused(403, metav1.StatusReasonForbidden, `cannot order resource "widgets" in API group "shop.example.com" in the namespace "default"`)
	jane.get("/order").refused(403, metav1.StatusReasonForbidden, `cannot get path "/order"`)
	c.post(rolesPath, rbacObject("Role", "guest", rules(rule("order", "widgets")))).want(201)
	c.post(bindingsPath, bind("RoleBinding", "guest", "Role/guest", "jane")).want(201)
	// The server's client may list; the caller's client has the caller's rights.
	c.until(200, func() *answer { return jane.get("/order?namespace=default&as=server") })
	jane.get("/order?namespace=other&as=server").want(403)
	if a := jane.get("/order?namespace=default").
		want(http.StatusTeapot); !strings.Contains(
		string(a.raw),
		`User "jane" cannot list resource "widgets"`,
	) {
		t.Errorf("as the caller: %s", a.raw)
	}
	if a := c.get("/order?namespace=default").want(200); string(a.raw) != "1 widgets" {
		t.Errorf("as the administrator: %s", a.raw)
	}
	if a := c.get("/order?namespace=default&detached").
		want(http.StatusTeapot); !strings.Contains(
		string(a.raw),
		"the context does not belong to a request",
	) {
		t.Errorf("without a caller: %s", a.raw)
	}
	// A body belongs to the handler, however large, and is not an object.
	c.do("POST", "/order?namespace=default&as=server", strings.Repeat("x", 4<<20)).want(200)
}

func TestHandlers_seeAuthorizedPath(t *testing.T) {
	t.Parallel()
	c := start(t, withMenu())
	for _, path := range []string{"/menu/../menu", "/menu//x", "/menu/./x", "/menu/today%2Fsoup", "/menu/today%2fsoup", "/menu/x/..",
		"/menu/%2e%2e/order"} {
		u := &url.URL{Path: path}
		a := c.get(path)
		if a.code != http.StatusBadRequest {
			t.Errorf("%s (%s): %d %s", path, u, a.code, a.raw)
		}
	}
	c.get("/menu/a%20b").want(200)
}

func TestHandlers_longRunning_endWithServer(t *testing.T) {
	t.Parallel()
	server := shop()
	began, ended := make(chan struct{}), make(chan struct{})
	server.Handlers = []annex.Handler{{
		Path:        "/events",
		LongRunning: func(r *http.Request) bool { return r.Method == http.MethodGet },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, bounded := r.Context().Deadline(); bounded != (r.Method == http.MethodPost) {
				t.Errorf("%s has a deadline: %v", r.Method, bounded)
			}
			if r.Method == http.MethodPost {
				return
			}
			_, _ = io.WriteString(w, "first\n")
			w.(http.Flusher).Flush()
			close(began)
			<-r.Context().Done()
			close(ended)
		}),
	}}
	ctx, stop := context.WithCancel(t.Context())
	instance, err := annex.New(ctx, server, annex.Options{Storage: memory.Storage(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	<-ready
	config, err := instance.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, config)
	c.post("/events", "").want(200)
	response := c.send(t.Context(), "GET", "/events", nil)
	defer response.Body.Close()
	<-began
	stop()
	<-ended
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNew_handlers_mistakes(t *testing.T) {
	t.Parallel()
	nothing := http.NotFoundHandler()
	for name, test := range map[string]struct {
		handlers []annex.Handler
		want     string
	}{
		"no path": {[]annex.Handler{{Handler: nothing}}, "handler 0: path: must be a path such as /menu, or /menu/ for all paths with " +
			"this prefix"},
		"all paths": {[]annex.Handler{{Path: "/", Handler: nothing}}, `handler "/": path: must be a path such as /menu, or /menu/ for all paths with this prefix`},
		"relative":  {[]annex.Handler{{Path: "menu", Handler: nothing}}, `handler "menu": path: must be a path such as /menu, or /menu/ for all paths with this prefix`},
		"dots":      {[]annex.Handler{{Path: "/a/../b", Handler: nothing}}, `handler "/a/../b": path: must be a path`},
		"a pattern": {[]annex.Handler{{Path: "/a/*", Handler: nothing}}, `handler "/a/*": path: must be a path`},
		"the API":   {[]annex.Handler{{Path: "/apis/x/", Handler: nothing}}, `handler "/apis/x/": path: reserved by the server, like`},
		"health":    {[]annex.Handler{{Path: "/healthz", Handler: nothing}}, `path: reserved by the server`},
		"twice":     {[]annex.Handler{{Path: "/a", Handler: nothing}, {Path: "/a", Handler: nothing}}, `handler "/a": declared twice`},
		"two documents": {[]annex.Handler{{Path: "/a", Handler: nothing, OpenAPI: noDocument},
			{Path: "/a/", Handler: nothing, OpenAPI: noDocument}}, `handler "/a/": OpenAPI: handler "/a" has the document of these paths`},
		"nothing": {[]annex.Handler{{Path: "/a"}}, `handler "/a": set Handler or New, and not both`},
		"New fails": {[]annex.Handler{{Path: "/a", New: func(*annex.Env) (http.Handler, error) { return nil, errors.New("no oven") }}},
			`handler "/a": no oven`},
		"New is nothing": {[]annex.Handler{{Path: "/a", New: func(*annex.Env) (http.Handler, error) { return nil, nil }}}, `handler "/a": ` +
			`New returned no handler`},
	} {
		t.Run(name, func(t *testing.T) {
			server := shop()
			server.Handlers = test.handlers
			instance, err := annex.New(t.Context(), server, annex.Options{Storage: memory.Storage()})
			if err == nil {
				instance.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, want %q in it", err, test.want)
			}
		})
	}
}

func noDocument() *spec3.OpenAPI { return nil }

func TestHandlers_openAPIDocument(t *testing.T) {
	t.Parallel()
	server := withMenu()
	calls := 0
	server.Handlers[0].OpenAPI = func() *spec3.OpenAPI {
		calls++
		get := &spec3.Operation{OperationProps: spec3.OperationProps{OperationId: "readMenu"}}
		return &spec3.OpenAPI{Paths: &spec3.Paths{Paths: map[string]*spec3.Path{"/menu": {PathProps: spec3.PathProps{Get: get}}}}}
	}
	server.Handlers[2].OpenAPI = noDocument
	c := startWith(t, server, annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t)})
	for range 2 {
		listed, _ := c.get("/openapi/v3").want(200).object()["paths"].(map[string]any)
		for path, described := range map[string]bool{"menu": true, "menu/today": true, "order": false, "apis/shop.example.com/v1": true} {
			if _, ok := listed[path]; ok != described {
				t.Errorf("%s is listed: %t", path, ok)
			}
		}
	}
	if calls != 1 {
		t.Errorf("the document was made %d times", calls)
	}
	menu := c.get("/openapi/v3/menu").want(200)
	for path, want := range map[string]string{
		"openapi": "3.0.0", "info.title": "shop", "paths./menu.get.operationId": "readMenu",
		"components.securitySchemes.BearerToken.type": "apiKey",
	} {
		if got := menu.str(strings.Split(path, ".")...); got != want {
			t.Errorf("%s is %q, not %q", path, got, want)
		}
	}
	c.get("/openapi/v3/menu/today").want(200)
	c.stranger("").get("/openapi/v3/menu").want(401)
}

// The handler of a server may be an instance of another server: its watches last, although the handler's context ends
// when the handler returns.
func TestHandlers_instanceOfAnotherServer(t *testing.T) {
	t.Parallel()
	inner, err := annex.New(t.Context(), shop(), annex.Options{Storage: memory.Storage()})
	if err != nil {
		t.Fatal(err)
	}
	own, err := inner.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- inner.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("the server ended before it was ready: %v", err)
	}
	outer := shop()
	outer.Handlers = []annex.Handler{{
		Path: "/inner/",
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+own.BearerToken)
			http.StripPrefix("/inner", inner.Handler()).ServeHTTP(w, r)
		}),
		LongRunning: func(r *http.Request) bool { return strings.Contains(r.URL.RawQuery, "watch=") },
	}}
	c := start(t, outer)
	c.post("/inner"+widgetsPath, widget("a")).want(201)
	w := c.watch("/inner" + widgetsPath + "?watch=1")
	w.want("ADDED a")
	c.post("/inner"+widgetsPath, widget("b")).want(201)
	w.want("ADDED b")
}
