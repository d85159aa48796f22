package objects

import (
	"context"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

type (
	unreadKey          struct{}
	validatesUnreadKey struct{}
)

// WithDeletedUnread returns a context for Delete of storage.Interface whose caller does not look at the deleted
// object that Delete sets, and whose validation accepts an *Unread in place of it. A storage that keeps encoded
// objects then need not decode or copy any, and may leave the output object unchanged.
func WithDeletedUnread(ctx context.Context) context.Context {
	return context.WithValue(ctx, unreadKey{}, true)
}

// DeletedUnread reports whether a context comes from WithDeletedUnread.
func DeletedUnread(ctx context.Context) bool { return ctx.Value(unreadKey{}) != nil }

// WithUnreadValidated returns a context in which the validation passed to an endpoint's Delete accepts an *Unread.
func WithUnreadValidated(ctx context.Context) context.Context {
	return context.WithValue(ctx, validatesUnreadKey{}, true)
}

// ValidatesUnread reports whether a context comes from WithUnreadValidated.
func ValidatesUnread(ctx context.Context) bool { return ctx.Value(validatesUnreadKey{}) != nil }

// Unread is a stored object that is read only when more of it is needed than the response to its deletion. Its
// methods may be called concurrently.
type Unread struct {
	Name string
	UID  types.UID
	// Held reports that the object has finalizers.
	Held bool

	once   sync.Once
	read   func() (runtime.Object, error)
	empty  func() runtime.Object
	object runtime.Object
	failed atomic.Pointer[error]
}

var (
	_ runtime.Object            = (*Unread)(nil)
	_ metav1.ObjectMetaAccessor = (*Unread)(nil)
)

// NewUnread returns an object that read returns on demand. empty returns an empty object of its type.
func NewUnread(name string, uid types.UID, held bool, read func() (runtime.Object, error), empty func() runtime.Object) *Unread {
	return &Unread{Name: name, UID: uid, Held: held, read: read, empty: empty}
}

// Object returns the object, which is shared and must not be changed. If the object cannot be read, Object returns an
// empty one, and Err returns the reason.
func (u *Unread) Object() runtime.Object {
	u.once.Do(func() {
		var err error
		if u.object, err = u.read(); err != nil {
			u.object = u.empty()
			u.failed.Store(&err)
		}
	})
	return u.object
}

// Err returns the error of reading the object; nil if there was none or the object was not read. After an error, no
// decision about the object is valid.
func (u *Unread) Err() error {
	if err := u.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// GetObjectKind implements runtime.Object.
func (u *Unread) GetObjectKind() schema.ObjectKind { return u.Object().GetObjectKind() }

// DeepCopyObject implements runtime.Object: it returns a copy of the object.
func (u *Unread) DeepCopyObject() runtime.Object { return u.Object().DeepCopyObject() }

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (u *Unread) GetObjectMeta() metav1.Object { return Meta(u.Object()) }
