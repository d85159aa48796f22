package store

import (
	"context"
	"iter"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/store/driver"
)

// Driver is a driver of a backend with revisions of its own.
type Driver interface {
	driver.Driver
	// OpenBackend opens the backend. The context bounds the opening only. The caller closes
	// the backend.
	OpenBackend(ctx context.Context, env driver.Env) (Backend, error)
}

// Connecter is a Backend that may be open before it can be reached.
type Connecter interface {
	Backend
	// Connected is closed when the backend has been reached once.
	Connected() <-chan struct{}
}

// Metered is a Backend that has figures of its own. Those of the revisioned core and its
// journals are the server's.
type Metered interface {
	Backend
	// Collectors return them, with the given labels. They are collected until the backend
	// is closed.
	Collectors(labels prometheus.Labels) []prometheus.Collector
}

// SnapshotWriter is a driver whose storage can be filled by a file that its own tools
// restore.
type SnapshotWriter interface {
	Driver
	// ValueContext is the Context of values at a key of the storage.
	ValueContext(key string) value.DefaultContext
	// WriteSnapshot writes values into a new file, with revisions above base, and returns
	// the last of them. The Data of values has been transformed for their ValueContext.
	WriteSnapshot(ctx context.Context, file string, base uint64, values iter.Seq2[Value, error]) (last uint64, err error)
}
