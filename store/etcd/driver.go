package etcd

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/driver"
)

// Name is the name of the storage.
const Name = "etcd"

type cluster struct{ options Options }

var _ store.SnapshotWriter = cluster{}

// Cluster returns a driver that keeps objects in an etcd cluster, which replicas of the server share, or in another
// server with etcd's protocol. The Logger is the server's. If StartTimeout is 0, tools that only read or copy give up
// after 20 seconds.
func Cluster(options Options) store.SnapshotWriter { return cluster{options} }

func (c cluster) Name() string { return Name }

func (c cluster) Traits() driver.Traits { return driver.Traits{Remote: true} }

func (c cluster) Validate(string) error { return c.options.Validate() }

func (c cluster) Location(string) string {
	endpoints := slices.Sorted(slices.Values(c.options.Endpoints))
	return strings.Join(endpoints, ",") + root(c.options.Prefix)
}

func (c cluster) OpenBackend(ctx context.Context, env driver.Env) (store.Backend, error) {
	options := c.options
	options.Logger = env.Logger
	if options.StartTimeout == 0 && env.Idle {
		options.StartTimeout = 20 * time.Second
	}
	return Open(ctx, options)
}

func (c cluster) ValueContext(key string) value.DefaultContext {
	return ValueContext(c.options.Prefix, key)
}

func (c cluster) WriteSnapshot(ctx context.Context, file string, base uint64, values iter.Seq2[store.Value, error]) (uint64, error) {
	return WriteSnapshot(ctx, file, c.options.Prefix, base, values)
}

var (
	_ store.Connecter = (*Backend)(nil)
	_ store.Metered   = (*Backend)(nil)
)

// Collectors implements store.Metered with the results of the last probe.
func (b *Backend) Collectors(labels prometheus.Labels) []prometheus.Collector {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
	}
	return []prometheus.Collector{
		prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: "annex_storage_revision", Help: "Newest revision that readers see.", ConstLabels: labels},
			func() float64 { return float64(b.Revision()) },
		),
		gauge("annex_storage_database_bytes", "Size of etcd's database; 0 if unknown.", func() float64 { return float64(b.DatabaseSize()) }),
		gauge("annex_storage_read_only", "1 while the storage accepts no writes, else 0.", func() float64 {
			if b.Health() != nil {
				return 1
			}
			return 0
		}),
	}
}
