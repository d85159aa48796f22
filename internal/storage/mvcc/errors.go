package mvcc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// errCompacted reports that the history no longer reaches back to a revision.
var errCompacted = errors.New("the history has been compacted")

// corruptError reports that a stored object cannot be read. Only such an object may be deleted by an unsafe deletion.
type corruptError struct {
	what     string
	revision uint64
	err      error
}

func (e *corruptError) Error() string {
	return fmt.Sprintf("%s revision=%d: %v", e.what, e.revision, e.err)
}

func (e *corruptError) Unwrap() error { return e.err }

func isCorrupt(err error) bool {
	corrupt := (*corruptError)(nil)
	return errors.As(err, &corrupt)
}

// untransformable wraps an error of the transformer. An error of a context, for example while a key server does not
// answer, is no evidence that the object is corrupt.
func (s *resourceStore) untransformable(revision uint64, err error) error {
	if !s.tellsCorrupt || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &transformError{err}
	}
	return &transformError{&corruptError{"data from the storage is not transformable", revision, err}}
}

func (s *resourceStore) undecodable(revision uint64, err error) error {
	if !s.tellsCorrupt {
		return err
	}
	return &corruptError{"object not decodable", revision, err}
}

// transformError marks an error of the transformer, because readers must return it as an internal error.
type transformError struct{ error }

func (e *transformError) Unwrap() error { return e.error }

// internal converts an error of reading an object into the form that the API machinery expects.
func internal(err error) error {
	if transform := (*transformError)(nil); errors.As(err, &transform) {
		return storage.NewInternalError(transform.error)
	}
	return err
}

// getError is like internal, and reports a corrupt object as such.
func getError(key string, err error) error {
	if corrupt := (*corruptError)(nil); errors.As(err, &corrupt) {
		return storage.NewCorruptObjError(key, corrupt)
	}
	return internal(err)
}

// unreadable collects the errors of one list.
type unreadable struct {
	errs  []error
	abort error
}

// maxUnreadable is the number of corrupt objects after which a list gives up.
const maxUnreadable = 100

var errTooManyUnreadable = errors.New("too many errors, the list is truncated")

// add records the error of one object. It reports whether the list continues, which it does if only this object is
// corrupt.
func (u *unreadable) add(key string, err error) bool {
	corrupt := (*corruptError)(nil)
	if !errors.As(err, &corrupt) {
		if transform := (*transformError)(nil); errors.As(err, &transform) {
			err = storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", key, transform.error))
		}
		u.abort = err
		return false
	}
	u.errs = append(u.errs, storage.NewCorruptObjError(key, corrupt))
	if len(u.errs) == maxUnreadable {
		u.abort = errTooManyUnreadable
		return false
	}
	return true
}

// err returns the error of the list, nil if every object was read.
func (u *unreadable) err(resource schema.GroupResource) error {
	if len(u.errs) == 0 {
		return u.abort
	}
	message := fmt.Sprintf("failed to read one or more %s from the storage: %v", resource, u.errs[0])
	if more := len(u.errs) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: message,
		Details: &metav1.StatusDetails{
			Group:  resource.Group,
			Kind:   resource.Resource,
			Name:   "list",
			Causes: u.causes(),
		},
	}}
}

func (u *unreadable) causes() []metav1.StatusCause {
	var causes []metav1.StatusCause
	for _, err := range u.errs {
		cause := metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Message: err.Error()}
		if stored := (*storage.StorageError)(nil); errors.As(err, &stored) {
			cause.Field = stored.Key
		}
		causes = append(causes, cause)
	}
	switch {
	case errors.Is(u.abort, errTooManyUnreadable):
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: u.abort.Error()})
	case u.abort != nil:
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Message: u.abort.Error()})
	}
	return causes
}

// Clients and the tests of the API machinery match the messages below.
var (
	listExpired     = "The resourceVersion for the provided list is too old."
	watchExpired    = "The resourceVersion for the provided watch is too old."
	continueExpired = strings.Join([]string{
		"The provided continue parameter is too old to display a consistent list result.",
		"You can start a new list without the continue parameter, or use the continue token",
		"in this response to retrieve the remainder of the results. Continuing with the",
		"provided token results in an inconsistent list - objects that were created, modified,",
		"or deleted between the time the first chunk was returned and now may show up in the list.",
	}, " ")
)

// aheadError is the error of a watch from a revision above the published one.
type aheadError struct{ wanted, current uint64 }

// Error starts like the message of a list at such a revision.
func (e *aheadError) Error() string {
	return fmt.Sprintf("Too large resource version: %d, current: %d: the version belongs to another store, or to this store before an "+
		"older copy was restored; list again",
		e.wanted, e.current)
}

// tooSlow returns the error of a read that took longer than its caller waits.
func tooSlow(key string) error {
	return storage.NewTimeoutError(key, "request did not complete within requested timeout")
}

// listCompacted returns the error of a list at a compacted revision. For a continued list it holds a token that
// continues from the same key at the latest revision.
func listCompacted(continueKey, prefix string) error {
	if continueKey == "" {
		return apierrors.NewResourceExpired(listExpired)
	}
	token, err := storage.EncodeContinue(continueKey, prefix, -1)
	if err != nil {
		return fmt.Errorf("encode continue token: %w", err)
	}
	expired := apierrors.NewResourceExpired(continueExpired)
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}

// watchStatus returns the object of the ERROR event that ends a watch.
func watchStatus(err error) *metav1.Status {
	if errors.Is(err, errCompacted) {
		err = apierrors.NewResourceExpired(watchExpired)
	}
	if ahead := (*aheadError)(nil); errors.As(err, &ahead) {
		err = apierrors.NewResourceExpired(ahead.Error())
	}
	if lost := (*deletedCorrupt)(nil); errors.As(err, &lost) {
		return &metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    http.StatusInternalServerError,
			Reason:  metav1.StatusReasonStoreReadError,
			Message: lost.Error(),
		}
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	result := status.Status()
	return &result
}

// deletedCorrupt reports the deletion of an unreadable object.
type deletedCorrupt struct{ err *corruptError }

func (e *deletedCorrupt) Error() string {
	return fmt.Sprintf("saw a DELETED event, but object data is corrupt - %v", e.err)
}
