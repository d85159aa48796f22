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

// Config configures a Runner. All fields must be set unless documented otherwise.
type Config struct {
	Client Client
	Clock  clock.WithTicker
	// Identity distinguishes this runner from all other runners, including earlier ones.
	Identity string
	// Lease is the time after which a claim expires if it is not renewed.
	Lease time.Duration
	// Drain is how long actions may take to end when the runner ends.
	Drain time.Duration
	// MaxRunning is the maximum number of concurrent operations; 0 means no bound.
	MaxRunning int
	// Shared means that other processes may hold operations of the same storage.
	Shared bool
}

// maxInterruptions is the number of consecutive processes that may end while running an operation. The operation
// might be the reason for their end.
const maxInterruptions = 5

// retryAfter is the pause after a write that failed temporarily.
const retryAfter = time.Second

// key is the namespace and name of an operation.
type key = types.NamespacedName

func keyOf(op *operationv1.Operation) key { return key{Namespace: op.Namespace, Name: op.Name} }

// Runner carries out the operations of one server. Its methods may be called concurrently.
type Runner struct {
	config Config

	mu sync.Mutex
	// queue contains the operations to settle; nil before Run, which owns its goroutine.
	queue workqueue.TypedDelayingInterface[key]
	// known are the operations as last observed.
	known map[key]*operationv1.Operation
	// claims are the claims of known operations that run elsewhere, or once ran here.
	claims map[key]claim
	// running are the attempts of this runner.
	running map[key]*attempt
	// line are the operations that wait for others to end, in order. inLine is the same set.
	line   []key
	inLine map[key]bool
	// waiting contains channels that are closed when an operation has finished or was deleted.
	waiting  map[key]chan struct{}
	attempts sync.WaitGroup

	finished *prometheus.CounterVec
	gauge    prometheus.Gauge
}

// claim is an observed claim of a holder.
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
			Name: "annex_operations_finished_total", Help: "Operations that ended in this process.",
		}, []string{"group", "resource", "action", "phase"}),
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "annex_operations_running", Help: "Operations that this process is running.",
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
			mine.cancel(errLost) // another attempt has it, or it has just written its own end
		case op.Spec.Cancel:
			mine.cancel(errCancelled)
		}
	}
	r.add(k)
}

// add queues an operation for settle.
func (r *Runner) add(k key) {
	r.mu.Lock()
	queue := r.queue
	r.mu.Unlock()
	if queue != nil {
		queue.Add(k)
	}
}

// observe records when a renewal of a claim was last seen.
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

// release wakes the requests that wait for an operation. The caller holds r.mu.
func (r *Runner) release(k key) {
	if waiting, ok := r.waiting[k]; ok {
		close(waiting)
		delete(r.waiting, k)
	}
}

// workers is the number of operations that are claimed concurrently.
const workers = 4

// Run implements define.Operations.
func (r *Runner) Run(ctx context.Context, recall define.Recall) {
	// Running actions may outlast ctx by the drain time.
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
		all.Go(func() { r.work(ctx, lasting, queue, recall) })
	}
	<-ctx.Done()
	queue.ShutDown()
	all.Wait()
	stop(errStopping)
	r.attempts.Wait()
}

func (r *Runner) work(ctx, lasting context.Context, queue workqueue.TypedDelayingInterface[key], recall define.Recall) {
	for {
		k, ended := queue.Get()
		if ended {
			return
		}
		if after := r.settle(ctx, lasting, k, recall); after > 0 {
			queue.AddAfter(k, after)
		}
		queue.Done(k)
		if next, ok := r.next(); ok {
			queue.Add(next)
		}
	}
}

// enter adds an attempt to the running ones. It returns false if there is no room, and queues the operation in line.
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

// isFull reports whether no more operations may run. The caller holds r.mu.
func (r *Runner) isFull() bool {
	return r.config.MaxRunning > 0 && len(r.running) >= r.config.MaxRunning
}

// next returns the operation that has waited longest, if there is room for it.
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

// wait puts an operation in line if there is no room for it, and reports whether it did.
func (r *Runner) wait(k key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isFull() {
		return false
	}
	r.lineUp(k)
	return true
}

// lineUp puts an operation at the end of the line unless it is already in it. The caller holds r.mu.
func (r *Runner) lineUp(k key) {
	if !r.inLine[k] {
		r.inLine[k] = true
		r.line = append(r.line, k)
	}
}

// settle advances an operation from its last observed state. It returns the time until the next call; 0 means not
// before the operation changes.
func (r *Runner) settle(ctx, lasting context.Context, k key, recall define.Recall) (after time.Duration) {
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
		return r.claim(ctx, lasting, op, recall)
	}
	holds := r.config.Lease - r.config.Clock.Since(seen.observed)
	if !r.config.Shared && seen.holder != r.config.Identity {
		holds = 0 // the storage is exclusive: the holder has ended
	}
	if holds > 0 {
		return holds
	}
	return r.claim(ctx, lasting, op, recall)
}

// expire deletes a finished operation after its TTL.
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
		klog.FromContext(ctx).Error(err, "Failed to delete an expired operation", "operation", keyOf(op))
		return retryAfter
	}
	return 0
}

// settled reports whether a write failed because the operation has changed; the change will be observed.
func settled(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }

// claim begins an attempt of an operation that is pending or whose holder has lost it.
func (r *Runner) claim(ctx, lasting context.Context, op *operationv1.Operation, recall define.Recall) time.Duration {
	orphaned := op.Status.Phase == operationv1.OperationRunning
	next := op.DeepCopy()
	if op.Spec.Cancel {
		finish(next, r.config.Clock.Now(), operationv1.OperationCancelled, "cancelled", nil)
		return r.conclude(ctx, next)
	}
	if !orphaned && r.wait(keyOf(op)) {
		return 0
	}
	runCtx, call, err := recall(lasting, recordedOf(op))
	if errors.Is(err, define.ErrUnknownAction) {
		if r.config.Shared { // a replica of another version may have it
			klog.FromContext(ctx).Info("Skipping an operation, which another replica may run", "operation", keyOf(op), "reason", err.Error())
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
		err = apierrors.NewServiceUnavailable("the server stopped while it ran the operation; the progress of the operation is unknown")
	case next.Status.Interruptions >= maxInterruptions:
		err = apierrors.NewServiceUnavailable(fmt.Sprintf("the server stopped %d times in a row while it ran the operation, without "+
			"progress in between: the operation is not resumed automatically again, but can be retried", maxInterruptions))
	}
	if err != nil && (orphaned || final(err)) {
		finish(next, r.config.Clock.Now(), operationv1.OperationFailed, err.Error(), err)
		return r.conclude(ctx, next)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Operation cannot start yet", "operation", keyOf(op))
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
		klog.FromContext(ctx).Error(err, "Failed to claim an operation", "operation", keyOf(op))
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

// final reports whether an action can never be called, in contrast to a temporary failure.
func final(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)
}

// ended makes room for another operation; the worker that settles this one starts it.
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
		klog.FromContext(ctx).Error(err, "Failed to store the end of an operation", "operation", keyOf(op))
		return retryAfter
	}
	r.count(op)
	return 0
}

func (r *Runner) count(op *operationv1.Operation) {
	target := targetOf(op)
	r.finished.WithLabelValues(target.Group, target.Resource, op.Spec.Action, string(op.Status.Phase)).Inc()
}

// finish sets the status of an operation that has ended.
func finish(op *operationv1.Operation, now time.Time, phase operationv1.OperationPhase, message string, err error) {
	op.Status.Phase, op.Status.Message = phase, bounded(message, maxMessage)
	op.Status.CompletionTime = &metav1.Time{Time: now}
	op.Status.Holder, op.Status.RenewTime = "", nil
	op.Status.Error = nil
	if err != nil {
		op.Status.Error = statusOf(err)
	}
}

// The causes of the end of an action's context.
var (
	errCancelled = errors.New("the operation was cancelled")
	errGone      = errors.New("the operation was deleted")
	errLost      = errors.New("the server lost the operation: its status was not written in time")
	errStopping  = errors.New("the server is stopping")
)
