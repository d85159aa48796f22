package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/testing/testwait"
)

var (
	plays      = schema.GroupVersionResource{Group: "theatre.example.com", Version: "v1", Resource: "plays"}
	operations = plays.GroupVersion().WithResource("operations")
)

// stage is a play with long actions, as clients of the cluster see it.
type stage struct {
	*testing.T
	ns         string
	client     *http.Client
	operations dynamic.ResourceInterface
}

// begin requests an action of the play, and returns the operation in the response.
func (s stage) begin(action string, acts int, query string) *unstructured.Unstructured {
	s.Helper()
	return s.post(
		fmt.Sprintf("plays/p/%s", action),
		fmt.Sprintf(`{"apiVersion":"theatre.example.com/v1","kind":"Performance","acts":%d}`, acts),
		query,
	)
}

func (s stage) post(path, body, query string) *unstructured.Unstructured {
	s.Helper()
	url := host.Admin().Host + "/apis/theatre.example.com/v1/namespaces/" + s.ns + "/" + path + query
	request, err := http.NewRequestWithContext(ending(s.T), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	op := &unstructured.Unstructured{}
	if err := json.NewDecoder(response.Body).Decode(&op.Object); err != nil || response.StatusCode >= http.StatusBadRequest {
		s.Fatalf("%s: %s: %v, %v", path, response.Status, op.Object, err)
	}
	return op
}

// until waits for an operation.
func (s stage) until(name, what string, is func(status map[string]any) bool) (status map[string]any) {
	s.Helper()
	testwait.NoError(s.T, "operation "+name+" "+what, func(ctx context.Context) error {
		op, err := s.operations.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status, _, err = unstructured.NestedMap(op.Object, "status"); err == nil && !is(status) {
			return fmt.Errorf("its status is %v", status)
		}
		return err
	})
	return status
}

func inPhase(phase string) func(map[string]any) bool {
	return func(status map[string]any) bool { return status["phase"] == phase }
}

func hasPlayed(acts int64) func(map[string]any) bool {
	return func(status map[string]any) bool {
		done, _, _ := unstructured.NestedInt64(status, "progress", "done")
		return status["phase"] == "Running" && done >= acts
	}
}

// Operations that take longer than a request are started, followed, cancelled and retried through the cluster, and
// survive the end of the process that carries them out.
func TestOperations_throughCluster(t *testing.T) {
	admin := newKubectl(t, host.Admin())
	admin.given(permissions(t, "theatre"), "apply", "-f", "-")
	account, err := host.ServiceAccount(ending(t), "theatre", "theatre")
	if err != nil {
		t.Fatal(err)
	}
	etcd := startEtcd(t)
	stored := []string{"--storage", "etcd", "--etcd-servers", etcd.Endpoint()}
	one := startJoined(t, "theatre", "theatre-1", account, stored...)
	one.register(t, plays.GroupVersion())
	ns := namespace(t)
	client, err := dynamic.NewForConfig(host.Admin())
	if err != nil {
		t.Fatal(err)
	}
	s := stage{T: t, ns: ns, operations: client.Resource(operations).Namespace(ns)}
	if s.client, err = rest.HTTPClientFor(host.Admin()); err != nil {
		t.Fatal(err)
	}
	play := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "theatre.example.com/v1",
		"kind":       "Play",
		"metadata":   map[string]any{"name": "p"},
		"spec":       map[string]any{"title": "A play"},
	}}
	if _, err := client.Resource(plays).Namespace(ns).Create(t.Context(), play, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// Wait for its end.
	short := s.begin("perform", 3, "?wait=30s")
	if acts, _, _ := unstructured.NestedNumberAsFloat64(short.Object, "status", "result", "acts"); acts != 3 {
		t.Errorf("a performance that was waited for: %v", short.Object["status"])
	}

	// Follow it, cancel it and retry it.
	const long = 1000000
	rehearsal := s.begin("rehearse", long, "").GetName()
	s.until(rehearsal, "playing", hasPlayed(2))
	s.post("operations/"+rehearsal+"/cancel", `{}`, "")
	s.until(rehearsal, "cancelled", inPhase("Cancelled"))
	s.post("operations/"+rehearsal+"/retry", `{}`, "")
	performance := s.begin("perform", long, "").GetName()
	s.until(rehearsal, "playing again", hasPlayed(2))
	s.until(performance, "playing", hasPlayed(2))

	// The process is killed: the resumable operation resumes, and the other has failed.
	one.Kill()
	if err := one.Start(ending(t)); err != nil {
		t.Fatal(err)
	}
	if err := host.AwaitAvailable(ending(t), "v1.theatre.example.com", "True"); err != nil {
		t.Fatal(err)
	}
	failed := s.until(rehearsal, "failed", inPhase("Failed"))
	if message := fmt.Sprint(failed["message"]); !strings.Contains(message, "stopped while it ran the operation") {
		t.Errorf("a rehearsal whose process was killed says %s", message)
	}
	status := s.until(
		performance,
		"resumed",
		func(status map[string]any) bool { return status["attempts"] == int64(2) && hasPlayed(3)(status) },
	)

	// Another replica takes over from a killed one.
	other := startJoined(t, "theatre", "theatre-2", account, stored...)
	other.register(t, plays.GroupVersion())
	one.Kill()
	holder := status["holder"]
	played, _, _ := unstructured.NestedInt64(status, "progress", "done")
	s.until(performance, "taken over", func(status map[string]any) bool {
		return status["attempts"] == int64(3) && status["holder"] != holder && hasPlayed(played)(status)
	})
	s.post("operations/"+performance+"/cancel", `{}`, "")
	s.until(performance, "cancelled", inPhase("Cancelled"))
}
