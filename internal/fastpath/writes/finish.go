package writes

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/metrics"

	"github.com/annexapi/annex/internal/wire/stacks"
)

// operationResult is the result of an operation.
type operationResult struct {
	object runtime.Object
	err    error
	panic  any // with its stack, except for http.ErrAbortHandler
}

// maxLateWait is the time for which the end of an operation is awaited after its request has been answered.
const maxLateWait = 5 * time.Minute

// run runs an operation and returns its result. If the context ends first, run returns a timeout error and the
// operation continues. A panic of the operation becomes a panic of the caller.
func (k *Kind) run(ctx context.Context, operation func() (runtime.Object, error)) (runtime.Object, error) {
	ended := make(chan operationResult, 1)
	k.stacks.Go(func() {
		var o operationResult
		defer func() {
			o.panic = stacks.WithStack(recover())
			ended <- o
		}()
		o.object, o.err = operation()
	})
	select {
	case o := <-ended:
		switch {
		case o.panic != nil:
			panic(o.panic)
		case o.err != nil:
			return nil, o.err
		}
		if status, ok := o.object.(*metav1.Status); ok && status.Status != metav1.StatusSuccess {
			return nil, apierrors.FromObject(status)
		}
		return o.object, nil
	case <-ctx.Done():
		go reportLate(ended, time.Now())
		return nil, apierrors.NewTimeoutError(fmt.Sprintf("request did not complete within requested timeout - %s", ctx.Err()), 0)
	}
}

// reportLate logs and counts the outcome of an operation whose request has already been answered with a timeout.
func reportLate(ended <-chan operationResult, since time.Time) {
	wait := time.NewTimer(maxLateWait)
	defer wait.Stop()
	select {
	case o := <-ended:
		status := metrics.PostTimeoutHandlerOK
		switch {
		case o.panic != nil:
			status = metrics.PostTimeoutHandlerPanic
		case o.err != nil:
			status = metrics.PostTimeoutHandlerError
		}
		metrics.RecordRequestPostTimeout(metrics.PostTimeoutSourceRestHandler, status)
		utilruntime.HandleError(
			fmt.Errorf("a request that timed out for the client ended %s later: error: %v, panic: %v", time.Since(since), o.err, o.panic),
		)
	case <-wait.C:
		metrics.RecordRequestPostTimeout(metrics.PostTimeoutSourceRestHandler, metrics.PostTimeoutHandlerPending)
		utilruntime.HandleError(fmt.Errorf("a request that timed out for the client is still running %s later", time.Since(since)))
	}
}
