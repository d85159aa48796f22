package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/annextest"

	"example.com/devops/apis/devops/v1alpha3"
	"example.com/devops/client/clientset"
	typed "example.com/devops/client/clientset/typed/devops/v1alpha3"
)

const patience = time.Minute

// host is a server for a test, with its administrator.
type host struct {
	t      *testing.T
	dir    string // of runs
	client clientset.Interface
	config *rest.Config
	http   *http.Client
}

func start(t *testing.T, slots string) *host {
	t.Helper()
	dir := t.TempDir()
	runs, err := runsOf(func(name string) string { return map[string]string{"DEVOPS_RUNS": dir, "DEVOPS_MAX_RUNS": slots}[name] })
	if err != nil {
		t.Fatal(err)
	}
	config := annextest.Start(t, server(runs))
	client, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	direct, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &host{t, dir, client, config, direct}
}

func (h *host) pipelines() typed.PipelineInterface {
	return h.client.DevopsV1alpha3().Pipelines("default")
}

func (h *host) runs() typed.PipelineRunInterface {
	return h.client.DevopsV1alpha3().PipelineRuns("default")
}

// pipeline creates a pipeline of scripts.
func (h *host) pipeline(name string, scripts ...string) *v1alpha3.Pipeline {
	h.t.Helper()
	p := &v1alpha3.Pipeline{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for i, script := range scripts {
		p.Spec.Steps = append(p.Spec.Steps, v1alpha3.Step{Name: fmt.Sprint("step-", i), Script: script})
	}
	created, err := h.pipelines().Create(h.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return created
}

// run creates a run of a pipeline.
func (h *host) run(pipeline, name string, change ...func(*v1alpha3.PipelineRunSpec)) *v1alpha3.PipelineRun {
	h.t.Helper()
	r := &v1alpha3.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: name}}
	r.Spec.PipelineRef.Name = pipeline
	for _, c := range change {
		c(&r.Spec)
	}
	created, err := h.runs().Create(h.t.Context(), r, metav1.CreateOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return created
}

// until waits until a condition holds for a run.
func (h *host) until(name, what string, is func(*v1alpha3.PipelineRun) bool) *v1alpha3.PipelineRun {
	h.t.Helper()
	var last *v1alpha3.PipelineRun
	err := wait.PollUntilContextTimeout(h.t.Context(), 5*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		last, err = h.runs().Get(ctx, name, metav1.GetOptions{})
		return err == nil && is(last), err
	})
	if err != nil {
		h.t.Fatalf("%s is not %s: %v: %+v", name, what, err, last)
	}
	return last
}

func (h *host) reaches(name string, phase v1alpha3.Phase) *v1alpha3.PipelineRun {
	h.t.Helper()
	return h.until(name, string(phase), func(r *v1alpha3.PipelineRun) bool { return r.Status.Phase == phase })
}

// send sends a request below the namespace, as the caller in the headers.
func (h *host) send(method, path, body string, headers ...string) *http.Response {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	h.t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, method, h.config.Host+kapisPath+"namespaces/default/"+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := h.http.Do(request)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { response.Body.Close() })
	return response
}

// ask sends a request, expects a status code, and returns the body.
func (h *host) ask(code int, method, path, body string, headers ...string) []byte {
	h.t.Helper()
	response := h.send(method, path, body, headers...)
	text, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	if response.StatusCode != code {
		h.t.Fatalf("%s %s is answered with %d, not %d: %s", method, path, response.StatusCode, code, text)
	}
	return text
}

// refused sends a request and expects a refusal, by a Status with a text.
func (h *host) refused(code int, want, method, path, body string, headers ...string) {
	h.t.Helper()
	var status metav1.Status
	text := h.ask(code, method, path, body, headers...)
	if err := json.Unmarshal(
		text,
		&status,
	); err != nil || status.Kind != "Status" || int(status.Code) != code ||
		!strings.Contains(status.Message, want) {
		h.t.Errorf("%s %s is refused with %s, not %q", method, path, bytes.TrimSpace(text), want)
	}
}

func reason(r *v1alpha3.PipelineRun) string {
	for _, c := range r.Status.Conditions {
		if c.Type == v1alpha3.Succeeded {
			return c.Reason
		}
	}
	return ""
}
