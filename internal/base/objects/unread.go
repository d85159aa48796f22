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

// WithDeletedUnread returns a context in which a caller of storage.Interface's Delete does not look at what Delete sets
// to the deleted object, and whose validation may be shown an *Unread in place of it. A storage that keeps objects as
// they are need then neither decode nor copy any, and may leave what it would set as it is.
func WithDeletedUnread(ctx context.Context) context.Context {
	return context.WithValue(ctx, unreadKey{}, true)
}

// DeletedUnread says whether a context is of WithDeletedUnread.
func DeletedUnread(ctx context.Context) bool { return ctx.Value(unreadKey{}) != nil }

// WithUnreadValidated returns a context in which the validation that an endpoint's Delete is given takes an *Unread.
func WithUnreadValidated(ctx context.Context) context.Context {
	return context.WithValue(ctx, validatesUnreadKey{}, true)
}

// ValidatesUnread says whether a context is of WithUnreadValidated.
func ValidatesUnread(ctx context.Context) bool { return ctx.Value(validatesUnreadKey{}) != nil }

// Unread is a stored object of which no more is known than an answer to its deletion needs, until something asks for all
// of it. Its methods may be called concurrently.
type Unread struct {
	Name string
	UID  types.UID
	// Held says that the object has finalizers.
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

// NewUnread returns an object that is read when it is asked for, if it is. empty makes an object of its type.
func NewUnread(name string, uid types.UID, held bool, read func() (runtime.Object, error), empty func() runtime.Object) *Unread {
	return &Unread{Name: name, UID: uid, Held: held, read: read, empty: empty}
}

// Object returns the object, which is shared and must not be changed. What is returned if it cannot be read is an empty
// one, and Err says why.
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

// Err says why the object could not be read; nil if that has not been tried. Nothing that was decided about it holds then.
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
