package virtual

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/objects"
)

// errPanic reports that a function of the user panicked. The stack is in the log.
type errPanic struct{ function string }

func (e *errPanic) Error() string {
	return fmt.Sprintf("%s panicked; see the server's log", e.function)
}

// call calls a function of the user and recovers from its panic, which must neither end the process nor leave a turn
// held.
func (m *Mirror) call(ctx context.Context, function string, f func() error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			klog.FromContext(ctx).Error(nil, "The source of a virtual kind panicked", "resource", m.kind.GroupResource(),
				"function", function, "panic", reason, "stack", string(debug.Stack()))
			err = &errPanic{function}
		}
	}()
	return f()
}

// get gets one object from the source; nil if it does not exist.
func (m *Mirror) get(ctx context.Context, key string) (*row, error) {
	namespace, name, ok := m.namesOf(key)
	if !ok {
		return nil, nil
	}
	var obj runtime.Object
	err := m.call(ctx, "Get", func() (err error) {
		obj, err = m.source.Get(ctx, namespace, name)
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, m.unreadable(ctx, "get", err)
	case objects.IsNil(obj):
		return nil, m.broken("Get of %s returned neither an object nor an error", key)
	}
	r, err := m.row(obj)
	if err != nil {
		return nil, m.broken("Get: %w", err)
	}
	if r.key != key {
		return nil, m.broken("Get of %s returned %s", key, r.key)
	}
	return r, nil
}

// list lists all objects of the source.
func (m *Mirror) list(ctx context.Context) ([]runtime.Object, error) {
	var objs []runtime.Object
	err := m.call(ctx, "List", func() (err error) {
		objs, err = m.source.List(ctx)
		return err
	})
	if err != nil {
		return nil, m.unreadable(ctx, "list", err)
	}
	return objs, nil
}

// unreadable returns the client's error for a failed read of the source: the source's error itself if it is an API
// status, a 504 if the request timed out, otherwise a 503. A panic is an internal error.
func (m *Mirror) unreadable(ctx context.Context, verb string, err error) error {
	status, ok := apierr.Status(err)
	switch {
	case ok && apierrors.ReasonForError(err) != "":
		return status
	case errors.As(err, new(*errPanic)):
		return m.broken("%w", err)
	case ctx.Err() != nil:
		return apierrors.NewTimeoutError(fmt.Sprintf("%s %s from their source: %v", verb, m.kind.GroupResource(), err), 0)
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf("cannot %s %s from their source: %v", verb, m.kind.GroupResource(), err))
}

// unwritten returns the client's error for a failed write of the source.
func (m *Mirror) unwritten(verb string, err error) error {
	if status, ok := apierr.Status(err); ok && apierrors.ReasonForError(err) != "" {
		return status
	}
	return apierrors.NewInternalError(fmt.Errorf("%s %s in their source: %w", verb, m.kind.GroupResource(), err))
}

// broken returns the client's error for a source that violates its contract.
func (m *Mirror) broken(format string, args ...any) error {
	return apierrors.NewInternalError(fmt.Errorf("the source of %s: %w", m.kind.GroupResource(), fmt.Errorf(format, args...)))
}
