package annex

import (
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/internal/base/apierr"
)

// The errors below are API statuses: wherever a function of a server's definition returns one, clients get its
// code, reason and text, even if other errors wrap it. fmt.Errorf("look up: %w", Conflict("taken")) becomes a
// response with 409 and the text "look up: taken". The status errors of k8s.io/apimachinery/pkg/api/errors are
// treated likewise. docs/reference/errors.md has a table of all such functions, and of their other errors.
//
// Formats and arguments are those of fmt.Errorf. Arguments of %w are wrapped, but the code and the reason are
// always those of the outermost status. Wrapped field errors, and the errors of a field.ErrorList's ToAggregate,
// become the causes of the status.

// Invalid returns an error with code 422 and reason Invalid: the request is well-formed but breaks a rule.
func Invalid(format string, args ...any) error {
	return apierr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, format, args...)
}

// Forbidden returns an error with code 403 and reason Forbidden: the caller lacks the permission.
func Forbidden(format string, args ...any) error {
	return apierr.New(http.StatusForbidden, metav1.StatusReasonForbidden, format, args...)
}

// NotFound returns an error with code 404 and reason NotFound: the request needs an object that does not exist.
// From a Source it means the object itself, as ErrNotFound does.
func NotFound(format string, args ...any) error {
	return apierr.New(http.StatusNotFound, metav1.StatusReasonNotFound, format, args...)
}

// Conflict returns an error with code 409 and reason Conflict: the state of the object, or of another object, does
// not permit the request now. From a Source it means the same as ErrConflict.
func Conflict(format string, args ...any) error {
	return apierr.New(http.StatusConflict, metav1.StatusReasonConflict, format, args...)
}

// TooManyRequests returns an error with code 429 and reason TooManyRequests. The response has the header
// Retry-After with retryAfter rounded up to whole seconds; client-go waits that long and retries. With 0 or less
// there is no such header.
func TooManyRequests(retryAfter time.Duration, format string, args ...any) error {
	return apierr.New(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, format, args...).RetryAfter(retryAfter)
}

// Unavailable returns an error with code 503 and reason ServiceUnavailable: a dependency of the request does not
// work at the moment.
func Unavailable(format string, args ...any) error {
	return apierr.New(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, format, args...)
}
