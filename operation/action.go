package operation

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/operations"
	operationv1 "github.com/annexapi/annex/operation/v1"
)

// object is a pointer to T that is a Kubernetes object.
type object[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

// message is a pointer to M that clients send as a request.
type message[M any] interface {
	*M
	runtime.Object
}

// Run is one attempt to carry out a request R to an action on a T. Its methods may be called concurrently, until the
// action has returned.
type Run[T, R any] struct {
	// Resource is the requested resource, in the version of the client's request.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the object on which the action runs, as read at the beginning of the attempt. The action owns it.
	Parent *T
	// Object is the client's request, with defaults filled in. The action owns it.
	Object *R
	// User requested the action. Its extra attributes, which the authenticator adds, are not stored and therefore
	// missing.
	User user.Info
	// Attempt is 1 at first. Retries and resumptions increment it.
	Attempt int
	// OperationNamespace and OperationName identify the Operation.
	OperationNamespace, OperationName string

	ctx     context.Context
	call    *define.Call
	attempt *operations.Attempt
}

// Progress reports how much of the work is done, in units that Unit may name. A total of 0 or less means that the
// total is unknown. Clients see the progress within about a second; calls in between cost nothing. The same holds for
// Unit, Message and Logf.
func (r *Run[T, R]) Progress(done, total int64) { r.attempt.Progress(done, total) }

// Unit names the unit of Progress, such as rows.
func (r *Run[T, R]) Unit(unit string) { r.attempt.Unit(unit) }

// Message reports the current step of the action, in 1024 bytes at most. It formats as fmt.Sprintf does.
func (r *Run[T, R]) Message(format string, args ...any) {
	r.attempt.Message(fmt.Sprintf(format, args...))
}

// Logf appends a line to the operation's log, which keeps its last 16 KiB. It formats as fmt.Sprintf does, and puts
// the time in front.
func (r *Run[T, R]) Logf(format string, args ...any) { r.attempt.Log(fmt.Sprintf(format, args...)) }

// Save stores a checkpoint in place of the previous one, as JSON of at most 256 KiB. The checkpoint is stored when
// Save returns nil.
func (r *Run[T, R]) Save(checkpoint any) error { return r.attempt.Save(r.ctx, checkpoint) }

// Restore decodes the latest checkpoint of earlier attempts into checkpoint, which is a pointer, and reports whether
// there is one.
func (r *Run[T, R]) Restore(checkpoint any) (bool, error) { return r.attempt.Restore(checkpoint) }

// Update changes the parent on behalf of User, as Update of annex.ActionRequest does.
func (r *Run[T, R]) Update(ctx context.Context, change func(obj *T) error) (*T, error) {
	return define.Change(ctx, r.call.Update, change)
}

// UpdateStatus changes the parent's status on behalf of User, as UpdateStatus of annex.ActionRequest does.
func (r *Run[T, R]) UpdateStatus(ctx context.Context, change func(obj *T) error) (*T, error) {
	return define.Change(ctx, r.call.UpdateStatus, change)
}

// subresourceOf is unexported, so that the documentation of builders lists their own methods only.
type subresourceOf[T any] = annex.SubresourceOf[T]

// ActionBuilder describes an action on a T that takes requests R, and that operations carry out.
type ActionBuilder[T, R any] struct {
	subresourceOf[T]
	action *annex.ActionBuilder[T, R]
}

// Action describes a custom subresource whose requests are carried out by operations. Clients create an R at
// NAME/name, as with annex.Action, and get an Operation at once. With the parameter wait=30s they get it when it has
// ended or when that time is over, at the latest a second before the timeout of the request. Callers need only the
// verb create on the resource with the subresource. The server must have a Kind.
//
// T and R are those of annex.Action. A request of more than 768 KiB as JSON is answered with 413. A is any Go type
// that can be encoded as JSON, in 256 KiB at most; it becomes the operation's result. If run returns an error, the
// operation has failed with that error: with the code, reason and text of the API status that the error is or wraps,
// such as annex.Conflict makes, else as an internal error, 500.
//
// The context ends when the operation is cancelled or deleted, when the server stops, and when this process cannot
// write the operation any more, so that another process may begin to run it. run has to return soon then. An
// operation succeeds if run returns no error, even after a cancellation; a cancelled operation whose run returns an
// error is Cancelled. A panic counts as an error. One process at a time runs an operation, as long as run returns
// when its context ends.
//
// An operation also fails if its process ends before run returns, or if the server stops and run returns an error,
// unless the action is Resumable. The operation is in the namespace of its object, or in default if the object has
// none, and the object owns it.
func Action[T, R, A any, PT object[T], PR message[R]](
	name string,
	run func(ctx context.Context, run *Run[T, R]) (*A, error),
) *ActionBuilder[T, R] {
	started := func(context.Context, *annex.ActionRequest[T, R]) (*operationv1.Operation, error) {
		return nil, errors.New("only the server can start operations")
	}
	b := &ActionBuilder[T, R]{action: annex.Action[T, R, operationv1.Operation, PT, PR](name, started)}
	b.subresourceOf = b.action
	s := define.SubresourceIn(b.action)
	s.Long = &define.Long{Result: reflect.TypeFor[A]()}
	s.Handle = func(ctx context.Context, call *define.Call) (runtime.Object, error) { return call.Start(ctx) }
	if run == nil {
		return b
	}
	s.Long.Run = func(ctx context.Context, call *define.Call, attempt any) (any, error) {
		a := attempt.(*operations.Attempt)
		return run(ctx, &Run[T, R]{
			Resource:           call.Resource,
			Namespace:          call.Namespace,
			Name:               call.Name,
			Parent:             any(call.Parent).(*T),
			Object:             any(call.Object).(*R),
			User:               call.User,
			Attempt:            a.Number(),
			OperationNamespace: a.Namespace(),
			OperationName:      a.Name(),
			ctx:                ctx,
			call:               call,
			attempt:            a,
		})
	}
	return b
}

func (b *ActionBuilder[T, R]) long() *define.Long { return define.SubresourceIn(b.action).Long }

// Resumable runs an operation again if its process ended, or was stopped, before the operation had ended. run starts
// from the beginning, or from its checkpoint. An operation fails if five processes in a row end abnormally while they
// run it without a new checkpoint in between, since the action itself may be what ends them.
func (b *ActionBuilder[T, R]) Resumable() *ActionBuilder[T, R] {
	b.long().Resumable = true
	return b
}

// TTL sets how long an operation is kept after it has ended, in whole seconds. The default, zero, means an hour; a
// negative TTL keeps the operation until it is deleted.
func (b *ActionBuilder[T, R]) TTL(ttl time.Duration) *ActionBuilder[T, R] {
	b.long().TTL = ttl
	return b
}

// Validate sets a function that checks requests before an operation is created, as Validate of annex.ActionBuilder
// does.
func (b *ActionBuilder[T, R]) Validate(validate func(ctx context.Context, request *R) field.ErrorList) *ActionBuilder[T, R] {
	b.action.Validate(validate)
	return b
}
