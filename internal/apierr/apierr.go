// Package apierr makes API statuses of errors that users' code returns.
package apierr

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Status returns the API status that an error is or wraps, with the message of the whole error,
// and false if there is none. Upstream's handlers look no deeper than the error that they
// get: a wrapped status would be answered as an internal error.
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
