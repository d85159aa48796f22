package store

import (
	"context"
	"iter"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
)

// Value is an object in its stored form: encoded, and possibly encrypted.
type Value struct {
	// Key is the object's key, as storage.Interface takes it; it begins with the resource's Prefix.
	Key string
	// Revision is the revision of the object's last change, its resource version.
	Revision uint64
	// Expires is the time when the backend deletes the object by itself; the zero time is never.
	Expires time.Time
	// Data is the output of the resource's Codec, transformed by its Transformer if there is one. It must not be
	// changed.
	Data []byte
	// Context is the encryption context that the transformer gets with Data. Authenticating providers reject Data
	// under any other context. So a value cannot be copied unchanged to another key, nor to a backend whose Context
	// for the key differs: it has to be decrypted with this context and encrypted anew.
	Context value.DefaultContext
}

// ValueReader is a Backend that yields values in their stored form, including values that cannot be decrypted or
// decoded.
type ValueReader interface {
	Backend

	// Values yields every object of the resource with the given prefix, in the order of keys. An object that is
	// written, created or deleted meanwhile may be yielded in its old or its new state. It ends at the first error.
	Values(ctx context.Context, prefix string) iter.Seq2[Value, error]
}
