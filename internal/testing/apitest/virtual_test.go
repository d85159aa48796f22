package apitest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/shop/v1beta1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// system is another system that has widgets: it numbers their versions, and keeps either only the labels of their
// metadata, or all of it.
type system struct {
	keepsMetadata bool

	mu       sync.Mutex
	version  int
	widgets  map[string]v1.Widget
	fails    error
	calls    map[string]int
	changed  func(namespace, name string)
	extra    []v1.Widget   // additional results of List
	meantime func()        // runs before a write is compared
	hold     chan struct{} // a List waits for it before it returns
}

func newSystem(names ...string) *system {
	s := &system{widgets: map[string]v1.Widget{}, calls: map[string]int{}}
	for _, name := range names {
		s.set(name, nil)
	}
	return s
}

// set changes or creates a widget behind the server's back.
func (s *system) set(name string, change func(*v1.Widget)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.widgets["default/"+name]
	if !ok {
		w.Namespace, w.Name = "default", name
		w.Spec.Size = "small"
	}
	w = *w.DeepCopy()
	if change != nil {
		change(&w)
	}
	s.put(&w)
}

func (s *system) put(w *v1.Widget) {
	s.version++
	kept := *w.DeepCopy()
	if !s.keepsMetadata {
		kept.ObjectMeta = metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, Labels: w.Labels}
	}
	kept.ResourceVersion = "v" + strconv.Itoa(s.version)
	s.widgets[w.Namespace+"/"+w.Name] = kept
	s.notify(w.Namespace, w.Name)
}

func (s *system) notify(namespace, name string) {
	if s.changed != nil {
		s.changed(namespace, name)
	}
}

// drop deletes a widget behind the server's back.
func (s *system) drop(name string) { s.dropFrom("default", name) }

func (s *system) dropFrom(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.widgets, namespace+"/"+name)
	s.notify(namespace, name)
}

func (s *system) failWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

func (s *system) called(function string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[function]
}

// call counts a call. It needs mu.
func (s *system) call(function string) error {
	s.calls[function]++
	return s.fails
}

func (s *system) get(_ context.Context, namespace, name string) (*v1.Widget, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.call("get"); err != nil {
		return nil, err
	}
	w, ok := s.widgets[namespace+"/"+name]
	if !ok {
		return nil, fmt.Errorf("widget %s: %w", name, annex.ErrNotFound)
	}
	return w.DeepCopy(), nil
}

func (s *system) list(context.Context) ([]v1.Widget, error) {
	s.mu.Lock()
	err := s.call("list")
	all := append(slices.Collect(maps.Values(s.widgets)), s.extra...)
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return all, err
}

func (s *system) create(_ context.Context, w *v1.Widget) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.call("create"); err != nil {
		return err
	}
	if _, ok := s.widgets[w.Namespace+"/"+w.Name]; ok {
		return annex.ErrAlreadyExists
	}
	s.put(w)
	return nil
}

func (s *system) update(_ context.Context, w, old *v1.Widget) error {
	if err := s.compare("update", old); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(w)
	return nil
}

func (s *system) delete(_ context.Context, old *v1.Widget) error {
	if err := s.compare("delete", old); err != nil {
		return err
	}
	s.dropFrom(old.Namespace, old.Name)
	return nil
}

func (s *system) compare(function string, old *v1.Widget) error {
	s.mu.Lock()
	meantime := s.meantime
	s.meantime = nil
	s.mu.Unlock()
	if meantime != nil {
		meantime()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.call(function); err != nil {
		return err
	}
	if now, ok := s.widgets[old.Namespace+"/"+old.Name]; !ok {
		return annex.ErrNotFound
	} else if now.ResourceVersion != old.ResourceVersion {
		return annex.ErrConflict
	}
	return nil
}

// source has everything but a way to watch.
func (s *system) source() annex.Source[v1.Widget] {
	return annex.Source[v1.Widget]{
		Get: s.get, List: s.list, Create: s.create, Update: s.update, Delete: s.delete,
		KeepsMetadata: s.keepsMetadata,
	}
}

// polled has everything, with frequent polls.
func (s *system) polled() annex.Source[v1.Widget] {
	source := s.source()
	source.Poll = 5 * time.Millisecond
	return source
}

// fed has everything, with a change feed.
func (s *system) fed() annex.Source[v1.Widget] {
	source := s.source()
	source.Changes = func(ctx context.Context, changed func(namespace, name string)) error {
		s.mu.Lock()
		s.calls["changes"]++
		s.changed = changed
		s.mu.Unlock()
		changed("", "")
		<-ctx.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed = nil
		return nil
	}
	return source
}

func virtualWidgets(source annex.Source[v1.Widget]) *annex.KindBuilder[v1.Widget] {
	return widgets().Virtual(source)
}

func TestVirtual_reads(t *testing.T) {
	t.Parallel()
	s := newSystem("a", "b", "c")
	s.set("b", func(w *v1.Widget) { w.Labels = map[string]string{"app": "x"}; w.Spec.Size = "large" })
	c := startKind(t, virtualWidgets(s.polled()))

	a := c.widget("a")
	if a.UID == "" || a.ResourceVersion == "" || strings.HasPrefix(a.ResourceVersion, "v") || a.Spec.Size != "small" {
		t.Errorf("got %+v", a)
	}
	if again := c.widget("a"); again.UID != a.UID || again.ResourceVersion != a.ResourceVersion {
		t.Errorf("an object that did not change got another UID or resource version: %+v", again)
	}
	s.set("a", func(w *v1.Widget) { w.Spec.Size = "large" })
	if changed := c.widget("a"); changed.Spec.Size != "large" || changed.UID != a.UID || changed.ResourceVersion == a.ResourceVersion {
		t.Errorf("a get does not show what changed outside: %+v", changed)
	}
	s.drop("c")
	// In this order: there is no watch, so the mirror learns of the deletion when a list reads all objects from the
	// source.
	for _, list := range []struct{ query, want string }{
		{"?resourceVersion=0", "[a b c]"},
		{"?fieldSelector=metadata.name%3Da", "[a]"},
		{"?fieldSelector=metadata.name%3Dno", "[]"},
		{"?resourceVersion=0", "[a b c]"},
		{"", "[a b]"},
		{"?resourceVersion=0", "[a b]"},
		{"?labelSelector=app%3Dx", "[b]"},
		{"?labelSelector=app%21%3Dx", "[a]"},
		{"?fieldSelector=spec.size%3Dlarge", "[a b]"},
	} {
		if got := fmt.Sprint(c.get(widgetsPath + list.query).want(http.StatusOK).names()); got != list.want {
			t.Errorf("list%s: got %s, want %s", list.query, got, list.want)
		}
	}
	c.get(widgetsPath+"?fieldSelector=spec.nothing%3D1").refused(400, metav1.StatusReasonBadRequest, "field label not supported")
	c.get(widgetsPath+"/c").refused(404, metav1.StatusReasonNotFound, `widgets.shop.example.com "c" not found`)
	if beta := c.get(widgetsBetaPath + "/a").want(200); beta.str("apiVersion") != "shop.example.com/v1beta1" {
		t.Errorf("not converted: %s", beta.raw)
	}
	table := c.get(widgetsPath, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").want(200)
	if table.str("kind") != "Table" || !strings.Contains(string(table.raw), `"cells":["a","large"`) {
		t.Errorf("table: %s", table.raw)
	}
}

func TestVirtual_pages_oneRevision(t *testing.T) {
	t.Parallel()
	s := newSystem("a", "b", "c", "d", "e")
	c := startKind(t, virtualWidgets(s.polled()))
	page := c.get(widgetsPath + "?limit=2").want(200)
	if fmt.Sprint(page.names()) != "[a b]" || page.str("metadata", "remainingItemCount") != "3" {
		t.Fatalf("first page: %s", page.raw)
	}
	s.drop("c")
	s.set("cc", nil)
	c.get(widgetsPath).want(200)
	next := c.get(widgetsPath + "?limit=2&continue=" + page.str("metadata", "continue")).want(200)
	if fmt.Sprint(next.names()) != "[c d]" || next.str("metadata", "resourceVersion") != page.str("metadata", "resourceVersion") {
		t.Errorf("second page: %s", next.raw)
	}
	if got := fmt.Sprint(c.get(widgetsPath).names()); got != "[a b cc d e]" {
		t.Errorf("list: %s", got)
	}
}

func TestVirtual_writes(t *testing.T) {
	t.Parallel()
	s := newSystem()
	c := startKind(t, virtualWidgets(s.source()))

	created := c.create(
		"w",
		spec(fields{"size": "small", "options": fields{"prepared": "please"}}),
		metadata(fields{"labels": fields{"a": "b"}}),
	)
	if created.Spec.Options["prepared"] != "create" || created.Labels["a"] != "b" || created.ResourceVersion == "" {
		t.Errorf("created: %+v", created)
	}
	if _, err := s.get(t.Context(), "default", "w"); err != nil {
		t.Error(err)
	}
	c.post(widgetsPath, widget("w")).refused(409, metav1.StatusReasonAlreadyExists, `widgets.shop.example.com "w" already exists`)
	c.post(widgetsPath, widget("x", spec(fields{"size": "huge"}))).refused(422, metav1.StatusReasonInvalid, "spec.size")
	c.post(widgetsPath, widget("x", metadata(fields{"finalizers": []string{"example.com/f"}}))).
		refused(422, metav1.StatusReasonInvalid, "metadata.finalizers: Forbidden: the source of widgets.shop.example.com does not store "+
			"finalizers")
	c.post(widgetsPath+"?fieldValidation=Strict", widget("x", spec(fields{"colour": "red"}))).
		refused(400, metav1.StatusReasonBadRequest, `unknown field "spec.colour"`)
	c.post(strings.Replace(widgetsPath, "default", "nowhere", 1), widget("x")).
		refused(404, metav1.StatusReasonNotFound, `namespaces "nowhere" not found`)

	patched := c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"medium"}}`).want(200).widget()
	if patched.Spec.Size != "medium" || patched.ResourceVersion == created.ResourceVersion {
		t.Errorf("patched: %+v", patched)
	}
	calls := s.called("update")
	if again := c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"medium"}}`).
		want(200).
		widget(); again.ResourceVersion != patched.ResourceVersion {
		t.Errorf("a patch that changes nothing made another resource version")
	}
	if s.called("update") != calls {
		t.Error("a patch that changes nothing was written")
	}
	created.Spec.Size = "large"
	c.put(widgetsPath+"/w", created).refused(409, metav1.StatusReasonConflict, "the object has been modified")
	patched.Spec.Size = "large"
	if put := c.put(widgetsPath+"/w", patched).want(200).widget(); put.Spec.Size != "large" {
		t.Errorf("put: %+v", put)
	}
	if st := c.patch(mergePatch, widgetsPath+"/w/status", `{"status":{"phase":"Ready"},"spec":{"size":"small"}}`).
		want(200).
		widget(); st.Status.Phase != "Ready" ||
		st.Spec.Size != "large" {
		t.Errorf("status: %+v", st)
	}
	c.patch(mergePatch, widgetsPath+"/w/scale", `{"spec":{"replicas":5}}`).want(200)
	if w := c.widget("w"); *w.Spec.Replicas != 5 {
		t.Errorf("scaled: %+v", w.Spec)
	}
	for range 3 {
		if w := c.post(widgetsPath, widget("", metadata(fields{"generateName": "g-"}))).want(201).widget(); !strings.HasPrefix(w.Name, "g-") {
			t.Errorf("generated %q", w.Name)
		}
	}
	c.delete(widgetsPath+"/w", fields{"preconditions": fields{"uid": "other"}}).
		refused(409, metav1.StatusReasonConflict, "the UID in the precondition (other) does not match")
	c.delete(widgetsPath+"/w", nil).want(200)
	c.delete(widgetsPath+"/w", nil).refused(404, metav1.StatusReasonNotFound)
	c.delete(widgetsPath, nil).want(200)
	if len(s.widgets) != 0 {
		t.Errorf("left after the deletion of all: %v", s.widgets)
	}
}

func TestVirtual_dryRun(t *testing.T) {
	t.Parallel()
	s := newSystem("w")
	c := startKind(t, virtualWidgets(s.source()))
	c.post(widgetsPath+"?dryRun=All", widget("x")).want(201)
	c.post(widgetsPath+"?dryRun=All", widget("w")).refused(409, metav1.StatusReasonAlreadyExists)
	if w := c.patch(mergePatch, widgetsPath+"/w?dryRun=All", `{"spec":{"size":"large"}}`).want(200).widget(); w.Spec.Size != "large" {
		t.Errorf("got %+v", w.Spec)
	}
	c.apply(widgetsPath+"/y", "me", widget("y"), "dryRun=All").want(201)
	c.delete(widgetsPath+"/w?dryRun=All", nil).want(200)
	c.delete(widgetsPath+"?dryRun=All", nil).want(200)
	for _, function := range []string{"create", "update", "delete"} {
		if n := s.called(function); n > 0 {
			t.Errorf("%d calls of %s", n, function)
		}
	}
}

func TestVirtual_unsupportedVerbs(t *testing.T) {
	t.Parallel()
	s := newSystem("w")
	all := s.source()
	for name, test := range map[string]struct {
		source annex.Source[v1.Widget]
		verbs  string
		subs   bool
	}{
		"reads":            {annex.Source[v1.Widget]{Get: s.get, List: s.list}, "get list", false},
		"reads and polls":  {annex.Source[v1.Widget]{Get: s.get, List: s.list, Poll: time.Hour}, "get list watch", false},
		"creates":          {annex.Source[v1.Widget]{Get: s.get, List: s.list, Create: s.create}, "create get list", false},
		"updates":          {annex.Source[v1.Widget]{Get: s.get, List: s.list, Update: s.update}, "get list patch update", true},
		"deletes":          {annex.Source[v1.Widget]{Get: s.get, List: s.list, Delete: s.delete}, "delete deletecollection get list", false},
		"all but watching": {all, "create delete deletecollection get list patch update", true},
		"everything":       {s.polled(), "create delete deletecollection get list patch update watch", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kind := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Virtual(test.source)
			c := startKind(t, kind)
			verbs, subs := discovered(c, "widgets"), discovered(c, "widgets/status")
			if got := strings.Join(verbs, " "); got != test.verbs {
				t.Errorf("discovery: %s, want %s", got, test.verbs)
			}
			if (subs != nil) != test.subs {
				t.Errorf("/status in discovery: %v", subs)
			}
			can := func(verb string) bool { return slices.Contains(verbs, verb) }
			for verb, ask := range map[string]func() *answer{
				"create":           func() *answer { return c.post(widgetsPath, widget("x")) },
				"update":           func() *answer { return c.put(widgetsPath+"/w", widget("w")) },
				"patch":            func() *answer { return c.patch(mergePatch, widgetsPath+"/w", `{}`) },
				"delete":           func() *answer { return c.delete(widgetsPath+"/w?dryRun=All", nil) },
				"deletecollection": func() *answer { return c.delete(widgetsPath+"?dryRun=All", nil) },
			} {
				a := ask()
				if !can(verb) {
					a.refused(405, metav1.StatusReasonMethodNotAllowed)
				} else if a.code == 405 {
					t.Errorf("%s: %s", verb, a.raw)
				}
			}
			if !can("watch") {
				c.get(widgetsPath+"?watch=1").refused(405, metav1.StatusReasonMethodNotAllowed)
			}
			if !can("create") && can("patch") {
				c.apply(widgetsPath+"/new", "me", widget("new")).refused(405, metav1.StatusReasonMethodNotAllowed)
			}
			if openapi := string(
				c.get("/openapi/v3/apis/shop.example.com/v1").want(200).raw,
			); strings.Contains(
				openapi,
				"createShopExampleComV1NamespacedWidget",
			) != can(
				"create",
			) {
				t.Errorf("OpenAPI: create is there: %v", !can("create"))
			}
		})
	}
}

// discovered returns the verbs of a resource in discovery, nil if it does not exist.
func discovered(c *client, resource string) []string {
	c.t.Helper()
	var list metav1.APIResourceList
	decode(c.t, c.get("/apis/shop.example.com/v1").want(200).raw, &list)
	for _, r := range list.APIResources {
		if r.Name == resource {
			return r.Verbs
		}
	}
	return nil
}

func TestVirtual_concurrentWriteInSource_wins(t *testing.T) {
	t.Parallel()
	s := newSystem("w")
	c := startKind(t, virtualWidgets(s.source()))
	w := c.widget("w")
	s.meantime = func() { s.set("w", func(w *v1.Widget) { w.Spec.Options = map[string]string{"outside": "yes"} }) }
	w.Spec.Size = "large"
	c.put(widgetsPath+"/w", w).refused(409, metav1.StatusReasonConflict)

	s.meantime = func() { s.set("w", func(w *v1.Widget) { w.Spec.Options["outside"] = "twice" }) }
	patched := c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"large"}}`).want(200).widget()
	if patched.Spec.Size != "large" || patched.Spec.Options["outside"] != "twice" {
		t.Errorf("a patch is made again on the newer object: %+v", patched.Spec)
	}
	s.meantime = func() { s.set("w", func(w *v1.Widget) { w.Labels = map[string]string{"protected": "yes"} }) }
	rv := patched.ResourceVersion
	c.delete(widgetsPath+"/w", fields{"preconditions": fields{"resourceVersion": rv}}).refused(409, metav1.StatusReasonConflict)
	s.meantime = func() { s.drop("w") }
	c.delete(widgetsPath+"/w", nil).refused(404, metav1.StatusReasonNotFound)
}

func TestVirtual_apply_metadataKept(t *testing.T) {
	t.Parallel()
	s := newSystem()
	s.keepsMetadata = true
	c := startKind(t, virtualWidgets(s.source()))
	c.apply(widgetsPath+"/w", "me", widget("w", spec(fields{"size": "small", "options": fields{"mine": "1"}}))).want(201)
	c.apply(widgetsPath+"/w", "me", widget("w", spec(fields{"size": "large"}))).want(200)
	if w := c.widget("w"); w.Spec.Size != "large" || len(w.Spec.Options) > 0 {
		t.Errorf("what is no longer applied stays: %+v", w.Spec)
	}
	c.apply(widgetsPath+"/w", "you", widget("w", spec(fields{"size": "small"}))).
		refused(409, metav1.StatusReasonConflict, `conflict with "me"`)

	// Finalizers and owners work as with stored objects.
	uid := c.widget("w").UID
	c.patch(mergePatch, widgetsPath+"/w", `{"metadata":{"finalizers":["example.com/f"]}}`).want(200)
	c.delete(widgetsPath+"/w", nil).want(200)
	if w := c.widget("w"); w.DeletionTimestamp == nil || w.UID != uid {
		t.Errorf("got %+v", w.ObjectMeta)
	}
	c.patch(mergePatch, widgetsPath+"/w", `{"metadata":{"finalizers":null}}`).want(200)
	c.get(widgetsPath+"/w").refused(404, metav1.StatusReasonNotFound)
	if s.called("delete") != 1 {
		t.Errorf("%d calls of delete", s.called("delete"))
	}
}

func TestVirtual_apply_metadataNotKept(t *testing.T) {
	t.Parallel()
	s := newSystem()
	c := startKind(t, virtualWidgets(s.source()))
	annotated := widget("w", metadata(fields{"annotations": fields{"a": "b"}, "labels": fields{"c": "d"}}), spec(fields{"size": "small"}))
	created := c.apply(widgetsPath+"/w", "me", annotated).want(201)
	if got := fmt.Sprint(created.warnings()); got != "[metadata.annotations: the source of widgets.shop.example.com does not store "+
		"the field]" {
		t.Errorf("warnings: %s", got)
	}
	c.apply(widgetsPath+"/w", "me", widget("w", spec(fields{"size": "small"}))).want(200)
	large := widget("w", spec(fields{"size": "large"}))
	c.apply(widgetsPath+"/w", "me", large).refused(409, metav1.StatusReasonConflict, `conflict with "before-first-apply"`)
	c.apply(widgetsPath+"/w", "me", large, "force=true").want(200)
	if w := c.widget("w"); w.Spec.Size != "large" {
		t.Errorf("got %+v", w.Spec)
	}
}

func TestVirtual_admission(t *testing.T) {
	t.Parallel()
	s := newSystem("w")
	c := startKind(t, virtualWidgets(s.source()).
		Mutate(func(_ context.Context, r annex.Request[v1.Widget]) error {
			r.Object.Labels = map[string]string{"seen": "yes"}
			return nil
		}).
		Admit(func(_ context.Context, r annex.Request[v1.Widget]) error {
			if r.Operation == annex.Delete && r.Old.Labels["seen"] == "yes" {
				return errors.New("it is in use")
			}
			return nil
		}))
	c.create("x")
	c.delete(widgetsPath+"/x", nil).refused(403, metav1.StatusReasonForbidden, "it is in use")
	c.delete(widgetsPath+"/w", nil).want(200)
	if s.called("delete") != 1 {
		t.Errorf("%d calls of delete", s.called("delete"))
	}
}

func TestVirtual_failingSource(t *testing.T) {
	t.Parallel()
	s := newSystem("w")
	c := startKind(t, virtualWidgets(s.polled()))
	list := c.get(widgetsPath).want(200)
	w := c.watch(widgetsPath + "?watch=1&resourceVersion=" + list.str("metadata", "resourceVersion"))

	s.failWith(errors.New("no route to host"))
	for _, a := range []*answer{
		c.get(widgetsPath), c.get(widgetsPath + "/w"), c.post(widgetsPath, widget("x")), c.delete(widgetsPath+"/w", nil),
		c.patch(mergePatch, widgetsPath+"/w", `{}`), c.get(widgetsPath + "?watch=1"),
	} {
		a.refused(503, metav1.StatusReasonServiceUnavailable, "widgets.shop.example.com from their source: no route to host")
	}
	if got := fmt.Sprint(c.get(widgetsPath + "?resourceVersion=0").want(200).names()); got != "[w]" {
		t.Errorf("what was known is still readable: %s", got)
	}
	c.get("/readyz").want(200)
	s.failWith(nil)
	s.set("w", func(w *v1.Widget) { w.Spec.Size = "large" })
	w.want("MODIFIED w")

	s.failWith(&statusError{metav1.Status{Status: metav1.StatusFailure, Code: 418, Reason: "Teapot", Message: "short and stout"}})
	c.get(widgetsPath+"/w").refused(418, "Teapot", "short and stout")
}

type statusError struct{ status metav1.Status }

func (e *statusError) Error() string         { return e.status.Message }
func (e *statusError) Status() metav1.Status { return e.status }

func TestVirtual_panickingSource(t *testing.T) {
	t.Parallel()
	s := newSystem("w")
	source := s.polled()
	var panics sync.Map
	may := func(function string) {
		if _, ok := panics.Load(function); ok {
			panic("a mistake")
		}
	}
	source.Get = func(ctx context.Context, namespace, name string) (*v1.Widget, error) {
		may("Get")
		return s.get(ctx, namespace, name)
	}
	source.List = func(ctx context.Context) ([]v1.Widget, error) { may("List"); return s.list(ctx) }
	source.Create = func(ctx context.Context, w *v1.Widget) error { may("Create"); return s.create(ctx, w) }
	source.Update = func(ctx context.Context, w, old *v1.Widget) error { may("Update"); return s.update(ctx, w, old) }
	source.Delete = func(ctx context.Context, old *v1.Widget) error { may("Delete"); return s.delete(ctx, old) }
	c := startKind(t, virtualWidgets(source))
	w := c.watch(widgetsPath + "?watch=1")
	w.want("ADDED w")
	for function, ask := range map[string]func() *answer{
		"Get":    func() *answer { return c.get(widgetsPath + "/w") },
		"List":   func() *answer { return c.get(widgetsPath) },
		"Create": func() *answer { return c.post(widgetsPath, widget("x")) },
		"Update": func() *answer { return c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"large"}}`) },
		"Delete": func() *answer { return c.delete(widgetsPath+"/w", nil) },
	} {
		panics.Store(function, true)
		ask().refused(500, metav1.StatusReasonInternalError, function+" panicked; see the server's log")
		panics.Delete(function)
		c.get(widgetsPath + "/w").want(200)
	}
	s.set("w", func(w *v1.Widget) { w.Spec.Size = "large" })
	w.want("MODIFIED w")
}

func TestVirtual_brokenSource(t *testing.T) {
	t.Parallel()
	named := func(namespace, name string) v1.Widget {
		return v1.Widget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	for name, test := range map[string]struct {
		extra v1.Widget
		want  string
	}{
		"no name":      {named("default", ""), `an object in namespace "default" has no name`},
		"no namespace": {named("", "x"), `"x" has no namespace`},
		"a slash":      {named("default", "x/y"), `"x/y" cannot be a name: may not contain '/'`},
		"dots":         {named("default", ".."), `".." cannot be a name: may not be '..'`},
		"twice":        {named("default", "w"), "default/w is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem("w")
			c := startKind(t, virtualWidgets(s.polled()))
			c.get(widgetsPath).want(200)
			w := c.watch(widgetsPath + "?watch=1")
			w.want("ADDED w")
			s.mu.Lock()
			s.extra = []v1.Widget{test.extra}
			s.mu.Unlock()
			c.get(widgetsPath).refused(500, metav1.StatusReasonInternalError, "the source of widgets.shop.example.com: List: item 1", test.want)
			c.get(widgetsPath + "/w").want(200)
			s.mu.Lock()
			s.extra = nil
			s.mu.Unlock()
			s.set("w", func(w *v1.Widget) { w.Spec.Size = "large" })
			w.want("MODIFIED w")
		})
	}
	t.Run("get of another", func(t *testing.T) {
		t.Parallel()
		s := newSystem("w")
		source := s.source()
		source.Get = func(ctx context.Context, namespace, _ string) (*v1.Widget, error) { return s.get(ctx, namespace, "w") }
		startKind(
			t,
			virtualWidgets(source),
		).get(widgetsPath+"/x").
			refused(500, metav1.StatusReasonInternalError, "default/x returned", "default/w")
	})
	t.Run("get of nothing", func(t *testing.T) {
		t.Parallel()
		s := newSystem()
		source := s.source()
		source.Get = func(context.Context, string, string) (*v1.Widget, error) { return nil, nil }
		startKind(
			t,
			virtualWidgets(source),
		).get(widgetsPath+"/x").
			refused(500, metav1.StatusReasonInternalError, "neither an object nor an error")
	})
	t.Run("create that does nothing", func(t *testing.T) {
		t.Parallel()
		s := newSystem()
		source := s.source()
		source.Create = func(context.Context, *v1.Widget) error { return nil }
		startKind(
			t,
			virtualWidgets(source),
		).post(widgetsPath, widget("x")).
			refused(500, metav1.StatusReasonInternalError, "does not exist after it was written")
	})
}

func TestVirtual_watches(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]func(*system) annex.Source[v1.Widget]{
		"polled": (*system).polled,
		"fed":    (*system).fed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem("a")
			c := startKind(t, virtualWidgets(source(s)))
			w := c.watch(widgetsPath + "?watch=1")
			large := c.watch(widgetsPath + "?watch=1&fieldSelector=spec.size%3Dlarge")
			w.want("ADDED a")
			s.set("b", nil)
			w.want("ADDED b")
			s.set("b", func(w *v1.Widget) { w.Spec.Size = "large" })
			w.want("MODIFIED b")
			large.want("ADDED b")
			c.patch(mergePatch, widgetsPath+"/b", `{"spec":{"size":"small"}}`).want(200)
			w.want("MODIFIED b")
			large.want("DELETED b")
			c.create("c")
			last := w.want("ADDED c")
			s.drop("a")
			deleted := w.want("DELETED a")
			if rv := text(deleted.Object, "metadata", "resourceVersion"); rv <= text(last.Object, "metadata", "resourceVersion") {
				t.Errorf("the deletion has resource version %s", rv)
			}
			c.delete(widgetsPath+"/b", nil).want(200)
			w.want("DELETED b")
			resumed := c.watch(widgetsPath + "?watch=1&resourceVersion=" + text(last.Object, "metadata", "resourceVersion"))
			resumed.want("DELETED a", "DELETED b")
			// A watch list: the existing objects, then a bookmark that marks their end.
			list := c.watch(widgetsPath + "?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan")
			list.want("ADDED c")
			if e := list.next(); e.Type != "BOOKMARK" || text(e.Object, "metadata", "annotations") != "map[k8s.io/initial-events-end:true]" {
				t.Errorf("got %v", e)
			}
		})
	}
}

func TestVirtual_watchOfEarlierProcess_isExpired(t *testing.T) {
	t.Parallel()
	s := newSystem("a")
	server := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{virtualWidgets(s.polled())}}}}
	first, second := start(t, server), start(t, server)
	before := first.get(widgetsPath).want(200)
	s.set("b", nil)
	after := second.get(widgetsPath).want(200)
	for _, test := range []struct {
		c  *client
		rv string
	}{{second, before.str("metadata", "resourceVersion")}, {first, after.str("metadata", "resourceVersion")}} {
		w := test.c.watch(widgetsPath + "?watch=1&resourceVersion=" + test.rv)
		if e := w.next(); e.Type != "ERROR" || text(e.Object, "code") != "410" {
			t.Errorf("watch from %s: %v", test.rv, e)
		}
		w.ends()
	}
	if a, b := text(before.items()[0], "metadata", "uid"), text(after.items()[0], "metadata", "uid"); a != b || a == "" {
		t.Errorf("UIDs %q and %q", a, b)
	}
}

func TestVirtual_noWatch_noPolling(t *testing.T) {
	t.Parallel()
	s := newSystem("a")
	source := s.fed()
	source.Poll = time.Millisecond
	c := startKind(t, virtualWidgets(source))
	c.widget("a")
	c.widget("a")
	if lists, changes := s.called("list"), s.called("changes"); lists != 1 || changes != 0 {
		t.Errorf("%d lists and %d change feeds for two gets, want the list that fills the mirror", lists, changes)
	}
	ctx, cancel := context.WithCancel(t.Context())
	response := c.send(ctx, http.MethodGet, widgetsPath+"?watch=1", nil)
	before := s.called("list")
	testwait.Until(t, "a watch polls", func() bool { return s.called("list") >= before+5 })
	cancel()
	response.Body.Close()
	// The end of the feed is the last event.
	testwait.Until(t, "the feed ends with the watch", func() bool { return !s.feeding() })
	polls := s.called("list")
	c.widget("a")
	if n := s.called("list"); n > polls {
		t.Errorf("%d polls without a watch", n-polls)
	}
}

func (s *system) feeding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed != nil
}

func TestVirtual_overtakenList(t *testing.T) {
	t.Parallel()
	s := newSystem("a", "b", "gone")
	c := startKind(t, virtualWidgets(s.source()))
	c.get(widgetsPath).want(200)
	s.mu.Lock()
	s.hold = make(chan struct{})
	s.mu.Unlock()
	done := make(chan []string)
	go func() { done <- c.get(widgetsPath).names() }()
	testwait.Until(t, "the list is asked for", func() bool { return s.called("list") >= 2 })
	// The list has read everything, but has not returned.
	written := c.patch(mergePatch, widgetsPath+"/a", `{"spec":{"size":"large"}}`).want(200).widget()
	c.delete(widgetsPath+"/gone", nil).want(200)
	c.create("new")
	close(s.hold)
	if got := fmt.Sprint(<-done); got != "[a b new]" {
		t.Errorf("list: %s", got)
	}
	s.mu.Lock()
	s.hold = nil
	s.mu.Unlock()
	if a := c.get(widgetsPath + "/a?resourceVersion=0").widget(); a.Spec.Size != "large" || a.ResourceVersion != written.ResourceVersion {
		t.Errorf("the list brought back %+v", a)
	}
}

func TestNew_virtual_mistakes(t *testing.T) {
	t.Parallel()
	s := newSystem()
	reads := annex.Source[v1.Widget]{Get: s.get, List: s.list}
	bare := func(source annex.Source[v1.Widget]) *annex.KindBuilder[v1.Widget] {
		return annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Virtual(source)
	}
	for name, test := range map[string]struct {
		kind *annex.KindBuilder[v1.Widget]
		want string
	}{
		"no list":           {bare(annex.Source[v1.Widget]{Get: s.get}), "Virtual: a Source must have Get and List"},
		"no get":            {bare(annex.Source[v1.Widget]{List: s.list}), "Virtual: a Source must have Get and List"},
		"a negative poll":   {bare(annex.Source[v1.Widget]{Get: s.get, List: s.list, Poll: -1}), "Poll must be at least a millisecond, not -1ns"},
		"a poll of nothing": {bare(annex.Source[v1.Widget]{Get: s.get, List: s.list, Poll: 5}), "Poll must be at least a millisecond, not 5ns"},
		"a grace period":    {bare(s.source()).GracePeriod(time.Second), "GracePeriod: the objects of a virtual kind are deleted at once"},
		"a storage":         {bare(reads).StoredIn(memory.Storage()), `StoredIn(memory): the objects of a virtual kind are not stored`},
		"a stored version":  {bare(reads).StoredAs("v1"), `StoredAs("v1"): the objects of a virtual kind are not stored`},
		"a place": {bare(reads).StoredUnder("old.example.com", "widgets"), `StoredUnder("old.example.com", "widgets"): the objects ` +
			`of a virtual kind are not stored`},
		"a scale": {bare(reads).Scale(".spec.replicas", ".status.replicas", ""), "Scale: the source has no Update"},
		"a hook":  {bare(reads).Validate(validateWidget), "Validate never runs: the source has no Create or Update"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := annex.New(
				t.Context(),
				annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{test.kind}}}},
				annex.Options{Storage: memory.Storage()},
			)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestVirtual_listers(t *testing.T) {
	t.Parallel()
	s := newSystem("a")
	shelves := func() *annex.KindBuilder[v1.Shelf] {
		return annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().
			AdmitWith(func(env *annex.Env) (annex.AdmitFunc[v1.Shelf], error) {
				widgets, err := annex.ListerFor[v1.Widget](env)
				if err != nil {
					return nil, err
				}
				return func(ctx context.Context, r annex.Request[v1.Shelf]) error {
					_, err := widgets.Get(ctx, "default", r.Name)
					return err
				}, nil
			})
	}
	c := startKind(t, virtualWidgets(s.polled()), shelves())
	c.post(shelvesPath, shelf("a")).want(201)
	c.post(shelvesPath, shelf("b")).refused(404, metav1.StatusReasonNotFound)

	_, err := annex.New(t.Context(), annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		virtualWidgets(s.source()), shelves()}}}}, annex.Options{Storage: memory.Storage()})
	if err == nil || !strings.Contains(err.Error(), "cannot be watched: add Poll or Changes to its source") {
		t.Errorf("got %v", err)
	}
}

func TestVirtual_namespaceDeletion(t *testing.T) {
	t.Parallel()
	s := newSystem("w")
	shelvesSource := annex.Source[v1.Widget]{Get: s.get, List: s.list}
	for name, source := range map[string]annex.Source[v1.Widget]{"deletes": s.source(), "reads": shelvesSource} {
		t.Run(name, func(t *testing.T) {
			c := startKind(t, annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Virtual(source))
			c.namespace("doomed")
			s.mu.Lock()
			s.put(&v1.Widget{ObjectMeta: metav1.ObjectMeta{Namespace: "doomed", Name: "w"}})
			s.mu.Unlock()
			c.delete("/api/v1/namespaces/doomed", nil).want(200)
			testwait.Until(t, "the namespace is gone", func() bool { return c.get("/api/v1/namespaces/doomed").code == 404 })
			s.mu.Lock()
			defer s.mu.Unlock()
			if _, left := s.widgets["doomed/w"]; left != (name == "reads") {
				t.Errorf("left in the system: %v", left)
			}
			if _, left := s.widgets["default/w"]; !left {
				t.Error("another namespace's is gone")
			}
		})
	}
}

func TestVirtual_twoGroups(t *testing.T) {
	t.Parallel()
	s := newSystem("w")
	c := start(t, annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
			Virtual(annex.Source[v1.Widget]{Get: s.get, List: s.list, Update: s.update, Poll: time.Millisecond}).
			AlsoServedAs("store.example.com", "widgets", annex.SameVersion[v1.Widget, v1.Widget]("v1")),
	}}}})
	const other = "/apis/store.example.com/v1/namespaces/default/widgets"
	w := c.watch(other + "?watch=1")
	w.want("ADDED w")
	c.patch(mergePatch, widgetsPath+"/w", `{"spec":{"size":"large"}}`).want(200)
	if e := w.want("MODIFIED w"); text(e.Object, "apiVersion") != "store.example.com/v1" {
		t.Errorf("got %v", e.Object)
	}
	c.patch(mergePatch, other+"/w", `{"spec":{"size":"small"}}`).want(200)
	c.post(other, widget("x")).refused(405, metav1.StatusReasonMethodNotAllowed)
	c.delete(other+"/w", nil).refused(405, metav1.StatusReasonMethodNotAllowed)
}

// A conversion that panics for one object only affects requests for that object in that version.
func TestVirtual_panickingConversion(t *testing.T) {
	t.Parallel()
	s := newSystem("bad", "good")
	c := startKind(t, annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).
		Versions(annex.Version(v1beta1.API, v1beta1.WidgetToHub, func(hub *v1.Widget, out *v1beta1.Widget) error {
			if hub.Name == "bad" {
				panic("a mistake")
			}
			return v1beta1.WidgetFromHub(hub, out)
		})).
		Virtual(s.polled()))
	for _, path := range []string{widgetsBetaPath + "/bad", widgetsBetaPath} {
		c.get(path).refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "see the server's log")
	}
	c.get(widgetsBetaPath + "/good").want(http.StatusOK)
	if got := fmt.Sprint(c.get(widgetsPath).want(http.StatusOK).names()); got != "[bad good]" {
		t.Errorf("got %s", got)
	}
}
