package garbage

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// observer observes one resource. It is the store of a reflector, but stores no objects. A resource that cannot be
// listed has its own backoff and does not delay others.
type observer struct {
	collector *Collector
	resource  schema.GroupVersionResource
	tried     chan struct{} // closed after the first list, successful or not
	try       sync.Once

	cancel context.CancelFunc
	// leaving means that the resource is no longer served.
	leaving atomic.Bool
}

var _ cache.ReflectorStore = (*observer)(nil)

func newSource(c *Collector, resource schema.GroupVersionResource) *observer {
	return &observer{collector: c, resource: resource, tried: make(chan struct{}), cancel: func() {}}
}

// observe starts to follow a resource.
func (c *Collector) observe(ctx context.Context, resource schema.GroupVersionResource) *observer {
	ctx, cancel := context.WithCancel(ctx)
	s := newSource(c, resource)
	s.cancel = cancel
	objects := c.client.Resource(resource)
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if err := s.wait(ctx); err != nil {
				return nil, err
			}
			list, err := objects.List(ctx, options)
			if err != nil {
				s.hasTried()
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if err := s.wait(ctx); err != nil {
				return nil, err
			}
			return objects.Watch(ctx, options)
		},
	}, &metav1.PartialObjectMetadata{}, s, cache.ReflectorOptions{Name: "garbage collector", TypeDescription: resource.String()})
	c.running.Go(func() { reflector.RunWithContext(ctx) })
	return s
}

// leave lets the open watch end by itself, but prevents further ones. The objects of a removed custom resource are
// deleted directly before it, and their events may still arrive.
func (s *observer) leave() {
	if !s.leaving.Swap(true) {
		time.AfterFunc(lingering, s.cancel)
	}
}

// wait returns at once while the resource is served.
func (s *observer) wait(ctx context.Context) error {
	if s.leaving.Load() {
		<-ctx.Done()
	}
	return ctx.Err()
}

// Add implements cache.ReflectorStore.
func (s *observer) Add(obj any) error { return s.Update(obj) }

// Update implements cache.ReflectorStore.
func (s *observer) Update(obj any) error {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("%T is not metadata", obj)
	}
	s.observed(s.collector.graph.put(nodeOf(s.resource.GroupResource(), m)))
	return nil
}

// Delete implements cache.ReflectorStore.
func (s *observer) Delete(obj any) error {
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("%T is not metadata", obj)
	}
	s.observed(s.collector.graph.remove(id{s.resource.GroupResource(), m.UID}))
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *observer) Replace(list []any, _ string) error {
	there := make(map[types.UID]bool, len(list))
	for _, obj := range list {
		if err := s.Update(obj); err != nil {
			return err
		}
		there[obj.(*metav1.PartialObjectMetadata).UID] = true
	}
	s.observed(s.collector.graph.retain(s.resource.GroupResource(), there))
	s.hasTried()
	return nil
}

func (s *observer) observed(affected []id) {
	s.collector.observed(s.resource.GroupResource(), affected)
}

func (s *observer) hasTried() { s.try.Do(func() { close(s.tried) }) }

// Resync implements cache.ReflectorStore.
func (s *observer) Resync() error { return nil }
