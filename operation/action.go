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

// message is a pointer to M that is sent.
type message[M any] interface {
	*M
	runtime.Object
}

// Run is one attempt to carry out a request R to an action on a T. Its methods may be called
// concurrently, until the action has returned.
type Run[T, R any] struct {
	// Resource is the resource that the client spoke of, in its version.
	Resource        schema.GroupVersionResource
	Namespace, Name string
	// Parent is the object that the action is on, as it was when the attempt began. It is the
	// action's own.
	Parent *T
	// Object is what the client sent, with defaults filled in. It is the action's own.
	Object *R
	// User is who requested the action: without what the authenticator has added as extra.
	User user.Info
	// Attempt is 1 at first, and counts retries and what was resumed.
	Attempt int
	// OperationNamespace and OperationName are those of the Operation.
	OperationNamespace, OperationName string

	ctx     context.Context
	call    *define.Call
	attempt *operations.Attempt
}

// Progress says how much of the work is done, in units that Unit may name. A total of 0 or less
// says that it is not known. Clients see it within a second or so: what is said more often
// costs nothing. So it is with Unit, Message and Logf.
func (r *Run[T, R]) Progress(done, total int64) { r.attempt.Progress(done, total) }

// Unit says what Progress counts, such as rows.
func (r *Run[T, R]) Unit(unit string) { r.attempt.Unit(unit) }

// Message says what the action is doing, in 1024 bytes at most. It is formatted as fmt.Sprintf
// does.
func (r *Run[T, R]) Message(format string, args ...any) {
	r.attempt.Message(fmt.Sprintf(format, args...))
}

// Logf adds a line to the operation's log, of which the last 16 KiB are kept. It is formatted as
// fmt.Sprintf does, with the time before it.
func (r *Run[T, R]) Logf(format string, args ...any) { r.attempt.Log(fmt.Sprintf(format, args...)) }

// Save stores a checkpoint, encoded as JSON of 256 KiB at most, instead of the one before. It
// has been stored when Save returns nil.
func (r *Run[T, R]) Save(checkpoint any) error { return r.attempt.Save(r.ctx, checkpoint) }

// Restore decodes the latest checkpoint of an attempt before into what a pointer points to,
// and says whether there is one.
func (r *Run[T, R]) Restore(checkpoint any) (bool, error) { return r.attempt.Restore(checkpoint) }

// Update changes the parent, as that of annex.ActionRequest does, in the name of the User.
func (r *Run[T, R]) Update(ctx context.Context, change func(obj *T) error) (*T, error) {
	return define.Change(ctx, r.call.Update, change)
}

// UpdateStatus changes the parent's status, as that of annex.ActionRequest does.
func (r *Run[T, R]) UpdateStatus(ctx context.Context, change func(obj *T) error) (*T, error) {
	return define.Change(ctx, r.call.UpdateStatus, change)
}

// subresourceOf has no exported name, so that builders show their own methods only.
type subresourceOf[T any] = annex.SubresourceOf[T]

// ActionBuilder describes an action on a T that takes requests R, and that operations carry
// out.
type ActionBuilder[T, R any] struct {
	subresourceOf[T]
	action *annex.ActionBuilder[T, R]
}

// Action describes a custom subresource whose requests are carried out by operations. Clients
// create an R at NAME/name, as with annex.Action, and get an Operation at once, or with the
// parameter wait=30s when it has ended or that time is over; of the time that a request may
// take, a second is left for the answer. Callers need create on the resource with the
// subresource and nothing else. There must be a Kind in the server.
//
// T and R are those of annex.Action; a request of more than 768 KiB as JSON is answered with 413. A is any Go type that JSON can
// encode, in 256 KiB at most: it is
// the operation's result. An error of run is the operation's error, which has failed: with the code, reason and text of the API
// status that the error is or wraps, such as annex.Conflict makes, and else as an internal error, 500.
//
// The context ends when the operation is cancelled or deleted, when the server stops, and when
// this process cannot write the operation any more and another one may begin to run it. run is to return
// soon then. An operation whose run returns no error has succeeded, whatever it was told; one
// that was cancelled, and whose run returns an error, is Cancelled. A panic is an error. Each
// operation is run by one process at a time, and by no other for as long as run keeps to its context.
//
// If the process ends in between, or stops and run returns an error, the operation has failed, unless
// Resumable says otherwise. The operation is in the namespace of the object, or in default if
// that has none, and the object is its owner.
func Action[T, R, A any, PT object[T], PR message[R]](
	name string,
	run func(ctx context.Context, run *Run[T, R]) (*A, error),
) *ActionBuilder[T, R] {
	started := func(context.Context, *annex.ActionRequest[T, R]) (*operationv1.Operation, error) {
		return nil, errors.New("operations are started by the server")
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

// Resumable has operations run again whose process has ended, or was stopped before they had:
// from the beginning, or from where the checkpoint says that they were. The fifth process in a row that
// does not end in order is the last: without a new checkpoint in between, the operation has failed, since
// the action may be what ends them.
func (b *ActionBuilder[T, R]) Resumable() *ActionBuilder[T, R] {
	b.long().Resumable = true
	return b
}

// TTL is how long an operation is kept after it has ended: a number of whole seconds. The default, which
// 0 is too, is an hour; a negative one keeps it until it is deleted.
func (b *ActionBuilder[T, R]) TTL(ttl time.Duration) *ActionBuilder[T, R] {
	b.long().TTL = ttl
	return b
}

// Validate checks requests before there is an operation, as that of annex.ActionBuilder does.
func (b *ActionBuilder[T, R]) Validate(validate func(ctx context.Context, request *R) field.ErrorList) *ActionBuilder[T, R] {
	b.action.Validate(validate)
	return b
}
