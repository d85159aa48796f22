package workloads

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/server/loopback"
)

// informerSets have the informers of the controllers of each server. Servers are identified by the bearer token of their
// loopback. Its methods may be called concurrently.
type informerSets struct {
	mu       sync.Mutex
	byServer map[string]*informerSet
}

// informerSet are the informers of the controllers of one server. They run while a controller uses them.
type informerSet struct {
	factory informers.SharedInformerFactory
	// ctx ends when no controller uses the informers.
	ctx    context.Context
	cancel context.CancelFunc
	users  int
}

// resync is the interval in which informers tell controllers of all objects again.
const resync = 12 * time.Hour

// share returns the informers of a server. Each call needs a call of release.
func (s *informerSets) share(ctx context.Context, server *rest.Config) (*informerSet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.byServer[server.BearerToken]
	if set == nil {
		client, err := kubernetes.NewForConfig(loopback.As(server, user.KubeControllerManager))
		if err != nil {
			return nil, fmt.Errorf("client of informers: %w", err)
		}
		set = &informerSet{factory: informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(trim))}
		set.ctx, set.cancel = context.WithCancel(context.WithoutCancel(ctx)) // other controllers may outlast the first
		s.byServer[server.BearerToken] = set
	}
	set.users++
	return set, nil
}

// release ends the informers of a server after the last controller.
func (s *informerSets) release(server *rest.Config) {
	s.mu.Lock()
	set := s.byServer[server.BearerToken]
	set.users--
	last := set.users == 0
	if last {
		delete(s.byServer, server.BearerToken)
	}
	s.mu.Unlock()
	if last {
		set.cancel()
		set.factory.Shutdown()
	}
}

// trim removes the field managers, which no controller reads, from a cached object.
func trim(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// mapper finds the resources of kinds, also of kinds that are added later.
type mapper struct {
	meta.ResettableRESTMapper
}

func newMapper(client discovery.DiscoveryInterface) *mapper {
	return &mapper{restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))}
}

// refreshing returns a function that also forgets the known kinds from time to time.
func (m *mapper) refreshing(run func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		tick := time.NewTicker(30 * time.Second)
		defer tick.Stop()
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() {
			for {
				select {
				case <-tick.C:
					m.Reset()
				case <-ctx.Done():
					return
				}
			}
		})
		run(ctx)
	}
}

func deletedClaim(ctx context.Context, on cluster) error {
	return waitForDeletion(ctx, on, corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"))
}

func deletedVolume(ctx context.Context, on cluster) error {
	return waitForDeletion(ctx, on, corev1.SchemeGroupVersion.WithResource("persistentvolumes"))
}

func deletedClass(ctx context.Context, on cluster) error {
	return waitForDeletion(ctx, on, storagev1.SchemeGroupVersion.WithResource("volumeattributesclasses"))
}

// waitForDeletion waits until an object of a resource is deleted that a finalizer keeps.
func waitForDeletion(ctx context.Context, on cluster, resource schema.GroupVersionResource) error {
	client, err := metadata.NewForConfig(on.config)
	if err != nil {
		return fmt.Errorf("client of metadata: %w", err)
	}
	objects, found := client.Resource(resource), make(deletions, 1)
	watching, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return objects.Watch(ctx, options)
		},
	}, &metav1.PartialObjectMetadata{}, found, cache.ReflectorOptions{Name: "protection", TypeDescription: resource.String()})
	all.Go(func() { reflector.RunWithContext(watching) })
	select {
	case <-found:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deletions gets a value when an object of a reflector is being deleted. It stores no objects.
type deletions chan struct{}

var _ cache.ReflectorStore = deletions(nil)

// Add implements cache.ReflectorStore.
func (d deletions) Add(obj any) error {
	if m, err := meta.Accessor(obj); err == nil && m.GetDeletionTimestamp() != nil {
		await.Notify(d)
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (d deletions) Update(obj any) error { return d.Add(obj) }

// Delete implements cache.ReflectorStore.
func (deletions) Delete(any) error { return nil }

// Replace implements cache.ReflectorStore.
func (d deletions) Replace(all []any, _ string) error {
	for _, obj := range all {
		_ = d.Add(obj) // it has no error
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (deletions) Resync() error { return nil }
