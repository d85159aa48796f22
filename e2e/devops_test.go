package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/annexapi/annex/internal/testing/testwait"
)

// The recorded states of runs are correct after the server was killed: the running one is lost, with the processes
// that it had started, and the waiting ones had not begun and run later.
func TestPipelineRuns_killedServer_reportOutcome(t *testing.T) {
	t.Parallel()
	s := startServerOn(t, "devops", restartPort(t))
	dir := t.TempDir()
	pids := filepath.Join(dir, "pids")
	resource := func(name string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "devops.devops.io", Version: "v1alpha3", Resource: name}
	}
	client := dynamic.NewForConfigOrDie(s.config(t))
	pipelines, runs := client.Resource(resource("pipelines")).
		Namespace("default"),
		client.Resource(resource("pipelineruns")).
			Namespace("default")
	create := func(in dynamic.ResourceInterface, kind, name string, spec map[string]any) {
		t.Helper()
		o := &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "devops.devops.io/v1alpha3", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec},
		}
		if _, err := in.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The child has a session of its own, and would outlive the shell and its group.
	script := fmt.Sprintf("setsid sleep 1000 & echo $$ $! >> %s; while [ ! -e %s/go ]; do sleep 0.1; done; kill $!", pids, dir)
	create(pipelines, "Pipeline", "p", map[string]any{"steps": []any{map[string]any{"name": "a", "script": script}}})
	phase := func(ctx context.Context, name, want string) error {
		run, err := runs.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedString(run.Object, "status", "phase"); got != want {
			return fmt.Errorf("%s is %s: %v", name, got, run.Object["status"])
		}
		return nil
	}
	reaches := func(name, want string) {
		t.Helper()
		testwait.NoError(t, name+" is "+want, func(ctx context.Context) error { return phase(ctx, name, want) })
	}
	const ran = 2 // concurrently
	for i := range ran + 1 {
		create(runs, "PipelineRun", fmt.Sprint("r", i), map[string]any{"pipelineRef": map[string]any{"name": "p"}})
	}
	reaches("r0", "Running")
	reaches("r1", "Running")
	reaches("r2", "Pending")
	var processes []int
	testwait.NoError(t, "the runs have processes", func(context.Context) error {
		text, err := os.ReadFile(pids)
		processes = nil
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				processes = append(processes, pid)
			}
		}
		if err == nil && len(processes) != 2*ran {
			err = fmt.Errorf("they are %v", processes)
		}
		return err
	})
	s.kill(t)
	s.start(t)
	reaches("r0", "Failed")
	reaches("r1", "Failed")
	reaches("r2", "Running")
	for _, pid := range processes {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if syscall.Kill(pid, 0) == nil && (err != nil || !strings.Contains(string(stat), ") Z ")) {
			t.Errorf("process %d lives on", pid)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	reaches("r2", "Succeeded")
}
