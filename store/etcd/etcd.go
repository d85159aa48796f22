// Package etcd stores objects in an etcd cluster, or in any server with etcd's protocol, with upstream's own store
// and watch cache. It lets any number of replicas of a server share one storage.
//
// The cluster must be etcd 3.5.13 or newer for watches that begin with the current state and for consistent lists
// from the watch cache; with an older one clients fall back to listing, and lists read from etcd.
//
// Upstream keeps some state per process: one compactor for each set of endpoints, and the detected features of the
// etcds that the process talks to, which are those of the weakest of them. Two backends in one process share that
// state.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/annexapi/annex/store"
)

// ErrClosed is returned by calls after Close.
var ErrClosed = errors.New("the storage is closed")

// closeGrace is the time that Close gives writes in progress to finish.
const closeGrace = 5 * time.Second

// Backend implements store.Backend.
type Backend struct {
	options Options
	config  storagebackend.Config
	client  *clientv3.Client // for probes and for reads of single keys; each resource has its own
	gets    *gets
	// createsAlone is set if the server does not support transactions that compare two keys.
	createsAlone atomic.Bool
	// askFeatures detects, once, the features of etcd.
	askFeatures func()
	// running ends when the backend is closed, and background work ends with it.
	running    context.Context
	stop       context.CancelFunc
	background sync.WaitGroup

	// connected is closed once etcd has answered.
	connected chan struct{}

	// revision is the newest revision seen.
	revision atomic.Uint64
	// size is the size of etcd's database in bytes.
	size atomic.Int64

	mu     sync.RWMutex
	health error
	closed bool
	// opened holds the open storages, to be closed in any order.
	opened map[*opened]struct{}
	// writes counts the writes in progress. It grows only with mu held and closed false.
	writes sync.WaitGroup
}

var _ store.Backend = (*Backend)(nil)

// Open connects to etcd. It waits for an answer until Options.StartTimeout has passed or ctx ends. It gives up at
// once if waiting cannot help, as with an untrusted certificate. An error takes one line, and names the endpoints and
// the problem of each.
//
// If StartTimeout is 0, Open tries once, and then returns a backend that keeps trying: see Connected and Health.
//
// The backend does not need ctx any more once it is open.
func Open(ctx context.Context, options Options) (store.Backend, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	options = options.withDefaults()
	b := &Backend{options: options, config: options.config(), connected: make(chan struct{}), opened: map[*opened]struct{}{}}
	var err error
	if b.client, err = newClient(options); err != nil {
		return nil, fmt.Errorf("etcd client: %w", err)
	}
	b.gets = &gets{kv: b.client}
	if err := b.connect(ctx); err != nil {
		_ = b.client.Close()
		return nil, err
	}
	// Upstream's stores ask, too, but only the first client to ask is used, and this client lives longest. A backend
	// without open resources does not need the answer.
	b.askFeatures = sync.OnceFunc(func() {
		etcdfeature.DefaultFeatureSupportChecker.CheckClient(b.client.Ctx(), b.client, storage.RequestWatchProgress)
	})
	b.running, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.background.Go(func() { b.probeUntil(b.running) })
	return b, nil
}

func newClient(options Options) (*clientv3.Client, error) {
	config := clientv3.Config{
		Endpoints:            slices.Clone(options.Endpoints),
		DialKeepAliveTime:    30 * time.Second,
		DialKeepAliveTimeout: 10 * time.Second,
		Logger:               zap.NewNop(),
	}
	var err error
	if config.TLS, err = options.tlsConfig(); err != nil {
		return nil, err
	}
	return clientv3.New(config)
}

// Open implements store.Backend. Each call connects to etcd. The storage has a watch cache of its own in memory if
// the resource has a KeyFunc and Attributes and Options.NoWatchCache is not set. A storage with a watch cache is
// ready once it has read all objects in the background; see its ReadinessCheck. A storage opened before etcd has
// answered rejects requests with 503 until etcd answers.
func (b *Backend) Open(resource store.Resource) (storage.Interface, error) {
	if err := b.open(); err != nil {
		return nil, err
	}
	b.askFeatures()
	decoded := &sizes{}
	resource.Codec = guardedCodec{resource.Codec, decoded}
	view := &resourceStorage{backend: b, resource: resource, reader: newReader(resource), decoded: decoded}
	select {
	case <-b.connected:
		opened, err := b.openNow(resource)
		if err != nil {
			return nil, err
		}
		view.Interface, view.close = opened, opened.close
	default:
		later, err := b.openLater(resource)
		if err != nil {
			return nil, err
		}
		view.Interface, view.close = later, later.close
	}
	return view, nil
}

// opened is a storage with the function that closes it, once.
type opened struct {
	storage.Interface
	close func()
}

// openLater opens a resource once etcd has answered.
func (b *Backend) openLater(resource store.Resource) (*pending, error) {
	later := &pending{resource: resource}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	b.background.Go(func() {
		select {
		case <-b.connected:
		case <-b.running.Done():
			return
		}
		for {
			opened, err := b.openNow(resource)
			if err == nil {
				err = later.settle(opened)
			}
			if err == nil || errors.Is(err, ErrClosed) {
				return
			}
			b.options.Logger.Error("Cannot open a resource in etcd, trying again", "reason", err)
			select {
			case <-b.running.Done():
				return
			case <-time.After(b.options.HealthcheckTimeout / 4):
			}
		}
	})
	return later, nil
}

func (b *Backend) openNow(resource store.Resource) (*opened, error) {
	direct, destroy, err := b.newStorage(resource)
	if err != nil {
		if reason := b.Health(); reason != nil {
			err = reason
		}
		return nil, fmt.Errorf("open %s in etcd: %w", resource.Resource, err)
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		destroy()
		return nil, ErrClosed
	}
	o := &opened{Interface: direct}
	o.close = sync.OnceFunc(func() {
		b.mu.Lock()
		delete(b.opened, o)
		b.mu.Unlock()
		destroy()
	})
	b.opened[o] = struct{}{}
	return o, nil
}

func (b *Backend) newStorage(resource store.Resource) (storage.Interface, factory.DestroyFunc, error) {
	config := b.config.ForResource(resource.Resource)
	config.Codec, config.Transformer = resource.Codec, resource.Transformer
	// The slash excludes keys of a resource whose prefix merely begins with the same letters.
	prefix := resource.Prefix + "/"
	direct, destroy, err := factory.Create(*config, resource.New, resource.NewList, prefix)
	if err != nil || b.options.NoWatchCache || resource.KeyFunc == nil || resource.Attributes == nil {
		return direct, destroy, err
	}

	cache, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             direct,
		Versioner:           storage.APIObjectVersioner{},
		GroupResource:       resource.Resource,
		EventsHistoryWindow: config.EventsHistoryWindow,
		ResourcePrefix:      prefix,
		KeyFunc:             resource.KeyFunc,
		GetAttrsFunc:        guardedAttributes(resource.Attributes, b.options.Logger),
		IndexerFuncs:        guardedTriggers(resource.Triggers),
		Indexers:            guardedIndexers(resource.Indexers),
		NewFunc:             resource.New,
		NewListFunc:         resource.NewList,
		Codec:               resource.Codec,
	})
	if err != nil {
		destroy()
		return nil, nil, fmt.Errorf("watch cache: %w", err)
	}
	delegator := cacher.NewCacheDelegator(cache, direct)
	return delegator, func() {
		delegator.Stop()
		cache.Stop()
		destroy()
	}, nil
}

// Revision implements store.Backend. etcd counts all writes, including those of other processes and to other
// prefixes. Revision returns the newest revision that this process has learned of, from its own writes and from its
// probes of etcd's health. It trails the writes of others by about half of Options.HealthcheckTimeout, and stands
// still while etcd does not answer. It never falls while the backend is open, and across restarts only if etcd itself
// is reset to an older state.
func (b *Backend) Revision() uint64 { return b.revision.Load() }

// Connected returns a channel that is closed once etcd has answered for the first time. It is closed when Open
// returns, unless Options.StartTimeout is 0.
func (b *Backend) Connected() <-chan struct{} { return b.connected }

// DatabaseSize returns the size in bytes of the database of the member that was probed last, history and free pages
// included; 0 if it is unknown. etcd accepts no writes when its database reaches its quota.
func (b *Backend) DatabaseSize() int64 { return b.size.Load() }

// Health implements store.Backend. It returns the result of the last probe, and does not wait for one: a read that
// needs a majority of the members must succeed, and no alarm may keep etcd from writing. The error takes one line and
// names the unreachable endpoints.
func (b *Backend) Health() error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return ErrClosed
	}
	return b.health
}

// Close implements store.Backend. Writes in progress have five seconds to finish; after that their connections are
// closed, and their outcome is as uncertain as after any loss of a connection. A second call does nothing.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	open := b.opened
	b.opened = nil
	b.mu.Unlock()

	written := make(chan struct{})
	go func() {
		b.writes.Wait()
		close(written)
	}()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-written:
	case <-grace.C:
	}
	for o := range open {
		o.close()
	}
	<-written

	b.stop()
	b.background.Wait()
	if err := b.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the client of etcd: %w", err)
	}
	return nil
}

func (b *Backend) open() error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return ErrClosed
	}
	return nil
}

// beginWrite keeps the connections open until the write calls b.writes.Done.
func (b *Backend) beginWrite() error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return ErrClosed
	}
	b.writes.Add(1)
	return nil
}

func (b *Backend) seen(revision uint64) {
	for {
		newest := b.revision.Load()
		if revision <= newest || b.revision.CompareAndSwap(newest, revision) {
			return
		}
	}
}

// endpoints returns the endpoints, for errors.
func (b *Backend) endpoints() string { return strings.Join(b.options.Endpoints, ", ") }
