package operations

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/model/define"
	operationv1 "github.com/annexapi/annex/operation/v1"
)

// Bounds of the content of an operation, in bytes.
const (
	maxLog     = 16 << 10
	maxMessage = 1 << 10
	// maxError bounds the message of the error, maxCauses the number of its causes.
	maxError  = 16 << 10
	maxCauses = 100
	// maxJSON bounds a result, and a checkpoint.
	maxJSON = 256 << 10
	// maxRequest leaves room for the others within etcd's maximum size of a value, 1.5 MiB.
	maxRequest = 768 << 10
)

// pace is the minimum time between two writes of an action's progress.
const pace = time.Second

// attempt is one run of an operation's action. Attempt is its exported form.
type attempt struct {
	runner *Runner
	key    key
	uid    types.UID
	call   *define.Call
	number int32
	// checkpoint is the checkpoint of an earlier attempt.
	checkpoint []byte

	mu      sync.Mutex
	said    operationv1.OperationStatus // progress, message, log and checkpoint to write
	stop    context.CancelCauseFunc     // nil before the action begins
	stopped error                       // the reason of a cancel before the action began

	changed chan struct{}
	saving  chan chan error

	// The fields below belong to keep.
	stored  *operationv1.Operation
	renewed time.Time // RenewTime of the last successful write
}

func newAttempt(r *Runner, op *operationv1.Operation, call *define.Call) *attempt {
	a := &attempt{
		runner: r, key: keyOf(op), uid: op.UID, call: call, number: op.Status.Attempts + 1,
		changed: make(chan struct{}, 1), saving: make(chan chan error),
	}
	a.said.Log = op.Status.Log
	if c := op.Status.Checkpoint; c != nil {
		a.checkpoint = c.Raw
		a.said.Checkpoint = c.DeepCopy()
		a.said.Progress = op.Status.Progress.DeepCopy()
	}
	return a
}

// cancel ends the action. Only the first reason counts.
func (a *attempt) cancel(why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped == nil {
		a.stopped = why
	}
	if a.stop != nil {
		a.stop(a.stopped)
	}
}

// run runs the action, and maintains the operation until the action has ended. The write of the claim started at
// began.
func (a *attempt) run(lasting context.Context, stored *operationv1.Operation, began time.Time) {
	ctx, stop := context.WithCancelCause(lasting)
	defer stop(nil)
	a.mu.Lock()
	a.stop = stop
	if a.stopped != nil {
		stop(a.stopped)
	}
	a.mu.Unlock()
	a.stored, a.renewed = stored, began
	done := make(chan actionResult, 1)
	go func() { done <- a.act(ctx) }()
	a.keep(ctx, lasting, done)
}

// actionResult is the result of an action. It shares no memory with the action.
type actionResult struct {
	result *runtime.RawExtension
	err    error
}

// failure is a copy of an action's error: its text and status, so that no method of the original is called later.
type failure struct {
	text   string
	status metav1.Status
}

func (f failure) Error() string { return f.text }

// Status implements apierrors.APIStatus.
func (f failure) Status() metav1.Status { return f.status }

// act runs the action. It turns a panic into an error, also one in a method of the action's result or error, so that
// the server continues.
func (a *attempt) act(ctx context.Context) (o actionResult) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "Action of an operation panicked", "operation", a.key, "panic", p, "stack", string(debug.Stack()))
			o = actionResult{err: apierrors.NewInternalError(fmt.Errorf("the action panicked: %v", p))}
		}
	}()
	returned, err := a.call.Subresource.Long.Run(ctx, a.call, &Attempt{a})
	if err == nil {
		o.result, err = rawOf("result", returned)
	}
	if err != nil {
		return actionResult{err: failure{err.Error(), *statusOf(err)}}
	}
	return o
}

// keep writes the action's progress and renews the claim until the action has ended.
func (a *attempt) keep(ctx, lasting context.Context, done <-chan actionResult) {
	c := a.runner.config.Clock
	tick := c.NewTimer(a.runner.config.Lease / 3)
	defer tick.Stop()
	paced := false
	next := func(d time.Duration) {
		tick.Stop()
		tick.Reset(d)
	}
	write := func() {
		paced = false
		if a.write(ctx, false) {
			next(a.runner.config.Lease / 3)
		} else {
			next(retryAfter)
		}
	}
	stopping, drained := lasting.Done(), make(<-chan time.Time)
	for {
		select {
		case o := <-done:
			a.end(ctx, lasting, o)
			return
		case <-a.changed:
			since := c.Since(a.renewed)
			switch {
			case since >= pace:
				write()
			case !paced:
				paced = true
				next(pace - since)
			}
		case reply := <-a.saving:
			if a.write(ctx, true) {
				reply <- nil
				paced = false
				next(a.runner.config.Lease / 3)
				continue
			}
			reply <- errors.New("the checkpoint could not be stored")
			next(retryAfter)
		case <-tick.C():
			write()
		case <-stopping:
			stopping = nil
			timer := c.NewTimer(a.runner.config.Drain)
			defer timer.Stop()
			drained = timer.C()
		case <-drained:
			a.abandon(ctx)
			return
		}
	}
}

// held reports whether the attempt may still write the operation.
func (a *attempt) held(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return !errors.Is(cause, errLost) && !errors.Is(cause, errGone)
}

// write stores the action's progress, which renews the claim. It reports whether it succeeded. If the claim cannot be
// renewed in time, write ends the action.
func (a *attempt) write(ctx context.Context, urgent bool) bool {
	if !a.held(ctx) {
		return false
	}
	lease := a.runner.config.Lease
	// A hanging write must not outlast the claim. A late write, after the machine was suspended for example, is
	// attempted nevertheless: it succeeds if the claim still holds.
	now := a.runner.config.Clock.Now()
	left := lease*2/3 - now.Sub(a.renewed)
	err := a.update(ctx, min(max(left, lease/6), lease/3), func(op *operationv1.Operation) {
		a.mu.Lock()
		defer a.mu.Unlock()
		said := a.said.DeepCopy()
		op.Status.Progress, op.Status.Message, op.Status.Log, op.Status.Checkpoint = said.Progress, said.Message, said.Log, said.Checkpoint
		if said.Checkpoint != nil && !bytes.Equal(said.Checkpoint.Raw, a.checkpoint) {
			op.Status.Interruptions = 0
		}
		op.Status.RenewTime = &metav1.MicroTime{Time: now}
	})
	switch {
	case err == nil:
		a.renewed = now
		return true
	case errors.Is(err, errLost), errors.Is(err, errGone):
		a.cancel(err)
	case a.runner.config.Clock.Since(a.renewed) >= lease*2/3:
		klog.FromContext(ctx).Error(err, "Failed to renew the lease of an operation", "operation", a.key)
		a.cancel(errLost)
	case urgent:
		klog.FromContext(ctx).Error(err, "Failed to store the checkpoint of an operation", "operation", a.key)
	}
	return false
}

// update modifies the stored operation, within a time limit, if this attempt still holds it. Otherwise it returns
// errLost or errGone.
func (a *attempt) update(ctx context.Context, within time.Duration, change func(*operationv1.Operation)) error {
	// The end of the action must not end the write.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	for {
		next := a.stored.DeepCopy()
		change(next)
		stored, err := a.runner.config.Client.UpdateStatus(ctx, next)
		if err == nil {
			a.stored = stored
			return nil
		}
		if apierrors.IsConflict(err) {
			// Another client has modified it, to cancel it for example.
			stored, err = a.runner.config.Client.Get(ctx, a.key.Namespace, a.key.Name)
		}
		switch {
		case apierrors.IsNotFound(err) || err == nil && stored.UID != a.uid:
			return errGone
		case err != nil:
			return err
		case stored.Status.Holder != a.runner.config.Identity || stored.Status.Attempts != a.number ||
			stored.Status.Phase != operationv1.OperationRunning:
			return errLost
		}
		a.stored = stored
	}
}

// end writes the outcome of the operation. It retries until the write has succeeded or the operation belongs to
// another holder.
func (a *attempt) end(ctx, lasting context.Context, o actionResult) {
	c := a.runner.config.Clock
	deadline := c.NewTimer(a.runner.config.Drain)
	defer deadline.Stop()
	stopping := lasting.Done()
	var over <-chan time.Time
	for a.held(ctx) {
		err := a.update(ctx, a.runner.config.Lease/3, func(op *operationv1.Operation) { a.conclude(ctx, op, o) })
		if err == nil {
			if a.stored.Status.Phase.Finished() {
				a.runner.count(a.stored)
			}
			return
		}
		if errors.Is(err, errLost) || errors.Is(err, errGone) {
			return
		}
		klog.FromContext(ctx).Error(err, "Failed to store the end of an operation", "operation", a.key)
		pause := c.NewTimer(retryAfter)
		select {
		case <-pause.C():
		case <-stopping:
			stopping = nil
			deadline.Reset(a.runner.config.Drain)
			over = deadline.C()
		case <-over:
			pause.Stop()
			return
		}
		pause.Stop()
	}
}

// abandon writes the failure of an operation whose action has not ended in time. A resumable operation is left to a
// later process.
func (a *attempt) abandon(ctx context.Context) {
	klog.FromContext(ctx).Error(nil, "Action of an operation did not return at the end of its context", "operation", a.key)
	if a.call.Subresource.Long.Resumable || !a.held(ctx) {
		return
	}
	err := a.update(ctx, a.runner.config.Lease/3, func(op *operationv1.Operation) {
		a.conclude(ctx, op, actionResult{err: fmt.Errorf("the action had not ended after %s", a.runner.config.Drain)})
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store the end of an operation", "operation", a.key)
		return
	}
	a.runner.count(a.stored)
}

// conclude sets the status from the action's outcome and the cause of its end.
func (a *attempt) conclude(ctx context.Context, op *operationv1.Operation, o actionResult) {
	a.mu.Lock()
	said := a.said.DeepCopy()
	a.mu.Unlock()
	op.Status.Progress, op.Status.Log, op.Status.Checkpoint = said.Progress, said.Log, said.Checkpoint
	now := a.runner.config.Clock.Now()
	why := context.Cause(ctx)
	switch {
	case o.err == nil:
		finish(op, now, operationv1.OperationSucceeded, said.Message, nil)
		op.Status.Result, op.Status.Checkpoint = o.result, nil
	case errors.Is(why, errCancelled):
		finish(op, now, operationv1.OperationCancelled, "cancelled", nil)
	case errors.Is(why, errStopping) && a.call.Subresource.Long.Resumable:
		op.Status.Phase, op.Status.Message = operationv1.OperationPending, "interrupted: the server stopped; it will be resumed"
		op.Status.Interruptions = 0
		op.Status.Holder, op.Status.RenewTime = "", nil
	case errors.Is(why, errStopping):
		err := apierrors.NewServiceUnavailable(fmt.Sprintf("the server stopped while the operation was running: %v", o.err))
		finish(op, now, operationv1.OperationFailed, err.Error(), err)
	default:
		finish(op, now, operationv1.OperationFailed, o.err.Error(), o.err)
	}
}

// statusOf returns an error as a Status, truncated to the bounds of an operation.
func statusOf(err error) *metav1.Status {
	known, ok := apierr.Status(err)
	if !ok {
		known = apierrors.NewInternalError(err)
	}
	var status apierrors.APIStatus
	errors.As(known, &status)
	s := status.Status()
	s.Message = bounded(s.Message, maxError)
	if s.Details != nil {
		s.Details = s.Details.DeepCopy()
		s.Details.Causes = s.Details.Causes[:min(len(s.Details.Causes), maxCauses)]
		for i := range s.Details.Causes {
			cause := &s.Details.Causes[i]
			cause.Field, cause.Message = bounded(cause.Field, maxMessage), bounded(cause.Message, maxMessage)
		}
	}
	return &s
}

// rawOf encodes a value as JSON. It reports an error if the result exceeds maxJSON.
func rawOf(what string, v any) (*runtime.RawExtension, error) {
	return rawWithin(maxJSON, what, v)
}

func rawWithin(limit int, what string, v any) (*runtime.RawExtension, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the %s: %w", what, err)
	}
	if len(raw) > limit {
		return nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("the %s has %d bytes, more than an operation's maximum of %d: store it elsewhere, and return a "+
				"reference", what, len(raw), limit),
		)
	}
	return &runtime.RawExtension{Raw: raw}, nil
}

// bounded truncates a text to limit bytes.
func bounded(text string, limit int) string {
	text = strings.ToValidUTF8(text, "")
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-3], "") + "..."
}

// Attempt is one run of an operation's action, as seen by the action.
type Attempt struct{ a *attempt }

// Namespace returns the namespace of the operation.
func (t *Attempt) Namespace() string { return t.a.key.Namespace }

// Name returns the name of the operation.
func (t *Attempt) Name() string { return t.a.key.Name }

// Number returns the number of the attempt, which is 1 for the first one.
func (t *Attempt) Number() int { return int(t.a.number) }

// The modified status is written by keep.
func (t *Attempt) say(change func(*operationv1.OperationStatus)) {
	t.a.mu.Lock()
	change(&t.a.said)
	t.a.mu.Unlock()
	await.Notify(t.a.changed)
}

// Progress sets how much of the work is done.
func (t *Attempt) Progress(done, total int64) {
	t.say(func(s *operationv1.OperationStatus) {
		p := progress(s)
		p.Done, p.Total, p.Percent = done, max(total, 0), 0
		if total > 0 {
			p.Percent = int32(min(max(float64(done)/float64(total), 0), 1) * 100)
		}
	})
}

// Unit sets the unit of the progress.
func (t *Attempt) Unit(unit string) {
	t.say(func(s *operationv1.OperationStatus) { progress(s).Unit = bounded(unit, maxMessage) })
}

func progress(s *operationv1.OperationStatus) *operationv1.OperationProgress {
	if s.Progress == nil {
		s.Progress = &operationv1.OperationProgress{}
	}
	return s.Progress
}

// Message sets the description of the current work.
func (t *Attempt) Message(message string) {
	t.say(func(s *operationv1.OperationStatus) { s.Message = bounded(message, maxMessage) })
}

// Log adds a line to the log.
func (t *Attempt) Log(line string) {
	now := t.a.runner.config.Clock.Now().UTC().Format(time.RFC3339)
	t.say(func(s *operationv1.OperationStatus) { s.Log = tail(s.Log, now+" "+strings.ToValidUTF8(line, "")) })
}

// tail adds a line to a log, and drops the first lines if the log exceeds its bound.
func tail(log, line string) string {
	line = strings.TrimRight(line, "\n") + "\n"
	if len(line) > maxLog {
		return strings.ToValidUTF8(line[:maxLog-1], "") + "\n"
	}
	log += line
	if excess := len(log) - maxLog; excess > 0 {
		end := strings.IndexByte(log[excess-1:], '\n')
		log = log[excess+end:]
	}
	return log
}

// Save stores a checkpoint. It is durable when Save returns nil.
func (t *Attempt) Save(ctx context.Context, checkpoint any) error {
	raw, err := rawOf("checkpoint", checkpoint)
	if err != nil {
		return err
	}
	t.a.mu.Lock()
	t.a.said.Checkpoint = raw
	t.a.mu.Unlock()
	reply := make(chan error, 1)
	select {
	case t.a.saving <- reply:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return <-reply
}

// Restore decodes the checkpoint of an earlier attempt into checkpoint, and reports whether there is one.
func (t *Attempt) Restore(checkpoint any) (bool, error) {
	if t.a.checkpoint == nil {
		return false, nil
	}
	if err := json.Unmarshal(t.a.checkpoint, checkpoint); err != nil {
		return false, fmt.Errorf("decode the checkpoint: %w", err)
	}
	return true, nil
}
