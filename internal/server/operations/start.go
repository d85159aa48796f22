package operations

import (
	"context"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
	operationv1 "github.com/annexapi/annex/operation/v1"
)

// defaultTTL is how long finished operations are kept if the action does not set a TTL.
const defaultTTL = time.Hour

// answerTime is the part of a request's time that is reserved for its response.
const answerTime = time.Second

// Start implements define.Operations.
func (r *Runner) Start(ctx context.Context, call *define.Call) (runtime.Object, error) {
	var wait time.Duration
	if call.Wait != "" {
		var err error
		if wait, err = time.ParseDuration(call.Wait); err != nil || wait < 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("parameter wait: %q is not a duration such as 30s", call.Wait))
		}
	}
	op, err := operationOf(call)
	if err != nil {
		return nil, err
	}
	stored, err := r.config.Client.Create(ctx, op, call.DryRun)
	if err != nil {
		return nil, fmt.Errorf("make an operation: %w", err)
	}
	if wait == 0 || call.DryRun {
		return stored, nil
	}
	return r.await(ctx, stored, wait), nil
}

// operationOf returns a new operation for a call.
func operationOf(call *define.Call) (*operationv1.Operation, error) {
	request, err := rawWithin(maxRequest, "request", call.Object)
	if err != nil {
		return nil, err
	}
	ttl := call.Subresource.Long.TTL
	if ttl == 0 {
		ttl = defaultTTL
	}
	op := &operationv1.Operation{}
	op.GenerateName = call.Name + "-" + call.Subresource.Name + "-"
	if op.Namespace = call.Namespace; op.Namespace == "" {
		op.Namespace = metav1.NamespaceDefault
	}
	parent := objects.Meta(call.Parent)
	op.Spec = operationv1.OperationSpec{
		Action: call.Subresource.Name,
		Target: operationv1.OperationTarget{
			APIVersion: call.Resource.GroupVersion().String(), Kind: call.Kind, Resource: call.Resource.Resource,
			Namespace: call.Namespace, Name: call.Name, UID: parent.GetUID(),
		},
		Request: request,
	}
	if call.User != nil {
		op.Spec.User = operationv1.OperationUser{Username: call.User.GetName(), UID: call.User.GetUID(), Groups: call.User.GetGroups()}
	}
	if ttl > 0 {
		seconds := int32(min(ttl/time.Second, math.MaxInt32))
		op.Spec.TTLSecondsAfterFinished = &seconds
	}
	if parent.GetUID() != "" {
		op.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: op.Spec.Target.APIVersion, Kind: call.Kind, Name: call.Name, UID: parent.GetUID(),
		}}
	}
	return op, nil
}

func targetOf(op *operationv1.Operation) schema.GroupVersionResource {
	gv, err := schema.ParseGroupVersion(op.Spec.Target.APIVersion)
	if err != nil {
		gv = schema.GroupVersion{}
	}
	return gv.WithResource(op.Spec.Target.Resource)
}

// recordedOf returns the recorded call of an operation.
func recordedOf(op *operationv1.Operation) define.Recorded {
	recorded := define.Recorded{
		Resource:  targetOf(op),
		Namespace: op.Spec.Target.Namespace, Name: op.Spec.Target.Name, UID: op.Spec.Target.UID,
		Subresource: op.Spec.Action,
		User:        &user.DefaultInfo{Name: op.Spec.User.Username, UID: op.Spec.User.UID, Groups: op.Spec.User.Groups},
	}
	if op.Spec.Request != nil {
		recorded.Request = op.Spec.Request.Raw
	}
	return recorded
}

// await returns the operation when it has finished, or in its current state after the wait time.
func (r *Runner) await(ctx context.Context, op *operationv1.Operation, wait time.Duration) *operationv1.Operation {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-answerTime))
		defer cancel()
	}
	k := keyOf(op)
	r.mu.Lock()
	done := r.waiting[k]
	if known := r.known[k]; known != nil && known.UID == op.UID && known.Status.Phase.Finished() {
		done = make(chan struct{})
		close(done)
	} else if done == nil {
		done = make(chan struct{})
		r.waiting[k] = done
	}
	r.mu.Unlock()
	timer := r.config.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C():
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.known[k]; known != nil && known.UID == op.UID {
		return known.DeepCopy()
	}
	return op
}
