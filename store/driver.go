package store

import (
	"context"
	"iter"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/store/driver"
)

// Driver is a driver of a backend that numbers revisions itself, instead of leaving that to the revisioned core.
type Driver interface {
	driver.Driver
	// OpenBackend opens the backend. The context bounds only the opening, not the life of the backend. The caller
	// closes the backend.
	OpenBackend(ctx context.Context, env driver.Env) (Backend, error)
}

// Connecter is a Backend that can be open before its server answers.
type Connecter interface {
	Backend
	// Connected returns a channel that is closed when the backend has reached its server for the first time.
	Connected() <-chan struct{}
}

// Metered is a Backend with metrics of its own. The server itself measures the revisioned core and its journals.
type Metered interface {
	Backend
	// Collectors returns the backend's collectors, with the given labels. They are registered until the backend is
	// closed.
	Collectors(labels prometheus.Labels) []prometheus.Collector
}

// SnapshotWriter is a driver whose storage can be filled from a snapshot file, restored by the storage's own tools.
type SnapshotWriter interface {
	Driver
	// ValueContext returns the encryption context of values at a key of the storage.
	ValueContext(key string) value.DefaultContext
	// WriteSnapshot writes values into a new file, with revisions above base, and returns the last revision written.
	// The caller has transformed the Data of the values for their ValueContext.
	WriteSnapshot(ctx context.Context, file string, base uint64, values iter.Seq2[Value, error]) (last uint64, err error)
}
