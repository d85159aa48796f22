package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// factory is a server whose action build is answered with an operation that passes through the given statuses. It
// implements only the requests of discovery and of the plugin.
type factory struct {
	mu       sync.Mutex
	statuses []string
	seen     int
	away     int // how often reading the operation fails, as while the server is unavailable
}

func (f *factory) operation(status string) string {
	return fmt.Sprintf(
		`{"kind":"Operation","apiVersion":"works.example.com/v1","metadata":{"name":"build-x",`+
			`"namespace":"default","uid":"u","resourceVersion":"%d"},"status":%s}`,
		f.seen+1,
		status,
	)
}

func (f *factory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	operations := "/apis/works.example.com/v1/namespaces/default/operations"
	switch at := r.URL.Path; {
	case at == "/api":
		fmt.Fprint(w, `{"kind":"APIVersions","versions":[]}`)
	case at == "/apis":
		fmt.Fprint(
			w,
			`{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"works.example.com",`+
				`"versions":[{"groupVersion":"works.example.com/v1","version":"v1"}],"preferredVersion":{"groupVersion":"works.example.com/v1",`+
				`"version":"v1"}}]}`,
		)
	case at == "/apis/works.example.com/v1":
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"works.example.com/v1","resources":[
			{"name":"plants","singularName":"plant","namespaced":true,"kind":"Plant","verbs":["get","list","watch"]},
			{"name":"plants/build","namespaced":true,"kind":"Build","verbs":["create"]},
			{"name":"operations","singularName":"operation","namespaced":true,"kind":"Operation","verbs":["get","list","watch"]},
			{"name":"plants/logs","namespaced":true,"kind":"Felling","verbs":["create"]},
			{"name":"operations/cancel","namespaced":true,"kind":"OperationCancellation","verbs":["create"]},
			{"name":"operations/retry","namespaced":true,"kind":"OperationRetry","verbs":["create"]}]}`)
	case at == operations+"/build-x/cancel":
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, strings.Replace(f.operation(f.statuses[0]), `"status"`, `"spec":{"cancel":true},"status"`, 1))
	case at == operations+"/build-x/retry":
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, f.operation(f.statuses[0]))
	case at == "/apis/works.example.com/v1/namespaces/default/plants/x/logs":
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Success","message":"three logs"}`)
	case at == "/apis/works.example.com/v1/namespaces/default/plants/x/build":
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, f.operation(f.statuses[0]))
	case at == operations && r.URL.Query().Get("watch") != "":
		for f.seen+1 < len(f.statuses) {
			f.seen++
			fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", f.operation(f.statuses[f.seen]))
			if f.seen%2 == 1 {
				return // the plugin restarts a watch that has ended
			}
		}
		w.(http.Flusher).Flush()
		f.mu.Unlock()
		<-r.Context().Done()
		f.mu.Lock()
	case at == operations+"/build-x" && f.seen > 0 && f.away > 0:
		f.away--
		w.WriteHeader(http.StatusServiceUnavailable)
	case at == operations+"/build-x":
		fmt.Fprint(w, f.operation(f.statuses[f.seen]))
	default:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).
			Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": at +
				" is not there"})
	}
}

func openFactory(t *testing.T, statuses ...string) string {
	t.Helper()
	return open(t, &factory{statuses: statuses})
}

func open(t *testing.T, f *factory) string {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, &rest.Config{Host: server.URL}, kubeconfig)
	return kubeconfig
}

const (
	pending = `{"phase":"Pending"}`
	half    = `{"phase":"Running","progress":{"percent":50,"done":5,"total":10,"unit":"files"},"message":"compiling"}`
	most    = `{"phase":"Running","progress":{"done":9,"total":10}}`
	done    = `{"phase":"Succeeded","result":{"kind":"Image","apiVersion":"works.example.com/v1","digest":"sha256:1"}}`
	failed  = `{"phase":"Failed","error":{"message":"no space"},"log":"one\ntwo\n"}`
)

func TestCall_operation_isFollowed(t *testing.T) {
	t.Parallel()
	kubeconfig := openFactory(t, pending, half, most, done)
	got := run(t, kubeconfig, "", "build", "plant/x")
	want := ran{0, "digest: sha256:1\n", `operation.works.example.com/build-x Pending
operation.works.example.com/build-x Running 50% 5/10 files compiling
operation.works.example.com/build-x Running 90% 9/10
operation.works.example.com/build-x Succeeded
`}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// If the server is unavailable between two watches, the plugin continues from the last state that it has seen.
func TestFollow_serverUnavailable_continues(t *testing.T) {
	t.Parallel()
	kubeconfig := open(t, &factory{statuses: []string{pending, half, done}, away: 1})
	got := run(t, kubeconfig, "", "build", "plant/x")
	want := ran{0, "digest: sha256:1\n", `operation.works.example.com/build-x Pending
operation.works.example.com/build-x Running 50% 5/10 files compiling
operation.works.example.com/build-x Succeeded
`}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestOutcome_exitCode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		line     string
		statuses []string
		code     int
		out      string
		errOut   string // the end of it
	}{
		"a failed action": {"build plant/x", []string{pending, failed}, 1, "", "error: operation.works.example.com/build-x failed: no " +
			"space\nThe end of its log:\n  one\n  two\n"},
		"a cancelled one": {"build plant/x", []string{half, `{"phase":"Cancelled","message":"by a user"}`}, 1, "",
			"error: operation.works.example.com/build-x was cancelled: by a user\n"},
		"over at once": {"build plant/x", []string{done}, 0, "digest: sha256:1\n", "build-x Succeeded\n"},
		"without result": {"build plant/x", []string{`{"phase":"Succeeded"}`}, 0, "plant.works.example.com/x build: done\n",
			"build-x Succeeded\n"},
		"as JSON":        {"build plant/x -o jsonpath={.digest}", []string{half, done}, 0, "sha256:1", "build-x Succeeded\n"},
		"not waited for": {"build plant/x --wait=false -o name", []string{pending}, 0, "operation.works.example.com/build-x\n", ""},
		"only said":      {"build plant/x --wait=false", []string{pending}, 0, "operation.works.example.com/build-x started\n", ""},
		"wait":           {"wait operation/build-x", []string{half, done}, 0, "", "build-x Succeeded\n"},
		"wait for a failed one": {"wait operation build-x", []string{half, failed}, 1, "", "failed: no space\nThe end of its log:\n  " +
			"one\n  two\n"},
		"wait too long": {"wait operation/build-x --timeout=50ms", []string{half}, 1, "",
			`operation.works.example.com/build-x is still running. To follow or cancel it:
  kubectl annex wait operations.works.example.com/build-x -n default
  kubectl annex cancel operations.works.example.com/build-x -n default
error: operation.works.example.com/build-x has not ended after 50ms
`},
		"an action too long": {"build plant/x --timeout=50ms", []string{half}, 1, "", "has not ended after 50ms\n"},
		"cancel": {"cancel operation/build-x", []string{half}, 0,
			"operation.works.example.com/build-x cancel: done\n", ""},
		"retry":                           {"retry operation/build-x", []string{pending, done}, 0, "digest: sha256:1\n", "build-x Succeeded\n"},
		"an action by the name of a verb": {"call logs plant/x", []string{half}, 0, "three logs\n", ""},
		"a verb by the name of an action": {"logs plant/x", []string{half}, 2, "", "error: logs of plants.works.example.com is a " +
			"subresource of another form: use kubectl annex call logs\nSee kubectl annex --help.\n"},
		"an action of a kind by a verb's name": {"call logs operation/x", []string{half}, 2, "", "error: operations.works.example.com have " +
			"no logs: plants.works.example.com have\nSee kubectl annex --help.\n"},
		"one that is gone": {"wait operation/other", []string{half}, 1, "", "is not there\n"},
		"another kind":     {"wait plant/x", []string{half}, 2, "", "only for operations, --for is optional\nSee kubectl annex --help.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, openFactory(t, test.statuses...), "", strings.Fields(test.line)...)
			if got.code != test.code || got.out != test.out || !strings.HasSuffix(got.errOut, test.errOut) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestFollow_interrupt_printsNextStep(t *testing.T) {
	t.Parallel()
	kubeconfig := openFactory(t, half)
	ctx, cancel := context.WithCancel(t.Context())
	var out strings.Builder
	errOut := &interrupting{at: "Running", cancel: cancel}
	code := Run(
		ctx,
		Options{Name: "works"},
		[]string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + t.TempDir(), "build", "plant/x"},
		IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: errOut},
	)
	if code != exitInterrupted ||
		!strings.Contains(errOut.String(), "  kubectl works cancel operations.works.example.com/build-x -n default\n") {
		t.Errorf("exit code %d, %s", code, errOut)
	}
}

// interrupting calls cancel when at is written to it.
type interrupting struct {
	strings.Builder
	at     string
	cancel func()
}

func (i *interrupting) Write(p []byte) (int, error) {
	if strings.Contains(string(p), i.at) {
		i.cancel()
	}
	return i.Builder.Write(p)
}

func TestProgress_line(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]string{
		`{}`: "operation/x Pending",
		`{"phase":"Running","progress":{"percent":0,"done":0}}`:                         "operation/x Running",
		`{"phase":"Running","progress":{"percent":0,"done":7,"unit":"rows"}}`:           "operation/x Running 7 rows",
		`{"phase":"Running","progress":{"percent":0,"done":0,"total":10}}`:              "operation/x Running 0% 0/10",
		`{"phase":"Running","progress":{"percent":33,"done":5000000,"total":15000000}}`: "operation/x Running 33% 5000000/15000000",
		`{"phase":"Running","progress":{"percent":120}}`:                                "operation/x Running 100%",
		`{"phase":"Running","message":"two\nlines and \u001b[2Ja command"}`:             "operation/x Running two lines and ?[2Ja command",
	} {
		var operation map[string]any
		if err := json.Unmarshal([]byte(`{"status":`+status+`}`), &operation); err != nil {
			t.Fatal(err)
		}
		p := &progress{of: object{resource: resource{singular: "operation"}, name: "x"}}
		if got := p.line(&unstructured.Unstructured{Object: operation}); got != want {
			t.Errorf("%s: %q, want %q", status, got, want)
		}
	}
}

func TestProgress_terminal_drawsBar(t *testing.T) {
	t.Parallel()
	var operation map[string]any
	if err := json.Unmarshal([]byte(`{"status":`+half+`}`), &operation); err != nil {
		t.Fatal(err)
	}
	for width, want := range map[int]string{
		80: "\r\x1b[Koperation/x Running [############............] 50% 5/10 files compiling",
		30: "\r\x1b[Koperation/x Running [#######…",
	} {
		var out strings.Builder
		p := &progress{out: &out, of: object{resource: resource{singular: "operation"}, name: "x"}, terminal: true, width: width}
		now := &unstructured.Unstructured{Object: operation}
		p.show(now)
		p.show(now) // must not draw an unchanged state again
		if out.String() != want {
			t.Errorf("%d columns: %q, want %q", width, out.String(), want)
		}
		p.end()
		if !strings.HasSuffix(out.String(), "\n") {
			t.Errorf("%q does not end the line", out.String())
		}
	}
}
