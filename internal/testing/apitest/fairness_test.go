package apitest_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
)

const (
	flowSchemasPath    = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
	priorityLevelsPath = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations"
	priorityLevelDump  = "/debug/api_priority_and_fairness/dump_priority_levels"
)

func TestPriorityAndFairness_disabled_isNotServed(t *testing.T) {
	t.Parallel()
	without := start(t, shop())
	without.get(flowSchemasPath).want(404)
	without.get(priorityLevelDump).want(404)
	for name, c := range map[string]*client{"off": without,
		"on": startWith(t, shop(), annex.Options{Storage: memory.Storage(), PriorityAndFairness: new(true)})} {
		served := strings.Contains(string(c.get("/apis").want(200).raw), "flowcontrol.apiserver.k8s.io")
		if flow := c.get("/version").want(200).header.Get("X-Kubernetes-Pf-Flowschema-Uid"); served != (name == "on") || served != (flow != "") {
			t.Errorf("%s: the group is served: %v; the flow schema of a request: %q", name, served, flow)
		}
	}
}

func TestPriorityAndFairness_invalidOptions(t *testing.T) {
	t.Parallel()
	options := annex.Options{Storage: memory.Storage(), DataDir: t.TempDir(), PriorityAndFairness: new(true)}
	options.Serving.MaxRequestsInFlight, options.Serving.MaxMutatingRequestsInFlight = -1, -1
	_, err := annex.New(t.Context(), shop(), options)
	if err == nil ||
		!strings.Contains(err.Error(), "priority levels divide their sum: set one of them, or disable Options.PriorityAndFairness") {
		t.Error(err)
	}
}

// turns is a server with a path whose responses wait until they are released. It reports the callers that have
// entered.
type turns struct {
	admin   *client
	entered chan string
	leave   chan struct{}
}

func startTurns(t *testing.T, fair bool) *turns {
	t.Helper()
	s := &turns{entered: make(chan string, 100), leave: make(chan struct{})}
	server := shop()
	server.Handlers = []annex.Handler{{Path: "/turn", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.entered <- annex.Caller(r.Context()).GetName()
		<-s.leave
	})}}
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte("loud,loud,1\nquiet,quiet,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	options := annex.Options{
		Storage: memory.Storage(), TokenAuthFile: file, PriorityAndFairness: &fair,
		AuthorizationModes: []annex.AuthorizationMode{annex.AuthorizationAlwaysAllow},
	}
	options.Serving.MaxRequestsInFlight, options.Serving.MaxMutatingRequestsInFlight = 1, 1
	s.admin = startWith(t, server, options)
	t.Cleanup(func() { close(s.leave) }) // before the server stops
	return s
}

// send makes a caller send concurrent requests, and returns their codes as they come.
func (s *turns) send(t *testing.T, caller string, n int) <-chan int {
	c, codes := s.admin.stranger(caller), make(chan int, n)
	for range n {
		go func() {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.config.Host+"/turn", nil)
			if err != nil {
				codes <- 0
				return
			}
			response, err := c.http.Do(request)
			if err != nil {
				codes <- 0
				return
			}
			response.Body.Close()
			codes <- response.StatusCode
		}()
	}
	return codes
}

// waiting returns the number of requests queued by a priority level.
func (s *turns) waiting(level string) int {
	row := regexp.MustCompile(`(?m)^` + level + `, +\d+, +\w+, +\w+, +(\d+),`).FindSubmatch(s.admin.get(priorityLevelDump).want(200).raw)
	if row == nil {
		return -1
	}
	n, err := strconv.Atoi(string(row[1]))
	if err != nil {
		s.admin.t.Fatal(err)
	}
	return n
}

// A caller that sends many concurrent requests takes turns with another that sends one: the latter does not wait for
// all earlier requests.
func TestPriorityAndFairness_loudCaller_doesNotStarveOthers(t *testing.T) {
	t.Parallel()
	const many = 30
	s := startTurns(t, true)
	s.admin.post(priorityLevelsPath, map[string]any{
		"metadata": map[string]any{"name": "turns"},
		"spec": map[string]any{"type": "Limited", "limited": map[string]any{
			// Nearly all of the server's concurrency: two requests, for ever.
			"nominalConcurrencyShares": 100000, "borrowingLimitPercent": 0,
			"limitResponse": map[string]any{"type": "Queue", "queuing": map[string]any{"queues": 64, "handSize": 1, "queueLengthLimit": many}},
		}},
	}).want(201)
	schema := s.admin.post(flowSchemasPath, map[string]any{
		"metadata": map[string]any{"name": "turns"},
		"spec": map[string]any{
			"priorityLevelConfiguration": map[string]any{
				"name": "turns",
			},
			"matchingPrecedence":  50,
			"distinguisherMethod": map[string]any{"type": "ByUser"},
			"rules": []any{map[string]any{
				"subjects":         []any{map[string]any{"kind": "Group", "group": map[string]any{"name": "system:authenticated"}}},
				"nonResourceRules": []any{map[string]any{"verbs": []any{"*"}, "nonResourceURLs": []any{"/turn"}}},
			}},
		},
	}).want(201).str("metadata", "uid")
	testwait.NoError(t, "the flow schema is in force", func(context.Context) error {
		if a := s.admin.get(flowSchemasPath + "/turns"); !strings.Contains(string(a.raw), `"status":"False"`) {
			return fmt.Errorf("%s", a.raw)
		}
		return nil
	})
	answers := s.send(t, "loud", many)
	for range 2 {
		if who := <-s.entered; who != "loud" {
			t.Fatalf("%s has entered", who)
		}
	}
	testwait.Until(t, "the others are queued", func() bool { return s.waiting("turns") == many-2 })
	quiet := s.send(t, "quiet", 1)
	testwait.Until(t, "the quiet one is queued as well", func() bool { return s.waiting("turns") == many-1 })

	// Of each two requests that leave, one makes room for the quiet caller.
	var order []string
	for !slices.Contains(order, "quiet") && len(order) < many {
		s.leave <- struct{}{}
		order = append(order, <-s.entered)
	}
	if len(order) > 2 {
		t.Errorf("these were let in before the quiet one: %q", order)
	}
	if n := s.waiting("turns"); n < many-2-len(order) {
		t.Errorf("%d are still queued", n)
	}
	for range many + 1 - len(order) {
		s.leave <- struct{}{}
	}
	for range many {
		if code := <-answers; code != 200 {
			t.Errorf("the loud one got %d", code)
		}
	}
	if code := <-quiet; code != 200 {
		t.Errorf("the quiet one got %d", code)
	}
	go func() { s.leave <- struct{}{} }()
	if got := s.admin.stranger("quiet").get("/turn").want(200).header.Get("X-Kubernetes-Pf-Flowschema-Uid"); got != schema {
		t.Errorf("the flow schema is %q, want %q", got, schema)
	}
}

// Without priority and fairness, a request waits for a place that another user has.
func TestRequestsInFlight_withoutPriorityAndFairness_waitForAPlace(t *testing.T) {
	t.Parallel()
	s := startTurns(t, false)
	loud := s.send(t, "loud", 1)
	if caller := <-s.entered; caller != "loud" {
		t.Fatalf("%s was let in", caller)
	}
	quiet := s.send(t, "quiet", 1)
	s.leave <- struct{}{}
	if caller := <-s.entered; caller != "quiet" {
		t.Fatalf("%s was let in", caller)
	}
	s.leave <- struct{}{}
	if first, second := <-loud, <-quiet; first != 200 || second != 200 {
		t.Errorf("they were answered %d and %d", first, second)
	}
}

func TestFlowSchemas_table_isInOrderOfPrecedence(t *testing.T) {
	t.Parallel()
	fair := true
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage(), PriorityAndFairness: &fair})
	var table metav1.Table
	decode(t, c.get(flowSchemasPath, "Accept", tableType).want(200).raw, &table)
	type row struct {
		precedence float64
		name       string
	}
	var rows []row
	for _, r := range table.Rows {
		rows = append(rows, row{r.Cells[2].(float64), r.Cells[0].(string)})
	}
	if len(rows) < 3 || rows[0].name != "exempt" || rows[len(rows)-1].name != "catch-all" || !slices.IsSortedFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.precedence, b.precedence), cmp.Compare(a.name, b.name))
	}) {
		t.Errorf("the table has %v; want the order of precedence", rows)
	}
}

// The objects are stored like all others: permitted changes stay, others are reverted, and they still exist after a
// server without priority and fairness, which does not serve them.
func TestPriorityAndFairness_objectsOutliveServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serving := func(fair bool, work func(c *client)) {
		t.Helper()
		instance, stop := run(t, shop(), annex.Options{Storage: embedded.Dir(""), DataDir: dir, PriorityAndFairness: &fair})
		work(clientFrom(t, instance.Kubeconfig()))
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	var uid string
	serving(true, func(c *client) {
		uid = c.get(flowSchemasPath+"/probes").want(200).str("metadata", "uid")
		if n := len(c.get(flowSchemasPath).items()) + len(c.get(priorityLevelsPath).items()); n != 19 {
			t.Errorf("a new server has %d objects", n)
		}
		c.patch(mergePatch, flowSchemasPath+"/probes", `{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"false"}},`+
			`"spec":{"matchingPrecedence":3}}`).
			want(200)
		c.patch(mergePatch, flowSchemasPath+"/service-accounts", `{"spec":{"matchingPrecedence":4}}`).want(200)
		c.patch(mergePatch, flowSchemasPath+"/catch-all", `{"spec":{"matchingPrecedence":5}}`).
			refused(422, "Invalid", "spec of 'catch-all' must equal the fixed value")
		c.delete(flowSchemasPath+"/exempt", nil).want(200)
		c.delete(flowSchemasPath+"/global-default", nil).want(200)
	})
	serving(false, func(c *client) {
		c.get(flowSchemasPath).want(404)
		c.create("w")
	})
	serving(true, func(c *client) {
		probes := c.get(flowSchemasPath + "/probes").want(200)
		if probes.str("metadata", "uid") != uid || probes.str("spec", "matchingPrecedence") != "3" {
			t.Errorf("what is to stay is %s", probes.raw)
		}
		if got := c.get(flowSchemasPath+"/service-accounts").want(200).str("spec", "matchingPrecedence"); got != "9000" {
			t.Errorf("what is put right has precedence %s", got)
		}
		c.get(flowSchemasPath + "/exempt").want(200)
		c.get(flowSchemasPath + "/global-default").want(200)
	})
}
