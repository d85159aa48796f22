package apitest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/aggregated/cluster/clustertest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// auditLog is the file to which a server writes events.
type auditLog struct {
	t    *testing.T
	path string
}

func newAuditLog(t *testing.T) auditLog {
	return auditLog{t, filepath.Join(t.TempDir(), "audit.log")}
}

// events returns the events so far, in their order.
func (l auditLog) events() []auditv1.Event { return l.eventsOf("") }

// eventsOf returns the events so far of the request with an audit ID, or of all if it is empty.
func (l auditLog) eventsOf(id string) []auditv1.Event {
	l.t.Helper()
	data, err := os.ReadFile(l.path)
	if err != nil {
		l.t.Fatal(err)
	}
	var all []auditv1.Event
	for line := range bytes.Lines(data) {
		if !bytes.Contains(line, []byte(id)) {
			continue // without reading thousands of events again and again
		}
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			l.t.Fatalf("%s: %v", line, err)
		}
		if id == "" || string(e.AuditID) == id {
			all = append(all, e)
		}
	}
	return all
}

// of waits for the event that completes the request with this response.
func (l auditLog) of(a *answer) auditv1.Event {
	l.t.Helper()
	var found auditv1.Event
	id := a.header.Get("Audit-Id")
	testwait.Until(l.t, "the event of "+a.asked, func() bool {
		all := l.eventsOf(id)
		i := slices.IndexFunc(all, func(e auditv1.Event) bool {
			return e.Stage == auditv1.StageResponseComplete
		})
		if i < 0 {
			return false
		}
		found = all[i]
		return true
	})
	return found
}

func policyFile(t *testing.T, policy string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAudit_eventsOfRequests(t *testing.T) {
	t.Parallel()
	log := newAuditLog(t)
	c := startWith(
		t,
		shop(),
		annex.Options{
			Storage:       memory.Storage(),
			TokenAuthFile: tokenFile(t),
			Audit:         annex.AuditOptions{Log: annex.AuditLogOptions{Path: log.path}},
		},
	)
	const decision, reason = "authorization.k8s.io/decision", "authorization.k8s.io/reason"

	e := log.of(c.post(widgetsPath, widget("w"), "User-Agent", "tester/1.0").want(201))
	if e.Level != auditv1.LevelMetadata || e.Verb != "create" || e.ResponseStatus.Code != 201 || e.RequestURI != widgetsPath ||
		e.UserAgent != "tester/1.0" || len(e.SourceIPs) != 1 ||
		e.ObjectRef.Resource != "widgets" || e.ObjectRef.Namespace != "default" || e.ObjectRef.Name != "w" || e.ObjectRef.APIVersion != "v1" ||
		!slices.Contains(e.User.Groups, "system:masters") ||
		e.Annotations[decision] != "allow" ||
		e.RequestObject != nil ||
		e.ResponseObject != nil {
		t.Errorf("a create: %+v", e)
	}
	if e.StageTimestamp.Time.Before(e.RequestReceivedTimestamp.Time) {
		t.Errorf("it ended %s, and began %s", e.StageTimestamp, e.RequestReceivedTimestamp)
	}
	jane := c.stranger("secret")
	e = log.of(jane.get(widgetsPath + "/w").want(403))
	if e.User.Username != "jane" || e.User.UID != "42" || e.Annotations[decision] != "forbid" || e.ResponseStatus.Code != 403 ||
		e.ResponseStatus.Reason != metav1.StatusReasonForbidden {
		t.Errorf("what is not allowed: %+v", e)
	}
	e = log.of(c.get(widgetsPath, "Impersonate-User", "jane", "Impersonate-Group", "system:masters").want(200))
	if e.ImpersonatedUser == nil || e.ImpersonatedUser.Username != "jane" || e.User.Username == "jane" {
		t.Errorf("an impersonation: %+v", e)
	}
	for _, token := range []string{"wrong", ""} {
		for _, path := range []string{widgetsPath, "/apis"} {
			a := c.stranger(token).get(path).want(401)
			id := a.header.Get("Audit-Id")
			i := slices.IndexFunc(log.events(), func(e auditv1.Event) bool { return string(e.AuditID) == id })
			if i < 0 {
				t.Fatalf("%s with the token %q is not in the log", path, token)
			}
			if e := log.events()[i]; e.User.Username != "" || e.ResponseStatus.Code != 401 ||
				e.ResponseStatus.Reason != metav1.StatusReasonUnauthorized {
				t.Errorf("a caller who is not known: %+v", e)
			}
		}
	}
	before := len(log.events())
	for _, path := range []string{"/readyz", "/version", "/metrics", "/apis", "/openapi/v2"} {
		c.get(path).want(200)
	}
	if all := log.events(); len(all) != before {
		t.Errorf("%s is in the log", all[before].RequestURI)
	}
	info, err := os.Stat(log.path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, mode %o", err, info.Mode().Perm())
	}
}

func TestAudit_policyLevels(t *testing.T) {
	t.Parallel()
	log := newAuditLog(t)
	policy := policyFile(t, `
rules:
- level: None
  verbs: [get]
- level: Metadata
  verbs: [delete]
- level: Request
  verbs: [patch]
- level: RequestResponse
  omitManagedFields: true
`)
	c := startWith(
		t,
		shop(),
		annex.Options{Storage: memory.Storage(), Audit: annex.AuditOptions{PolicyFile: policy, Log: annex.AuditLogOptions{Path: log.path}}},
	)
	for _, version := range []struct{ path, apiVersion string }{{widgetsPath, "v1"}, {widgetsBetaPath, "v1beta1"}} {
		name := "w-" + version.apiVersion
		e := log.of(c.post(version.path, object(version.apiVersion, "Widget", name)).want(201))
		body, answer := string(e.RequestObject.Raw), string(e.ResponseObject.Raw)
		for _, part := range []string{`"shop.example.com/` + version.apiVersion + `"`, `"` + name + `"`} {
			if !strings.Contains(body, part) || !strings.Contains(answer, part) {
				t.Errorf("no %s in %s and %s", part, body, answer)
			}
		}
		if !strings.Contains(answer, `"uid"`) || strings.Contains(answer, "managedFields") {
			t.Errorf("the answer: %s", answer)
		}
		got := c.get(version.path + "/" + name).want(200).header.Get("Audit-Id")
		e = log.of(c.patch(mergePatch, version.path+"/"+name, `{"metadata":{"labels":{"a":"b"}}}`).want(200))
		if string(e.RequestObject.Raw) != `{"metadata":{"labels":{"a":"b"}}}` || e.ResponseObject != nil {
			t.Errorf("a patch: %+v", e)
		}
		e = log.of(c.delete(version.path+"/"+name, nil).want(200))
		if e.RequestObject != nil || e.ResponseObject != nil || e.Level != auditv1.LevelMetadata {
			t.Errorf("a delete: %+v", e)
		}
		if status := e.ResponseStatus; status.Status != metav1.StatusSuccess || status.Details == nil || status.Details.Name != name ||
			status.Details.UID == "" {
			t.Errorf("what a delete says it deleted: %+v", status)
		}
		if slices.ContainsFunc(log.events(), func(e auditv1.Event) bool { return string(e.AuditID) == got }) {
			t.Error("a get is in the log")
		}
	}
	if first := log.events()[0]; first.Stage != auditv1.StageRequestReceived {
		t.Errorf("the first stage is %s", first.Stage)
	}
}

func TestAudit_watches_beginAndEnd(t *testing.T) {
	t.Parallel()
	log := newAuditLog(t)
	instance, stop := run(
		t,
		shop(),
		annex.Options{Storage: memory.Storage(), Audit: annex.AuditOptions{Log: annex.AuditLogOptions{Path: log.path}}},
	)
	c := clientOf(t, instance)
	w := c.watch(widgetsPath + "?watch=1")
	stages := func() (all []auditv1.Stage) {
		for _, e := range log.events() {
			if e.Verb == "watch" {
				all = append(all, e.Stage)
			}
		}
		return all
	}
	if got := stages(); !slices.Equal(got, []auditv1.Stage{auditv1.StageResponseStarted}) {
		t.Errorf("while it is open: %v", got)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.ends()
	if got := stages(); !slices.Equal(got, []auditv1.Stage{auditv1.StageResponseStarted, auditv1.StageResponseComplete}) {
		t.Errorf("in the end: %v", got)
	}
}

func TestAuditID_alwaysSet(t *testing.T) {
	t.Parallel()
	log := newAuditLog(t)
	for name, options := range map[string]annex.AuditOptions{"with": {Log: annex.AuditLogOptions{Path: log.path}}, "without": {}} {
		c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), Audit: options})
		given := c.get(widgetsPath, "Audit-ID", "mine").want(200).header.Values("Audit-Id")
		made, other := c.get(widgetsPath).
			want(200).
			header.Values(
			"Audit-Id",
		), c.stranger("wrong").
			get(widgetsPath).
			want(401).
			header.Values(
			"Audit-Id",
		)
		if !slices.Equal(given, []string{"mine"}) || len(made) != 1 || len(other) != 1 || len(made[0]) != 36 || made[0] == other[0] {
			t.Errorf("%s: %v, %v, %v", name, given, made, other)
		}
	}
	if !slices.ContainsFunc(log.events(), func(e auditv1.Event) bool { return e.AuditID == "mine" }) {
		t.Error("no event has the ID that the client gave")
	}
}

func TestAudit_panics(t *testing.T) {
	t.Parallel()
	log := newAuditLog(t)
	kind := annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Default(func(*v1.Widget) { panic("a mistake") })
	c := startWith(
		t,
		only(kind),
		annex.Options{Storage: memory.Storage(), Audit: annex.AuditOptions{Log: annex.AuditLogOptions{Path: log.path}}},
	)
	c.post(widgetsPath, widget("w")).want(500)
	all := log.events()
	if e := all[len(all)-1]; e.Stage != auditv1.StagePanic || e.ResponseStatus.Code != 500 ||
		!strings.Contains(e.ResponseStatus.Message, "a mistake") {
		t.Errorf("got %+v", e)
	}
}

// metric returns the value of a line of /metrics.
func (c *client) metric(name string) string {
	c.t.Helper()
	for line := range strings.Lines(string(c.get("/metrics").want(200).raw)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	c.t.Fatalf("there is no metric %s", name)
	return ""
}

func TestAudit_fullDisk_modes(t *testing.T) {
	t.Parallel()
	const full = "/dev/full"
	if _, err := os.Stat(full); err != nil {
		t.Skip("there is no device that is full")
	}
	for mode, code := range map[string]int{"": 200, "batch": 200, "blocking-strict": 500} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			policy := policyFile(t, "rules: [{level: Metadata, resources: [{group: shop.example.com}]}]")
			c := startWith(
				t,
				shop(),
				annex.Options{
					Storage: memory.Storage(),
					Audit:   annex.AuditOptions{PolicyFile: policy, Log: annex.AuditLogOptions{Path: full, Mode: mode}},
				},
			)
			before := c.metric(`annex_audit_lost_events_total{backend="log"}`)
			c.get(widgetsPath).want(code)
			testwait.Until(t, "the loss is counted", func() bool {
				return c.metric(`annex_audit_lost_events_total{backend="log"}`) != before
			})
			c.get("/readyz").want(200)
		})
	}
}

func TestAudit_shutdown_sendsBufferedEvents(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, e := range list.Items {
			got = append(got, string(e.AuditID))
		}
	}))
	defer receiver.Close()
	kubeconfig := filepath.Join(t.TempDir(), "webhook")
	text := fmt.Sprintf(
		`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c"}}],
		"clusters": [{"name": "c", "cluster": {"server": %q}}]}`,
		receiver.URL,
	)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	instance, stop := run(t, shop(), annex.Options{Storage: memory.Storage(), Audit: annex.AuditOptions{
		Webhook: annex.AuditWebhookOptions{ConfigFile: kubeconfig, Batch: annex.AuditBatchOptions{MaxWait: time.Hour}},
	}})
	c := clientOf(t, instance)
	want := []string{c.get(widgetsPath).header.Get("Audit-Id"), c.post(widgetsPath, widget("w")).want(201).header.Get("Audit-Id")}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, id := range want {
		if !slices.Contains(got, id) {
			t.Errorf("%s is not in %v", id, got)
		}
	}
}

func TestAudit_aggregated_callersAndAdmission(t *testing.T) {
	t.Parallel()
	log := newAuditLog(t)
	cluster := clustertest.Start(t)
	client := webhook(t, cluster, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Allowed: true, AuditAnnotations: map[string]string{"seen": "yes"}}
	})
	none, equivalent, fail, seconds := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Equivalent,
		admissionregistrationv1.Fail, int32(
			10,
		)
	cluster.Put(
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "v"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "v.example.com", ClientConfig: client, SideEffects: &none, MatchPolicy: &equivalent, AdmissionReviewVersions: []string{"v1"},
				FailurePolicy: &fail, TimeoutSeconds: &seconds, NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
				Rules: []admissionregistrationv1.RuleWithOperations{
					{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule: admissionregistrationv1.Rule{
							APIGroups:   []string{"shop.example.com"},
							APIVersions: []string{"v1"},
							Resources:   []string{"widgets"},
						},
					},
				},
			}},
		},
	)
	j := join(t, cluster, shop(), annex.Options{Audit: annex.AuditOptions{Log: annex.AuditLogOptions{Path: log.path}}}).ready()
	a := j.through("jane").post(widgetsPath, fmt.Sprintf(oneWidget, "w")).want(201)
	if e := log.of(
		a,
	); e.User.Username != "jane" || e.Annotations["v.example.com/seen"] != "yes" ||
		e.Annotations["authorization.k8s.io/decision"] != "allow" {
		t.Errorf("a create: %+v", e)
	}
	unknown := &caller{j, j.cluster.FrontProxy(), http.Header{"Authorization": {"Bearer wrong"}}}
	id := unknown.get(widgetsPath).want(401).header.Get("Audit-Id")
	if !slices.ContainsFunc(log.events(), func(e auditv1.Event) bool {
		return string(e.AuditID) == id && e.User.Username == "" && e.ResponseStatus.Code == 401
	}) {
		t.Errorf("a caller who is not known is not in the log")
	}
}

// TestAudit_writes_likeUpstream sends the same writes to two servers, as TestWrites_likeUpstream does: direct answers
// leave the same events.
func TestAudit_writes_likeUpstream(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"Metadata", "Request"} { // upstream's handlers answer requests whose responses are recorded
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			log := newAuditLog(t)
			policy := policyFile(t, "omitStages: [RequestReceived]\nrules:\n- level: None\n  verbs: [get]\n- level: "+level+"\n")
			ask := func(upstream bool) *askedTwice {
				options := annex.Options{
					Storage: memory.Storage(),
					Audit:   annex.AuditOptions{PolicyFile: policy, Log: annex.AuditLogOptions{Path: log.path, Mode: "blocking"}},
				}
				options.DisableFastPath = upstream
				return &askedTwice{startWith(t, shop(), options), map[string]string{}}
			}
			theirs, ours := ask(true), ask(false)
			dice := rand.New(rand.NewPCG(11, uint64(len(level))))
			asked := map[string]writeRequest{} // by audit IDs
			var pairs [][2]string
			for range 300 {
				r := randomWrite(dice, []kindWrites{widgetWrites, shelfWrites}[dice.IntN(2)])
				a, b := theirs.ask(r).header.Get("Audit-Id"), ours.ask(r).header.Get("Audit-Id")
				asked[a] = r
				pairs = append(pairs, [2]string{a, b})
			}
			texts := map[string]string{}
			for _, e := range log.events() {
				id := string(e.AuditID)
				e.AuditID, e.RequestReceivedTimestamp, e.StageTimestamp, e.User.Extra = "", metav1.MicroTime{}, metav1.MicroTime{}, nil
				if e.ResponseStatus.Details != nil { // conflicts are in no order
					slices.SortFunc(
						e.ResponseStatus.Details.Causes,
						func(a, b metav1.StatusCause) int { return strings.Compare(a.Message+a.Field, b.Message+b.Field) },
					)
				}
				data, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				texts[id] += theirs.comparable(&answer{t: t, raw: data})
			}
			for _, pair := range pairs {
				if x, y := texts[pair[0]], texts[pair[1]]; x == "" || x != y {
					t.Fatalf("%s\nupstream's\n%s\nours\n%s", asked[pair[0]], x, y)
				}
			}
		})
	}
}

func TestAudit_yamlOnlyConfigurations(t *testing.T) {
	t.Parallel()
	log := newAuditLog(t)
	policy := policyFile(t, "rules:\n- level: Request\n")
	c := startWith(
		t,
		shop(),
		annex.Options{Storage: memory.Storage(), Audit: annex.AuditOptions{PolicyFile: policy, Log: annex.AuditLogOptions{Path: log.path}}},
	)
	for body, code := range map[string]int{
		`{apiVersion: shop.example.com/v1, kind: Widget, metadata: {name: w}}`: 201,
		`{"apiVersion":`: 400,
	} {
		e := log.of(c.patch("application/apply-patch+yaml", widgetsPath+"/w?fieldManager=me", body).want(code))
		var recorded string
		if err := json.Unmarshal(e.RequestObject.Raw, &recorded); err != nil || recorded != body {
			t.Errorf("%s is recorded as %s: %v", body, e.RequestObject.Raw, err)
		}
	}
}
