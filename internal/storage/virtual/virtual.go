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
	storage.Interface // what the mirror shows
	resource          store.Resource
	stop              context.CancelFunc
	following         sync.WaitGroup

	seed   maphash.Seed
	events chan struct{} // the number of watches has changed

	mu      sync.Mutex
	clock   uint64 // counts what happens, to tell what was first
	entries map[string]*entry
	filled  bool
	watches int
	turns   map[string]*turn
	// lists is the turn of those who list.
	lists turn
	// touched are the keys that turns ended with while a list was being read; nil
	// while none is.
	touched map[string]struct{}
}

var _ storage.Interface = (*Mirror)(nil)

// entry is what the mirror knows about an object that it shows.
type entry struct {
	version  string // the source's own; empty if it gives none
	sum      uint64 // of the object's encoding; 0 if there is a version
	revision uint64 // of the mirror
	listed   uint64 // when a list last named it
}

// Open makes the mirror of a virtual kind. It asks the source for nothing. It must
// be closed.
func Open(ctx context.Context, kind *define.Kind, options mvcc.Options) (*Mirror, error) {
	// The time in microseconds, which no earlier mirror has reached: that would take a
	// million changes in every second that it lived, or a clock that was set back.
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

// Close ends all watches and what runs beside requests.
func (m *Mirror) Close() error {
	m.stop()
	m.following.Wait()
	return m.core.Close()
}

// Over returns getter with the mirror as the storage of its kind.
func (m *Mirror) Over(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return mirrored{getter, m}
}

type mirrored struct {
	getter generic.RESTOptionsGetter
	mirror *Mirror
}

func (g mirrored) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
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

// keyOf returns the key of an object by its names.
func (m *Mirror) keyOf(namespace, name string) string {
	if m.kind.ClusterScoped {
		return m.resource.Prefix + "/" + name
	}
	return m.resource.Prefix + "/" + namespace + "/" + name
}

// namesOf is the reverse of keyOf. It is false for a key that is none of an object.
func (m *Mirror) namesOf(key string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(key, m.resource.Prefix+"/")
	if ok && !m.kind.ClusterScoped {
		namespace, rest, ok = strings.Cut(rest, "/")
	}
	return namespace, rest, ok && rest != "" && !strings.Contains(rest, "/")
}

// tick returns the next moment.
func (m *Mirror) tick() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock++
	return m.clock
}
