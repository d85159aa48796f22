package apitest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// counted returns the counters, gauges and numbers of observations of widgets at /metrics, of the whole process.
func (c *client) counted() map[string]float64 {
	c.t.Helper()
	of := map[string]float64{}
	for line := range strings.Lines(string(c.get("/metrics").want(200).raw)) {
		name, text, ok := strings.Cut(strings.TrimSpace(line), "} ")
		family, _, _ := strings.Cut(name, "{")
		if !ok || !strings.HasPrefix(family, "apiserver_") || !strings.Contains(name, `="widgets`) || strings.HasSuffix(family, "_bucket") ||
			strings.HasSuffix(family, "_seconds_sum") {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			c.t.Fatal(err)
		}
		of[name+"}"] = value
	}
	return of
}

// grown returns the increases since.
func grown(before, after map[string]float64) map[string]float64 {
	by := map[string]float64{}
	for name, value := range after {
		if value != before[name] {
			by[name] = value - before[name]
		}
	}
	return by
}

// Every filter of the chain treats direct answers like the answers of upstream's handlers: responses, all stages in
// the audit and the access log, and counts are the same.
func TestFilters_directAnswers_likeUpstream(t *testing.T) {
	audit, access := newAuditLog(t), newAccessLog(t)
	server := shop()
	server.Groups[0].Kinds[0] = widgets().Admit(func(ctx context.Context, r annex.Request[v1.Widget]) error {
		if r.Operation == annex.Delete {
			switch r.Old.Labels["leave"] {
			case "panic":
				panic("a mistake")
			case "refuse":
				return fmt.Errorf("not this one")
			}
			return nil
		}
		switch r.Object.Spec.Options["act"] {
		case "panic":
			panic("a mistake")
		case "hang":
			<-ctx.Done()
		case "refuse":
			return fmt.Errorf("not this one")
		}
		return nil
	})
	root := startWith(t, server, annex.Options{
		Storage:        memory.Storage(),
		TokenAuthFile:  tokenFile(t),
		AccessLog:      access.json(),
		RequestTimeout: 3 * time.Second,
		Audit: annex.AuditOptions{
			PolicyFile: policyFile(t, "rules:\n- level: Request\n"),
			Log:        annex.AuditLogOptions{Path: audit.path, Mode: "blocking"},
		},
		Serving: annex.ServingOptions{AllowedOrigins: []string{"^https://friend.example$"}, StrictTransportSecurity: []string{"max-age=60"}},
	})
	joe, jane, stranger, nobody := root.stranger("root"), root.stranger("secret"), root.stranger("wrong"), root.stranger("")
	joe.create("there", spec(fields{"size": "small"}))
	body := func(name, act string) string {
		return fmt.Sprintf(
			`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":{"size":"large","options":{"act":%q}}}`,
			name,
			act,
		)
	}
	there, deleted := widgetsPath+"/there", widgetsPath+"/deleted"
	type pair struct {
		name           string
		direct, theirs http.Header
	}
	var logged []pair // whose access log lines appear at most a second later
	for _, r := range []struct {
		name, verb string
		by         *client
		method     string
		path       string
		body       string
		headers    []string
		before     string // metadata of the object that a delete finds
		code       int
	}{
		{name: "a get", verb: "get", by: joe, path: there, code: 200},
		{name: "a get of a deprecated version", verb: "get", by: joe, path: widgetsBetaPath + "/there", code: 200},
		{name: "a get of what is missing", by: joe, path: widgetsPath + "/missing", code: 404},
		{name: "a list", verb: "list", by: joe, path: widgetsPath, code: 200},
		{name: "a list of a deprecated version", verb: "list", by: joe, path: widgetsBetaPath, code: 200},
		{name: "a list with a mistake", by: joe, path: widgetsPath + "?limit=x", code: 400},
		{name: "a get with a wrong token", by: stranger, path: there, code: 401},
		{name: "a create with a wrong token", by: stranger, method: "POST", path: widgetsPath, body: body("new", ""), code: 401},
		{name: "a get without a token", by: nobody, path: there, code: 401},
		{name: "a list that is forbidden", by: jane, path: widgetsPath, code: 403},
		{name: "a create that is forbidden", by: jane, method: "POST", path: widgetsPath, body: body("new", ""), code: 403},
		{name: "a get as another", by: joe, path: there, headers: []string{"Impersonate-User", "jane"}, code: 403},
		{name: "a get as another who may", verb: "get", by: joe, path: there,
			headers: []string{"Impersonate-User", "anne", "Impersonate-Group", "system:masters"}, code: 200},
		{name: "a get as another whom one may not be", by: jane, path: there, headers: []string{"Impersonate-User", "joe"}, code: 403},
		{name: "a create as another who may", verb: "create", by: joe, method: "POST", path: widgetsPath, body: body("new", ""),
			headers: []string{"Impersonate-User", "anne", "Impersonate-Group", "system:masters"}, code: 201},
		{name: "a get from a page", verb: "get", by: joe, path: there, headers: []string{"Origin", "https://friend.example"}, code: 200},
		{name: "a get from a page of another", verb: "get", by: joe, path: there, headers: []string{"Origin", "https://elsewhere.example"},
			code: 200},
		{name: "what a browser asks before", by: joe, method: "OPTIONS", path: there,
			headers: []string{"Origin", "https://friend.example", "Access-Control-Request-Method", "PUT"}, code: 204},
		{name: "a create", verb: "create", by: joe, method: "POST", path: widgetsPath, body: body("new", ""), code: 201},
		{name: "a create of what is there", verb: "create", by: joe, method: "POST", path: widgetsPath, body: body("there", ""), code: 409},
		{name: "a create that a hook refuses", verb: "create", by: joe, method: "POST", path: widgetsPath, body: body("new", "refuse"),
			code: 403},
		{name: "a create whose hook panics", by: joe, method: "POST", path: widgetsPath, body: body("new", "panic"), code: 500},
		{name: "a create whose hook does not end", by: joe, method: "POST", path: widgetsPath, body: body("new", "hang"), code: 504},
		{name: "a create of too much", by: joe, method: "POST", path: widgetsPath, body: body("new", strings.Repeat("x", 3<<20)), code: 413},
		{name: "a create with an unknown field", by: joe, method: "POST", path: widgetsPath,
			body: strings.Replace(body("new", ""), "size", "sise", 1), code: 201},
		{name: "a merge", verb: "patch", by: joe, method: "PATCH", path: there, body: `{"spec":{"size":"large"}}`,
			headers: []string{"Content-Type", mergePatch}, code: 200},
		{name: "an apply", verb: "patch", by: joe, method: "PATCH", path: there + "?fieldManager=me&force=true", body: body("there", ""),
			headers: []string{"Content-Type", applyPatch}, code: 200},
		{name: "an update", verb: "update", by: joe, method: "PUT", path: there,
			body: strings.Replace(body("there", "x"), `"there"`, `"there","resourceVersion":"VERSION"`, 1), code: 200},
		{name: "an update of a past", verb: "update", by: joe, method: "PUT", path: there,
			body: strings.Replace(body("there", "x"), `"there"`, `"there","resourceVersion":"1"`, 1), code: 409},
		{name: "a delete of what is missing", verb: "delete", by: joe, method: "DELETE", path: widgetsPath + "/missing", code: 404},
		{name: "a delete with a condition", verb: "delete", by: joe, method: "DELETE", path: there, body: `{"preconditions":{"uid":"other"}}`,
			code: 409},
		{name: "a delete", verb: "delete", by: joe, method: "DELETE", path: deleted, code: 200},
		{name: "a delete in a deprecated version", verb: "delete", by: joe, method: "DELETE", path: widgetsBetaPath + "/deleted", code: 200},
		{name: "a delete with options", verb: "delete", by: joe, method: "DELETE", path: deleted,
			body: `{"propagationPolicy":"Background","gracePeriodSeconds":0}`, code: 200},
		{name: "a delete with negative patience", verb: "delete", by: joe, method: "DELETE", path: deleted, body: `{"gracePeriodSeconds":-5}`,
			code: 200},
		{name: "a delete without orphans", verb: "delete", by: joe, method: "DELETE", path: deleted, body: `{"orphanDependents":false}`,
			code: 200},
		{name: "a delete of what is held", verb: "delete", by: joe, method: "DELETE", path: deleted,
			before: `"finalizers":["example.com/hold"]`, code: 200},
		{name: "a delete without orphans of what is held", verb: "delete", by: joe, method: "DELETE", path: deleted,
			body: `{"orphanDependents":false}`, before: `"finalizers":["example.com/hold"]`, code: 202},
		{name: "a delete that is tried", by: joe, method: "DELETE", path: deleted, body: `{"dryRun":["All"]}`, code: 200},
		{name: "a delete with options in the query", by: joe, method: "DELETE", path: deleted + "?propagationPolicy=Background", code: 200},
		{name: "a delete with options in both", by: joe, method: "DELETE", path: deleted + "?propagationPolicy=Other", body: `{}`, code: 200},
		{name: "a delete with wrong options in the query", by: joe, method: "DELETE", path: deleted + "?gracePeriodSeconds=soon", code: 400},
		{name: "a delete with another policy", by: joe, method: "DELETE", path: deleted, body: `{"propagationPolicy":"Other"}`, code: 422},
		{name: "a delete with a wrong body", by: joe, method: "DELETE", path: deleted, body: `{"gracePeriodSeconds":"soon"}`, code: 400},
		{name: "a delete with nonsense", by: joe, method: "DELETE", path: deleted, body: `nonsense`, code: 400},
		{name: "a delete with a body of another kind", by: joe, method: "DELETE", path: deleted,
			body: `{"kind":"Widget","apiVersion":"shop.example.com/v1"}`, code: 400},
		{name: "a delete in another media type", by: joe, method: "DELETE", path: deleted, body: `{}`,
			headers: []string{"Content-Type", "text/plain"}, code: 415},
		{name: "a delete that is forbidden", by: jane, method: "DELETE", path: deleted, code: 403},
		{name: "a delete that a hook refuses", verb: "delete", by: joe, method: "DELETE", path: deleted,
			before: `"labels":{"leave":"refuse"}`, code: 403},
		{name: "a delete whose hook panics", by: joe, method: "DELETE", path: deleted, before: `"labels":{"leave":"panic"}`, code: 500},
		{name: "a delete of a collection", by: joe, method: "DELETE", path: widgetsPath + "?labelSelector=leave%3Dalone", body: `{}`, code: 200},
	} {
		if r.method == "" {
			r.method = http.MethodGet
		}
		type outcome struct {
			header        http.Header
			answer, audit string
			metrics       map[string]float64
		}
		ask := func(accept string) outcome {
			var content any
			if r.body != "" {
				content = strings.Replace(r.body, "VERSION", joe.widget("there").ResourceVersion, 1)
			}
			if r.method == http.MethodDelete {
				object := fmt.Sprintf(
					`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"deleted"%s},"spec":{}}`,
					strings.TrimSuffix(","+r.before, ","),
				)
				a := joe.do(http.MethodPost, widgetsPath, object).want(201)
				auditEvents(audit, a.header.Get("Audit-Id"))
			}
			before := root.counted()
			a := r.by.do(r.method, r.path, content, append([]string{"Accept", accept}, r.headers...)...).want(r.code)
			o := outcome{header: a.header, answer: (&askedTwice{client: root}).comparable(a)}
			if r.code != http.StatusNoContent {
				o.audit = auditEvents(audit, a.header.Get("Audit-Id"))
			}
			// All counts of a request are complete with its last event.
			o.metrics = grown(before, root.counted())
			if joe.get(widgetsPath+"/new").code == 200 {
				joe.delete(widgetsPath+"/new", nil).want(200)
			}
			if joe.get(deleted).code == 200 {
				joe.do(http.MethodPatch, deleted, `{"metadata":{"labels":null,"finalizers":null}}`, "Content-Type", mergePatch).want(200)
				testwait.Until(t, "what is left is deleted", func() bool { // the hook may still see the object in etcd's watch cache
					joe.delete(deleted, nil)
					return joe.get(deleted).code == http.StatusNotFound
				})
			}
			return o
		}
		ask(jsonType) // so that both find the same
		direct := 0
		if r.verb != "" {
			direct = root.answered(r.verb)
		}
		got := ask(jsonType)
		if r.verb != "" && root.answered(r.verb) == direct && (r.verb != "list" || !shared()) { // their watch cache is upstream's
			t.Errorf("%s: not answered directly", r.name)
		}
		want := ask(byUpstream(jsonType))
		if got.answer != want.answer {
			t.Errorf("%s: %s", r.name, difference(want.answer, got.answer))
		}
		if got.audit != want.audit || got.audit == "" && r.code != http.StatusNoContent {
			t.Errorf("%s: the audit: %s", r.name, difference(want.audit, got.audit))
		}
		logged = append(logged, pair{r.name, got.header, want.header})
		if !maps.Equal(got.metrics, want.metrics) {
			t.Errorf("%s: counted are %v; of upstream's %v", r.name, got.metrics, want.metrics)
		}
	}
	for _, p := range logged {
		if got, want := access.comparable(p.direct), access.comparable(p.theirs); got != want {
			t.Errorf("%s: the access log has %+v; of upstream's %+v", p.name, got, want)
		}
	}
}

// comparable returns the line of the request with a response, without the parts that differ between requests.
func (l accessLog) comparable(header http.Header) accessLine {
	line := l.of(header)
	line.Remote, line.AuditID, line.Seconds = "", "", 0
	if shared() {
		line.Bytes = 0 // revisions that others raise have more digits
	}
	return line
}

// The function auditEvents returns the events of a request, from its first stage to its last, without the parts that differ
// between requests.
func auditEvents(log auditLog, id string) string {
	log.t.Helper()
	var of []auditv1.Event
	testwait.Until(log.t, "the end of the request "+id, func() bool {
		of = log.eventsOf(id)
		last := len(of) - 1
		// An unauthenticated caller has no other stage.
		return last >= 0 &&
			(of[last].Stage == auditv1.StageResponseComplete || of[last].Stage == auditv1.StagePanic || of[last].ResponseStatus != nil &&
				of[last].ResponseStatus.Code == 401)
	})
	var text strings.Builder
	for _, e := range of {
		e.AuditID, e.RequestReceivedTimestamp, e.StageTimestamp = "", metav1.MicroTime{}, metav1.MicroTime{}
		if e.Stage == auditv1.StagePanic {
			e.ResponseStatus.Message, _, _ = strings.Cut(e.ResponseStatus.Message, "\n") // the stack follows
		}
		data, err := json.Marshal(e)
		if err != nil {
			log.t.Fatal(err)
		}
		text.WriteString((&askedTwice{}).comparable(&answer{t: log.t, raw: data}) + "\n")
	}
	return text.String()
}

// A watch with a write loop of its own is a long-running request, with the stages of one, until its client leaves.
func TestFilters_directWatches_likeUpstream(t *testing.T) {
	audit, access := newAuditLog(t), newAccessLog(t)
	c := startWith(t, shop(), annex.Options{
		Storage:   memory.Storage(),
		AccessLog: access.json(),
		Audit: annex.AuditOptions{
			PolicyFile: policyFile(t, "rules:\n- level: Request\n"),
			Log:        annex.AuditLogOptions{Path: audit.path, Mode: "blocking"},
		},
	})
	c.create("there", spec(fields{"size": "small"}))
	type outcome struct {
		header, events, audit, access string
		during, after                 map[string]float64
	}
	watch := func(path, accept string) (o outcome) {
		before := c.counted()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		response := c.send(ctx, http.MethodGet, path, nil, "Accept", accept)
		defer response.Body.Close()
		line, err := bufio.NewReader(response.Body).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		id := response.Header.Get("Audit-Id")
		o.during = grown(before, c.counted())
		cancel()
		logged := access.comparable(response.Header)
		response.Header.Del("Audit-Id")
		response.Header.Del("Date")
		o.header, o.events, o.access, o.audit = fmt.Sprint(
			response.StatusCode,
			response.Header,
		), line, fmt.Sprintf(
			"%+v",
			logged,
		), auditEvents(
			audit,
			id,
		)
		o.after = grown(before, c.counted())
		return o
	}
	for _, path := range []string{widgetsPath + "?watch=1", widgetsBetaPath + "?watch=1&resourceVersion=0", widgetsPath +
		"?watch=1&labelSelector=%21env"} {
		watch(path, jsonType)
		direct := c.answered("watch")
		got := watch(path, jsonType)
		if c.answered("watch") == direct {
			t.Errorf("%s: not answered directly", path)
		}
		want := watch(path, byUpstream(jsonType))
		if got.header != want.header || got.events != want.events || got.access != want.access {
			t.Errorf("%s: %+v; upstream's %+v", path, got, want)
		}
		if got.audit == "" || got.audit != want.audit || !strings.Contains(got.audit, "ResponseStarted") {
			t.Errorf("%s: the audit: %s", path, difference(want.audit, got.audit))
		}
		if !maps.Equal(got.during, want.during) || !maps.Equal(got.after, want.after) {
			t.Errorf("%s: counted otherwise than of upstream's: %v, then %v", path, grown(want.during, got.during), grown(want.after, got.after))
		}
		var running float64
		for name, by := range got.during {
			if strings.HasPrefix(name, "apiserver_longrunning_requests{") {
				running = by
			}
		}
		if running != 1 {
			t.Errorf("%s: %v are long-running: %v", path, running, got.during)
		}
	}
}
