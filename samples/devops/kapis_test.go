package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"example.com/devops/apis/devops/v1alpha3"
)

// names returns the names of the items on a page.
func (h *host) names(query string) (names []string, total int) {
	h.t.Helper()
	var answer struct {
		Items []struct {
			Name     string            `json:"name"`
			Metadata metav1.ObjectMeta `json:"metadata"`
		} `json:"items"`
		TotalItems int `json:"totalItems"`
	}
	if err := json.Unmarshal(h.ask(200, "GET", "pipelines/p/pipelineruns?"+query, ""), &answer); err != nil {
		h.t.Fatal(err)
	}
	for _, item := range answer.Items {
		names = append(names, item.Name+item.Metadata.Name)
	}
	return names, answer.TotalItems
}

func TestListRuns_pages(t *testing.T) {
	h := start(t, "")
	h.pipeline("p", "true")
	h.pipeline("other", "true")
	h.run("other", "not-this-one")
	for i := range 12 {
		r := &v1alpha3.PipelineRun{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("r-%02d", i), Labels: map[string]string{"odd": fmt.Sprint(i%2 == 1)}},
		}
		r.Spec = v1alpha3.PipelineRunSpec{PipelineRef: v1alpha3.PipelineReference{Name: "p"}, SCM: &v1alpha3.SCM{RefName: fmt.Sprint("b", i%3)}}
		if _, err := h.runs().Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 12 {
		h.reaches(fmt.Sprintf("r-%02d", i), v1alpha3.PhaseSucceeded)
	}
	for query, want := range map[string]string{
		"sortBy=name&ascending=true&limit=3":                   "12 r-00 r-01 r-02",
		"sortBy=name&ascending=true&limit=3&page=4":            "12 r-09 r-10 r-11",
		"sortBy=name&ascending=true&limit=3&page=5":            "12",
		"sortBy=name&ascending=true&limit=5&page=3":            "12 r-10 r-11",
		"sortBy=name&limit=2":                                  "12 r-11 r-10",
		"sortBy=name&name=r-1":                                 "2 r-11 r-10",
		"sortBy=name&branch=b1":                                "4 r-10 r-07 r-04 r-01",
		"sortBy=name&branch=b1&labelSelector=odd%3Dtrue":       "2 r-07 r-01",
		"sortBy=name&branch=none":                              "0",
		"sortBy=name&ascending=true&limit=1&backward=false":    "12 r-00",
		"sortBy=startTime&ascending=true&limit=1000&name=r-03": "1 r-03",
	} {
		names, total := h.names(query)
		if got := strings.TrimSpace(fmt.Sprint(total, " ", strings.Join(names, " "))); got != want {
			t.Errorf("%s: %s, not %s", query, got, want)
		}
	}
	if names, total := h.names(
		"page=1&limit=10&sortBy=creationTimestamp&ascending=false",
	); len(names) != 10 || total != 12 ||
		names[0] != "r-11" {
		t.Errorf("the newest are %v of %d", names, total)
	}
	var older, newer map[string]any
	for query, to := range map[string]*map[string]any{"": &older, "backward=false": &newer} {
		var page struct{ Items []map[string]any }
		if err := json.Unmarshal(h.ask(200, "GET", "pipelines/p/pipelineruns?"+query, ""), &page); err != nil {
			t.Fatal(err)
		}
		*to = page.Items[0]
	}
	if older["state"] != "Success" || older["pipeline"] != "p" || older["message"] != "all steps have succeeded" || older["spec"] != nil {
		t.Errorf("the older form is %v", older)
	}
	if newer["kind"] != "PipelineRun" || newer["apiVersion"] != "devops.devops.io/v1alpha3" ||
		newer["status"].(map[string]any)["phase"] != "Succeeded" {
		t.Errorf("the whole object is %v", newer)
	}
}

func TestKapis_writesPipelines(t *testing.T) {
	h := start(t, "")
	made := h.ask(
		201,
		"POST",
		"pipelines",
		`{"metadata":{"name":"p"},"spec":{"parameters":[{"name":"WHO"}],"steps":[{"name":"a","script":"echo hello $WHO"}]}}`,
	)
	var p v1alpha3.Pipeline
	if err := json.Unmarshal(made, &p); err != nil || p.Spec.Type != v1alpha3.PlainPipeline || p.Kind != "Pipeline" {
		t.Fatalf("made %s, %v", made, err)
	}
	p.Spec.Description = "says hello"
	changed, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	h.ask(200, "PUT", "pipelines/p", string(changed))
	h.refused(409, "the object has been modified", "PUT", "pipelines/p", string(changed))
	if got := h.ask(200, "GET", "pipelines/p", ""); !strings.Contains(string(got), "says hello") {
		t.Errorf("it is %s", got)
	}
	if got := h.ask(
		200,
		"GET",
		"pipelines?name=p&limit=1",
		"",
	); !strings.Contains(string(got), `"totalItems":1`) ||
		!strings.Contains(string(got), "says hello") {
		t.Errorf("they are %s", got)
	}
	var run v1alpha3.PipelineRun
	if err := json.Unmarshal(
		h.ask(201, "POST", "pipelines/p/pipelineruns", `{"branch":"main","parameters":[{"name":"WHO","value":"you"}]}`),
		&run,
	); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(run.Name, "p-") || run.Spec.SCM.RefName != "main" {
		t.Errorf("the run is %+v", run)
	}
	h.reaches(run.Name, v1alpha3.PhaseSucceeded)
	response := h.send("GET", "pipelines/p/pipelineruns/"+run.Name+"/log", "")
	if text, err := io.ReadAll(
		response.Body,
	); err != nil || string(text) != "--- step a\nhello you\n" ||
		response.Header.Get("Content-Disposition") != `attachment; filename="`+run.Name+`.log"` {
		t.Errorf("the log is %q, %v, %v", text, response.Header, err)
	}
	h.ask(200, "DELETE", "pipelines/p/pipelineruns/"+run.Name, "")
	h.ask(200, "DELETE", "pipelines/p", "")
	h.refused(404, `pipelines.devops.devops.io "p" not found`, "GET", "pipelines/p", "")
}

// A client that follows a run by the query API's tail sees it reach its end.
func TestKapis_watchRun(t *testing.T) {
	h := start(t, "")
	h.pipeline("p", "true", "true", "true")
	h.run("p", "r")
	response := h.send("GET", "pipelineruns?watch=true&fieldSelector=metadata.name%3Dr", "", "Accept", "text/event-stream")
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", response.StatusCode, response.Header)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for phase := v1alpha3.Phase(""); !phase.Final(); {
		if !lines.Scan() {
			t.Fatalf("it ended while the run is %s: %v", phase, lines.Err())
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var event struct {
			Type   string
			Object v1alpha3.PipelineRun
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil || event.Type == "BOOKMARK" {
			continue
		}
		if phase = event.Object.Status.Phase; event.Object.Name != "r" || phase.Final() && phase != v1alpha3.PhaseSucceeded {
			t.Fatalf("told %s", data)
		}
	}
}

func TestLog_followWaitingRun(t *testing.T) {
	h := start(t, "1")
	h.pipeline("p", "echo first; while [ ! -e go ] && [ -z \"$(ls ..| grep -x go)\" ]; do sleep 0.05; done; echo last")
	h.run("p", "before")
	h.reaches("before", v1alpha3.PhaseRunning)
	h.run("p", "waits")
	h.reaches("waits", v1alpha3.PhasePending)
	h.refused(404, "run waits has no log here", "GET", "pipelines/p/pipelineruns/waits/log", "")
	followed := h.send("GET", "pipelines/p/pipelineruns/waits/log?follow=true", "")
	h.ask(202, "POST", "pipelines/p/pipelineruns/before/stop", "")
	lines := bufio.NewReader(followed.Body)
	for _, want := range []string{"--- step step-0\n", "first\n"} {
		if line, err := lines.ReadString('\n'); line != want || err != nil {
			t.Fatalf("%q, %v", line, err)
		}
	}
	h.ask(202, "POST", "pipelines/p/pipelineruns/waits/stop", "")
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "--- step step-0: the run was stopped\n" {
		t.Errorf("the rest is %q, %v", rest, err)
	}
}

func TestKapis_invalidRequests(t *testing.T) {
	h := start(t, "")
	h.pipeline("p", "true")
	h.pipeline("q", "true")
	h.run("p", "r")
	h.reaches("r", v1alpha3.PhaseSucceeded)
	runs := "pipelines/p/pipelineruns"
	long := strings.Repeat("x", maxBody+1)
	for _, test := range []struct {
		code               int
		want, method, path string
		body               string
	}{
		{400, `unknown parameter or field "pages"`, "GET", "pipelines?pages=1", ""},
		{400, `unknown parameter or field "backward"`, "GET", "pipelines?backward=true", ""},
		{400, `page: "0" is not a number from 1 to`, "GET", runs + "?page=0", ""},
		{400, `page: "x" is not a number from 1 to`, "GET", runs + "?page=x", ""},
		{400, `page: "99999999999999999999" is not a number from`, "GET", runs + "?page=99999999999999999999", ""},
		{400, `limit: "1000000000" is not a number from 0 to 1000`, "GET", runs + "?limit=1000000000", ""},
		{400, `limit: "-1"`, "GET", runs + "?limit=-1", ""},
		{400, `sortBy: unknown field "color": fields are name, namespace, creationTimestamp, spec.pipelineRef.name,`, "GET", runs +
			"?sortBy=color", ""},
		{400, `sortBy: unknown field "startTime": fields are name,`, "GET", "pipelines?sortBy=startTime", ""},
		{400, `ascending: "up" must be true or false`, "GET", runs + "?ascending=up", ""},
		{400, `parameter backward is "2": use true or false`, "GET", runs + "?backward=2", ""},
		{400, "unable to parse requirement", "GET", runs + "?labelSelector=a%3D%3D%3Db", ""},
		{400, "page is set 2 times", "GET", runs + "?page=1&page=2", ""},
		{400, `parameter follow is "yes please"`, "GET", runs + "/r/log?follow=yes+please", ""},
		{400, `unknown parameter "tail": there are follow`, "GET", runs + "/r/log?tail=1", ""},
		{400, `unknown parameter "x": there are none`, "GET", runs + "/r?x=1", ""},
		{400, `unknown parameter "x"`, "POST", runs + "/r/stop?x=1", ""},
		{415, "send application/json", "POST", "pipelines", ""},
		{400, "the body is not the JSON", "POST", "pipelines", "[]"},
		{400, "the body is null", "POST", "pipelines", "null"},
		{400, "something behind its JSON", "POST", "pipelines", "{} {}"},
		{413, "the body is longer than 1048576 bytes", "POST", "pipelines", long},
		{422, "spec.steps", "POST", "pipelines", `{"metadata":{"name":"a"},"spec":{"steps":[]}}`},
		{400, `unknown field "spec.stages"`, "POST", "pipelines", `{"metadata":{"name":"a"},` +
			`"spec":{"stages":[],"steps":[{"name":"a","script":"b"}]}}`},
		{409, "already exists", "POST", "pipelines", `{"metadata":{"name":"p"},"spec":{"steps":[{"name":"a","script":"b"}]}}`},
		{400, "does not match the name", "PUT", "pipelines/q", `{"metadata":{"name":"p"},"spec":{"steps":[{"name":"a","script":"b"}]}}`},
		{404, `pipelines.devops.devops.io "none" not found`, "POST", "pipelines/none/pipelineruns", "{}"},
		{400, `has no parameter "PATH"`, "POST", runs, `{"parameters":[{"name":"PATH","value":"/"}]}`},
		{400, `unknown field "branches"`, "POST", runs, `{"branches":"a"}`},
		{404, `pipelineruns.devops.devops.io "none" not found`, "GET", runs + "/none", ""},
		{404, `pipelineruns.devops.devops.io "none" not found`, "DELETE", runs + "/none", ""},
		{404, `pipelineruns.devops.devops.io "none" not found`, "GET", runs + "/none/log?follow=true", ""},
		{404, "there is no such path", "GET", runs + "/r/events", ""},
		{400, "parameter watch: here are pages", "GET", runs + "?watch=true", ""},
		{400, "cursor: not a cursor of the same query", "GET", runs + "?cursor=abc", ""},
		{404, `pipelineruns.devops.devops.io "r" not found`, "GET", "pipelines/q/pipelineruns/r", ""},
		{404, `pipelineruns.devops.devops.io "r" not found`, "DELETE", "pipelines/q/pipelineruns/r", ""},
		{404, `pipelineruns.devops.devops.io "r" not found`, "POST", "pipelines/q/pipelineruns/r/stop", ""},
		{404, "no resource projects of version", "GET", "projects", ""},
		{405, "", "PATCH", "pipelines/p", "{}"},
		{405, "", "DELETE", "pipelines", ""},
	} {
		h.refused(test.code, test.want, test.method, test.path, test.body)
	}
	h.refused(415, `the body is of type "text/plain": send application/json`, "POST", runs, "{}", "Content-Type", "text/plain")
	h.ask(200, "GET", runs+"/r", "") // it still exists
}

// The REST API gives callers the same rights as the API, and no more.
func TestKapis_authorization(t *testing.T) {
	h := start(t, "")
	h.pipeline("p", "true")
	h.run("p", "r")
	h.reaches("r", v1alpha3.PhaseSucceeded)
	admin, err := kubernetes.NewForConfig(h.config)
	if err != nil {
		t.Fatal(err)
	}
	rule := func(resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"reader": {rule("pipelineruns", "get", "list", "watch")},
		"logger": {rule("pipelineruns/log", "get")},
		"runner": {rule("pipelines", "get"), rule("pipelineruns", "get", "create")},
	} {
		if _, err := admin.RbacV1().
			Roles("default").
			Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
		}
		if _, err := admin.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	runs := "pipelines/p/pipelineruns"
	// Rights take effect soon after they are written.
	for user, path := range map[string]string{"reader": runs, "runner": "pipelines/p"} {
		if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, patience, true, func(context.Context) (bool, error) {
			response := h.send("GET", path, "", "Impersonate-User", user)
			_, _ = io.Copy(io.Discard, response.Body)
			return response.StatusCode == http.StatusOK, nil
		}); err != nil {
			t.Fatalf("the rights of %s: %v", user, err)
		}
	}
	for request, allowed := range map[string]string{
		"GET pipelines":             "",
		"GET pipelines/p":           "runner",
		"DELETE pipelines/p":        "",
		"GET " + runs:               "reader",
		"POST " + runs:              "runner",
		"GET " + runs + "/r":        "reader runner",
		"GET " + runs + "/r/events": "",
		"GET " + runs + "/r/log":    "", // the permission for the log does not include the run
		"POST " + runs + "/r/stop":  "",
		"DELETE " + runs + "/r":     "",
		"PATCH " + runs + "/r":      "",
		"GET projects":              "",
		"GET " + runs + "/r/log/x":  "",
		"OPTIONS " + runs + "/r":    "",
		"GET pipelineruns":          "reader",
	} {
		method, path, _ := strings.Cut(request, " ")
		for _, user := range []string{"reader", "logger", "runner", "stranger"} {
			body := ""
			if method == http.MethodPost {
				body = "{}"
			}
			response := h.send(method, path, body, "Impersonate-User", user)
			_, _ = io.Copy(io.Discard, response.Body)
			if passed := response.StatusCode < 300; passed != slices.Contains(strings.Fields(allowed), user) ||
				!passed && response.StatusCode != 403 {
				t.Errorf("%s by %s is answered with %d", request, user, response.StatusCode)
			}
		}
	}
}

func TestKapisDocument_hasAllPaths(t *testing.T) {
	h := start(t, "")
	response, err := h.http.Get(h.config.Host + "/openapi/v3/kapis/devops.devops.io/v1alpha3")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var document struct {
		Paths      map[string]map[string]any
		Components struct{ Schemas map[string]map[string]any }
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	for _, o := range operations {
		if document.Paths[o.path][strings.ToLower(o.method)] == nil {
			t.Errorf("%s %s is not in the document", o.method, o.path)
		}
	}
	for _, reference := range strings.Split(string(text), `"$ref":"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(reference, `"`)
		if document.Components.Schemas[name]["type"] == nil {
			t.Errorf("there is no schema %s", name)
		}
	}
}
