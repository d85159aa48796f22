package virtual

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/annexapi/annex/internal/base/objects"
)

// row is an object as the source gave it, ready for the mirror.
type row struct {
	key     string
	version string
	sum     uint64
	object  runtime.Object
}

// row checks an object of the source and completes what it may leave out. The
// object itself stays as it is: the source may have kept it.
func (m *Mirror) row(obj runtime.Object) (*row, error) {
	given := objects.Meta(obj)
	key, err := m.checkNames(given.GetNamespace(), given.GetName())
	if err != nil {
		return nil, err
	}
	r := &row{key: key, version: given.GetResourceVersion(), object: shallow(obj)}
	object := objects.Meta(r.object)
	object.SetResourceVersion("")
	if object.GetUID() == "" {
		object.SetUID(m.uid(object))
	}
	if r.version == "" {
		if r.sum, err = m.sum(r.object); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return r, nil
}

// checkNames returns the key of an object of the source.
func (m *Mirror) checkNames(namespace, name string) (string, error) {
	switch {
	case name == "":
		return "", fmt.Errorf("an object in namespace %q has no name", namespace)
	case m.kind.ClusterScoped && namespace != "":
		return "", fmt.Errorf("%q is in namespace %q, but %s are cluster-scoped", name, namespace, m.kind.GroupResource())
	case !m.kind.ClusterScoped && namespace == "":
		return "", fmt.Errorf("%q has no namespace", name)
	}
	for _, part := range [...]string{namespace, name} {
		if msgs := content.IsPathSegmentName(part); len(msgs) > 0 {
			return "", fmt.Errorf("%q cannot be a name: %s", part, strings.Join(msgs, "; "))
		}
	}
	return m.keyOf(namespace, name), nil
}

// uid is that of an object whose source gives none: the same each time, on all
// servers, and another one for an object of that name created at another time, if
// the source tells when.
func (m *Mirror) uid(object metav1.Object) types.UID {
	who := strings.Join([]string{m.kind.Group, m.kind.Resource, object.GetNamespace(), object.GetName()}, "/")
	if created := object.GetCreationTimestamp(); !created.IsZero() {
		who += "@" + created.UTC().Format(time.RFC3339)
	}
	return types.UID(uuid.NewSHA1(uuid.NameSpaceURL, []byte(who)).String())
}

// sum tells an object from its other versions.
func (m *Mirror) sum(object runtime.Object) (uint64, error) {
	data, err := m.encode(object)
	if err != nil {
		return 0, err
	}
	return max(1, maphash.Bytes(m.seed, data)), nil
}

// encode runs users' conversions, where a panic must not go on.
func (m *Mirror) encode(object runtime.Object) (data []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic while encoding: %v", reason)
		}
	}()
	return runtime.Encode(m.resource.Codec, shallow(object))
}

// same says whether the mirror shows what the row says.
func (e *entry) same(version string, sum uint64) bool {
	return e.version == version && e.sum == sum
}

// shallow copies an object, so that its metadata can be set.
func shallow(obj runtime.Object) runtime.Object {
	to := reflect.New(reflect.TypeOf(obj).Elem())
	to.Elem().Set(reflect.ValueOf(obj).Elem())
	return to.Interface().(runtime.Object)
}
