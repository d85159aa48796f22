package etcdtest_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"

	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/etcd"
	"github.com/annexapi/annex/store/storetest"
)

// compacting is a backend whose etcd the test compacts.
type compacting struct {
	store.Backend
	client *clientv3.Client
	opened []storage.Interface
}

// Open implements store.Backend. It returns once the storage is ready.
func (c *compacting) Open(resource store.Resource) (storage.Interface, error) {
	opened, err := c.Backend.Open(resource)
	if err != nil {
		return nil, err
	}
	c.opened = append(c.opened, opened)
	return opened, testwait.Retry(context.Background(), func(context.Context) error { return opened.ReadinessCheck() })
}

// Compact implements storetest.Backend. It returns once the storages know the new compacted revision, which they read
// from a key written by the compacting replica.
func (c *compacting) Compact(ctx context.Context, revision uint64) error {
	var version int64
	for compacted := int64(0); compacted != int64(revision); {
		var err error
		if version, _, compacted, err = etcd3.Compact(ctx, c.client, version, int64(revision)); err != nil {
			return err
		}
	}
	return testwait.Retry(ctx, func(context.Context) error {
		for _, opened := range c.opened {
			if known := opened.CompactRevision(); known < int64(revision) {
				return fmt.Errorf("the storage knows of compaction up to %d, not %d", known, revision)
			}
		}
		return nil
	})
}

// suiteBackend keeps objects at the keys that the suite names.
func suiteBackend(options etcd.Options) storetest.OpenBackend {
	return func(t testing.TB, needs storetest.Needs) storetest.Backend {
		members := startCluster(t, 1, func(config *embed.Config) {
			config.WatchProgressNotifyInterval = needs.BookmarkInterval
			config.TickMs, config.ElectionMs = 10, 100 // it elects itself
		})
		options.Endpoints, options.Prefix, options.StartTimeout = endpoints(members), "/", patience
		backend, err := etcd.Open(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		return &compacting{Backend: backend, client: client(t, members)}
	}
}

func TestStorage(t *testing.T) {
	storetest.RunStorageWith(t, "etcd", suiteBackend(etcd.Options{NoWatchCache: true}), direct())
}

// direct returns the traits of etcd without a watch cache.
func direct() storetest.Traits {
	return storetest.Traits{
		NoBookmarks: true, NoSizes: true, CompactionRaises: true,
		NotRun: map[string]string{
			"RunTestOptionalWatchBookmarksWithCorrectResourceVersion": "only the watch cache sends bookmarks with objects' versions; upstream " +
				"runs it on the cache only",
			"RunTestGetListWithErrorAggregation": "upstream runs it beneath the transformer that its factory adds, which " +
				"calls every error a corrupt object",
		},
	}
}

func TestStorage_encrypted(t *testing.T) {
	traits := direct()
	maps.Copy(traits.NotRun, storetest.WithoutSizes)
	storetest.RunStorageWith(t, "etcd with secretbox",
		storetest.Encrypted(suiteBackend(etcd.Options{NoWatchCache: true}), storetest.Ciphers(t)["secretbox"]), traits)
}

func TestStorage_watchCache(t *testing.T) {
	const behind = "it makes stored objects unreadable behind the back of a cache that holds them; upstream does not run it on the cache"
	storetest.RunStorageWith(t, "etcd with watch cache", suiteBackend(etcd.Options{}), storetest.Traits{
		Cached: true, CompactionRaises: true,
		NotRun: map[string]string{
			"RunTestGetListWithErrorAggregation":    behind,
			"RunTestGetListWithoutErrorAggregation": behind,
			"RunTestTransformationFailure":          behind,
			"RunTestWatchError":                     behind,
			"RunTestWatchWithUnsafeDelete":          behind,
			"RunWatchErrorIsBlockingFurtherEvents":  behind,
			"RunTestList":                           "it counts requests to etcd, through a client that the factory does not accept from outside",
			"RunTestListInconsistentContinuation": "it begins with a page at resource version 0, for which the cache ignores the limit; " +
				"upstream does not run it on the cache",
			"RunTestWatchFromZero":          "the cache keeps history that etcd has compacted; upstream empties it from within",
			"RunOptionalTestProgressNotify": "it is what etcd tells a cache; upstream does not run it on the cache",
		},
	})
}
