package objects

import "context"

type unreadKey struct{}

// WithDeletedUnread returns a context in which a caller of storage.Interface's Delete changes no object that its
// validation is shown, and does not look at what Delete sets to the deleted object. A storage that keeps objects as they
// are need not copy any then, and may leave what it would set as it is.
func WithDeletedUnread(ctx context.Context) context.Context {
	return context.WithValue(ctx, unreadKey{}, true)
}

// DeletedUnread says whether a context is of WithDeletedUnread.
func DeletedUnread(ctx context.Context) bool { return ctx.Value(unreadKey{}) != nil }
