package apitest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/aggregated/cluster/clustertest"
	legacyv1 "github.com/annexapi/annex/internal/testing/shop/legacy/v1"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/operation"
	operationv1 "github.com/annexapi/annex/operation/v1"
	"github.com/annexapi/annex/store/memory"
)

const operationsPath = "/apis/shop.example.com/v1/namespaces/default/operations"

// repair is the result of the tests' operations.
type repair struct {
	Verdict string `json:"verdict"`
	Attempt int    `json:"attempt"`
}

// repairs is the shop with long actions. The phase of a request selects the behaviour.
func repairs(options operation.Options) annex.Server {
	c := options.Clock
	if c == nil {
		c = clock.RealClock{}
	}
	act := func(ctx context.Context, run *operation.Run[v1.Widget, v1.Inspection]) (*repair, error) {
		var step int
		if _, err := run.Restore(&step); err != nil {
			return nil, err
		}
		switch run.Object.Phase {
		case "Broken":
			return nil, errors.New("the parts are missing")
		case "Panic":
			panic("the mechanic fell")
		case "Large":
			return &repair{Verdict: strings.Repeat("x", 300<<10)}, nil
		case "Ten minutes":
			run.Unit("screws")
			for step = 0; step < 60; step++ {
				run.Progress(int64(step), 60)
				run.Message("screw %d", step)
				run.Logf("turns %d", step)
				select {
				case <-c.After(10 * time.Second):
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
		case "Saved":
			if step == 0 {
				if err := run.Save(7); err != nil {
					return nil, err
				}
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
		case "Blocked":
			if run.Attempt == 1 {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
		}
		w, err := run.UpdateStatus(ctx, func(w *v1.Widget) error { w.Status.Phase = "Repaired"; return nil })
		if err != nil {
			return nil, err
		}
		return &repair{
			Verdict: fmt.Sprintf("%s %s is %s, from %d, by %s", run.Resource.Resource, w.Name, w.Status.Phase, step, run.User.GetName()),
			Attempt: run.Attempt,
		}, nil
	}
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		widgets().Subresources(
			operation.Action("repair", act).Validate(func(_ context.Context, i *v1.Inspection) field.ErrorList {
				if i.Phase == "" {
					return field.ErrorList{field.Required(field.NewPath("phase"), "say what is to be repaired")}
				}
				return nil
			}),
			operation.Action("overhaul", act).Resumable().TTL(-1),
		),
		annex.KindOf[v1.Shelf, v1.ShelfList]("shelves", v1.API).ClusterScoped().Subresources(
			operation.Action("sweep", func(_ context.Context, run *operation.Run[v1.Shelf, v1.Inspection]) (*string, error) {
				return &run.Parent.Name, nil
			}).TTL(time.Minute)),
		operation.Kind(v1.API, options),
	}}}}
}

func (a *answer) operation() *operationv1.Operation {
	a.t.Helper()
	op := &operationv1.Operation{}
	decode(a.t, a.raw, op)
	return op
}

// begin requests an action, and returns the operation's path.
func (c *client) begin(path, phase string) string {
	c.t.Helper()
	op := c.post(path, fields{"phase": phase}).want(201).operation()
	return operationsPath + "/" + op.Name
}

// becomes waits for a phase of an operation.
func (c *client) becomes(path string, phase operationv1.OperationPhase) *operationv1.Operation {
	c.t.Helper()
	var op *operationv1.Operation
	testwait.Until(c.t, path+" becomes "+string(phase), func() bool {
		op = c.get(path).want(200).operation()
		return op.Status.Phase == phase
	})
	return op
}

func TestOperations_longAction(t *testing.T) {
	t.Parallel()
	c := start(t, repairs(operation.Options{}))
	w := c.create("w")
	a := c.post(widgetsPath+"/w/repair?wait=30s", fields{"phase": "Quick"}).want(201)
	op := a.operation()
	if a.str("apiVersion") != "shop.example.com/v1" || a.str("kind") != "Operation" || op.Status.Phase != operationv1.OperationSucceeded {
		t.Fatalf("%s", a.raw)
	}
	var result repair
	if err := json.Unmarshal(
		op.Status.Result.Raw,
		&result,
	); err != nil || result.Attempt != 1 ||
		!strings.HasPrefix(result.Verdict, "widgets w is Repaired, from 0, by ") {
		t.Errorf("%v %s", err, op.Status.Result.Raw)
	}
	if !strings.HasPrefix(op.Name, "w-repair-") || op.Namespace != "default" || op.Spec.Action != "repair" || op.Spec.Target.UID != w.UID ||
		op.Spec.Target.Kind != "Widget" ||
		op.Spec.User.Username == "" ||
		*op.Spec.TTLSecondsAfterFinished != 3600 ||
		op.OwnerReferences[0].UID != w.UID ||
		!strings.Contains(string(op.Spec.Request.Raw), `"phase":"Quick"`) {
		t.Errorf("%s", a.raw)
	}
	if op.Status.StartTime == nil || op.Status.CompletionTime == nil || op.Status.Holder != "" || op.Status.Attempts != 1 {
		t.Errorf("%+v", op.Status)
	}
	if w := c.widget("w"); w.Status.Phase != "Repaired" {
		t.Errorf("%+v", w.Status)
	}
	// Operations are the same in another version of the parent.
	if a := c.post(widgetsBetaPath+"/w/repair", `{"apiVersion":"shop.example.com/v1beta1","kind":"Inspection","phase":"Quick"}`).
		want(201); a.str("apiVersion") != "shop.example.com/v1" ||
		a.str("spec", "target", "apiVersion") != "shop.example.com/v1beta1" {
		t.Errorf("%s", a.raw)
	}
	if a := c.post(widgetsPath+"/w/repair?wait=10ms", fields{"phase": "Blocked"}).want(201); a.operation().Status.Phase.Finished() {
		t.Errorf("%s", a.raw)
	}
	c.create2(shelf("s"))
	if op := c.post("/apis/shop.example.com/v1/shelves/s/sweep?wait=30s", `{}`).
		want(201).
		operation(); op.Namespace != "default" || string(op.Status.Result.Raw) != `"s"` ||
		*op.Spec.TTLSecondsAfterFinished != 60 {
		t.Errorf("%+v", op)
	}
	before := len(c.get(operationsPath).items())
	if a := c.post(widgetsPath+"/w/repair?dryRun=All&wait=30s", fields{"phase": "Quick"}).want(201); a.str("status", "phase") != "Pending" {
		t.Errorf("%s", a.raw)
	}
	if after := len(c.get(operationsPath).items()); after != before {
		t.Errorf("a dry run made %d operations", after-before)
	}
	if a := c.get(operationsPath+"?fieldSelector=status.phase=Succeeded,spec.target.name=s", "Accept",
		"application/json;as=Table;v=v1;g=meta.k8s.io").
		want(200); !strings.Contains(
		string(a.raw),
		`"sweep","shelves/s","Succeeded"`,
	) {
		t.Errorf("%s", a.raw)
	}
}

// create2 creates an object without a namespace.
func (c *client) create2(object map[string]any) {
	c.t.Helper()
	c.post("/apis/shop.example.com/v1/shelves", object).want(201)
}

// An operation takes ten minutes of a clock that the test moves.
func TestOperations_lifecycle(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	a := start(t, repairs(operation.Options{Clock: c, LeaseDuration: time.Hour}))
	a.create("w")
	path := a.begin(widgetsPath+"/w/repair", "Ten minutes")
	events := a.watch(operationsPath + "?watch=true&resourceVersion=0")
	var op *operationv1.Operation
	next := func() {
		t.Helper()
		raw, err := json.Marshal(events.next().Object)
		if err != nil {
			t.Fatal(err)
		}
		op = &operationv1.Operation{}
		decode(t, raw, op)
	}
	// The clock moves when the effect of its last move has been seen.
	for percent := int32(0); percent < 50; next() {
		if p := op; p != nil && p.Status.Progress != nil && p.Status.Progress.Percent > percent {
			percent = p.Status.Progress.Percent
		}
		c.Step(10 * time.Second)
	}
	if p := op.Status.Progress; p.Unit != "screws" || p.Total != 60 || p.Done < 30 || op.Status.Phase != operationv1.OperationRunning ||
		!strings.HasPrefix(op.Status.Message, "screw ") ||
		!strings.Contains(op.Status.Log, " turns 29\n") {
		t.Errorf("%+v", op.Status)
	}
	if a := a.get(operationsPath, "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
		want(200); !strings.Contains(
		string(a.raw),
		`"repair","widgets/w","Running","5`,
	) {
		t.Errorf("%s", a.raw)
	}
	a.post(path+"/retry", `{}`).
		refused(409, metav1.StatusReasonConflict, "only a failed or cancelled operation can be retried, and this one is Running")
	a.post(path+"/cancel", `{}`).want(201)
	for op.Status.Phase == operationv1.OperationRunning {
		next()
	}
	if op.Status.Phase != operationv1.OperationCancelled || op.Status.CompletionTime == nil || op.Status.Message != "cancelled" ||
		op.Status.Error != nil ||
		op.Status.Result != nil ||
		op.Status.Progress.Percent < 50 {
		t.Fatalf("%+v", op.Status)
	}
	a.post(path+"/cancel", `{}`).refused(409, metav1.StatusReasonConflict, "the operation has ended already: Cancelled")

	a.post(path+"/retry", `{}`).want(201)
	for op.Status.Phase != operationv1.OperationRunning {
		next()
	}
	if op.Status.Attempts != 2 || op.Status.Progress != nil || op.Spec.Cancel || !op.Status.StartTime.Time.Equal(c.Now()) {
		t.Errorf("%+v", op.Status)
	}
	for !op.Status.Phase.Finished() {
		c.Step(10 * time.Second)
		next()
	}
	if op.Status.Phase != operationv1.OperationSucceeded || op.Status.CompletionTime.Sub(op.Status.StartTime.Time) < 10*time.Minute {
		t.Errorf("%+v", op.Status)
	}
	expires := op.Status.CompletionTime.Add(time.Hour)
	c.SetTime(expires.Add(-time.Second))
	a.get(path).want(200)
	c.SetTime(expires)
	testwait.Until(t, "the operation is deleted an hour after its end", func() bool { return a.get(path).code == 404 })
}

// A request may wait for as long as requests may take, and is answered in time.
func TestOperations_waitEndsBeforeRequestTimeout(t *testing.T) {
	t.Parallel()
	c := startWith(t, repairs(operation.Options{}), annex.Options{Storage: memory.Storage(), RequestTimeout: 2 * time.Second})
	c.create("w")
	if op := c.post(widgetsPath+"/w/repair?wait=1h", fields{"phase": "Blocked"}).
		want(201).
		operation(); op.Status.Phase != operationv1.OperationRunning {
		t.Errorf("%+v", op.Status)
	}
}

func TestAggregated_operations(t *testing.T) {
	t.Parallel()
	j := join(t, clustertest.Start(t), repairs(operation.Options{}), annex.Options{}).ready()
	j.admin().post(widgetsPath, `{"metadata":{"name":"w"}}`).want(201)
	op := j.admin().post(widgetsPath+"/w/repair?wait=30s", `{"phase":"Quick"}`).want(201).operation()
	if op.Status.Phase != operationv1.OperationSucceeded || op.Spec.User.Username != "admin" {
		t.Errorf("%+v", op)
	}
	j.admin().
		post(operationsPath, `{"metadata":{"name":"mine"}}`).
		refused(403, metav1.StatusReasonForbidden, "operations are created by actions")
}

func TestOperations_failureReasons(t *testing.T) {
	t.Parallel()
	c := start(t, repairs(operation.Options{}))
	c.create("w")
	for phase, want := range map[string]struct {
		code   int32
		reason metav1.StatusReason
		text   string
	}{
		"Broken": {500, metav1.StatusReasonInternalError, "the parts are missing"},
		"Panic":  {500, metav1.StatusReasonInternalError, "the action panicked: the mechanic fell"},
		"Large":  {413, metav1.StatusReasonRequestEntityTooLarge, "the result has 307226 bytes, more than an operation's maximum of 262144"},
	} {
		op := c.becomes(c.begin(widgetsPath+"/w/repair", phase), operationv1.OperationFailed)
		if e := op.Status.Error; e == nil || e.Code != want.code || e.Reason != want.reason || !strings.Contains(e.Message, want.text) ||
			!strings.Contains(op.Status.Message, want.text) ||
			op.Status.CompletionTime == nil {
			t.Errorf("%s: %+v %+v", phase, op.Status, op.Status.Error)
		}
	}
	// Another object of the same name is not the target of the action.
	path := c.begin(widgetsPath+"/w/repair", "Broken")
	c.becomes(path, operationv1.OperationFailed)
	c.delete(widgetsPath+"/w", nil).want(200)
	retried := func(code int32, reason metav1.StatusReason, text string) {
		t.Helper()
		before := c.get(path).want(200).operation()
		c.post(path+"/retry", `{}`).want(201)
		testwait.Until(t, "the retry fails", func() bool {
			op := c.get(path).want(200).operation()
			return op.Status.Error != nil && op.Status.Error.Code == code && op.Status.Error.Reason == reason &&
				strings.Contains(op.Status.Message, text) &&
				op.Status.Attempts == before.Status.Attempts
		})
	}
	retried(404, metav1.StatusReasonNotFound, `"w" not found`)
	c.create("w")
	retried(409, metav1.StatusReasonConflict, "the object of the action was deleted, and another object has its name")

	path = c.begin(widgetsPath+"/w/repair", "Blocked")
	c.becomes(path, operationv1.OperationRunning)
	c.delete(path, nil).want(200)
	c.get(path).want(404)
	raw := string(c.get("/metrics").want(200).raw)
	for _, want := range []string{
		`annex_operations_finished_total{action="repair",group="shop.example.com",phase="Failed",resource="widgets"} 6`,
		"annex_operations_running ",
	} {
		if !strings.Contains(raw, want) {
			t.Errorf("no %s", want)
		}
	}
	testwait.Until(t, "the action of a deleted operation ends", func() bool {
		return strings.Contains(string(c.get("/metrics").want(200).raw), "annex_operations_running 0")
	})
}

func TestOperations_clientWrites_areRejected(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte("secret,jane,42,staff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startWith(t, repairs(operation.Options{}), annex.Options{Storage: memory.Storage(), TokenAuthFile: file})
	c.create("w")
	c.post(operationsPath, fields{"apiVersion": "shop.example.com/v1", "kind": "Operation", "metadata": fields{"name": "mine"}}).
		refused(403, metav1.StatusReasonForbidden, "operations are created by actions: send a request to the action's subresource")
	c.post(widgetsPath+"/w/repair?wait=soon", fields{"phase": "Quick"}).
		refused(400, metav1.StatusReasonBadRequest, `parameter wait: "soon" is not a duration such as 30s`)
	c.post(widgetsPath+"/w/repair?wait=-1s", fields{"phase": "Quick"}).
		refused(400, metav1.StatusReasonBadRequest, `parameter wait`)
	c.post(widgetsPath+"/w/repair", `{}`).refused(422, metav1.StatusReasonInvalid, "say what is to be repaired")
	c.post(widgetsPath+"/w/repair", `{"phase":7}`).refused(400, metav1.StatusReasonBadRequest, "phase")
	c.post(widgetsPath+"/w/repair", `{"kind":"Shelf","apiVersion":"shop.example.com/v1"}`).
		refused(400, metav1.StatusReasonBadRequest, "Shelf")
	c.post(widgetsPath+"/missing/repair", fields{"phase": "Quick"}).refused(404, metav1.StatusReasonNotFound, `"missing" not found`)
	if items := c.get(operationsPath).items(); len(items) > 0 {
		t.Errorf("refused requests made %v", items)
	}

	path := c.begin(widgetsPath+"/w/repair", "Blocked")
	running := c.becomes(path, operationv1.OperationRunning)
	const merge = "application/merge-patch+json"
	c.patch(merge, path, `{"spec":{"action":"overhaul"}}`).
		refused(422, metav1.StatusReasonInvalid, "only cancel and ttlSecondsAfterFinished may be changed")
	c.patch(merge, path, `{"spec":{"user":{"username":"eve"}}}`).
		refused(422, metav1.StatusReasonInvalid, "only cancel and ttlSecondsAfterFinished may be changed")
	c.patch(merge, path, `{"spec":{"ttlSecondsAfterFinished":-1}}`).
		refused(422, metav1.StatusReasonInvalid, "must be greater than or equal to 0")
	if op := c.patch(merge, path, `{"spec":{"ttlSecondsAfterFinished":7},"status":{"phase":"Succeeded","holder":"eve"}}`).
		want(200).
		operation(); op.Status.Phase != operationv1.OperationRunning || op.Status.Holder != running.Status.Holder ||
		*op.Spec.TTLSecondsAfterFinished != 7 {
		t.Errorf("%+v", op)
	}
	jane := c.stranger("secret")
	jane.post(widgetsPath+"/w/repair", fields{"phase": "Quick"}).
		refused(403, metav1.StatusReasonForbidden, `cannot create resource "widgets/repair"`)
	jane.post(path+"/cancel", `{}`).refused(403, metav1.StatusReasonForbidden, `cannot create resource "operations/cancel"`)
	c.patch(merge, path, `{"spec":{"cancel":true}}`).want(200)
	if a := c.patch(merge, path, `{"spec":{"cancel":false}}`); a.code != 200 {
		a.refused(422, metav1.StatusReasonInvalid, "a cancellation cannot be undone")
	}

	// The caller's rights are recorded, and the action runs in jane's name, without rights on operations.
	c.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", fields{
		"apiVersion": "rbac.authorization.k8s.io/v1",
		"kind":       "ClusterRole",
		"metadata":   fields{"name": "mechanic"},
		"rules": []any{
			fields{"apiGroups": []string{"shop.example.com"}, "resources": []string{"widgets/repair"}, "verbs": []string{"create"}},
		},
	}).
		want(201)
	c.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", fields{
		"apiVersion": "rbac.authorization.k8s.io/v1",
		"kind":       "ClusterRoleBinding",
		"metadata":   fields{"name": "mechanic"},
		"roleRef": fields{
			"apiGroup": "rbac.authorization.k8s.io",
			"kind":     "ClusterRole",
			"name":     "mechanic",
		},
		"subjects": []any{fields{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}},
	}).
		want(201)
	testwait.Until(t, "jane may repair", func() bool {
		return jane.post(widgetsPath+"/w/repair?dryRun=All", fields{"phase": "Quick"}).code == 201
	})
	op := jane.post(widgetsPath+"/w/repair?wait=30s", fields{"phase": "Quick"}).want(201).operation()
	if op.Spec.User.Username != "jane" || op.Spec.User.Groups[0] != "staff" || !strings.Contains(string(op.Status.Result.Raw), "by jane") {
		t.Errorf("%+v %s", op.Spec.User, op.Status.Result.Raw)
	}
	jane.get(operationsPath+"/"+op.Name).refused(403, metav1.StatusReasonForbidden)
}

// A stopped server and a killed one report the outcome of their operations.
func TestOperations_restart_reportsOutcome(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*process) error{
		"stopped": (*process).stop,
		"killed": func(p *process) error {
			if err := p.Process.Kill(); err != nil {
				return err
			}
			_ = p.Wait() // it was killed
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := filepath.Join(t.TempDir(), "data")
			launch := func() (*process, *client) {
				p := prepareProgram(t, "repairs", "--data-dir", data)
				p.launch(t)
				return p, clientFrom(t, filepath.Join(data, "kubeconfig"))
			}
			p, c := launch()
			c.create("w")
			lost := c.begin(widgetsPath+"/w/repair", "Blocked")
			again := c.begin(widgetsPath+"/w/overhaul", "Blocked")
			saved := c.begin(widgetsPath+"/w/overhaul", "Saved")
			gone := c.begin(widgetsPath+"/w/overhaul", "Blocked")
			for _, path := range []string{lost, again, gone} {
				c.becomes(path, operationv1.OperationRunning)
			}
			testwait.Until(t, "the checkpoint is stored", func() bool { return c.get(saved).want(200).operation().Status.Checkpoint != nil })
			if err := end(p); err != nil {
				t.Fatal(err)
			}
			p, c = launch()
			defer func() {
				if err := p.stop(); err != nil {
					t.Errorf("%v\n%s", err, &p.log)
				}
			}()
			op := c.becomes(lost, operationv1.OperationFailed)
			want := "the server stopped while it ran the operation; the progress of the operation is unknown"
			if name == "stopped" {
				want = "the server stopped while the operation was running: the server is stopping"
			}
			if e := op.Status.Error; e.Code != 503 || e.Reason != metav1.StatusReasonServiceUnavailable || e.Message != want ||
				op.Status.Attempts != 1 {
				t.Errorf("%+v", op.Status)
			}
			if op := c.becomes(
				again,
				operationv1.OperationSucceeded,
			); op.Status.Attempts != 2 || !strings.Contains(string(op.Status.Result.Raw), `"attempt":2`) ||
				op.Spec.TTLSecondsAfterFinished != nil {
				t.Errorf("%+v", op)
			}
			if op := c.becomes(
				saved,
				operationv1.OperationSucceeded,
			); op.Status.Attempts != 2 || !strings.Contains(string(op.Status.Result.Raw), "from 7") ||
				op.Status.Checkpoint != nil {
				t.Errorf("%+v", op.Status)
			}
			c.post(lost+"/retry", `{}`).want(201)
			if op := c.becomes(lost, operationv1.OperationSucceeded); op.Status.Attempts != 2 || op.Status.Error != nil {
				t.Errorf("%+v", op.Status)
			}
			c.post(again+"/retry", `{}`).refused(409, metav1.StatusReasonConflict, "this one is Succeeded")
		})
	}
}

func TestNew_operations_mistakes(t *testing.T) {
	quick := func(context.Context, *operation.Run[v1.Widget, v1.Inspection]) (*repair, error) { return nil, nil }
	kind := func() *annex.KindBuilder[operationv1.Operation] { return operation.Kind(v1.API, operation.Options{}) }
	for name, test := range map[string]struct {
		kinds []annex.Kind
		want  []string
	}{
		"no operations": {[]annex.Kind{widgets().Subresources(operation.Action("repair", quick))}, []string{`kind Widget ` +
			`(widgets.shop.example.com), subresource "repair": the server has no operations: add operation.Kind(API, operation.Options{}) to ` +
			`the kinds of a group`}},
		"no function": {[]annex.Kind{widgets().Subresources(operation.Action[v1.Widget, v1.Inspection, repair]("repair", nil)), kind()},
			[]string{`subresource "repair": the function is missing`}},
		"a broken TTL": {[]annex.Kind{widgets().Subresources(operation.Action("repair", quick).TTL(time.Millisecond)), kind()},
			[]string{`subresource "repair": TTL must be a number of seconds, not 1ms`}},
		"a short lease": {[]annex.Kind{operation.Kind(v1.API, operation.Options{LeaseDuration: time.Second})}, []string{`kind Operation ` +
			`(operations.shop.example.com): Options.LeaseDuration 1s is less than 3s`}},
		"cluster-scoped": {[]annex.Kind{kind().ClusterScoped()}, []string{"operations must be namespaced: remove ClusterScoped"}},
		"no facts":       {[]annex.Kind{operation.Kind(nil, operation.Options{})}, []string{"no generated code"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := annex.New(
				t.Context(),
				annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: test.kinds}}},
				annex.Options{Storage: memory.Storage()},
			)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want %q in:\n%v", want, err)
				}
			}
		})
	}
	two := annex.Server{Name: "shop", Groups: []annex.Group{
		{Name: "shop.example.com", Kinds: []annex.Kind{kind()}},
		{Name: "legacy.example.com", Kinds: []annex.Kind{operation.Kind(legacyv1.API, operation.Options{})}},
	}}
	if _, err := annex.New(
		t.Context(),
		two,
		annex.Options{Storage: memory.Storage()},
	); err == nil ||
		!strings.Contains(
			err.Error(),
			"kind Operation (operations.legacy.example.com): the server already has operations, operations.shop.example.com: one kind "+
				"serves the actions of all groups",
		) {
		t.Errorf("two kinds: %v", err)
	}
}

func TestOperations_describeAndOpenAPI(t *testing.T) {
	t.Parallel()
	c := start(t, repairs(operation.Options{}))
	var list metav1.APIResourceList
	decode(t, c.get("/apis/shop.example.com/v1").want(200).raw, &list)
	got := map[string]string{}
	for _, r := range list.APIResources {
		got[r.Name] = fmt.Sprintf("%s %v", r.Kind, r.Verbs)
	}
	for name, want := range map[string]string{
		"operations": "Operation [create delete deletecollection get list patch update watch]", "operations/status": "Operation [get patch " +
			"update]",
		"operations/cancel": "OperationCancellation [create]", "operations/retry": "OperationRetry [create]",
		"widgets/repair": "Inspection [create]",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	for _, version := range []string{"v1", "v1beta1"} {
		var doc struct {
			Paths map[string]map[string]any
		}
		decode(t, c.get("/openapi/v3/apis/shop.example.com/"+version).want(200).raw, &doc)
		path, err := json.Marshal(doc.Paths["/apis/shop.example.com/"+version+"/namespaces/{namespace}/widgets/{name}/repair"]["post"])
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"com.example.shop.v1.Inspection", "operation.v1.Operation",
			`"in":"query","name":"wait","schema":{"type":"string"}`} {
			if !strings.Contains(string(path), want) {
				t.Errorf("%s: no %s in %s", version, want, path)
			}
		}
	}
	// One parameter, which the paths of two actions in two versions, and of one in one, refer to.
	raw := string(c.get("/openapi/v2").want(200).raw)
	if defined, used := strings.Count(raw, `"name":"wait"`), strings.Count(raw, `{"$ref":"#/parameters/wait-`); defined != 1 || used != 5 {
		t.Errorf("OpenAPI v2 defines wait %d times, and uses it %d times", defined, used)
	}
}
