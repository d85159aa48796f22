package apierr_test

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/annexapi/annex/internal/base/apierr"
)

func TestNew_status(t *testing.T) {
	t.Parallel()
	size := field.Required(field.NewPath("spec", "size"), "name one")
	colour := field.NotSupported(field.NewPath("spec", "colour"), "red", []string{"blue"})
	causeOf := func(e *field.Error) metav1.StatusCause {
		return metav1.StatusCause{Type: metav1.CauseType(e.Type), Field: e.Field, Message: e.ErrorBody()}
	}
	for name, test := range map[string]struct {
		format  string
		args    []any
		message string
		causes  []metav1.StatusCause
	}{
		"text":        {format: "all is odd", message: "all is odd"},
		"arguments":   {format: "%d is odd", args: []any{3}, message: "3 is odd"},
		"cause":       {format: "read: %w", args: []any{io.EOF}, message: "read: EOF"},
		"field error": {format: "%w", args: []any{size}, message: size.Error(), causes: []metav1.StatusCause{causeOf(size)}},
		"wrapped field": {format: "%w", args: []any{fmt.Errorf("look: %w", size)}, message: "look: " + size.Error(),
			causes: []metav1.StatusCause{causeOf(size)}},
		"several": {format: "%w and %w", args: []any{size, colour}, message: size.Error() + " and " + colour.Error(),
			causes: []metav1.StatusCause{causeOf(size), causeOf(colour)}},
		"list": {format: "%w", args: []any{field.ErrorList{size, colour}.ToAggregate()},
			message: "[" + size.Error() + ", " + colour.Error() + "]", causes: []metav1.StatusCause{causeOf(size), causeOf(colour)}},
	} {
		t.Run(name, func(t *testing.T) {
			err := apierr.New(422, metav1.StatusReasonInvalid, test.format, test.args...)
			want := metav1.Status{Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid, Message: test.message}
			if test.causes != nil {
				want.Details = &metav1.StatusDetails{Causes: test.causes}
			}
			if got := err.Status(); !reflect.DeepEqual(got, want) || err.Error() != test.message {
				t.Errorf("got %+v, %q, want %+v", got, err, want)
			}
			if !apierrors.IsInvalid(fmt.Errorf("below: %w", err)) {
				t.Error("it is not found below another error")
			}
		})
	}
	if err := apierr.New(409, metav1.StatusReasonConflict, "read: %w", io.EOF); !errors.Is(err, io.EOF) {
		t.Errorf("%v does not wrap its cause", err)
	}
}

func TestError_retryAfter(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]int32{-time.Second: 0, 0: 0, 1: 1, time.Second: 1, 1500 * time.Millisecond: 2} {
		first := apierr.New(429, metav1.StatusReasonTooManyRequests, "busy")
		later := first.RetryAfter(after)
		var got int32
		if details := later.Status().Details; details != nil {
			got = details.RetryAfterSeconds
		}
		if got != want || later.Error() != "busy" {
			t.Errorf("%v: got %d, %q, want %d", after, got, later, want)
		}
		if first.Status().Details != nil {
			t.Errorf("%v: the error itself has changed", after)
		}
	}
}
