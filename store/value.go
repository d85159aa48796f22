package store

import (
	"context"
	"iter"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
)

// Value is what is stored of one object, as it is stored.
type Value struct {
	// Key is the object's, as storage.Interface takes it; it begins with the
	// resource's Prefix.
	Key string
	// Revision is that of the object's last change, its resource version.
	Revision uint64
	// Expires is when the backend deletes the object by itself; the zero time is
	// never.
	Expires time.Time
	// Data is what the resource's Transformer made of what its Codec wrote; without
	// a transformer, what the codec wrote. It must not be changed.
	Data []byte
	// Context is what the transformer is given with Data. Providers that authenticate
	// refuse Data under any other, so that a value cannot be copied as it is to
	// another key, nor to a backend whose Context for the key differs: there it has
	// to be decrypted with this one, and encrypted anew.
	Context value.DefaultContext
}

// ValueReader is a Backend that gives what is stored as it is stored, also of
// objects that cannot be decrypted or decoded.
type ValueReader interface {
	Backend

	// Values yields every object of the resource with the given prefix, in the order
	// of keys. Objects that are written, created or deleted meanwhile may be yielded
	// as they were or as they are. An error ends it.
	Values(ctx context.Context, prefix string) iter.Seq2[Value, error]
}
