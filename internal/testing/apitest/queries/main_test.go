// Package queries tests the queries of whole servers.
package queries

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/internal/testing/testlog"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/driver"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/memory"
)

func TestMain(m *testing.M) { os.Exit(testlog.Quiet(m).Run()) }

const (
	widgets = "/query/shop.example.com/v1/widgets"
	api     = "/apis/shop.example.com/v1/namespaces/%s/widgets"
)

// shop has widgets with fields of each type, in two versions.
func shop() annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
			Versions(annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub)).
			SelectableField("spec.size", func(w *v1.Widget) string { return w.Spec.Size }).
			Query(
				annex.Sortable("spec.replicas", func(w *v1.Widget) *int32 { return w.Spec.Replicas }).Description("how many"),
				annex.Filterable("status.phase", func(w *v1.Widget) string { return w.Status.Phase }),
				annex.Text("spec.options", func(w *v1.Widget) string { return w.Spec.Options["note"] }),
			),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped(),
	}}}}
}

type client struct {
	t      testing.TB
	config *rest.Config
	http   *http.Client
}

func start(t testing.TB, server annex.Server, options annex.Options) *client {
	t.Helper()
	if options.Storage == nil {
		options.Storage = storage(t)
	}
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,jane,42,\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	options.TokenAuthFile = tokens
	return connect(t, annextest.StartWith(t, server, options))
}

// onEtcd holds the endpoints of an etcd to store in.
const onEtcd = "ANNEX_TEST_ETCD"

// storage returns the storage of the servers: etcd, if the tests of that storage set it, else memory.
func storage(t testing.TB) driver.Driver {
	if endpoints := os.Getenv(onEtcd); endpoints != "" {
		t.Log("objects are stored in etcd")
		return etcd.Cluster(etcd.Options{Endpoints: strings.Split(endpoints, ","), Prefix: "/queries/" + rand.Text()})
	}
	return memory.Storage()
}

func connect(t testing.TB, config *rest.Config) *client {
	t.Helper()
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.CloseIdleConnections)
	return &client{t, config, h}
}

// as returns a client with only a token; without credentials if the token is empty.
func (c *client) as(token string) *client {
	c.t.Helper()
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken, config.Dial = token, c.config.Dial
	return connect(c.t, config)
}

func (c *client) request(ctx context.Context, method, path string, body any, headers ...string) *http.Response {
	c.t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.config.Host+path, bytes.NewReader(encoded))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := c.http.Do(r)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return response
}

func (c *client) do(method, path string, body any, headers ...string) (int, []byte) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), testwait.Patience)
	defer cancel()
	response := c.request(ctx, method, path, body, headers...)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return response.StatusCode, raw
}

// must sends a request that has to succeed.
func (c *client) must(method, path string, body any) []byte {
	c.t.Helper()
	code, raw := c.do(method, path, body)
	if code/100 != 2 {
		c.t.Fatalf("%s %s: %d %s", method, path, code, raw)
	}
	return raw
}

type object = map[string]any

// page is a response to a query.
type page struct {
	Items           []object `json:"items"`
	TotalItems      int      `json:"totalItems"`
	ResourceVersion string   `json:"resourceVersion"`
	Cursor          string   `json:"cursor"`
	Facets          map[string][]struct {
		Value *string
		Count int
	} `json:"facets"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
}

func (c *client) query(path string) (int, page) {
	c.t.Helper()
	code, raw := c.do(http.MethodGet, path, nil)
	var p page
	if err := json.Unmarshal(raw, &p); err != nil {
		c.t.Fatalf("%s: %d %s: %v", path, code, raw, err)
	}
	return code, p
}

// names requests a page and returns its names with their namespaces.
func (c *client) names(path string) []string {
	c.t.Helper()
	code, p := c.query(path)
	if code != http.StatusOK {
		c.t.Fatalf("%s: %d %s", path, code, p.Message)
	}
	return p.names()
}

func (p page) names() []string {
	names := []string{}
	for _, item := range p.Items {
		m := item["metadata"].(object)
		name := m["name"].(string)
		if ns, ok := m["namespace"].(string); ok && ns != "default" {
			name = ns + "/" + name
		}
		names = append(names, name)
	}
	return names
}

func (c *client) same(path string, want ...string) {
	c.t.Helper()
	if got := c.names(path); !slices.Equal(got, want) {
		c.t.Errorf("%s: %q, want %q", path, got, want)
	}
}

// refused sends a request that has to be rejected, with words in the reason.
func (c *client) refused(code int, path string, words ...string) {
	c.t.Helper()
	got, p := c.query(path)
	if got != code {
		c.t.Errorf("%s: %d %s, want %d", path, got, p.Message, code)
	}
	for _, word := range words {
		if !bytes.Contains([]byte(p.Message), []byte(word)) {
			c.t.Errorf("%s: %q lacks %q", path, p.Message, word)
		}
	}
}

func (c *client) namespace(name string) {
	c.t.Helper()
	c.must(http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": name}})
}

func widget(name string, spec object, labels ...string) object {
	m := object{"name": name}
	if len(labels) == 2 {
		m["labels"] = object{labels[0]: labels[1]}
	}
	return object{"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": m, "spec": spec}
}

func (c *client) create(namespace string, w object) object {
	c.t.Helper()
	var created object
	if err := json.Unmarshal(c.must(http.MethodPost, fmt.Sprintf(api, namespace), w), &created); err != nil {
		c.t.Fatal(err)
	}
	return created
}
