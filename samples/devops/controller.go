package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex"

	"example.com/devops/apis/devops/v1alpha3"
	"example.com/devops/client/clientset"
	"example.com/devops/client/informers"
	listers "example.com/devops/client/listers/devops/v1alpha3"
)

// lastWrites bounds the time in which a stopping controller records the ends of its runs.
const lastWrites = 5 * time.Second

// controller carries out PipelineRuns. One controller is active at a time: the server's own, or the leader among the
// processes of the verb controllers. It takes runs from the queue one at a time, so that the oldest waiting run
// starts first, and no two runs take the same slot.
type controller struct {
	client    clientset.Interface
	pipelines listers.PipelineLister
	runs      listers.PipelineRunLister
	queue     workqueue.TypedRateLimitingInterface[types.NamespacedName]
	local     *runs
}

// control runs until ctx ends. Then it stops the active runs and records their ends.
func (r *runs) control(ctx context.Context, env *annex.Env) error {
	client, err := clientset.NewForConfig(env.ClientConfig())
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	v1 := factory.Devops().V1alpha3()
	c := &controller{
		client: client, pipelines: v1.Pipelines().Lister(), runs: v1.PipelineRuns().Lister(), local: r,
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]()),
	}
	if _, err := v1.PipelineRuns().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.enqueue,
		UpdateFunc: func(_, obj any) { c.enqueue(obj) },
	}); err != nil {
		return fmt.Errorf("informer: %w", err)
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return fmt.Errorf("folder of the runs: %w; DEVOPS_RUNS names another", err)
	}
	v1.Pipelines().Informer() // also starts the informer
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	for kind, synced := range factory.WaitForCacheSyncWithContext(ctx).Synced {
		if !synced {
			return fmt.Errorf("informer of %v: %w", kind, context.Cause(ctx))
		}
	}
	r.open(c.queue.Add)
	stop := context.AfterFunc(ctx, c.queue.ShutDown)
	defer stop()
	for c.next(ctx) {
	}
	return c.end(ctx)
}

func (c *controller) enqueue(obj any) {
	if run, ok := obj.(*v1alpha3.PipelineRun); ok {
		c.queue.Add(nameOf(run))
	}
}

func nameOf(run *v1alpha3.PipelineRun) types.NamespacedName {
	return types.NamespacedName{Namespace: run.Namespace, Name: run.Name}
}

// next reconciles one run. It returns false when the controller stops.
func (c *controller) next(ctx context.Context) bool {
	name, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(name)
	err := c.reconcile(ctx, name)
	switch {
	case err == nil || apierrors.IsNotFound(err):
		c.queue.Forget(name)
	default:
		if !apierrors.IsConflict(err) { // the newer object causes another call
			klog.FromContext(ctx).Error(err, "A run is looked at again later", "run", name)
		}
		c.queue.AddRateLimited(name)
	}
	return true
}

// end stops the active runs and records their ends. Runs whose ends it cannot record are lost to the next controller.
func (c *controller) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrites)
	defer cancel()
	var errs []error
	for _, name := range c.local.close() {
		run, err := c.client.DevopsV1alpha3().PipelineRuns(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		if err == nil {
			if e := c.local.find(run.UID); e != nil {
				_, err = c.write(ctx, run, e.now())
				c.local.forget(run.UID)
			}
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("record the end of %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// reconcile takes one step towards the desired state of a run. A step is a write, or the start or end of a process;
// both queue the run again.
func (c *controller) reconcile(ctx context.Context, name types.NamespacedName) error {
	run, err := c.runs.PipelineRuns(name.Namespace).Get(name.Name)
	if err != nil {
		return err
	}
	active := c.local.find(run.UID)
	switch {
	case run.DeletionTimestamp != nil && active != nil && !active.over():
		active.cancel(errDeleted)
		return nil // its end triggers the next step
	case run.DeletionTimestamp != nil:
		return c.remove(ctx, run)
	case active != nil:
		return c.follow(ctx, run, active)
	case run.Status.Phase.Final():
		c.wake()
		return c.discard(ctx, run)
	case run.Status.Phase == v1alpha3.PhaseRunning:
		return c.lose(ctx, run)
	}
	return c.begin(ctx, run)
}

// over reports whether all processes of a run have ended.
func (e *execution) over() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// follow records the progress of a run.
func (c *controller) follow(ctx context.Context, run *v1alpha3.PipelineRun, e *execution) error {
	if run.Spec.Action == v1alpha3.Stop {
		e.cancel(errStopped)
	}
	status := e.now()
	if _, err := c.write(ctx, run, status); err != nil {
		return err
	}
	if status.Phase.Final() {
		c.local.forget(run.UID)
		c.wake()
	}
	return nil
}

// remove releases a deleted run after removing its processes and its log.
func (c *controller) remove(ctx context.Context, run *v1alpha3.PipelineRun) error {
	i := slices.Index(run.Finalizers, v1alpha3.RunFinalizer)
	if i < 0 {
		return nil
	}
	killMarked(mark(run.UID))
	if err := os.RemoveAll(folderOf(c.local.dir, run.UID)); err != nil {
		return fmt.Errorf("folder of the run: %w", err)
	}
	changed := run.DeepCopy()
	changed.Finalizers = slices.Delete(changed.Finalizers, i, i+1)
	if _, err := c.client.DevopsV1alpha3().PipelineRuns(run.Namespace).Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return err
	}
	c.local.forget(run.UID)
	c.wake()
	return nil
}

// lose ends a run of another controller, which is gone. The progress of the run is unknown.
func (c *controller) lose(ctx context.Context, run *v1alpha3.PipelineRun) error {
	const message = "the controller that ran it is gone, and its processes are ended"
	killMarked(mark(run.UID))
	status := run.Status.DeepCopy()
	for i := range status.Steps {
		if step := &status.Steps[i]; step.Phase == v1alpha3.PhaseRunning {
			step.Phase = v1alpha3.PhaseUnknown
		}
	}
	conclude(status, v1alpha3.PhaseFailed, "Lost", message)
	if _, err := c.write(ctx, run, status); err != nil { // on a conflict it was not lost
		return err
	}
	return concludeLog(folderOf(c.local.dir, run.UID), message)
}

// begin starts a run, or leaves it waiting.
func (c *controller) begin(ctx context.Context, run *v1alpha3.PipelineRun) error {
	refuse := func(phase v1alpha3.Phase, reason, message string) error {
		status := run.Status.DeepCopy()
		conclude(status, phase, reason, message)
		_, err := c.write(ctx, run, status)
		return err
	}
	if run.Spec.Action == v1alpha3.Stop {
		return refuse(v1alpha3.PhaseCancelled, "Stopped", "it was stopped before it had begun")
	}
	pipeline, err := c.pipeline(ctx, run)
	if apierrors.IsNotFound(err) {
		return refuse(v1alpha3.PhaseFailed, "PipelineNotFound", fmt.Sprintf("there is no pipeline %s", run.Spec.PipelineRef.Name))
	}
	if err != nil {
		return err
	}
	if err := checkRun(pipeline, &run.Spec); err != nil {
		return refuse(v1alpha3.PhaseFailed, "Invalid", err.Error())
	}
	if !slices.Contains(run.Finalizers, v1alpha3.RunFinalizer) {
		return c.adopt(ctx, run, pipeline)
	}
	status := run.Status.DeepCopy()
	if first := c.oldest(); c.local.full() || first != nil && first.UID != run.UID {
		status.Phase = v1alpha3.PhasePending
		condition(status, metav1.ConditionUnknown, "Queued", fmt.Sprintf("it waits for others; at most %d run at once", c.local.slots))
		_, err := c.write(ctx, run, status)
		c.wake()
		return err
	}
	now := metav1.Now()
	status.Phase, status.StartTime = v1alpha3.PhaseRunning, &now
	for _, step := range pipeline.Spec.Steps {
		status.Steps = append(status.Steps, v1alpha3.StepStatus{Name: step.Name, Phase: v1alpha3.PhasePending})
	}
	condition(status, metav1.ConditionUnknown, "Running", "the steps are run")
	// The status is written before any process starts: a Pending run has never begun.
	written, err := c.write(ctx, run, status)
	if err != nil {
		return err
	}
	if err = c.local.start(written, pipeline); err != nil {
		conclude(status, v1alpha3.PhaseFailed, "NotStarted", err.Error())
		_, err = c.write(ctx, written, status)
	}
	c.wake()
	return err
}

// pipeline returns the pipeline of a run, which may be too new for the cache.
func (c *controller) pipeline(ctx context.Context, run *v1alpha3.PipelineRun) (*v1alpha3.Pipeline, error) {
	pipeline, err := c.pipelines.Pipelines(run.Namespace).Get(run.Spec.PipelineRef.Name)
	if apierrors.IsNotFound(err) {
		return c.client.DevopsV1alpha3().Pipelines(run.Namespace).Get(ctx, run.Spec.PipelineRef.Name, metav1.GetOptions{})
	}
	return pipeline, err
}

// adopt makes the pipeline the owner of a run, so that the run is deleted with it, and adds the finalizer, which
// keeps the run until it has ended.
func (c *controller) adopt(ctx context.Context, run *v1alpha3.PipelineRun, pipeline *v1alpha3.Pipeline) error {
	changed := run.DeepCopy()
	changed.Finalizers = append(changed.Finalizers, v1alpha3.RunFinalizer)
	owner := metav1.OwnerReference{APIVersion: group + "/v1alpha3", Kind: "Pipeline", Name: pipeline.Name, UID: pipeline.UID}
	if !slices.ContainsFunc(changed.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner.UID }) {
		changed.OwnerReferences = append(changed.OwnerReferences, owner)
	}
	_, err := c.client.DevopsV1alpha3().PipelineRuns(run.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// checkRun returns the mistake in a run of a pipeline, if any.
func checkRun(pipeline *v1alpha3.Pipeline, run *v1alpha3.PipelineRunSpec) error {
	for _, p := range run.Parameters {
		if !slices.ContainsFunc(pipeline.Spec.Parameters, func(d v1alpha3.ParameterDefinition) bool { return d.Name == p.Name }) {
			names := make([]string, len(pipeline.Spec.Parameters))
			for i, d := range pipeline.Spec.Parameters {
				names[i] = d.Name
			}
			return fmt.Errorf("pipeline %s has no parameter %q; it has [%s]", pipeline.Name, p.Name, strings.Join(names, ", "))
		}
	}
	if pipeline.Spec.Type != v1alpha3.MultiBranchPipeline {
		return nil
	}
	if run.SCM == nil {
		return fmt.Errorf("pipeline %s is of many branches: say which is run", pipeline.Name)
	}
	matches := func(pattern string) bool {
		ok, err := path.Match(pattern, run.SCM.RefName)
		return ok && err == nil
	}
	if len(pipeline.Spec.Branches) > 0 && !slices.ContainsFunc(pipeline.Spec.Branches, matches) {
		return fmt.Errorf(
			"pipeline %s does not run %s; it runs [%s]",
			pipeline.Name,
			run.SCM.RefName,
			strings.Join(pipeline.Spec.Branches, ", "),
		)
	}
	return nil
}

// oldest returns the run that starts next, which is the oldest waiting run, or nil if none waits.
func (c *controller) oldest() *v1alpha3.PipelineRun {
	all, err := c.runs.List(labels.Everything())
	if err != nil {
		return nil // a lister of a cache returns no errors
	}
	var first *v1alpha3.PipelineRun
	for _, run := range all {
		waits := run.DeletionTimestamp == nil && (run.Status.Phase == "" || run.Status.Phase == v1alpha3.PhasePending) &&
			c.local.find(run.UID) == nil
		if waits && (first == nil || older(run, first) < 0) {
			first = run
		}
	}
	return first
}

func older(a, b *v1alpha3.PipelineRun) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// wake queues the run that starts next, if a slot is free.
func (c *controller) wake() {
	if c.local.full() {
		return
	}
	if first := c.oldest(); first != nil {
		c.queue.Add(nameOf(first))
	}
}

// discard deletes the oldest finished runs of a pipeline with a discarder.
func (c *controller) discard(ctx context.Context, run *v1alpha3.PipelineRun) error {
	pipeline, err := c.pipelines.Pipelines(run.Namespace).Get(run.Spec.PipelineRef.Name)
	if err != nil || pipeline.Spec.Discarder == nil {
		return ifThere(err)
	}
	all, err := c.runs.PipelineRuns(run.Namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	ended := slices.DeleteFunc(slices.Clone(all), func(r *v1alpha3.PipelineRun) bool {
		return r.Spec.PipelineRef.Name != pipeline.Name || !r.Status.Phase.Final() || r.DeletionTimestamp != nil
	})
	slices.SortFunc(ended, older)
	var errs []error
	for len(ended) > max(1, int(pipeline.Spec.Discarder.NumToKeep)) {
		oldest := ended[0]
		ended = ended[1:]
		errs = append(errs, ifThere(c.client.DevopsV1alpha3().PipelineRuns(oldest.Namespace).Delete(ctx, oldest.Name, metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(oldest.UID)),
		})))
	}
	return errors.Join(errs...)
}

// ifThere returns nil for a deleted object's error.
func ifThere(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// write writes a status if it differs from the recorded one.
func (c *controller) write(
	ctx context.Context,
	run *v1alpha3.PipelineRun,
	status *v1alpha3.PipelineRunStatus,
) (*v1alpha3.PipelineRun, error) {
	if equality.Semantic.DeepEqual(&run.Status, status) {
		return run, nil
	}
	changed := run.DeepCopy()
	changed.Status = *status
	return c.client.DevopsV1alpha3().PipelineRuns(run.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
}

// condition sets the condition with the reason for a run's state.
func condition(s *v1alpha3.PipelineRunStatus, status metav1.ConditionStatus, reason, message string) {
	const longest = 1024
	if len(message) > longest {
		message = strings.ToValidUTF8(message[:longest], "")
	}
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha3.Succeeded, Status: status, Reason: reason, Message: message})
}
