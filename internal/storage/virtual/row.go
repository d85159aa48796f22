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

// row is an object from the source in the form for the mirror.
type row struct {
	key     string
	version string
	sum     uint64
	object  runtime.Object
}

// row validates an object from the source and sets the fields that the source may leave out. It does not change the
// object itself, which the source may still use.
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

// checkNames validates the names of an object from the source and returns its key.
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

// uid returns the UID of an object whose source provides none. It is always the same, on all servers. An object of the
// same name that is created at another time has another UID, if the source provides the creation time.
func (m *Mirror) uid(object metav1.Object) types.UID {
	who := strings.Join([]string{m.kind.Group, m.kind.Resource, object.GetNamespace(), object.GetName()}, "/")
	if created := object.GetCreationTimestamp(); !created.IsZero() {
		who += "@" + created.UTC().Format(time.RFC3339)
	}
	return types.UID(uuid.NewSHA1(uuid.NameSpaceURL, []byte(who)).String())
}

// sum returns a hash that distinguishes the versions of an object.
func (m *Mirror) sum(object runtime.Object) (uint64, error) {
	data, err := m.encode(object)
	if err != nil {
		return 0, err
	}
	return max(1, maphash.Bytes(m.seed, data)), nil
}

// encode encodes an object. It calls conversions of users, and their panics become errors.
func (m *Mirror) encode(object runtime.Object) (data []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic while encoding: %v", reason)
		}
	}()
	return runtime.Encode(m.resource.Codec, shallow(object))
}

// same reports whether an entry has the version and hash of a row.
func (e *entry) same(version string, sum uint64) bool {
	return e.version == version && e.sum == sum
}

// shallow copies the struct of an object, so that its metadata can be set.
func shallow(obj runtime.Object) runtime.Object {
	to := reflect.New(reflect.TypeOf(obj).Elem())
	to.Elem().Set(reflect.ValueOf(obj).Elem())
	return to.Interface().(runtime.Object)
}
