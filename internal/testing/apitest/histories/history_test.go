// Package histories tests the history of whole servers.
package histories

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/internal/testing/testlog"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

func TestMain(m *testing.M) { os.Exit(testlog.Quiet(m).Run()) }

const (
	api     = "/apis/shop.example.com/v1/namespaces/default/widgets"
	history = "/history/shop.example.com/v1/namespaces/default/widgets"
)

type object = map[string]any

// shop has widgets whose history is kept, and shelves without.
func shop() annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
			Versions(annex.Version(v1beta1.API, v1beta1.WidgetToHub, v1beta1.WidgetFromHub)).
			History(annex.History{Age: time.Hour}).
			Validate(func(_ context.Context, w *v1.Widget) field.ErrorList {
				if w.Labels["frozen"] == "yes" && w.Spec.Size != "large" {
					return field.ErrorList{field.Invalid(field.NewPath("spec", "size"), w.Spec.Size, "frozen widgets are large")}
				}
				return nil
			}),
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
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,jane,42,\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	options.TokenAuthFile = tokens
	if options.Storage == nil {
		options.Storage = memory.Storage()
	}
	return connect(t, annextest.StartWith(t, server, options))
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

// jane returns a client of a user with no rights of her own.
func (c *client) jane() *client {
	c.t.Helper()
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken, config.Dial = "secret", c.config.Dial
	return connect(c.t, config)
}

func (c *client) do(method, path string, body any, headers ...string) (int, object) {
	c.t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), testwait.Patience)
	defer cancel()
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
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var answer object
	if err := json.Unmarshal(raw, &answer); err != nil {
		c.t.Fatalf("%s %s: %d %s", method, path, response.StatusCode, raw)
	}
	return response.StatusCode, answer
}

// must sends a request that has to succeed.
func (c *client) must(method, path string, body any, headers ...string) object {
	c.t.Helper()
	code, answer := c.do(method, path, body, headers...)
	if code/100 != 2 {
		c.t.Fatalf("%s %s: %d %v", method, path, code, answer)
	}
	return answer
}

// refused sends a request that has to be refused with a code, and a message with some parts.
func (c *client) refused(code int, method, path string, body any, parts ...string) object {
	c.t.Helper()
	got, answer := c.do(method, path, body)
	if got != code {
		c.t.Errorf("%s %s: %d %v, want %d", method, path, got, answer, code)
	}
	for _, part := range parts {
		if message, _ := answer["message"].(string); !strings.Contains(message, part) {
			c.t.Errorf("%s %s: the message %q does not have %q", method, path, message, part)
		}
	}
	return answer
}

func at(o any, path ...string) any {
	for _, p := range path {
		m, _ := o.(object)
		o = m[p]
	}
	return o
}

func version(o object) string { return fmt.Sprint(at(o, "metadata", "resourceVersion")) }

func (c *client) create(name string, spec object, labels object) object {
	c.t.Helper()
	return c.must("POST", api, object{
		"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": object{"name": name, "labels": labels}, "spec": spec,
	})
}

// merge is a merge patch by a manager.
func (c *client) merge(name, manager string, patch object) object {
	c.t.Helper()
	return c.must("PATCH", api+"/"+name+"?fieldManager="+manager, patch, "Content-Type", "application/merge-patch+json")
}

// ready sets the status by the manager robot.
func (c *client) ready(name string) object {
	c.t.Helper()
	return c.must("PATCH", api+"/"+name+"/status?fieldManager=robot", object{"status": object{"phase": "Ready"}},
		"Content-Type", "application/merge-patch+json")
}

func (c *client) items(path string) []object {
	c.t.Helper()
	var all []object
	items, _ := c.must("GET", path, nil)["items"].([]any)
	for _, i := range items {
		all = append(all, i.(object))
	}
	return all
}

func TestHistory_listsRevisions(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	created := c.create("w", object{"size": "small"}, object{"color": "red"})
	labeled := object{"labels": object{"app.example.com/x": "y"}}
	large := c.merge("w", "anna", object{"spec": object{"size": "large"}, "metadata": labeled})
	c.ready("w")
	c.must("DELETE", api+"/w", nil)
	items := c.items(history + "/w")
	var told []string
	for _, i := range items {
		told = append(told, fmt.Sprint(i["operation"], " ", i["managers"], " ", i["subresource"], " ", i["generation"]))
	}
	want := "delete []  <nil>; update [robot] status 2; update [anna]  2; create [Go-http-client]  1"
	if got := strings.Join(told, "; "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	changes, _ := json.Marshal(items[2]["changes"])
	if got, want := string(changes), `[{"path":"metadata.labels[\"app.example.com/x\"]","to":"y"},`+
		`{"from":"small","path":"spec.size","to":"large"}]`; got != want {
		t.Errorf("changes %s\nwant %s", got, want)
	}
	if items[3]["revision"] != version(created) || items[2]["revision"] != version(large) {
		t.Errorf("revisions %v and %v", items[3]["revision"], items[2]["revision"])
	}
	for _, i := range items {
		if when, err := time.Parse(time.RFC3339Nano, fmt.Sprint(i["time"])); err != nil || time.Since(when) > time.Hour || i["user"] == "" {
			t.Errorf("%v by %q, %v", i["time"], i["user"], err)
		}
	}
	page := c.must("GET", history+"/w?limit=2", nil)
	if page["before"] != items[1]["revision"] || at(page, "since", "revision") == nil {
		t.Errorf("a page ends with %v, since %v", page["before"], page["since"])
	}
	if rest := c.items(fmt.Sprintf("%s/w?before=%v", history, page["before"])); len(rest) != 2 || rest[0]["revision"] != version(large) {
		t.Errorf("the next page: %v", rest)
	}
	beta := c.must("GET", "/history/shop.example.com/v1beta1/namespaces/default/widgets/w?at="+version(large), nil)
	if at(beta, "apiVersion") != "shop.example.com/v1beta1" {
		t.Errorf("another version: %v", beta)
	}
}

func TestHistory_at_andDifference(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	small := c.create("w", object{"size": "small"}, nil)
	large := c.merge("w", "anna", object{"spec": object{"size": "large"}})
	if got := c.must("GET", history+"/w?at="+version(small), nil); at(got, "spec", "size") != "small" || version(got) != version(small) {
		t.Errorf("at the first revision: %v", got)
	}
	now := time.Now().UTC().Format(time.RFC3339Nano)
	if got := c.must("GET", history+"/w?at="+now, nil); at(got, "spec", "size") != "large" {
		t.Errorf("now: %v", got)
	}
	d := c.must("GET", history+"/w?from="+version(small), nil)
	changes, _ := json.Marshal(d["changes"])
	if string(changes) != `[{"from":"small","path":"spec.size","to":"large"}]` || at(d, "from", "spec", "size") != "small" ||
		version(at(d, "to").(object)) != version(large) {
		t.Errorf("the difference is %s of %v and %v", changes, d["from"], d["to"])
	}
}

func TestHistory_refusals(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	w := c.create("w", object{"size": "small"}, nil)
	for _, test := range []struct {
		code  int
		path  string
		parts []string
	}{
		{400, history + "/w?at=yesterday", []string{`at: "yesterday" is not a point`, "-10m"}},
		{400, history + "/w?at=9000000000000000000", []string{"is in the future: the newest one is revision"}},
		{400, history + "/w?at=2999-01-01T00:00:00Z", []string{"in the future"}},
		{410, history + "/w?at=1", []string{"is no longer kept: the history is kept since revision"}},
		{404, history + "/x?at=" + version(w), []string{`"x" did not exist at revision`}},
		{404, history + "/x", []string{`"x" not found`}},
		{404, "/history/shop.example.com/v1/gadgets/x", []string{"no resource gadgets"}},
		{404, "/history/shop.example.com/v1/widgets/w", []string{"are in a namespace"}},
		{404, "/history/shop.example.com", []string{"no history at"}},
		{400, history + "/w?limit=0", []string{"1 to 500"}},
		{400, history + "/w?before=x", []string{"not a revision"}},
		{400, history + "/w?when=1", []string{`unknown parameter "when"`}},
		{400, history + "/w?to=3", []string{"requires from"}},
		{400, history, []string{"deleted=true"}},
	} {
		c.refused(test.code, "GET", test.path, nil, test.parts...)
	}
	jane := c.jane()
	jane.refused(403, "GET", history+"/w", nil, `cannot get resource "widgets"`)
	jane.refused(403, "GET", history+"?deleted=true", nil, `cannot list resource "widgets"`)
	jane.refused(403, "POST", history+"/w", object{"undo": version(w)}, `cannot update resource "widgets"`)
	c.refused(400, "POST", history+"/w", object{"undo": version(w), "restore": "3"}, "one of")
	c.refused(400, "POST", history+"/w", object{"repeal": "3"}, "unknown field")
	c.refused(400, "POST", history+"/w", object{"undo": version(w)}, "created", "delete the object instead")
	c.refused(404, "POST", history+"/w", object{"undo": "9223372036854775807"}, "was not written at revision")
	c.refused(405, "DELETE", history+"/w", nil)
}

func TestHistory_undo(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	c.create("w", object{"size": "small", "replicas": 1, "parts": []object{{"name": "a", "count": 1}, {"name": "b", "count": 2}}}, nil)
	wrong := c.merge("w", "anna", object{
		"spec":     object{"size": "large", "parts": []object{{"name": "a", "count": 9}, {"name": "c", "count": 3}}},
		"metadata": object{"annotations": object{"why": "no idea"}},
	})
	c.merge("w", "bert", object{"spec": object{"replicas": 5}, "metadata": object{"labels": object{"later": "yes"}}})

	tried := c.must("POST", history+"/w", object{"undo": version(wrong), "dryRun": true})
	if at(tried, "spec", "size") != "small" || at(c.must("GET", api+"/w", nil), "spec", "size") != "large" {
		t.Errorf("a dry run: %v", at(tried, "spec"))
	}
	undone := c.must("POST", history+"/w", object{"undo": version(wrong)})
	parts, _ := json.Marshal(at(undone, "spec", "parts"))
	if at(undone, "spec", "size") != "small" || fmt.Sprint(at(undone, "spec", "replicas")) != "5" ||
		at(undone, "metadata", "labels", "later") != "yes" || at(undone, "metadata", "annotations", "why") != nil ||
		string(parts) != `[{"count":1,"name":"a"},{"count":2,"name":"b"}]` {
		t.Errorf("undone: %v %v", undone["metadata"], undone["spec"])
	}
	newest := c.items(history + "/w?limit=1")[0]
	if managers := fmt.Sprint(newest["managers"]); !strings.HasPrefix(managers, "[annex-undo") {
		t.Errorf("the managers of an undo are %s", managers)
	}
	if again := c.must("POST", history+"/w", object{"undo": version(wrong)}); version(again) != version(undone) {
		t.Errorf("undone twice: revision %s after %s", version(again), version(undone))
	}
}

func TestHistory_undo_newestRevision(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	c.create("w", object{"size": "small"}, object{"color": "red"})
	large := c.merge("w", "anna", object{"spec": object{"size": "large"}, "metadata": object{"labels": object{"color": "blue"}}})
	undone := c.must("POST", history+"/w", object{"undo": version(large)})
	if at(undone, "spec", "size") != "small" || at(undone, "metadata", "labels", "color") != "red" || version(undone) == version(large) {
		t.Errorf("undone: %v", undone)
	}
	// An undo is a change that can be undone.
	if again := c.must("POST", history+"/w", object{"undo": version(undone)}); at(again, "spec", "size") != "large" {
		t.Errorf("undone twice: %v", again)
	}
}

func TestHistory_undo_conflicts(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	c.create("w", object{"size": "small"}, nil)
	first := c.merge("w", "anna", object{"spec": object{"size": "medium"}})
	c.merge("w", "bert", object{"spec": object{"size": "large"}, "metadata": object{"labels": object{"frozen": "yes"}}})
	status := c.refused(409, "POST", history+"/w", object{"undo": version(first)}, "spec.size by bert", "undo the later revisions first")
	causes, _ := at(status, "details", "causes").([]any)
	if len(causes) != 1 || at(causes[0], "field") != "spec.size" || at(causes[0], "reason") != "FieldManagerConflict" {
		t.Errorf("causes %v", causes)
	}
	// The label is set back as well, so validation refuses no undo here; a restore of the size alone is refused.
	c.merge("w", "carl", object{"metadata": object{"annotations": object{"x": "y"}}})
	before := c.must("GET", api+"/w", nil)
	c.must("POST", history+"/w", object{"restore": version(first), "dryRun": true})
	if now := c.must("GET", api+"/w", nil); version(now) != version(before) {
		t.Error("a dry run wrote")
	}
	restored := c.must("POST", history+"/w?fieldManager=dora", object{"restore": version(first)})
	if at(restored, "spec", "size") != "medium" || at(restored, "metadata", "labels") != nil ||
		at(restored, "metadata", "annotations") != nil || at(restored, "metadata", "uid") != at(before, "metadata", "uid") {
		t.Errorf("restored %v", restored)
	}
}

func TestHistory_undo_refusedByValidation(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	c.create("w", object{"size": "small"}, nil)
	large := c.merge("w", "anna", object{"spec": object{"size": "large"}})
	c.merge("w", "bert", object{"metadata": object{"labels": object{"frozen": "yes"}}})
	status := c.refused(422, "POST", history+"/w", object{"undo": version(large)}, "frozen widgets are large")
	if causes, _ := at(status, "details", "causes").([]any); len(causes) != 1 || at(causes[0], "field") != "spec.size" {
		t.Errorf("causes %v", causes)
	}
}

func TestHistory_undo_status(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	c.create("w", object{"size": "small"}, nil)
	ready := c.ready("w")
	c.refused(400, "POST", history+"/w", object{"undo": version(ready)}, "was written by robot through /status")
}

func TestHistory_undo_whileOthersWrite(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	c.create("w", object{"size": "small"}, nil)
	large := c.merge("w", "anna", object{"spec": object{"size": "large"}})
	var writers sync.WaitGroup
	stop := make(chan struct{})
	writers.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				c.merge("w", "bert", object{"metadata": object{"annotations": object{"n": fmt.Sprint(i)}}})
			}
		}
	})
	code, answer := 0, object{}
	for range 20 { // it gives up after some attempts, with 409
		if code, answer = c.do("POST", history+"/w", object{"undo": version(large)}); code != 409 {
			break
		}
	}
	close(stop)
	writers.Wait()
	now := c.must("GET", api+"/w", nil)
	if code != 200 || at(now, "spec", "size") != "small" || at(now, "metadata", "annotations", "n") == nil {
		t.Errorf("%d %v; then %v", code, answer, now)
	}
}

func TestHistory_deleted_comesBack(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	w := c.create("w", object{"size": "large"}, object{"a": "b"})
	c.create("x", object{"size": "large"}, nil)
	c.must("DELETE", api+"/w", nil)
	c.must("DELETE", api+"/x", nil)
	c.create("x", object{"size": "small"}, nil)
	for _, path := range []string{history, "/history/shop.example.com/v1/widgets"} {
		deleted := c.items(path + "?deleted=true")
		if len(deleted) != 1 || deleted[0]["name"] != "w" || deleted[0]["namespace"] != "default" ||
			deleted[0]["uid"] != at(w, "metadata", "uid") {
			t.Fatalf("%s: deleted are %v", path, deleted)
		}
	}
	revision := c.items(history + "?deleted=true")[0]["revision"]
	again := c.must("POST", history+"/w", object{"restore": revision})
	if at(again, "spec", "size") != "large" || at(again, "metadata", "labels", "a") != "b" ||
		at(again, "metadata", "uid") == at(w, "metadata", "uid") {
		t.Errorf("back: %v", again)
	}
	if deleted := c.items(history + "?deleted=true"); len(deleted) != 0 {
		t.Errorf("still deleted: %v", deleted)
	}
	if items := c.items(history + "/w"); len(items) != 3 || items[1]["operation"] != "delete" {
		t.Errorf("the history is %v", items)
	}
}

func TestHistory_ofResourcesWithoutRetention(t *testing.T) {
	t.Parallel()
	c := start(t, shop(), annex.Options{})
	c.must("POST", "/apis/shop.example.com/v1/shelves", object{
		"apiVersion": "shop.example.com/v1", "kind": "Shelf", "metadata": object{"name": "s"},
	})
	items := c.items("/history/shop.example.com/v1/shelves/s")
	if len(items) != 1 || items[0]["user"] != "" || items[0]["operation"] != "create" {
		t.Errorf("the history is %v", items)
	}
	if items := c.items("/history/core/v1/namespaces/default"); len(items) == 0 {
		t.Error("namespaces have no history")
	}
}

func TestQuery_at_isAPageOfThePast(t *testing.T) {
	t.Parallel()
	server := shop()
	server.Groups[0].Kinds[0].(*annex.KindBuilder[v1.Widget]).Query(
		annex.Sortable("spec.size", func(w *v1.Widget) string { return w.Spec.Size }))
	c := start(t, server, annex.Options{})
	c.create("a", object{"size": "small"}, nil)
	both := c.create("b", object{"size": "large"}, nil)
	c.merge("b", "anna", object{"spec": object{"size": "medium"}})
	c.must("DELETE", api+"/a", nil)
	const query = "/query/shop.example.com/v1/widgets?sortBy=spec.size"
	names := func(path string) (all []string) {
		for _, i := range c.items(path) {
			all = append(all, fmt.Sprint(at(i, "metadata", "name"), " ", at(i, "spec", "size")))
		}
		return all
	}
	if got, want := fmt.Sprint(names(query)), "[b medium]"; got != want {
		t.Errorf("now: %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(names(query+"&at="+version(both))), "[b large a small]"; got != want {
		t.Errorf("before: %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(names(query+"&ascending=false&limit=1&page=2&at="+version(both))), "[b large]"; got != want {
		t.Errorf("the second page: %s, want %s", got, want)
	}
	if got := c.must("GET", query+"&at="+time.Now().UTC().Format(time.RFC3339Nano), nil); at(got, "totalItems") != 1.0 {
		t.Errorf("at the present time: %v", got)
	}
	c.refused(410, "GET", query+"&at=1", nil, "the history is kept since revision")
	c.refused(410, "GET", query+"&at=-24h", nil, "the history is kept since revision")
	c.refused(400, "GET", query+"&at=9000000000000000000", nil, "in the future")
	c.refused(400, "GET", query+"&at=then", nil, `"then" is not a point`)
}

func TestHistory_ofVirtualKinds_isRefused(t *testing.T) {
	t.Parallel()
	server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().Virtual(annex.Source[v1.Shelf]{
			Get: func(_ context.Context, _, name string) (*v1.Shelf, error) {
				s := &v1.Shelf{}
				s.Name = name
				return s, nil
			},
			List: func(context.Context) ([]v1.Shelf, error) { return nil, nil },
		}),
	}}}}
	c := start(t, server, annex.Options{})
	c.refused(405, "GET", "/history/shop.example.com/v1/shelves/s", nil, "have no history: they are virtual")
	c.refused(405, "GET", "/history/shop.example.com/v1/shelves/s?at=-1m", nil, "have no history")
	c.refused(405, "GET", "/history/shop.example.com/v1/shelves?deleted=true", nil, "have no history")
}
