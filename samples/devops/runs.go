package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"example.com/devops/apis/devops/v1alpha3"
)

const defaultTimeout = time.Hour // of a step

// Reasons why a run ends before its steps have ended.
var (
	errStopped  = errors.New("the run was stopped")
	errDeleted  = errors.New("the run was deleted")
	errShutdown = errors.New("the controller ended")
	errTimeout  = errors.New("the step took too long")
)

// runs are the PipelineRuns of this process, whose controller is active.
type runs struct {
	dir   string // has a folder for each run, by its UID
	slots int    // maximum number of concurrent runs

	mu      sync.Mutex
	active  map[types.UID]*execution
	changed func(types.NamespacedName) // is called on progress
}

// runsOf reads the settings from the environment.
func runsOf(getenv func(string) string) (*runs, error) {
	r := &runs{dir: "runs", slots: 2, active: map[types.UID]*execution{}}
	if dir := getenv("DEVOPS_RUNS"); dir != "" {
		r.dir = dir
	}
	if text := getenv("DEVOPS_MAX_RUNS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 1000 {
			return nil, fmt.Errorf("DEVOPS_MAX_RUNS is %q: say how many runs there may be at once, 1 to 1000", text)
		}
		r.slots = n
	}
	return r, nil
}

// execution is a run in progress. Its mutex guards the status.
type execution struct {
	name   types.NamespacedName
	folder string
	cancel context.CancelCauseFunc
	ended  chan struct{}

	mu     sync.Mutex
	status v1alpha3.PipelineRunStatus
}

// full reports whether all slots are taken.
func (r *runs) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.active) >= r.slots
}

// find returns a run in progress, or an ended run that has not been forgotten yet, or nil.
func (r *runs) find(uid types.UID) *execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.active[uid]
}

// forget frees the slot of a run, after its end has been recorded.
func (r *runs) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, uid)
}

// mark returns the variable in the environment of all processes of a run.
func mark(uid types.UID) string { return "DEVOPS_RUN_UID=" + string(uid) }

// start starts a run whose status has the pipeline's steps.
func (r *runs) start(run *v1alpha3.PipelineRun, pipeline *v1alpha3.Pipeline) error {
	e := &execution{
		name:   types.NamespacedName{Namespace: run.Namespace, Name: run.Name},
		folder: folderOf(r.dir, run.UID),
		ended:  make(chan struct{}),
		status: *run.Status.DeepCopy(),
	}
	workspace, err := filepath.Abs(filepath.Join(e.folder, "workspace"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(workspace, 0o700); err != nil {
		return fmt.Errorf("folder of the run: %w", err)
	}
	log, err := beginLog(e.folder)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background()) // stop and close cancel it
	e.cancel = cancel
	r.mu.Lock()
	r.active[run.UID] = e
	changed := r.changed
	r.mu.Unlock()
	go func() {
		defer changed(e.name) // after the end, or the controller might reconcile before the end, and never again
		defer close(e.ended)
		defer cancel(nil)
		e.run(ctx, run, pipeline, workspace, log, func() { changed(e.name) })
		if err := errors.Join(log.close(e.folder), os.RemoveAll(workspace)); err != nil {
			klog.Background().Error(err, "The folder of a run is not as it should be", "run", e.name)
		}
	}()
	return nil
}

// run runs the steps one after another.
func (e *execution) run(
	ctx context.Context,
	run *v1alpha3.PipelineRun,
	pipeline *v1alpha3.Pipeline,
	workspace string,
	log *runLog,
	progress func(),
) {
	for i := range pipeline.Spec.Steps {
		step := &pipeline.Spec.Steps[i]
		if ctx.Err() != nil {
			break
		}
		now := metav1.Now()
		e.change(func(s *v1alpha3.PipelineRunStatus) {
			s.Steps[i].Phase, s.Steps[i].StartTime = v1alpha3.PhaseRunning, &now
		})
		progress()
		log.say("step %s", step.Name)
		code, err := runStep(ctx, run, pipeline, step, workspace, log)
		if err == nil && *code != 0 {
			err = fmt.Errorf("it ended with exit code %d", *code)
		}
		phase := phaseAfter(err)
		e.change(func(s *v1alpha3.PipelineRunStatus) {
			now := metav1.Now()
			s.Steps[i].Phase, s.Steps[i].ExitCode, s.Steps[i].CompletionTime = phase, code, &now
		})
		if err != nil {
			message := fmt.Sprintf("step %s: %v", step.Name, err)
			log.say("%s", message)
			e.change(func(s *v1alpha3.PipelineRunStatus) { conclude(s, phase, reasonOf(err), message) })
			return
		}
	}
	e.change(func(s *v1alpha3.PipelineRunStatus) {
		if err := context.Cause(ctx); err != nil {
			conclude(s, phaseAfter(err), reasonOf(err), err.Error())
			return
		}
		conclude(s, v1alpha3.PhaseSucceeded, "Succeeded", "all steps have succeeded")
	})
}

// runStep runs a step. The error is the reason why it was ended or could not start; the exit code may then be nil.
func runStep(
	ctx context.Context,
	run *v1alpha3.PipelineRun,
	pipeline *v1alpha3.Pipeline,
	step *v1alpha3.Step,
	workspace string,
	log *runLog,
) (*int32, error) {
	timeout := defaultTimeout
	if s := step.TimeoutSeconds; s != nil && *s > 0 {
		timeout = time.Duration(*s) * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	s := &script{text: step.Script, dir: workspace, env: environment(run, pipeline, step, workspace), mark: mark(run.UID), log: log}
	code, err := s.run(ctx)
	if err != nil {
		return nil, err
	}
	if cause := context.Cause(ctx); cause != nil && code != 0 {
		return &code, cause
	}
	return &code, nil
}

// environment returns the whole environment of a step; of the server's environment, it has only PATH.
func environment(run *v1alpha3.PipelineRun, pipeline *v1alpha3.Pipeline, step *v1alpha3.Step, workspace string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + workspace}
	given := map[string]string{}
	for _, p := range run.Spec.Parameters {
		given[p.Name] = p.Value
	}
	for _, p := range pipeline.Spec.Parameters { // others were refused
		value, ok := given[p.Name]
		if !ok {
			value = p.Default
		}
		env = append(env, p.Name+"="+value)
	}
	for _, v := range step.Env {
		env = append(env, v.Name+"="+v.Value)
	}
	branch := ""
	if run.Spec.SCM != nil {
		branch = run.Spec.SCM.RefName
	}
	// For duplicate names, the last one counts.
	return append(
		env,
		"PIPELINE="+pipeline.Name,
		"RUN="+run.Name,
		"NAMESPACE="+run.Namespace,
		"BRANCH="+branch,
		"STEP="+step.Name,
		mark(run.UID),
	)
}

func (e *execution) change(how func(*v1alpha3.PipelineRunStatus)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	how(&e.status)
}

// now returns the status to record. It is final only when no process of the run is left.
func (e *execution) now() *v1alpha3.PipelineRunStatus {
	select {
	case <-e.ended:
	default:
		e.mu.Lock()
		defer e.mu.Unlock()
		s := e.status.DeepCopy()
		if s.Phase.Final() {
			s.Phase, s.CompletionTime, s.Conditions = v1alpha3.PhaseRunning, nil, nil
			condition(s, metav1.ConditionUnknown, "Running", "the run is about to end")
		}
		return s
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status.DeepCopy()
}

// open sets the function to call on progress.
func (r *runs) open(changed func(types.NamespacedName)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = changed
}

// close stops all runs, and returns their names.
func (r *runs) close() []types.NamespacedName {
	r.mu.Lock()
	var names []types.NamespacedName
	var ended []<-chan struct{}
	for _, e := range r.active {
		e.cancel(errShutdown)
		names, ended = append(names, e.name), append(ended, e.ended)
	}
	r.mu.Unlock()
	for _, end := range ended {
		<-end
	}
	return names
}

// conclude sets the result of a run. Steps that were not reached are Cancelled.
func conclude(s *v1alpha3.PipelineRunStatus, phase v1alpha3.Phase, reason, message string) {
	now := metav1.Now()
	s.Phase, s.CompletionTime = phase, &now
	for i := range s.Steps {
		if step := &s.Steps[i]; step.Phase == v1alpha3.PhasePending {
			step.Phase = v1alpha3.PhaseCancelled
		}
	}
	status := metav1.ConditionFalse
	if phase == v1alpha3.PhaseSucceeded {
		status = metav1.ConditionTrue
	}
	condition(s, status, reason, message)
}

// phaseAfter returns the phase for an end with an error, or nil for none.
func phaseAfter(err error) v1alpha3.Phase {
	switch {
	case err == nil:
		return v1alpha3.PhaseSucceeded
	case errors.Is(err, errStopped) || errors.Is(err, errDeleted):
		return v1alpha3.PhaseCancelled
	}
	return v1alpha3.PhaseFailed
}

// reasonOf returns the reason for conditions.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errStopped):
		return "Stopped"
	case errors.Is(err, errDeleted):
		return "Deleted"
	case errors.Is(err, errShutdown):
		return "Interrupted"
	case errors.Is(err, errTimeout):
		return "StepTimedOut"
	}
	return "StepFailed"
}
