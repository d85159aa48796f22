package mvcc

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/annexapi/annex/internal/storage/mvcc/index"
	"github.com/annexapi/annex/store"
)

// resourceStore is the storage.Interface of one resource.
type resourceStore struct {
	core     *Core
	keyspace *keyspace
	resource store.Resource
	indexes  *index.Indexes[*version]
	// tellsCorrupt is set if unreadable objects are reported as corrupt, so that an unsafe deletion can delete them
	// without reading them.
	tellsCorrupt bool
	// open ends when the store is closed.
	open  context.Context
	close context.CancelFunc
}

var (
	_ store.ConditionalWriter = (*resourceStore)(nil)
	_ store.Closer            = (*resourceStore)(nil)
)

var versioner = storage.APIObjectVersioner{}

func newResourceStore(c *Core, keyspace *keyspace, resource store.Resource) *resourceStore {
	s := &resourceStore{
		core:         c,
		keyspace:     keyspace,
		resource:     resource,
		tellsCorrupt: utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion),
	}
	s.open, s.close = context.WithCancel(context.Background())
	s.indexes = newIndexes(s)
	return s
}

// Close implements store.Closer.
func (s *resourceStore) Close() {
	s.close()
	s.keyspace.watches.closeOf(s)
	s.indexes.Close()
}

// Versioner implements storage.Interface.
func (s *resourceStore) Versioner() storage.Versioner { return versioner }

// key validates a key, which must start with the resource's prefix. A recursive key gets a slash at its end.
func (s *resourceStore) key(key string, recursive bool) (string, error) {
	return storage.PrepareKey(s.keyspace.prefix, key, recursive)
}

// Get implements storage.Interface.
func (s *resourceStore) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	prepared, err := s.key(key, false)
	if err != nil {
		return err
	}
	v, revision := s.core.get(prepared)
	if err := notOlderThan(opts.ResourceVersion, revision); err != nil {
		return err
	}
	if v.live() == 0 {
		if opts.IgnoreNotFound {
			return runtime.SetZeroValue(out)
		}
		return storage.NewKeyNotFoundError(prepared, 0)
	}
	if err := holdObject(ctx, v, false); err != nil {
		return err
	}
	object, err := s.object(ctx, v)
	if err != nil {
		return getError(key, err)
	}
	return s.copyTo(out, object)
}

// tooLargeRetrySeconds is the delay after which a client should retry a revision that is not reached yet.
const tooLargeRetrySeconds = 1

// notOlderThan returns an error if a requested revision is not reached yet.
func notOlderThan(resourceVersion string, current uint64) error {
	if resourceVersion == "" {
		return nil
	}
	wanted, err := versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
	}
	if wanted > current {
		return storage.NewTooLargeResourceVersionError(wanted, current, tooLargeRetrySeconds)
	}
	return nil
}

// Stats implements storage.Interface.
func (s *resourceStore) Stats(context.Context) (storage.Stats, error) {
	s.core.mu.RLock()
	defer s.core.mu.RUnlock()
	stats := storage.Stats{ObjectCount: s.keyspace.objects}
	if stats.ObjectCount > 0 {
		stats.EstimatedAverageObjectSizeBytes = s.keyspace.bytes / stats.ObjectCount
	}
	return stats, nil
}

// EnableResourceSizeEstimation implements storage.Interface. Sizes are always known exactly.
func (s *resourceStore) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("KeysFunc cannot be nil")
	}
	return nil
}

// ReadinessCheck implements storage.Interface.
func (s *resourceStore) ReadinessCheck() error { return s.core.Health() }

// RequestWatchProgress implements storage.Interface. Every watch of the resource that requested progress notifications
// gets a bookmark now.
func (s *resourceStore) RequestWatchProgress(context.Context) error {
	s.keyspace.watches.requestProgress()
	return nil
}

// GetCurrentResourceVersion implements storage.Interface.
func (s *resourceStore) GetCurrentResourceVersion(context.Context) (uint64, error) {
	return s.core.Revision(), nil
}

// CompactRevision implements storage.Interface.
func (s *resourceStore) CompactRevision() int64 { return int64(s.core.CompactedRevision()) }
