package quota

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// followKinds observes the kinds that quotas name, as kinds and quotas change. Without quotas it does nothing.
func (c *Controller) followKinds(ctx context.Context) {
	timer := time.NewTimer(kindsInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.named:
		case <-timer.C:
		}
		c.follow(ctx)
		timer.Reset(kindsInterval)
	}
}

func (c *Controller) follow(ctx context.Context) {
	named := map[schema.GroupResource]bool{}
	for _, obj := range c.quotas.GetStore().List() {
		for name := range obj.(*corev1.ResourceQuota).Spec.Hard {
			if kind, ok := c.measures.kindOf(name); ok {
				named[kind] = true
			}
		}
	}
	if len(named) == 0 && len(c.sources) == 0 {
		return
	}
	kinds, err := c.kinds.Ask(ctx)
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The quota controller cannot read the current kinds")
		}
		return
	}
	for kind := range named {
		r, served := kinds.Get(kind)
		if !served || !r.Namespaced || !r.Can("list", "watch") {
			delete(named, kind)
			continue
		}
		s := c.sources[kind]
		if s != nil && s.resource == r.GroupVersionResource {
			continue
		}
		if s != nil {
			s.cancel()
		}
		if e := c.measures.of(kind); e != nil {
			c.sources[kind] = c.observeUse(ctx, e, r.GroupVersionResource)
		} else {
			c.sources[kind] = c.observe(ctx, r.GroupVersionResource)
		}
	}
	for kind, s := range c.sources {
		if !named[kind] {
			s.cancel()
			delete(c.sources, kind)
			c.changed(kind, "")
		}
	}
}

// observer observes creates and deletions of one kind. It is the store of a reflector, but stores nothing.
type observer struct {
	controller *Controller
	resource   schema.GroupVersionResource
	cancel     context.CancelFunc
}

var _ cache.ReflectorStore = (*observer)(nil)

func (c *Controller) observe(ctx context.Context, resource schema.GroupVersionResource) *observer {
	ctx, cancel := context.WithCancel(ctx)
	s := &observer{c, resource, cancel}
	objects := c.all.Resource(resource)
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return objects.Watch(ctx, options)
		},
	}, &metav1.PartialObjectMetadata{}, s, cache.ReflectorOptions{Name: "quota controller", TypeDescription: resource.String()})
	c.running.Go(func() { reflector.RunWithContext(ctx) })
	return s
}

// Add implements cache.ReflectorStore. Admission has counted the object, and counts of stored objects now include it.
func (s *observer) Add(obj any) error {
	if m, err := meta.Accessor(obj); err == nil {
		s.controller.creates.stored(s.resource.GroupResource(), m.GetNamespace(), m.GetUID())
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (s *observer) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *observer) Delete(obj any) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	s.controller.creates.stored(s.resource.GroupResource(), m.GetNamespace(), m.GetUID())
	s.controller.changed(s.resource.GroupResource(), m.GetNamespace())
	return nil
}

// Replace implements cache.ReflectorStore. Deletions before the list are not known individually.
func (s *observer) Replace([]any, string) error {
	s.controller.changed(s.resource.GroupResource(), "")
	return nil
}

// Resync implements cache.ReflectorStore.
func (*observer) Resync() error { return nil }
