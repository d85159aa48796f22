package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"example.com/devops/apis/devops/v1alpha3"
)

func TestRunsOf_invalidSettings(t *testing.T) {
	for _, n := range []string{"0", "-1", "1001", "two"} {
		if _, err := runsOf(
			func(name string) string { return map[string]string{"DEVOPS_MAX_RUNS": n}[name] },
		); err == nil ||
			!strings.Contains(err.Error(), "DEVOPS_MAX_RUNS is ") {
			t.Errorf("%s: %v", n, err)
		}
	}
}

func TestRun_steps(t *testing.T) {
	h := start(t, "")
	t.Setenv("SECRET", "of the server")
	p := &v1alpha3.Pipeline{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha3.PipelineSpec{
		Parameters: []v1alpha3.ParameterDefinition{{Name: "GIVEN", Default: "no"}, {Name: "LEFT", Default: "as it is"}},
		Steps: []v1alpha3.Step{
			{
				Name:   "one",
				Script: "echo $GIVEN, $LEFT, $OWN, $PIPELINE/$RUN on $BRANCH, step $STEP >file; [ -z \"$SECRET\" ]",
				Env:    []v1alpha3.EnvVar{{Name: "OWN", Value: "mine"}, {Name: "RUN", Value: "not mine"}},
			},
			{Name: "two", Script: "cat file; exit 0"},
		},
	}}
	if _, err := h.pipelines().Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.run("p", "r", func(s *v1alpha3.PipelineRunSpec) {
		s.SCM = &v1alpha3.SCM{RefName: "main"}
		s.Parameters = []v1alpha3.Parameter{{Name: "GIVEN", Value: "yes"}}
	})
	r := h.reaches("r", v1alpha3.PhaseSucceeded)
	log := string(h.ask(200, "GET", "pipelines/p/pipelineruns/r/log", ""))
	if log != "--- step one\n--- step two\nyes, as it is, mine, p/r on main, step one\n" {
		t.Errorf("the log is %q", log)
	}
	for _, s := range r.Status.Steps {
		if s.Phase != v1alpha3.PhaseSucceeded || *s.ExitCode != 0 || s.StartTime == nil || s.CompletionTime == nil {
			t.Errorf("step %+v", s)
		}
	}
	if r.Status.StartTime == nil || r.Status.CompletionTime == nil || reason(r) != "Succeeded" {
		t.Errorf("the status is %+v", r.Status)
	}
	if _, err := os.Stat(filepath.Join(h.dir, string(r.UID), "workspace")); !os.IsNotExist(err) {
		t.Errorf("the working folder is left: %v", err)
	}
}

func TestRun_failures_haveReasons(t *testing.T) {
	h := start(t, "")
	h.pipeline("fails", "echo before; false; echo never", "echo never")
	h.pipeline("dies", "kill -9 $$")
	slow := h.pipeline("slow", "sleep 1000")
	slow.Spec.Steps[0].TimeoutSeconds = new(int32(1))
	if _, err := h.pipelines().Update(t.Context(), slow, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	branches := &v1alpha3.Pipeline{ObjectMeta: metav1.ObjectMeta{Name: "branches"}, Spec: v1alpha3.PipelineSpec{
		Type: v1alpha3.MultiBranchPipeline, Branches: []string{"main", "release-*"}, Steps: []v1alpha3.Step{{Name: "a", Script: "true"}},
	}}
	if _, err := h.pipelines().Create(t.Context(), branches, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	on := func(branch string) func(*v1alpha3.PipelineRunSpec) {
		return func(s *v1alpha3.PipelineRunSpec) { s.SCM = &v1alpha3.SCM{RefName: branch} }
	}
	for _, test := range []struct {
		pipeline, reason, message string
		change                    func(*v1alpha3.PipelineRunSpec)
	}{
		{"fails", "StepFailed", "step step-0: it ended with exit code 1", on("main")},
		{"dies", "StepFailed", "step step-0: it ended with exit code 137", on("main")},
		{"slow", "StepTimedOut", "step step-0: the step took too long", on("main")},
		{"none", "PipelineNotFound", "there is no pipeline none", on("main")},
		{"fails", "Invalid", `pipeline fails has no parameter "PATH"; it has []`, func(s *v1alpha3.PipelineRunSpec) {
			s.Parameters = []v1alpha3.Parameter{{Name: "PATH", Value: "/tmp"}}
		}},
		{"branches", "Invalid", "pipeline branches is of many branches: say which is run", func(*v1alpha3.PipelineRunSpec) {}},
		{"branches", "Invalid", "pipeline branches does not run dev; it runs [main, release-*]", on("dev")},
		{"branches", "Succeeded", "all steps have succeeded", on("release-1")},
	} {
		name := strings.ToLower(test.pipeline + "-" + test.reason + "-" + strconv.Itoa(len(test.message)))
		t.Run(name, func(t *testing.T) {
			h := *h
			h.t = t
			h.run(test.pipeline, name, test.change)
			r := h.until(name, "over", func(r *v1alpha3.PipelineRun) bool { return r.Status.Phase.Final() })
			c := r.Status.Conditions[0]
			if c.Reason != test.reason || c.Message != test.message || (r.Status.Phase == v1alpha3.PhaseSucceeded) != (test.reason == "Succeeded") {
				t.Errorf("it is %s: %+v", r.Status.Phase, c)
			}
			for _, s := range r.Status.Steps[min(1, len(r.Status.Steps)):] {
				if test.reason == "StepFailed" && s.Phase != v1alpha3.PhaseCancelled {
					t.Errorf("step %+v", s)
				}
			}
		})
	}
}

// stubborn returns a script that ignores SIGTERM, with a child that leaves its process group. It writes the numbers
// of both to a file in the folder.
func stubborn(file string) string {
	return "trap '' TERM; setsid sleep 1000 & echo $$ $! > " + file + "; while :; do sleep 1000; done"
}

// pids returns the process numbers that a script has written.
func pids(t *testing.T, h *host, file string) []int {
	t.Helper()
	var all []int
	h.until("r", "writing its numbers", func(*v1alpha3.PipelineRun) bool {
		text, _ := os.ReadFile(file) // it may not exist yet
		all = nil
		for _, field := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(field); err == nil {
				all = append(all, n)
			}
		}
		return len(all) == 2 && strings.HasSuffix(string(text), "\n")
	})
	return all
}

// lives reports whether a process exists and is not a zombie.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return syscall.Kill(pid, 0) == nil && (err != nil || !strings.Contains(string(stat), ") Z "))
}

func TestRun_stopped_killsAllProcesses(t *testing.T) {
	for name, stop := range map[string]func(*host) error{
		"by the REST API": func(h *host) error {
			h.ask(202, "POST", "pipelines/p/pipelineruns/r/stop", "")
			return nil
		},
		"by its spec": func(h *host) error {
			_, err := h.runs().Patch(h.t.Context(), "r", types.MergePatchType, []byte(`{"spec":{"action":"Stop"}}`), metav1.PatchOptions{})
			return err
		},
		"by its deletion": func(h *host) error { return h.runs().Delete(h.t.Context(), "r", metav1.DeleteOptions{}) },
		"by that of its pipeline": func(h *host) error {
			h.ask(200, "DELETE", "pipelines/p", "")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := start(t, "")
			file := filepath.Join(t.TempDir(), "pids")
			h.pipeline("p", stubborn(file), "echo never")
			created := h.run("p", "r")
			processes := pids(t, h, file)
			if err := stop(h); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(name, "deletion") || strings.Contains(name, "pipeline") {
				for {
					if _, err := h.runs().Get(t.Context(), "r", metav1.GetOptions{}); apierrors.IsNotFound(err) {
						break
					} else if err != nil {
						t.Fatal(err)
					}
				}
				if _, err := os.Stat(filepath.Join(h.dir, string(created.UID))); !os.IsNotExist(err) {
					t.Errorf("its folder is left: %v", err)
				}
			} else {
				r := h.reaches("r", v1alpha3.PhaseCancelled)
				if reason(r) != "Stopped" || r.Status.Steps[0].Phase != v1alpha3.PhaseCancelled || r.Status.Steps[1].Phase != v1alpha3.PhaseCancelled {
					t.Errorf("it is %+v", r.Status)
				}
				h.refused(409, "it has ended: it is Cancelled", "POST", "pipelines/p/pipelineruns/r/stop", "")
			}
			if slices.ContainsFunc(processes, lives) {
				t.Errorf("of %v some live on", processes)
			}
		})
	}
}

func TestRun_slots_keepOrder(t *testing.T) {
	h := start(t, "1")
	order := filepath.Join(t.TempDir(), "order")
	h.pipeline("p", "echo $RUN >> "+order+"; while [ ! -e "+order+".$RUN ]; do sleep 0.05; done")
	h.run("p", "a")
	h.reaches("a", v1alpha3.PhaseRunning)
	for _, name := range []string{"b", "c", "d"} {
		h.run("p", name)
		if r := h.reaches(name, v1alpha3.PhasePending); reason(r) != "Queued" {
			t.Errorf("%s: %+v", name, r.Status.Conditions)
		}
	}
	// A run that is stopped while it waits never begins.
	h.ask(202, "POST", "pipelines/p/pipelineruns/c/stop", "")
	if r := h.reaches("c", v1alpha3.PhaseCancelled); r.Status.StartTime != nil {
		t.Errorf("c: %+v", r.Status)
	}
	for _, name := range []string{"a", "b", "d"} {
		h.reaches(name, v1alpha3.PhaseRunning)
		if err := os.WriteFile(order+"."+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		h.reaches(name, v1alpha3.PhaseSucceeded)
	}
	text, err := os.ReadFile(order)
	if err != nil || string(text) != "a\nb\nd\n" {
		t.Errorf("they ran as %q, %v", text, err)
	}
}

func TestDiscard_keepsNewest(t *testing.T) {
	h := start(t, "")
	p := h.pipeline("p", "true")
	p.Spec.Discarder = &v1alpha3.Discarder{NumToKeep: 2}
	if _, err := h.pipelines().Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		name := fmt.Sprint("r", i)
		h.run("p", name)
		h.until(name, "over", func(r *v1alpha3.PipelineRun) bool { return r.Status.Phase.Final() })
	}
	var names []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && !slices.Equal(names, []string{"r2", "r3"}); {
		list, err := h.runs().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		names = nil
		for _, r := range list.Items {
			names = append(names, r.Name)
		}
	}
	if !slices.Equal(names, []string{"r2", "r3"}) {
		t.Errorf("there are %v", names)
	}
}

// A killed server leaves a run in progress in its status, an incomplete log, and processes.
func TestRun_controllerGone_isLost(t *testing.T) {
	h := start(t, "")
	h.pipeline("p", "true", "true")
	begun := h.run("p", "r", func(s *v1alpha3.PipelineRunSpec) { s.Action = v1alpha3.Stop }) // so that it does not begin
	r := h.reaches("r", v1alpha3.PhaseCancelled)
	folder := folderOf(h.dir, begun.UID)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	log, err := beginLog(folder)
	if err != nil {
		t.Fatal(err)
	}
	log.say("step step-0")
	r.Status = v1alpha3.PipelineRunStatus{
		Phase: v1alpha3.PhaseRunning,
		Steps: []v1alpha3.StepStatus{{Name: "step-0", Phase: v1alpha3.PhaseRunning}, {Name: "step-1", Phase: v1alpha3.PhasePending}},
	}
	if _, err := h.runs().UpdateStatus(t.Context(), r, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r = h.reaches("r", v1alpha3.PhaseFailed)
	if reason(r) != "Lost" || r.Status.Steps[0].Phase != v1alpha3.PhaseUnknown || r.Status.Steps[1].Phase != v1alpha3.PhaseCancelled {
		t.Errorf("it is %+v", r.Status)
	}
	if text := string(
		h.ask(200, "GET", "pipelines/p/pipelineruns/r/log?follow=true", ""),
	); text != "--- step step-0\n\n--- the controller that ran it is gone, and its processes are ended\n" {
		t.Errorf("the log is %q", text)
	}
}
