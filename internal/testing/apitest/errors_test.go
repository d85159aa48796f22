package apitest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex"
	markedv1 "github.com/annexapi/annex/internal/testing/shop/marked/v1"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/operation"
	annexstream "github.com/annexapi/annex/stream"
)

// plain is the failure that is no API status: the response to it depends on the place.
const plain = "plain"

// failure is an error that a function of the user's returns.
type failure struct {
	err  error
	want answerTo // of all failures but the plain one
}

// answerTo is the response to an error. NAME in a message is the object's name.
type answerTo struct {
	code    int
	reason  metav1.StatusReason
	message string
}

func failures() map[string]failure {
	conflict, expired := annex.Conflict("taken by %s", "bob"), apierrors.NewResourceExpired("thrown away")
	busy := annex.TooManyRequests(1500*time.Millisecond, "the press is busy")
	return map[string]failure{
		plain:             {err: errors.New("the paint is wet")},
		"Invalid":         {annex.Invalid("size %q is odd", "xl"), answerTo{422, "Invalid", `size "xl" is odd`}},
		"Forbidden":       {annex.Forbidden("not on Sundays"), answerTo{403, "Forbidden", "not on Sundays"}},
		"NotFound":        {annex.NotFound("there is no paint"), answerTo{404, "NotFound", "there is no paint"}},
		"Conflict":        {conflict, answerTo{409, "Conflict", "taken by bob"}},
		"TooManyRequests": {busy, answerTo{429, "TooManyRequests", "the press is busy"}},
		"Unavailable":     {annex.Unavailable("the press is off"), answerTo{503, "ServiceUnavailable", "the press is off"}},
		"ErrNotFound":     {annex.ErrNotFound, answerTo{404, "NotFound", "object not found"}},
		"wrapped":         {fmt.Errorf("look up: %w", conflict), answerTo{409, "Conflict", "look up: taken by bob"}},
		"outermost":       {annex.Invalid("paint: %w", annex.NotFound("there is no red")), answerTo{422, "Invalid", "paint: there is no red"}},
		"upstream":        {expired, answerTo{410, "Expired", "thrown away"}},
		"upstreamWrapped": {fmt.Errorf("look up: %w", expired), answerTo{410, "Expired", "look up: thrown away"}},
	}
}

// hookPlace is a place in a definition where functions fail.
type hookPlace struct {
	// ask makes the function fail, for an object whose option "failure" names the failure.
	ask func(c *client, object, failure string) *answer
	// plain is the response to the plain error.
	plain answerTo
	// others are failures that have another response here than elsewhere.
	others map[string]answerTo
}

// failing returns the error that an option of an object names.
func failing(w *v1.Widget, option string) error {
	if w == nil {
		return nil
	}
	return failures()[w.Spec.Options[option]].err
}

func TestErrorsOfHooks_answers(t *testing.T) {
	t.Parallel()
	c := start(t, failingServer())
	for name := range failures() {
		c.post(widgetsPath, widget(strings.ToLower(name), spec(fields{"size": "small", "options": fields{"failure": name}}))).want(201)
	}
	creates := func(option string) func(c *client, object, failure string) *answer {
		return func(c *client, object, failure string) *answer {
			return c.post(widgetsPath, widget(object+"-new", spec(fields{"size": "small", "options": fields{option: failure}})))
		}
	}
	updates := func(option string) func(c *client, object, failure string) *answer {
		return func(c *client, object, failure string) *answer {
			return c.patch(mergePatch, widgetsPath+"/"+object, spec(fields{"options": fields{option: failure}}))
		}
	}
	deletes := func(c *client, object, _ string) *answer { return c.delete(widgetsPath+"/"+object, nil) }
	gets := func(subresource string) func(c *client, object, failure string) *answer {
		return func(c *client, object, _ string) *answer { return c.get(widgetsPath + "/" + object + subresource) }
	}
	posts := func(subresource string) func(c *client, object, failure string) *answer {
		return func(c *client, object, failure string) *answer {
			return c.post(widgetsPath+"/"+object+subresource, fields{"phase": failure})
		}
	}
	refusal := func(suffix string) answerTo {
		return answerTo{403, "Forbidden", `widgets.shop.example.com "NAME` + suffix + `" is forbidden: the paint is wet`}
	}
	fault := answerTo{500, "InternalError", "Internal error occurred: the paint is wet"}
	for name, place := range map[string]hookPlace{
		"Mutate":                   {ask: creates("mutate"), plain: refusal("-new")},
		"Mutate, update":           {ask: updates("mutate"), plain: refusal("")},
		"Admit, create":            {ask: creates("admit"), plain: refusal("-new")},
		"Admit, update":            {ask: updates("admit"), plain: refusal("")},
		"Admit, delete":            {ask: deletes, plain: refusal("")},
		"AdmitCreate":              {ask: creates("create"), plain: refusal("-new")},
		"AdmitUpdate":              {ask: updates("update"), plain: refusal("")},
		"AdmitConnect":             {ask: gets("/guarded"), plain: refusal("")},
		"Mutating plugin":          {ask: creates("mutating"), plain: refusal("-new")},
		"Validating plugin":        {ask: creates("validating"), plain: refusal("-new")},
		"plugin of upstream's":     {ask: creates("plugin"), plain: answerTo{500, "", "the paint is wet"}},
		"Action":                   {ask: posts("/painting"), plain: fault},
		"Action, change of Update": {ask: posts("/change"), plain: fault},
		"View":                     {ask: gets("/summary"), plain: fault},
		"Connect":                  {ask: gets("/connection"), plain: fault},
		"Connect, Responder":       {ask: gets("/responder"), plain: answerTo{500, "", "the paint is wet"}},
		"stream.Exec, Check":       {ask: gets("/exec?command=ls"), plain: fault},
		"operation.Action": {plain: fault, ask: func(c *client, object, failure string) *answer {
			op := posts("/long?wait=30s")(c, object, failure).want(201).operation()
			if op.Status.Error == nil {
				c.t.Fatalf("the operation has no error: %+v", op.Status)
			}
			status := op.Status.Error.DeepCopy()
			status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			raw, err := json.Marshal(status)
			if err != nil {
				c.t.Fatal(err)
			}
			return &answer{c.t, "operation", int(status.Code), nil, raw}
		}},
	} {
		t.Run(name, func(t *testing.T) { place.check(t, c) })
	}
}

// below returns the responses to all failures in places where the server wraps them with a prefix.
func below(prefix string) map[string]answerTo {
	all := map[string]answerTo{}
	for name, f := range failures() {
		if name != plain {
			all[name] = answerTo{f.want.code, f.want.reason, prefix + f.want.message}
		}
	}
	return all
}

// check causes each failure at the place, for an object of its name.
func (p hookPlace) check(t *testing.T, c *client) {
	c = &client{t, c.config, c.http}
	for name, f := range failures() {
		want := f.want
		if name == plain {
			want = p.plain
		}
		if other, ok := p.others[name]; ok {
			want = other
		}
		object := strings.ToLower(name)
		a := p.ask(c, object, name)
		want.message = strings.ReplaceAll(want.message, "NAME", object)
		if s := a.status(); a.code != want.code || s.Reason != want.reason || s.Message != want.message || s.Status != metav1.StatusFailure {
			t.Errorf("%s: got %d, %s, %q, want %d, %s, %q", name, a.code, s.Reason, s.Message, want.code, want.reason, want.message)
		}
		if after := a.header.Get("Retry-After"); a.header != nil && name == "TooManyRequests" && after != "2" {
			t.Errorf("%s: Retry-After %q, want 2", name, after)
		}
	}
}

func TestErrorsOfLogs_answers(t *testing.T) {
	t.Parallel()
	failing := func(r *annexstream.LogRequest[markedv1.Stack]) error {
		return failures()[r.Object.Annotations["failure"]].err
	}
	c := start(t, stackServer(annex.KindOf[markedv1.Stack, markedv1.StackList]("stacks", markedv1.API).Subresources(
		annexstream.Logs("log", func(_ context.Context, r *annexstream.LogRequest[markedv1.Stack]) (io.ReadCloser, error) {
			return nil, failing(r)
		}),
		annexstream.Logs("torn", func(_ context.Context, r *annexstream.LogRequest[markedv1.Stack]) (io.ReadCloser, error) {
			return io.NopCloser(tornReader{failing(r)}), nil
		}),
	)))
	for name := range failures() {
		annotated := metadata(fields{"name": strings.ToLower(name), "annotations": fields{"failure": name}})
		c.post(stacksPath, object("v1", "Stack", name, annotated, spec(fields{}), fields{"apiVersion": "marked.shop.example.com/v1"})).want(201)
	}
	for name, place := range map[string]hookPlace{
		"open": {
			ask:   func(c *client, object, _ string) *answer { return c.get(stacksPath + "/" + object + "/log") },
			plain: answerTo{500, "InternalError", "Internal error occurred: the paint is wet"},
		},
		"read": {
			ask:   func(c *client, object, _ string) *answer { return c.get(stacksPath + "/" + object + "/torn") },
			plain: answerTo{500, "InternalError", "Internal error occurred: read the log: the paint is wet"}, others: below("read the log: "),
		},
	} {
		t.Run(name, func(t *testing.T) { place.check(t, c) })
	}
}

// failingServer has a kind whose functions fail as options of its objects demand.
func failingServer() annex.Server {
	hook := func(option string) annex.AdmitFunc[v1.Widget] {
		return func(_ context.Context, r annex.Request[v1.Widget]) error {
			if r.Operation == annex.Delete {
				return failing(r.Old, "failure")
			}
			return failing(r.Object, option)
		}
	}
	beside := func(option string) func(context.Context, annex.Request[v1.Widget], []*v1.Widget) error {
		return func(_ context.Context, r annex.Request[v1.Widget], _ []*v1.Widget) error {
			return failing(r.Object, option)
		}
	}
	plugin := func(option string) annex.AdmissionFunc {
		return func(_ context.Context, a admission.Attributes) error {
			w, _ := a.GetObject().(*v1.Widget)
			return failing(w, option)
		}
	}
	return annex.Server{
		Name: "shop",
		AdmissionPlugins: []annex.AdmissionPlugin{
			{Name: "Changes", Plugin: annex.Mutating(plugin("mutating"))},
			{Name: "Decides", Plugin: annex.Validating(plugin("validating"))},
			{Name: "Upstream", Plugin: upstreamPlugin{admission.NewHandler(admission.Create), plugin("plugin")}},
		},
		Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
			widgets().Mutate(hook("mutate")).Admit(hook("admit")).AdmitCreate(beside("create")).AdmitUpdate(beside("update")).
				AdmitConnect(func(_ context.Context, connection annex.Connection[v1.Widget]) error {
					if connection.Subresource != "guarded" {
						return nil
					}
					return failing(connection.Object, "failure")
				}).
				Subresources(failingSubresources()...),
			operation.Kind(v1.API, operation.Options{}),
		}}},
	}
}

func failingSubresources() []annex.SubresourceOf[v1.Widget] {
	connect := func(_ context.Context, r *annex.ConnectRequest[v1.Widget, annex.NoOptions]) (http.Handler, error) {
		return http.NotFoundHandler(), failing(r.Parent, "failure")
	}
	return []annex.SubresourceOf[v1.Widget]{
		annex.Action("painting", func(_ context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Widget, error) {
			return r.Parent, failing(r.Parent, "failure")
		}),
		annex.Action("change", func(ctx context.Context, r *annex.ActionRequest[v1.Widget, v1.Inspection]) (*v1.Widget, error) {
			return r.Update(ctx, func(w *v1.Widget) error { return failing(w, "failure") })
		}),
		operation.Action("long", func(_ context.Context, run *operation.Run[v1.Widget, v1.Inspection]) (*string, error) {
			return &run.Name, failing(run.Parent, "failure")
		}),
		annex.View("summary", func(_ context.Context, r *annex.ViewRequest[v1.Widget, annex.NoOptions]) (*v1.Inspection, error) {
			return &v1.Inspection{}, failing(r.Parent, "failure")
		}),
		annex.Connect("connection", connect),
		annex.Connect("responder", func(_ context.Context, r *annex.ConnectRequest[v1.Widget, annex.NoOptions]) (http.Handler, error) {
			return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { r.Responder.Error(failing(r.Parent, "failure")) }), nil
		}),
		annex.Connect("guarded", connect),
		annexstream.Exec("exec", func(context.Context, *annexstream.ExecRequest[v1.Widget], annexstream.Streams) error { return nil }).
			Check(func(_ context.Context, r *annexstream.ExecRequest[v1.Widget]) error {
				return failing(r.Object, "failure")
			}),
	}
}

// upstreamPlugin is an admission plugin that was not made by package annex.
type upstreamPlugin struct {
	*admission.Handler
	review annex.AdmissionFunc
}

func (p upstreamPlugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return p.review(ctx, a)
}

// tornReader is a log that cannot be read.
type tornReader struct{ err error }

func (r tornReader) Read([]byte) (int, error) { return 0, r.err }

// failingSource is a source with one object, and a function that fails.
type failingSource struct {
	mu       sync.Mutex
	function string
	err      error
}

func (s *failingSource) fail(function string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.function, s.err = function, err
}

func (s *failingSource) failed(function string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.function == function {
		return s.err
	}
	return nil
}

func (s *failingSource) source() annex.Source[v1.Widget] {
	one := v1.Widget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "w"}, Spec: v1.WidgetSpec{Size: "small"}}
	return annex.Source[v1.Widget]{
		Get: func(_ context.Context, _, name string) (*v1.Widget, error) {
			if err := s.failed("Get"); err != nil {
				return nil, err
			}
			if name != "w" {
				return nil, annex.ErrNotFound
			}
			return one.DeepCopy(), nil
		},
		List:   func(context.Context) ([]v1.Widget, error) { return []v1.Widget{*one.DeepCopy()}, s.failed("List") },
		Create: func(context.Context, *v1.Widget) error { return s.failed("Create") },
		Update: func(context.Context, *v1.Widget, *v1.Widget) error { return s.failed("Update") },
		Delete: func(context.Context, *v1.Widget) error { return s.failed("Delete") },
	}
}

func TestErrorsOfSources_answers(t *testing.T) {
	t.Parallel()
	s := &failingSource{}
	c := startKind(t, virtualWidgets(s.source()))
	absent := answerTo{404, "NotFound", `widgets.shop.example.com "w" not found`}
	busy := answerTo{
		409,
		"Conflict",
		`Operation cannot be fulfilled on widgets.shop.example.com "w": the object changes too often: tried 10 times`,
	}
	missing := map[string]answerTo{"NotFound": absent, "ErrNotFound": absent}
	changed := map[string]answerTo{"NotFound": busy, "ErrNotFound": busy, "Conflict": busy, "wrapped": busy}
	unread := func(verb string) answerTo {
		return answerTo{503, "ServiceUnavailable", "cannot " + verb + " widgets.shop.example.com from their source: the paint is wet"}
	}
	unwritten := func(verb string) answerTo {
		return answerTo{500, "InternalError", "Internal error occurred: " + verb + " widgets.shop.example.com in their source: the paint is wet"}
	}
	for function, place := range map[string]hookPlace{
		"Get": {plain: unread("get"), others: missing, ask: func(c *client, _, _ string) *answer {
			return c.get(widgetsPath + "/w")
		}},
		"List": {plain: unread("list"), ask: func(c *client, _, _ string) *answer {
			return c.get(widgetsPath)
		}},
		"Create": {plain: unwritten("create"), ask: func(c *client, _, _ string) *answer {
			return c.post(widgetsPath, widget("new"))
		}},
		"Update": {plain: unwritten("update"), others: changed, ask: func(c *client, _, _ string) *answer {
			return c.patch(mergePatch, widgetsPath+"/w", spec(fields{"size": "large"}))
		}},
		"Delete": {plain: unwritten("delete"), others: changed, ask: func(c *client, _, _ string) *answer {
			return c.delete(widgetsPath+"/w", nil)
		}},
	} {
		for name, f := range failures() {
			t.Run(function+"/"+name, func(t *testing.T) {
				want := f.want
				if name == plain {
					want = place.plain
				}
				if other, ok := place.others[name]; ok {
					want = other
				}
				s.fail(function, f.err)
				got := place.ask(&client{t, c.config, c.http}, "w", name)
				if status := got.status(); got.code != want.code || status.Reason != want.reason || status.Message != want.message {
					t.Errorf("got %d, %s, %q, want %d, %s, %q", got.code, status.Reason, status.Message, want.code, want.reason, want.message)
				}
			})
		}
	}
}

// failingGetter is a custom storage whose Get always fails.
type failingGetter struct{ annex.RESTBase }

func (failingGetter) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	for failure, f := range failures() {
		if strings.ToLower(failure) == name {
			return nil, f.err
		}
	}
	return nil, annex.ErrNotFound
}

// The handlers of such a storage are upstream's, which recognize an API status only in the outermost error.
func TestErrorsOfCustomStorage_answers(t *testing.T) {
	t.Parallel()
	c := startKind(t, customStorage(func(_ *annex.Env, base annex.RESTBase) (rest.Storage, error) { return failingGetter{base}, nil }))
	for name, f := range failures() {
		want := f.want
		switch name {
		case plain, "wrapped", "upstreamWrapped":
			want = answerTo{500, "", f.err.Error()}
		}
		a := c.get(widgetsPath + "/" + strings.ToLower(name))
		if s := a.status(); a.code != want.code || s.Reason != want.reason || s.Message != want.message {
			t.Errorf("%s: got %d, %s, %q, want %d, %s, %q", name, a.code, s.Reason, s.Message, want.code, want.reason, want.message)
		}
	}
}
