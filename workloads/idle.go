package workloads

import (
	"context"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// idleInformers are shared informers that list and watch only from the first read of a lister on, or if they have a
// handler. Admission plugins ask for a dozen informers, each of which costs ten goroutines, and a test needs few of them.
type idleInformers struct {
	informers.SharedInformerFactory // for the groups that no plugin uses
	client                          kubernetes.Interface
	// stopped ends the wait of readers.
	stopped <-chan struct{}

	mu      sync.Mutex
	all     map[reflect.Type]*idleInformer
	running context.Context // nil before StartWithContext
	work    sync.WaitGroup
}

var _ informers.SharedInformerFactory = (*idleInformers)(nil)

func newIdleInformers(client kubernetes.Interface, stopped <-chan struct{}) *idleInformers {
	return &idleInformers{
		SharedInformerFactory: informers.NewSharedInformerFactory(client, 0),
		client:                client, stopped: stopped, all: map[reflect.Type]*idleInformer{},
	}
}

// StartWithContext implements informers.SharedInformerFactory. Idle informers may begin until the context ends.
func (f *idleInformers) StartWithContext(ctx context.Context) {
	f.SharedInformerFactory.StartWithContext(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running != nil {
		return
	}
	f.running = ctx
	for _, i := range f.all {
		if i.wanted {
			f.run(i)
		}
	}
}

// run runs an informer. It requires mu.
func (f *idleInformers) run(i *idleInformer) {
	if ctx := f.running; ctx.Err() == nil {
		f.work.Go(func() { i.SharedIndexInformer.RunWithContext(ctx) })
	}
}

// Shutdown implements informers.SharedInformerFactory. The context of StartWithContext must have ended.
func (f *idleInformers) Shutdown() {
	f.SharedInformerFactory.Shutdown()
	f.mu.Lock() // no informer begins any more
	defer f.mu.Unlock()
	f.work.Wait()
}

// InformerFor implements informers.SharedInformerFactory.
func (f *idleInformers) InformerFor(obj runtime.Object, make internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	f.mu.Lock()
	defer f.mu.Unlock()
	of := reflect.TypeOf(obj)
	if f.all[of] == nil {
		f.all[of] = &idleInformer{SharedIndexInformer: make(f.client, 0), factory: f}
	}
	return f.all[of]
}

// Core implements informers.SharedInformerFactory.
func (f *idleInformers) Core() core.Interface { return core.New(f, "", nil) }

// Discovery implements informers.SharedInformerFactory.
func (f *idleInformers) Discovery() discovery.Interface { return discovery.New(f, "", nil) }

// Networking implements informers.SharedInformerFactory.
func (f *idleInformers) Networking() networking.Interface { return networking.New(f, "", nil) }

// Node implements informers.SharedInformerFactory.
func (f *idleInformers) Node() node.Interface { return node.New(f, "", nil) }

// Scheduling implements informers.SharedInformerFactory.
func (f *idleInformers) Scheduling() scheduling.Interface { return scheduling.New(f, "", nil) }

// Storage implements informers.SharedInformerFactory.
func (f *idleInformers) Storage() storage.Interface { return storage.New(f, "", nil) }

// idleInformer is one of idleInformers.
type idleInformer struct {
	cache.SharedIndexInformer
	factory *idleInformers
	wanted  bool // guarded by the factory's mu
}

// want makes the informer run from now on, or from the start of its factory on.
func (i *idleInformer) want() {
	i.factory.mu.Lock()
	defer i.factory.mu.Unlock()
	if i.wanted {
		return
	}
	i.wanted = true
	if i.factory.running != nil {
		i.factory.run(i)
	}
}

// HasSynced implements cache.SharedIndexInformer. An idle informer has synced, because its readers wait.
func (i *idleInformer) HasSynced() bool {
	i.factory.mu.Lock()
	wanted := i.wanted
	i.factory.mu.Unlock()
	return !wanted || i.SharedIndexInformer.HasSynced()
}

// HasSyncedChecker implements cache.SharedIndexInformer.
func (i *idleInformer) HasSyncedChecker() cache.DoneChecker {
	i.want()
	return i.SharedIndexInformer.HasSyncedChecker()
}

// AddEventHandler implements cache.SharedIndexInformer.
func (i *idleInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(handler, cache.HandlerOptions{})
}

// AddEventHandlerWithOptions implements cache.SharedIndexInformer.
func (i *idleInformer) AddEventHandlerWithOptions(
	handler cache.ResourceEventHandler, options cache.HandlerOptions,
) (cache.ResourceEventHandlerRegistration, error) {
	i.want()
	return i.SharedIndexInformer.AddEventHandlerWithOptions(handler, options)
}

// AddEventHandlerWithResyncPeriod implements cache.SharedIndexInformer.
func (i *idleInformer) AddEventHandlerWithResyncPeriod(
	handler cache.ResourceEventHandler, period time.Duration,
) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(handler, cache.HandlerOptions{ResyncPeriod: &period})
}

// GetStore implements cache.SharedIndexInformer.
func (i *idleInformer) GetStore() cache.Store { return i.GetIndexer() }

// GetIndexer implements cache.SharedIndexInformer.
func (i *idleInformer) GetIndexer() cache.Indexer {
	return idleIndexer{i.SharedIndexInformer.GetIndexer(), i}
}

// idleIndexer waits for the objects of its informer before each read.
type idleIndexer struct {
	cache.Indexer
	informer *idleInformer
}

func (x idleIndexer) ready() cache.Indexer {
	synced := x.informer.SharedIndexInformer.HasSyncedChecker().Done()
	select {
	case <-synced:
		return x.Indexer
	default:
	}
	x.informer.want()
	select {
	case <-synced:
	case <-x.informer.factory.stopped:
	}
	return x.Indexer
}

// List implements cache.Indexer.
func (x idleIndexer) List() []any { return x.ready().List() }

// ListKeys implements cache.Indexer.
func (x idleIndexer) ListKeys() []string { return x.ready().ListKeys() }

// Get implements cache.Indexer.
func (x idleIndexer) Get(obj any) (any, bool, error) { return x.ready().Get(obj) }

// GetByKey implements cache.Indexer.
func (x idleIndexer) GetByKey(key string) (any, bool, error) { return x.ready().GetByKey(key) }

// Index implements cache.Indexer.
func (x idleIndexer) Index(name string, obj any) ([]any, error) { return x.ready().Index(name, obj) }

// IndexKeys implements cache.Indexer.
func (x idleIndexer) IndexKeys(name, value string) ([]string, error) {
	return x.ready().IndexKeys(name, value)
}

// ListIndexFuncValues implements cache.Indexer.
func (x idleIndexer) ListIndexFuncValues(name string) []string {
	return x.ready().ListIndexFuncValues(name)
}

// ByIndex implements cache.Indexer.
func (x idleIndexer) ByIndex(name, value string) ([]any, error) {
	return x.ready().ByIndex(name, value)
}
