package define

import (
	"context"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/base/apierr"
)

// Source is the system that contains the objects of a virtual kind. Objects are pointers to the hub's Go type.
// Unsupported functions are nil.
type Source struct {
	Get    func(ctx context.Context, namespace, name string) (runtime.Object, error)
	List   func(ctx context.Context) ([]runtime.Object, error)
	Create func(ctx context.Context, obj runtime.Object) error
	Update func(ctx context.Context, obj, old runtime.Object) error
	Delete func(ctx context.Context, old runtime.Object) error
	// KeepsMetadata means that Get and List return the metadata that clients have written.
	KeepsMetadata bool
	Changes       func(ctx context.Context, changed func(namespace, name string)) error
	Poll          time.Duration
}

// Watched reports whether the server notices when objects of the source change.
func (s *Source) Watched() bool { return s.Changes != nil || s.Poll > 0 }

// The errors with which functions of a source report the state of an object. They are API statuses: other functions
// of the user may return them as well.
var (
	ErrNotFound      error = apierr.New(http.StatusNotFound, metav1.StatusReasonNotFound, "object not found")
	ErrAlreadyExists error = apierr.New(http.StatusConflict, metav1.StatusReasonAlreadyExists, "the object exists already")
	ErrConflict      error = apierr.New(http.StatusConflict, metav1.StatusReasonConflict, "the object has changed since it was read")
)

// StorageConstructor creates the REST storage of a kind for one server. The environment is the façade's handle on
// that server, and table converts objects to the kind's columns.
type StorageConstructor func(env any, kind *Kind, table rest.TableConvertor) (rest.Storage, error)

// IsStored reports whether the server stores the kind's objects itself.
func (k *Kind) IsStored() bool {
	primary := k.Primary()
	return primary.Source == nil && primary.CustomStorage == nil
}
