package annex

import (
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/internal/base/apierr"
)

// The errors below are API statuses: clients get their code, their reason and their text, wherever a function of a
// server's definition returns one, also below other errors. fmt.Errorf("look up: %w", Conflict("taken")) is answered
// with 409 and the text "look up: taken". The status errors of k8s.io/apimachinery/pkg/api/errors are answered likewise.
// docs/reference/errors.md has a table of all such functions, and of their other errors.
//
// A format and its arguments are those of fmt.Errorf. Arguments of %w are wrapped, but the code and the reason are always
// those of the outermost status. Field errors that are wrapped, and those of a field.ErrorList by its ToAggregate,
// become the causes of the status.

// Invalid returns an error that is answered with 422 and the reason Invalid: the request can be read, but breaks a
// rule.
func Invalid(format string, args ...any) error {
	return apierr.New(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, format, args...)
}

// Forbidden returns an error that is answered with 403 and the reason Forbidden: the caller may not do this.
func Forbidden(format string, args ...any) error {
	return apierr.New(http.StatusForbidden, metav1.StatusReasonForbidden, format, args...)
}

// NotFound returns an error that is answered with 404 and the reason NotFound: the request needs an object that does
// not exist. From a Source it means the object itself, as ErrNotFound does.
func NotFound(format string, args ...any) error {
	return apierr.New(http.StatusNotFound, metav1.StatusReasonNotFound, format, args...)
}

// Conflict returns an error that is answered with 409 and the reason Conflict: the state of the object, or of another,
// does not allow the request now. From a Source it means what ErrConflict does.
func Conflict(format string, args ...any) error {
	return apierr.New(http.StatusConflict, metav1.StatusReasonConflict, format, args...)
}

// TooManyRequests returns an error that is answered with 429 and the reason TooManyRequests. Clients get retryAfter,
// rounded up to whole seconds, as the header Retry-After, and those of client-go wait that long and try again by
// themselves; with 0 or less there is no such header.
func TooManyRequests(retryAfter time.Duration, format string, args ...any) error {
	return apierr.New(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, format, args...).RetryAfter(retryAfter)
}

// Unavailable returns an error that is answered with 503 and the reason ServiceUnavailable: something that the request
// needs does not work at the moment.
func Unavailable(format string, args ...any) error {
	return apierr.New(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, format, args...)
}
