package operations

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/annexapi/annex/internal/model/define"
	operationv1 "github.com/annexapi/annex/operation/v1"
)

// Config is what a Runner is made of. All fields must be set, but for those that say otherwise.
type Config struct {
	Client Client
	Clock  clock.WithTicker
	// Identity tells this runner from all others there have been.
	Identity string
	// Lease is how long a claim holds without being renewed.
	Lease time.Duration
	// Drain is how long actions may take to end when the runner does.
	Drain time.Duration
	// MaxRunning bounds how many operations run at a time; 0 is no bound.
	MaxRunning int
	// Shared says that other processes may hold operations of the same storage.
	Shared bool
	// Call makes the call of a recorded action.
	Call func(ctx context.Context, recorded define.Recorded) (context.Context, *define.Call, error)
}

// maxInterruptions is how often in a row processes may end that run an operation, which may be what
// ends them.
const maxInterruptions = 5

// retryAfter is the pause after a write that failed for a reason that may pass.
const retryAfter = time.Second

// key names an operation.
type key = types.NamespacedName

func keyOf(op *operationv1.Operation) key { return key{Namespace: op.Namespace, Name: op.Name} }

// Runner carries out the operations of one server. Its methods may be called concurrently.
type Runner struct {
	config Config

	mu sync.Mutex
	// queue are the operations to settle; nil before Run, which owns its goroutine.
	queue workqueue.TypedDelayingInterface[key]
	// known are the operations as they were last observed.
	known map[key]*operationv1.Operation
	// claims are those of known operations that run elsewhere, or once ran here.
	claims map[key]claim
	// running are the attempts of this runner.
	running map[key]*attempt
	// line are operations that wait until others end, in their order; inLine are the same.
	line   []key
	inLine map[key]bool
	// waiting is closed when the operation has finished or is gone.
	waiting  map[key]chan struct{}
	attempts sync.WaitGroup

	finished *prometheus.CounterVec
	gauge    prometheus.Gauge
}

// claim is what was observed of a holder.
type claim struct {
	holder   string
	renewed  time.Time
	observed time.Time // by the runner's own clock
}

var _ define.Operations = (*Runner)(nil)

// NewRunner returns a runner that has not begun.
func NewRunner(config Config) *Runner {
	return &Runner{
		config:  config,
		known:   map[key]*operationv1.Operation{},
		claims:  map[key]claim{},
		running: map[key]*attempt{},
		inLine:  map[key]bool{},
		waiting: map[key]chan struct{}{},
		finished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "annex_operations_finished_total", Help: "Operations that this process has seen to their end.",
		}, []string{"group", "resource", "action", "phase"}),
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "annex_operations_running", Help: "Operations that this process carries out.",
		}),
	}
}

// Metrics implements define.Operations.
func (r *Runner) Metrics() []prometheus.Collector {
	return []prometheus.Collector{r.finished, r.gauge}
}

// Changed implements define.Operations.
func (r *Runner) Changed(obj runtime.Object) {
	op := obj.(*operationv1.Operation)
	k := keyOf(op)
	r.mu.Lock()
	r.known[k] = op
	r.observe(k, op)
	mine := r.running[k]
	if op.Status.Phase.Finished() {
		r.release(k)
	}
	r.mu.Unlock()
	if mine != nil {
		switch {
		case mine.uid != op.UID || op.DeletionTimestamp != nil:
			mine.cancel(errGone)
		case op.Status.Attempts > mine.number, op.Status.Attempts == mine.number && op.Status.Phase.Finished():
			mine.cancel(errLost) // another has it, or it has just written its end itself
		case op.Spec.Cancel:
			mine.cancel(errCancelled)
		}
	}
	r.add(k)
}

// add has an operation settled, by Run.
func (r *Runner) add(k key) {
	r.mu.Lock()
	queue := r.queue
	r.mu.Unlock()
	if queue != nil {
		queue.Add(k)
	}
}

// observe notes when a claim was last seen to be renewed.
func (r *Runner) observe(k key, op *operationv1.Operation) {
	if op.Status.Phase != operationv1.OperationRunning {
		delete(r.claims, k)
		return
	}
	seen := claim{holder: op.Status.Holder, observed: r.config.Clock.Now()}
	if op.Status.RenewTime != nil {
		seen.renewed = op.Status.RenewTime.Time
	}
	if before, ok := r.claims[k]; ok && before.holder == seen.holder && before.renewed.Equal(seen.renewed) {
		return
	}
	r.claims[k] = seen
}

// Removed implements define.Operations.
func (r *Runner) Removed(obj runtime.Object) {
	k := keyOf(obj.(*operationv1.Operation))
	r.mu.Lock()
	delete(r.known, k)
	delete(r.claims, k)
	mine := r.running[k]
	r.release(k)
	r.mu.Unlock()
	if mine != nil {
		mine.cancel(errGone)
	}
}

// release wakes the requests that wait for an operation. r.mu is held.
func (r *Runner) release(k key) {
	if waiting, ok := r.waiting[k]; ok {
		close(waiting)
		delete(r.waiting, k)
	}
}

// workers claim operations at the same time.
const workers = 4

// Run implements define.Operations.
func (r *Runner) Run(ctx context.Context) {
	// What runs outlives ctx for a moment.
	lasting, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[key]{Clock: r.config.Clock})
	r.mu.Lock()
	r.queue = queue
	for k := range r.known {
		queue.Add(k)
	}
	r.mu.Unlock()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() { r.work(ctx, lasting, queue) })
	}
	<-ctx.Done()
	queue.ShutDown()
	all.Wait()
	stop(errStopping)
	r.attempts.Wait()
}

func (r *Runner) work(ctx, lasting context.Context, queue workqueue.TypedDelayingInterface[key]) {
	for {
		k, ended := queue.Get()
		if ended {
			return
		}
		if after := r.settle(ctx, lasting, k); after > 0 {
			queue.AddAfter(k, after)
		}
		queue.Done(k)
		if next, ok := r.next(); ok {
			queue.Add(next)
		}
	}
}

// enter makes room for an attempt. Without any, the operation waits in line.
func (r *Runner) enter(a *attempt) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isFull() {
		r.lineUp(a.key)
		return false
	}
	r.running[a.key] = a
	return true
}

// isFull says whether no more operations may run. r.mu is held.
func (r *Runner) isFull() bool {
	return r.config.MaxRunning > 0 && len(r.running) >= r.config.MaxRunning
}

// next returns the operation that has waited longest, if there is room for it now.
func (r *Runner) next() (key, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.line) == 0 || r.isFull() {
		return key{}, false
	}
	k := r.line[0]
	r.line = r.line[1:]
	delete(r.inLine, k)
	return k, true
}

// wait puts an operation in line if there is no room for it.
func (r *Runner) wait(k key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isFull() {
		return false
	}
	r.lineUp(k)
	return true
}

// lineUp puts an operation at the end of the line unless it is in it. r.mu is held.
func (r *Runner) lineUp(k key) {
	if !r.inLine[k] {
		r.inLine[k] = true
		r.line = append(r.line, k)
	}
}

// settle does what an operation needs, as it was last observed. It returns when to look at it
// again, 0 for not before it changes.
func (r *Runner) settle(ctx, lasting context.Context, k key) (after time.Duration) {
	if ctx.Err() != nil {
		return 0
	}
	r.mu.Lock()
	op, seen, mine := r.known[k], r.claims[k], r.running[k]
	r.mu.Unlock()
	switch {
	case op == nil || mine != nil:
		return 0
	case op.Status.Phase.Finished():
		return r.expire(ctx, op)
	case op.DeletionTimestamp != nil:
		return 0
	case op.Status.Phase != operationv1.OperationRunning:
		return r.claim(ctx, lasting, op)
	}
	holds := r.config.Lease - r.config.Clock.Since(seen.observed)
	if !r.config.Shared && seen.holder != r.config.Identity {
		holds = 0 // the storage is ours alone: the holder has ended
	}
	if holds > 0 {
		return holds
	}
	return r.claim(ctx, lasting, op)
}

// expire deletes an operation whose time after its end is over.
func (r *Runner) expire(ctx context.Context, op *operationv1.Operation) time.Duration {
	if op.Spec.TTLSecondsAfterFinished == nil || op.DeletionTimestamp != nil {
		return 0
	}
	end := op.CreationTimestamp.Time
	if op.Status.CompletionTime != nil {
		end = op.Status.CompletionTime.Time
	}
	left := time.Duration(*op.Spec.TTLSecondsAfterFinished)*time.Second - r.config.Clock.Since(end)
	if left > 0 {
		return left
	}
	if err := r.config.Client.Delete(ctx, op); err != nil && !settled(err) {
		klog.FromContext(ctx).Error(err, "Operation that has expired could not be deleted", "operation", keyOf(op))
		return retryAfter
	}
	return 0
}

// settled says whether an error is that of a write that came too late: what has changed will
// be observed.
func settled(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

// claim begins an attempt of an operation that waits, or that runs nowhere any more.
func (r *Runner) claim(ctx, lasting context.Context, op *operationv1.Operation) time.Duration {
	orphaned := op.Status.Phase == operationv1.OperationRunning
	next := op.DeepCopy()
	if op.Spec.Cancel {
		finish(next, r.config.Clock.Now(), operationv1.OperationCancelled, "cancelled", nil)
		return r.conclude(ctx, next)
	}
	if !orphaned && r.wait(keyOf(op)) {
		return 0
	}
	runCtx, call, err := r.config.Call(lasting, recordedOf(op))
	if errors.Is(err, define.ErrUnknownAction) {
		if r.config.Shared { // a replica of another version may have it
			klog.FromContext(ctx).Info("Operation is left to other replicas", "operation", keyOf(op), "reason", err.Error())
			return 0
		}
		err = apierrors.NewBadRequest(err.Error())
	}
	if orphaned {
		next.Status.Interruptions++
	}
	switch {
	case err != nil || !orphaned:
	case !call.Subresource.Long.Resumable:
		err = apierrors.NewServiceUnavailable("the server that ran the operation ended while it was running; how far it came is not known")
	case next.Status.Interruptions >= maxInterruptions:
		err = apierrors.NewServiceUnavailable(fmt.Sprintf("the server ended %d times in a row while it ran the operation, which got no "+
			"further in between: it is not resumed by itself again, and can be retried", maxInterruptions))
	}
	if err != nil && (orphaned || final(err)) {
		finish(next, r.config.Clock.Now(), operationv1.OperationFailed, err.Error(), err)
		return r.conclude(ctx, next)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Operation cannot begin yet", "operation", keyOf(op))
		return retryAfter
	}
	a := newAttempt(r, op, call)
	if !r.enter(a) { // before the claim can be observed
		return 0
	}
	now := r.config.Clock.Now()
	next.Status.Phase, next.Status.Holder = operationv1.OperationRunning, r.config.Identity
	next.Status.Attempts++
	next.Status.StartTime, next.Status.RenewTime = &metav1.Time{Time: now}, &metav1.MicroTime{Time: now}
	next.Status.CompletionTime, next.Status.Error, next.Status.Result, next.Status.Message = nil, nil, nil, ""
	next.Status.Progress = a.said.Progress.DeepCopy()
	stored, err := r.config.Client.UpdateStatus(ctx, next)
	if err != nil {
		r.ended(a)
		if settled(err) {
			return 0
		}
		klog.FromContext(ctx).Error(err, "Operation could not be claimed", "operation", keyOf(op))
		return retryAfter
	}
	r.gauge.Inc()
	r.attempts.Go(func() {
		defer r.gauge.Dec()
		defer r.ended(a)
		a.run(runCtx, stored, now)
	})
	return 0
}

// final says whether an action can never be called, as opposed to not now.
func final(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)
}

// ended makes room for another operation, which the worker that settles this one finds.
func (r *Runner) ended(a *attempt) {
	r.mu.Lock()
	delete(r.running, a.key)
	r.mu.Unlock()
	r.add(a.key)
}

// conclude writes the end of an operation that does not run here.
func (r *Runner) conclude(ctx context.Context, op *operationv1.Operation) time.Duration {
	if _, err := r.config.Client.UpdateStatus(ctx, op); err != nil {
		if settled(err) {
			return 0
		}
		klog.FromContext(ctx).Error(err, "End of an operation could not be written", "operation", keyOf(op))
		return retryAfter
	}
	r.count(op)
	return 0
}

func (r *Runner) count(op *operationv1.Operation) {
	target := targetOf(op)
	r.finished.WithLabelValues(target.Group, target.Resource, op.Spec.Action, string(op.Status.Phase)).Inc()
}

// finish makes an operation one that has ended.
func finish(op *operationv1.Operation, now time.Time, phase operationv1.OperationPhase, message string, err error) {
	op.Status.Phase, op.Status.Message = phase, bounded(message, maxMessage)
	op.Status.CompletionTime = &metav1.Time{Time: now}
	op.Status.Holder, op.Status.RenewTime = "", nil
	op.Status.Error = nil
	if err != nil {
		op.Status.Error = statusOf(err)
	}
}

// Why the context of an action ends.
var (
	errCancelled = errors.New("the operation was cancelled")
	errGone      = errors.New("the operation was deleted")
	errLost      = errors.New("the operation could not be held: its status was not written in time")
	errStopping  = errors.New("the server is stopping")
)
