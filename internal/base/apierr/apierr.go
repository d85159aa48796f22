// Package apierr turns errors into API statuses.
package apierr

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Status returns the API status that an error is or wraps, with the message of the whole error, and false if there is
// none. Upstream's handlers only look at the outermost error: they would answer a wrapped status with an internal
// error.
func Status(err error) (error, bool) {
	if _, is := err.(apierrors.APIStatus); is {
		return err, true
	}
	var wrapped apierrors.APIStatus
	if !errors.As(err, &wrapped) {
		return nil, false
	}
	status := wrapped.Status()
	status.Message = err.Error()
	return &apierrors.StatusError{ErrStatus: status}, true
}

// Outermost returns the API status that an error is or wraps, as Status does, and any other error unchanged.
func Outermost(err error) error {
	if status, ok := Status(err); ok {
		return status
	}
	return err
}

// NoMemory returns the response to a request that did not get its memory, for the reason err: 429 if err has a time
// for a retry, or 504 if the request's time was over. It returns nil for a nil err.
func NoMemory(err error) error {
	if err == nil {
		return nil
	}
	var busy interface {
		error
		RetryAfter() time.Duration
	}
	if errors.As(err, &busy) {
		return apierrors.NewTooManyRequests(busy.Error(), int(busy.RetryAfter()/time.Second))
	}
	return apierrors.NewTimeoutError("the request timed out while it waited for memory of the server", 0)
}
