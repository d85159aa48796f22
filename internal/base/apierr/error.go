package apierr

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Error is an error that is an API status. Upstream's NewConflict and similar functions require the resource and the
// name of an object, and their results wrap nothing. It is immutable, and so safe for concurrent use.
type Error struct {
	status metav1.Status
	err    error
}

// New returns an error with a code and a reason. Format and args are those of fmt.Errorf; field errors among the
// wrapped errors become the causes of the status.
func New(code int32, reason metav1.StatusReason, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{err: err, status: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: err.Error(),
	}}
	if causes := causesOf(err); len(causes) > 0 {
		e.status.Details = &metav1.StatusDetails{Causes: causes}
	}
	return e
}

// RetryAfter returns the same error for clients that may retry after some time, which is rounded up to whole seconds.
// Without a positive time it returns the error itself.
func (e *Error) RetryAfter(after time.Duration) *Error {
	if after <= 0 {
		return e
	}
	later := &Error{status: e.Status(), err: e.err}
	if later.status.Details == nil {
		later.status.Details = &metav1.StatusDetails{}
	}
	later.status.Details.RetryAfterSeconds = int32((after + time.Second - 1) / time.Second)
	return later
}

// Error implements error.
func (e *Error) Error() string { return e.status.Message }

// Unwrap returns the error that the format made, which wraps the arguments of %w.
func (e *Error) Unwrap() error { return e.err }

// Status implements apierrors.APIStatus. Each call returns a copy.
func (e *Error) Status() metav1.Status { return *e.status.DeepCopy() }

// causesOf returns the field errors that an error is or wraps, in the order in which it wraps them.
func causesOf(err error) []metav1.StatusCause {
	switch e := err.(type) {
	case nil:
		return nil
	case *field.Error:
		return []metav1.StatusCause{{Type: metav1.CauseType(e.Type), Message: e.ErrorBody(), Field: e.Field}}
	case utilerrors.Aggregate:
		return causesOfAll(e.Errors())
	case interface{ Unwrap() []error }:
		return causesOfAll(e.Unwrap())
	case interface{ Unwrap() error }:
		return causesOf(e.Unwrap())
	}
	return nil
}

func causesOfAll(errs []error) []metav1.StatusCause {
	var all []metav1.StatusCause
	for _, err := range errs {
		all = slices.Concat(all, causesOf(err))
	}
	return all
}
