package controlplane

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// answers sends requests to a server.
type answers struct {
	client *http.Client
	host   string
}

func answersOf(t *testing.T, config *rest.Config) answers {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return answers{client, config.Host}
}

// answer is a response without the parts that differ from request to request.
type answer struct {
	Code   int
	Header http.Header
	Body   string
}

func (a answers) get(t *testing.T, path, accept string, header map[string]string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip")
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body := resp.Body
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(resp.Body); err != nil {
			t.Fatal(err)
		}
		resp.Header.Del("Content-Length")
	}
	data, err := readAnswer(body)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"Date", "Audit-Id"} {
		resp.Header.Del(k)
	}
	return answer{resp.StatusCode, resp.Header, string(data)}
}

// readAnswer reads a response; a watch only until its initial events are complete.
func readAnswer(from io.Reader) ([]byte, error) {
	var data []byte
	for lines := bufio.NewReader(from); ; {
		line, err := lines.ReadBytes('\n')
		data = append(data, line...)
		if err == io.EOF || bytes.Contains(line, []byte(metav1.InitialEventsAnnotationKey)) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// upstreams is an equivalent Accept header with an unknown parameter: only upstream's handler serves lists with it.
func upstreams(accept string) string {
	if accept == "" {
		return "*/*;none=1"
	}
	return strings.ReplaceAll(accept, ",", ";none=1,") + ";none=1"
}

// same compares both responses and returns them. The revision belongs to the whole server, which also writes by
// itself: upstream's handler is asked before and after, until both of its responses are equal.
func (a answers) same(t *testing.T, what, path, accept string, header map[string]string) answer {
	t.Helper()
	var want, got answer
	testwait.Until(t, "nothing is written meanwhile", func() bool {
		want, got = a.get(t, path, upstreams(accept), header), a.get(t, path, accept, header)
		return cmp.Equal(want, a.get(t, path, upstreams(accept), header))
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: %s as %q (-upstream +ours):\n%s", what, path, accept, diff)
	}
	return got
}

var listQueries = []string{
	"",
	"?limit=2",
	"?limit=100",
	"?limit=-1",
	"?limit=many",
	"?labelSelector=tier=front",
	"?labelSelector=tier!=front&limit=1",
	"?labelSelector=,,",
	"?fieldSelector=spec.color=red",
	"?fieldSelector=metadata.name=w1",
	"?fieldSelector=metadata.name=none",
	"?fieldSelector=spec.size=1",
	"?fieldSelector=nothing",
	"?resourceVersion=0",
	"?resourceVersion=1",
	"?resourceVersion=1&resourceVersionMatch=Exact",
	"?resourceVersion=x",
	"?resourceVersionMatch=Exact",
	"?continue=bogus",
	"?watch=false",
	"?pretty=true",
	"?pretty=false",
	"?timeoutSeconds=1",
	"?sendInitialEvents=true",
	"?fieldValidation=Strict",
	"?dryRun=All",
}

var listAccepts = []string{
	"",
	"*/*",
	"application/*",
	"application/json",
	"application/json;q=0.5,application/yaml",
	"application/yaml",
	"application/json;pretty=1",
	"text/plain",
	"text/plain,application/json",
	"application/vnd.kubernetes.protobuf",
	"application/vnd.kubernetes.protobuf,application/json",
	"application/cbor",
	"application/cbor,application/json",
	"application/json;stream=watch",
	"application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
	"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	"application/json;as=Nothing;v=v1;g=meta.k8s.io,application/json",
	"application/json;as=Nothing;v=v1;g=meta.k8s.io",
	"application/json;sv=v1",
	"application/json;export=1",
	"application/json;profile=x",
	"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json",
}

// The response to a list, and the initial events of a watch, equal those of upstream's handler, byte for byte,
// while the definition changes.
func TestList_customResources_equalUpstream(t *testing.T) {
	t.Parallel()
	config := annextest.Start(t, cluster())
	c, a := clientsOf(config), answersOf(t, config)
	definition := widgets(map[string]schemaOf{
		"size": {Type: "integer"}, "color": {Type: "string"}, "ratio": {Type: "number"}, "note": {Type: "string", Nullable: true},
		"any": {Type: "object", XPreserveUnknownFields: new(true)},
	})
	second := definition.Spec.Versions[0].DeepCopy()
	second.Name, second.Storage, second.Deprecated, second.SelectableFields = "v2", false, true, nil
	second.Schema.OpenAPIV3Schema.Description = "the second"
	definition.Spec.Versions = append(definition.Spec.Versions, *second)
	c.define(t, definition)

	everywhere := func(what string) {
		t.Helper()
		for _, version := range []string{"v1", "v2"} {
			for _, path := range []string{"/widgets", "/namespaces/default/widgets", "/namespaces/none/widgets"} {
				path = "/apis/stable.example.com/" + version + path
				for _, query := range listQueries {
					a.same(t, what, path+query, "application/json", nil)
				}
				for _, accept := range listAccepts {
					a.same(t, what, path, accept, nil)
				}
				a.same(t, what, path, "application/json", map[string]string{"User-Agent": "curl/8"})
				const initial = "?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
				for _, accept := range []string{"application/json", "application/json",
					"application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
					"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"} {
					a.same(t, what, path+initial, accept, nil)
				}
				a.same(t, what, path+initial+"&labelSelector=tier=front", "application/json", nil)
			}
		}
		a.same(t, what, "/apis/stable.example.com/v3/widgets", "application/json", nil)
		a.same(t, what, "/apis/stable.example.com/v1/widgets/w1/status", "application/json", nil)
	}
	everywhere("without objects")

	for i := range 5 {
		w := widget(fmt.Sprint("w", i), map[string]any{
			"size":    int64(i),
			"color":   []any{"red", "blue"}[i%2],
			"ratio":   0.1 + float64(i),
			"note":    nil,
			"unknown": "x",
			"any": map[string]any{
				"html":  "<a href=\"x\">&</a>\u2028é\x01",
				"big":   int64(1 << 60),
				"float": 1e21,
				"whole": 2.0,
				"list":  []any{nil, true, map[string]any{}},
			},
		})
		w.SetLabels(map[string]string{"tier": []string{"front", "back"}[i%2]})
		made, err := c.widgets.Create(t.Context(), w, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Object["status"] = map[string]any{"ready": true, "unknown": 1.0}
		if _, err := c.widgets.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	everywhere("with objects")
	a.same(t, "watched", "/apis/stable.example.com/v1/widgets?watch=true&timeoutSeconds=1", "application/json", nil)
	for next := "?limit=2"; next != ""; {
		page := a.same(t, "page by page", "/apis/stable.example.com/v1/widgets"+next, "application/json", nil)
		list := &unstructured.UnstructuredList{}
		if err := list.UnmarshalJSON([]byte(page.Body)); err != nil {
			t.Fatal(err)
		}
		if next = ""; list.GetContinue() != "" {
			next = "?limit=2&continue=" + url.QueryEscape(list.GetContinue())
		}
	}

	change := func(what, wanted string, how func(d *apiextensionsv1.CustomResourceDefinition)) {
		t.Helper()
		c.redefine(t, definition.Name, how)
		testwait.Until(t, what, func() bool {
			return strings.Contains(a.get(t, "/apis/stable.example.com/v1/widgets", "application/json", nil).Body, wanted)
		})
		everywhere(what)
	}
	properties := func(d *apiextensionsv1.CustomResourceDefinition, version int) map[string]schemaOf {
		return d.Spec.Versions[version].Schema.OpenAPIV3Schema.Properties["spec"].Properties
	}
	change("with a default", `"shape":"round"`, func(d *apiextensionsv1.CustomResourceDefinition) {
		properties(d, 0)["shape"] = schemaOf{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"round"`)}}
	})
	change("with another default", `"shape":"square"`, func(d *apiextensionsv1.CustomResourceDefinition) {
		properties(d, 0)["shape"] = schemaOf{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"square"`)}}
		d.Spec.Versions[1].DeprecationWarning = new("use v1")
	})
	change("without a field", `"spec":{"any"`, func(d *apiextensionsv1.CustomResourceDefinition) {
		delete(properties(d, 0), "color")
		d.Spec.Versions[0].SelectableFields = nil
	})
	change("stored as v2", `"apiVersion":"stable.example.com/v1"`, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true
	})

	held, err := c.widgets.Get(t.Context(), "w0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	held.SetFinalizers([]string{"stable.example.com/held"})
	if _, err := c.widgets.Update(t.Context(), held, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.definitions.ApiextensionsV1().
		CustomResourceDefinitions().
		Delete(t.Context(), definition.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "one object is left", func() bool {
		list, err := c.widgets.List(t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 && list.Items[0].GetDeletionTimestamp() != nil
	})
	everywhere("being deleted")
	if _, err := c.widgets.Patch(
		t.Context(),
		"w0",
		"application/merge-patch+json",
		[]byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{},
	); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the definition is gone", func() bool {
		return a.get(t, "/apis/stable.example.com/v1/widgets", "", nil).Code == http.StatusNotFound
	})
	everywhere("when it is gone")
}

// Long lists are compressed whenever upstream compresses them, and the metrics count their sizes. The test is not
// parallel, because it compares metrics, which are global to the process.
func TestLists_longCustomResources_areCompressed(t *testing.T) {
	config := annextest.Start(t, cluster())
	c, a := clientsOf(config), answersOf(t, config)
	c.define(t, widgets(sizeAndColor))
	const path = "/apis/stable.example.com/v1/namespaces/default/widgets"
	make := func(name string, length int) {
		t.Helper()
		if _, err := c.widgets.Create(
			t.Context(),
			widget(name, map[string]any{"color": strings.Repeat("x", length)}),
			metav1.CreateOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	make("one", 100_000)
	short := a.same(t, "short", path, "application/json", nil)
	before := a.bytesOfLists(t)
	for range 3 {
		a.get(t, path, "application/json", nil)
	}
	if counted := a.bytesOfLists(t) - before; counted != 3*len(short.Body) {
		t.Errorf("3 lists of %d bytes are counted as %d bytes", len(short.Body), counted)
	}
	const threshold = 128 << 10
	other := len(a.listWithOneMore(t, c, path)) - len(short.Body)
	for _, beyond := range []int{0, 1} {
		name := fmt.Sprint("n", beyond)
		make(name, threshold-len(short.Body)-other+beyond)
		long := a.same(t, "long", path, "application/json", nil)
		if len(long.Body) != threshold+beyond || (long.Header.Get("Content-Encoding") == "gzip") != (beyond > 0) {
			t.Errorf("%d bytes are sent as %v", len(long.Body), long.Header)
		}
		if err := c.widgets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// bytesOfLists returns the number of bytes of widget lists in the metrics.
func (a answers) bytesOfLists(t *testing.T) int {
	t.Helper()
	all, found := 0, false
	for line := range strings.Lines(a.get(t, "/metrics", "", nil).Body) {
		if strings.HasPrefix(line, "apiserver_response_sizes_sum{") && strings.Contains(line, `resource="widgets"`) &&
			strings.Contains(line, `verb="LIST"`) &&
			strings.Contains(line, `scope="namespace"`) {
			sum, err := strconv.ParseFloat(strings.Fields(line)[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			all, found = all+int(sum), true // other tests list other versions
		}
	}
	if !found {
		t.Fatal("the metrics have no sizes of lists")
	}
	return all
}

// listWithOneMore returns the list with one more object, which has a name of two letters and no color.
func (a answers) listWithOneMore(t *testing.T, c clients, path string) string {
	t.Helper()
	if _, err := c.widgets.Create(t.Context(), widget("nn", map[string]any{"color": ""}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	with := a.get(t, path, "application/json", nil)
	if err := c.widgets.Delete(t.Context(), "nn", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	return with.Body
}

// serve runs a server with the options and returns its clients. The token of its administrator is secret.
func serve(t *testing.T, options annex.Options) (*annex.Instance, clients) {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,root,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	options.Storage, options.Listen, options.TokenAuthFile = memory.Storage(), "127.0.0.1:0", tokens
	instance, err := annex.New(t.Context(), cluster(), options)
	if err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(t.Context(), func() { close(ready) }) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-ready
	config, err := instance.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return instance, clientsOf(config)
}

// list lists all widgets of an instance.
func list(instance *annex.Instance, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/apis/stable.example.com/v1/widgets", bytes.NewReader(nil))
	r.Header.Set("Authorization", "Bearer secret")
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	instance.Handler().ServeHTTP(w, r)
	return w
}

func TestLists_audit_hasItems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: RequestResponse\n  resources: "+
		"[{group: stable.example.com}]\n- level: None\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	options := annex.Options{}
	options.Audit.PolicyFile, options.Audit.Log.Path = policy, log
	instance, c := serve(t, options)
	c.define(t, widgets(sizeAndColor))
	if _, err := c.widgets.Create(t.Context(), widget("w", map[string]any{"color": "red"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if w := list(instance, "application/json"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"color":"red"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	testwait.Until(t, "the list is in the audit", func() bool {
		data, err := os.ReadFile(log)
		if err != nil {
			return false
		}
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, `"verb":"list"`) && strings.Contains(line, `"color":"red"`) {
				return true
			}
		}
		return false
	})
}

// A list that equals the previous one is not encoded again, which would take a hundred allocations for each object.
// The test is not parallel, because it counts the allocations of the process.
func TestLists_customResources_areRemembered(t *testing.T) {
	instance, c := serve(t, annex.Options{})
	c.define(t, widgets(sizeAndColor))
	const objects = 200
	for i := range objects {
		if _, err := c.widgets.Create(
			t.Context(),
			widget(fmt.Sprint("w", i), map[string]any{"size": int64(i)}),
			metav1.CreateOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	allocations := func(accept string) float64 {
		return testing.AllocsPerRun(20, func() {
			if w := list(instance, accept); w.Code != http.StatusOK || strings.Count(w.Body.String(), `"uid"`) != objects {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	ours, upstream := allocations("application/json"), allocations(upstreams("application/json"))
	if ours > upstream/10 {
		t.Errorf("a list of %d objects takes %.0f allocations, upstream %.0f", objects, ours, upstream)
	}
	t.Logf("%.0f allocations, upstream %.0f", ours, upstream)
}
