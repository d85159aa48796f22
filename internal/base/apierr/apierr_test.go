package apierr_test

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex/internal/base/apierr"
)

func TestStatus_wrapped(t *testing.T) {
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "widgets"}, "a")
	if got, ok := apierr.Status(missing); !ok || got != error(missing) {
		t.Errorf("a status: %v, %t, want itself", got, ok)
	}
	got, ok := apierr.Status(fmt.Errorf("look up the parent: %w", missing))
	if !ok || !apierrors.IsNotFound(got) || got.Error() != `look up the parent: widgets "a" not found` {
		t.Errorf("a wrapped status: %v, %t", got, ok)
	}
	if _, direct := got.(apierrors.APIStatus); !direct {
		t.Errorf("%T is no status itself", got)
	}
	if got, ok := apierr.Status(errors.New("other")); ok || got != nil {
		t.Errorf("another error: %v, %t", got, ok)
	}
}
