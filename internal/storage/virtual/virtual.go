package virtual

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/annexapi/annex/internal/base/ordered"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/decorator"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store"
	"github.com/annexapi/annex/store/memory"
)

// Mirror is the storage of one virtual kind.
type Mirror struct {
	kind   *define.Kind
	source *define.Source
	core   *mvcc.Core

	// Set when the storage is opened.
	storage.Interface // of the mirror's core
	resource          store.Resource
	stop              context.CancelFunc
	following         sync.WaitGroup

	seed   maphash.Seed
	events chan struct{} // signals that the number of watches has changed

	mu      sync.Mutex
	clock   uint64 // logical time, which orders calls of the source
	entries map[string]*entry
	filled  bool
	watches int
	turns   map[string]*turn
	// lists is the turn for listing the source.
	lists turn
	// touched are the keys whose turns changed the mirror while a list was being read; nil while there is none.
	touched map[string]struct{}
}

var _ storage.Interface = (*Mirror)(nil)

// entry is the state of an object in the mirror.
type entry struct {
	version  string // the source's own version; empty if it provides none
	sum      uint64 // hash of the encoded object; 0 if there is a version
	revision uint64 // in the mirror
	listed   uint64 // time of the last list with the object
}

// Open returns the mirror of a virtual kind. It does not call the source. The caller must close the mirror.
func Open(ctx context.Context, kind *define.Kind, options mvcc.Options) (*Mirror, error) {
	// The time in microseconds is above every revision of an earlier mirror, unless that mirror had a million changes
	// in every second of its life, or the clock was set back.
	return openAfter(ctx, kind, options, uint64(time.Now().UnixMicro()))
}

func openAfter(ctx context.Context, kind *define.Kind, options mvcc.Options, revision uint64) (*Mirror, error) {
	options.Resident = true
	core, err := mvcc.Open(ctx, memory.NewAfter(revision), options)
	if err != nil {
		return nil, fmt.Errorf("mirror of %s: %w", kind.GroupResource(), err)
	}
	return &Mirror{
		kind:    kind,
		source:  kind.Source,
		core:    core,
		stop:    func() {},
		seed:    maphash.MakeSeed(),
		events:  make(chan struct{}, 1),
		entries: map[string]*entry{},
		turns:   map[string]*turn{},
		lists:   turn{free: newFree()},
	}, nil
}

// Close ends all watches and background work.
func (m *Mirror) Close() error {
	m.stop()
	m.following.Wait()
	return m.core.Close()
}

// Over returns a getter with the mirror as the storage of its kind.
func (m *Mirror) Over(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return mirrorGetter{getter, m}
}

type mirrorGetter struct {
	getter generic.RESTOptionsGetter
	mirror *Mirror
}

func (g mirrorGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.getter.GetRESTOptions(resource, example)
	if err == nil && resource == g.mirror.kind.GroupResource() {
		options.Decorator = decorator.New(g.mirror.open)
	}
	return options, err
}

// open opens the mirror's storage, once.
func (m *Mirror) open(resource store.Resource) (storage.Interface, factory.DestroyFunc, error) {
	resource.Transformer = nil // the mirror is in memory only, and needs no encryption
	err := m.openResource(resource)
	return ordered.Answering(m, m), func() {}, err
}

func (m *Mirror) openResource(resource store.Resource) error {
	if m.Interface != nil {
		return fmt.Errorf("mirror of %s: opened twice", resource.Resource)
	}
	var err error
	if m.Interface, err = m.core.Open(resource); err != nil {
		return err
	}
	m.resource = resource
	if m.source.Watched() {
		var ctx context.Context
		ctx, m.stop = context.WithCancel(context.Background())
		m.following.Go(func() { m.follow(ctx) })
	}
	return nil
}

// keyOf returns the key of the object with these names.
func (m *Mirror) keyOf(namespace, name string) string {
	if m.kind.ClusterScoped {
		return m.resource.Prefix + "/" + name
	}
	return m.resource.Prefix + "/" + namespace + "/" + name
}

// namesOf is the inverse of keyOf. ok is false if the key is not the key of an object.
func (m *Mirror) namesOf(key string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(key, m.resource.Prefix+"/")
	if ok && !m.kind.ClusterScoped {
		namespace, rest, ok = strings.Cut(rest, "/")
	}
	return namespace, rest, ok && rest != "" && !strings.Contains(rest, "/")
}

// tick advances the logical time and returns it.
func (m *Mirror) tick() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock++
	return m.clock
}
