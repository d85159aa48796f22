package apitest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// The tests of this package check what clients see, over plain HTTP as far as possible, so that no client library
// repairs the server's responses.

const (
	widgetsPath     = "/apis/shop.example.com/v1/namespaces/default/widgets"
	widgetsBetaPath = "/apis/shop.example.com/v1beta1/namespaces/default/widgets"
	shelvesPath     = "/apis/shop.example.com/v1/shelves"

	jsonType      = "application/json"
	yamlType      = "application/yaml"
	protobufType  = "application/vnd.kubernetes.protobuf"
	jsonPatch     = "application/json-patch+json"
	mergePatch    = "application/merge-patch+json"
	strategicType = "application/strategic-merge-patch+json"
	applyPatch    = "application/apply-patch+yaml"
)

// patience bounds the waits of a test. Only a failure reaches it.
const patience = testwait.Patience

// client sends requests to a running server.
type client struct {
	t      *testing.T
	config *rest.Config
	http   *http.Client
}

func start(t *testing.T, server annex.Server) *client {
	t.Helper()
	return startWith(t, server, annex.Options{Storage: memory.Storage()})
}

func startKind(t *testing.T, kinds ...annex.Kind) *client {
	t.Helper()
	return start(t, annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: kinds}}})
}

func startWith(t *testing.T, server annex.Server, options annex.Options) *client {
	t.Helper()
	return connect(t, annextest.StartWith(t, server, placed(t, options)))
}

func connect(t *testing.T, config *rest.Config) *client {
	t.Helper()
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.CloseIdleConnections)
	return &client{t: t, config: config, http: h}
}

// answer is a response, read to its end.
type answer struct {
	t      *testing.T
	asked  string
	code   int
	header http.Header
	raw    []byte
}

// do sends a request. The body is a string or bytes to send unchanged, nil, or a value to send as JSON. The headers
// are alternating names and values; the default content type is JSON.
func (c *client) do(method, path string, body any, headers ...string) *answer {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	response := c.send(ctx, method, path, body, headers...)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return &answer{c.t, method + " " + path, response.StatusCode, response.Header, raw}
}

func (c *client) send(ctx context.Context, method, path string, body any, headers ...string) *http.Response {
	c.t.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	case []byte:
		reader = bytes.NewReader(b)
	default:
		encoded, err := json.Marshal(b)
		if err != nil {
			c.t.Fatal(err)
		}
		reader = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.config.Host+path, reader)
	if err != nil {
		c.t.Fatal(err)
	}
	if body != nil {
		request.Header.Set("Content-Type", jsonType)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := c.http.Do(request)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return response
}

func (c *client) get(path string, headers ...string) *answer {
	c.t.Helper()
	return c.do(http.MethodGet, path, nil, headers...)
}

func (c *client) post(path string, body any, headers ...string) *answer {
	c.t.Helper()
	return c.do(http.MethodPost, path, body, headers...)
}

func (c *client) put(path string, body any, headers ...string) *answer {
	c.t.Helper()
	return c.do(http.MethodPut, path, body, headers...)
}

func (c *client) delete(path string, body any) *answer {
	c.t.Helper()
	return c.do(http.MethodDelete, path, body)
}

func (c *client) patch(mediaType, path string, body any) *answer {
	c.t.Helper()
	return c.do(http.MethodPatch, path, body, "Content-Type", mediaType)
}

// apply is server-side apply by a manager; options are further parts of the query.
func (c *client) apply(path, manager string, body any, options ...string) *answer {
	c.t.Helper()
	return c.patch(applyPatch, path+"?fieldManager="+manager+strings.Join(append([]string{""}, options...), "&"), body)
}

// want fails the test unless the response has the code.
func (a *answer) want(code int) *answer {
	a.t.Helper()
	if a.code != code {
		a.t.Fatalf("%s: got %d, want %d: %s", a.asked, a.code, code, a.raw)
	}
	return a
}

// object decodes the response.
func (a *answer) object() map[string]any {
	a.t.Helper()
	var obj map[string]any
	if err := json.Unmarshal(a.raw, &obj); err != nil {
		a.t.Fatalf("%s: %v: %q", a.asked, err, a.raw)
	}
	return obj
}

// str returns the text of a field, given its path; empty if there is none.
func (a *answer) str(path ...string) string {
	a.t.Helper()
	return text(a.object(), path...)
}

func text(obj map[string]any, path ...string) string {
	value, found, err := unstructured.NestedFieldNoCopy(obj, path...)
	if err != nil || !found {
		return ""
	}
	return fmt.Sprint(value)
}

// status decodes the response as a failure.
func (a *answer) status() metav1.Status {
	a.t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(a.raw, &s); err != nil || s.Kind != "Status" || s.APIVersion != "v1" {
		a.t.Fatalf("%s: no Status: %v: %s", a.asked, err, a.raw)
	}
	return s
}

// refused fails the test unless the response is a Status with the code, the reason and all the parts in its message.
func (a *answer) refused(code int, reason metav1.StatusReason, parts ...string) metav1.Status {
	a.t.Helper()
	a.want(code)
	s := a.status()
	if s.Status != metav1.StatusFailure || int(s.Code) != code || s.Reason != reason {
		a.t.Errorf(
			"%s: got status %q, code %d, reason %q; want Failure, %d, %q: %s",
			a.asked,
			s.Status,
			s.Code,
			s.Reason,
			code,
			reason,
			s.Message,
		)
	}
	for _, part := range parts {
		if !strings.Contains(s.Message, part) {
			a.t.Errorf("%s: want %q in %q", a.asked, part, s.Message)
		}
	}
	return s
}

// widget decodes the response as a widget of the hub version.
func (a *answer) widget() *v1.Widget {
	a.t.Helper()
	w := &v1.Widget{}
	if err := json.Unmarshal(a.raw, w); err != nil || w.Kind != "Widget" {
		a.t.Fatalf("%s: no Widget: %v: %s", a.asked, err, a.raw)
	}
	return w
}

// items returns the items of a list.
func (a *answer) items() []map[string]any {
	a.t.Helper()
	var list struct{ Items []map[string]any }
	decode(a.t, a.raw, &list)
	return list.Items
}

// names returns the names in a list, in its order.
func (a *answer) names() []string {
	a.t.Helper()
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(a.raw, &list); err != nil {
		a.t.Fatalf("%s: %v: %s", a.asked, err, a.raw)
	}
	names := []string{}
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	return names
}

// decode decodes JSON, which must succeed.
func decode(t *testing.T, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
}

// warnings returns the texts of the Warning headers.
func (a *answer) warnings() []string {
	a.t.Helper()
	headers, errs := net.ParseWarningHeaders(a.header.Values("Warning"))
	if len(errs) > 0 {
		a.t.Errorf("%s: %v", a.asked, errs)
	}
	var texts []string
	for _, h := range headers {
		texts = append(texts, h.Text)
	}
	return texts
}

// widget returns the JSON of a widget, with further fields.
func widget(name string, fields ...map[string]any) map[string]any {
	return object("v1", "Widget", name, fields...)
}

func widgetBeta(name string, fields ...map[string]any) map[string]any {
	return object("v1beta1", "Widget", name, fields...)
}

func shelf(name string, fields ...map[string]any) map[string]any {
	return object("v1", "Shelf", name, fields...)
}

func object(version, kind, name string, fields ...map[string]any) map[string]any {
	metadata := map[string]any{}
	if name != "" {
		metadata["name"] = name
	}
	obj := map[string]any{"apiVersion": "shop.example.com/" + version, "kind": kind, "metadata": metadata}
	for _, f := range fields {
		for key, value := range f {
			if more, ok := value.(map[string]any); ok && key == "metadata" {
				for k, v := range more {
					metadata[k] = v
				}
				continue
			}
			obj[key] = value
		}
	}
	return obj
}

type fields = map[string]any

func spec(f fields) fields     { return fields{"spec": f} }
func status(f fields) fields   { return fields{"status": f} }
func metadata(f fields) fields { return fields{"metadata": f} }

// create creates a widget, which must succeed.
func (c *client) create(name string, f ...map[string]any) *v1.Widget {
	c.t.Helper()
	return c.post(widgetsPath, widget(name, f...)).want(http.StatusCreated).widget()
}

func (c *client) widget(name string) *v1.Widget {
	c.t.Helper()
	return c.get(widgetsPath + "/" + name).want(http.StatusOK).widget()
}

// stream is a watch.
type stream struct {
	t       *testing.T
	asked   string
	decoder *json.Decoder
}

type event struct {
	Type   string
	Object map[string]any
}

func (e event) name() string { return text(e.Object, "metadata", "name") }
func (e event) String() string {
	return fmt.Sprintf("%s %s", e.Type, e.name())
}

// watch opens a watch, which must be accepted. It ends with the test or by cancel.
func (c *client) watch(path string, headers ...string) *stream {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	response := c.send(ctx, http.MethodGet, path, nil, headers...)
	c.t.Cleanup(func() {
		cancel()
		response.Body.Close()
	})
	if response.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(response.Body)
		c.t.Fatalf("watch %s: got %d: %s", path, response.StatusCode, raw)
	}
	return &stream{c.t, path, json.NewDecoder(response.Body)}
}

// next waits for an event.
func (s *stream) next() event {
	s.t.Helper()
	var e event
	if err := s.decoder.Decode(&e); err != nil {
		s.t.Fatalf("watch %s: %v", s.asked, err)
	}
	return e
}

// want fails the test unless the next events print as given.
func (s *stream) want(events ...string) (last event) {
	s.t.Helper()
	for _, want := range events {
		last = s.next()
		if last.String() != want {
			s.t.Fatalf("watch %s: got %s, want %s: %v", s.asked, last, want, last.Object)
		}
	}
	return last
}

// ends fails the test unless the watch ends now, without an error.
func (s *stream) ends() {
	s.t.Helper()
	var e event
	if err := s.decoder.Decode(&e); err != io.EOF {
		s.t.Fatalf("watch %s: got %v and error %v, want its end", s.asked, e, err)
	}
}

// namespace creates a namespace.
func (c *client) namespace(name string) {
	c.t.Helper()
	c.post("/api/v1/namespaces", fields{"apiVersion": "v1", "kind": "Namespace", "metadata": fields{"name": name}}).want(http.StatusCreated)
}
