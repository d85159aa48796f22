package coreapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/worker"
)

const (
	deletionWorkers = 4
	resourcesAtOnce = 4 // per namespace
	pageSize        = 500
	// A namespace that cannot be removed yet is checked again when a watch reports that its remaining objects have
	// gone, and, in case the watch fails, after these delays.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// RunDeletion completes the deletion of namespaces until ctx is done. It deletes the content of Terminating
// namespaces, waits for objects with finalizers or grace periods, reports them in the namespace's conditions, and
// finally removes the finalizer kubernetes from the namespace. All state is in the objects, so it continues after a
// restart.
//
// The client has all rights. RunDeletion returns an error only if the client cannot be created; all other errors are
// logged and retried.
func (n *Namespaces) RunDeletion(ctx context.Context, client *rest.Config, content Content) error {
	d, err := n.newDeletion(client, content, firstRetry, lastRetry)
	if err != nil {
		return err
	}
	return d.run(ctx)
}

// Content returns the currently served namespaced resources, each in one version. With an error the result is
// incomplete, and no namespace is removed.
type Content func(ctx context.Context) ([]schema.GroupVersionResource, error)

func (n *Namespaces) newDeletion(client *rest.Config, content Content, firstRetry, lastRetry time.Duration) (*deletion, error) {
	core, err := corev1client.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("client for namespaces: %w", err)
	}
	objects, err := metadata.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("client for the content of namespaces: %w", err)
	}
	return &deletion{
		namespaces: core.Namespaces(),
		objects:    objects,
		content:    content,
		drain:      n.inFlight.drain,
		queue:      worker.NewQueue[string](firstRetry, lastRetry),
		waits:      map[string]context.CancelFunc{},
	}, nil
}

type deletion struct {
	namespaces corev1client.NamespaceInterface
	objects    metadata.Interface
	content    Content
	// drain waits for the creates in a namespace that began before it became Terminating.
	drain func(ctx context.Context, namespace string) error
	queue worker.Queue[string]

	running sync.WaitGroup
	mu      sync.Mutex
	waits   map[string]context.CancelFunc // ends the watches of a namespace's remaining objects
}

func (d *deletion) run(ctx context.Context) error {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return d.namespaces.List(ctx, options)
		},
		WatchFuncWithContext: d.namespaces.Watch,
	}, &corev1.Namespace{}, 0, nil)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    d.observe,
		UpdateFunc: func(_, obj any) { d.observe(obj) },
	}); err != nil {
		return fmt.Errorf("observe namespaces: %w", err)
	}
	d.running.Go(func() { informer.RunWithContext(ctx) })
	worker.Run(ctx, d.queue, deletionWorkers, worker.Retrying(d.queue, d.sync, func(ctx context.Context, name string, err error) {
		klog.FromContext(ctx).Error(err, "Failed to delete the namespace, trying again", "namespace", name)
	}))
	d.running.Wait()
	return nil
}

func (d *deletion) observe(obj any) {
	if ns, ok := obj.(*corev1.Namespace); ok && isTerminating(ns) {
		d.queue.Add(ns.Name)
	}
}

// sync deletes the content of a namespace, and its finalizer when nothing is left. Its error is worker.ErrAgain if objects
// are left that were deleted without a failure.
func (d *deletion) sync(ctx context.Context, name string) error {
	d.stopWaiting(name)
	ns, err := d.namespaces.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get the namespace: %w", err)
	}
	if !isTerminating(ns) || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return nil
	}
	if err := d.drain(ctx, name); err != nil {
		return fmt.Errorf("wait for creates in progress: %w", err)
	}
	left := d.deleteContent(ctx, name)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if left.nothing() {
		ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		if _, err := d.namespaces.Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("finalize the namespace: %w", err)
		}
		return nil
	}
	if setConditions(&ns.Status, left.conditions(), metav1.Now()) {
		if _, err := d.namespaces.UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update the namespace's conditions: %w", err)
		}
	}
	d.wait(ctx, name, left)
	return cmp.Or(errors.Join(append(left.failures, left.discovery)...), worker.ErrAgain)
}

// deleteContent deletes the objects of the namespace and returns the remaining ones. It deletes pods first, and keeps
// other resources, which pods may use, until no pod remains.
func (d *deletion) deleteContent(ctx context.Context, namespace string) remainingContent {
	resources, err := d.content(ctx)
	left := remainingContent{finalizers: map[string]int{}, discovery: err}
	last := func(r schema.GroupVersionResource) bool { return r.GroupResource() != corev1.Resource("pods") }
	if pods := slices.DeleteFunc(slices.Clone(resources), last); len(pods) > 0 {
		left.add(d.deleteResource(ctx, pods[0], namespace))
		if len(left.kept) > 0 {
			return left
		}
		resources = slices.DeleteFunc(slices.Clone(resources), func(r schema.GroupVersionResource) bool { return !last(r) })
	}
	outcomes := make([]resourceContent, len(resources))
	slots := make(chan struct{}, resourcesAtOnce)
	var all sync.WaitGroup
	for i, resource := range resources {
		slots <- struct{}{}
		all.Go(func() {
			outcomes[i] = d.deleteResource(ctx, resource, namespace)
			<-slots
		})
	}
	all.Wait()
	for _, o := range outcomes {
		left.add(o)
	}
	return left
}

// deleteResource deletes the objects of a resource in the namespace, and counts the remaining ones.
func (d *deletion) deleteResource(ctx context.Context, resource schema.GroupVersionResource, namespace string) resourceContent {
	objects := d.objects.Resource(resource).Namespace(namespace)
	o := resourceContent{kept: objectCount{resource: resource}, finalizers: map[string]int{}}
	if err := d.deleteAll(ctx, objects); err != nil {
		o.failures = append(o.failures, fmt.Errorf("delete %s: %w", resource.GroupResource(), err))
	}
	revision, err := each(ctx, objects, func(m *metav1.PartialObjectMetadata) error {
		o.kept.count++
		for _, finalizer := range m.Finalizers {
			o.finalizers[finalizer]++
		}
		return nil
	})
	o.kept.revision = revision
	if err != nil {
		o.failures = append(o.failures, fmt.Errorf("list %s: %w", resource.GroupResource(), err))
	}
	return o
}

// deleteAll deletes the objects of a resource as a collection, or one by one if the resource does not support
// deletecollection.
func (d *deletion) deleteAll(ctx context.Context, objects metadata.ResourceInterface) error {
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	err := objects.DeleteCollection(ctx, options, metav1.ListOptions{})
	if !apierrors.IsMethodNotSupported(err) && !apierrors.IsNotFound(err) {
		return err
	}
	_, err = each(ctx, objects, func(m *metav1.PartialObjectMetadata) error {
		if err := objects.Delete(ctx, m.Name, options); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
	return err
}

// each calls visit for every object and returns the resource version of the list. A resource that cannot be listed
// has no objects.
func each(
	ctx context.Context,
	objects metadata.ResourceInterface,
	visit func(*metav1.PartialObjectMetadata) error,
) (revision string, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := objects.List(ctx, options)
		if apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			if err := visit(&page.Items[i]); err != nil {
				return "", err
			}
		}
		if page.Continue == "" {
			return page.ResourceVersion, nil
		}
		options.Continue = page.Continue
	}
}

// wait queues the namespace as soon as all remaining objects of a resource have gone.
func (d *deletion) wait(ctx context.Context, name string, left remainingContent) {
	ctx, cancel := context.WithCancel(ctx)
	d.mu.Lock()
	d.waits[name] = cancel
	d.mu.Unlock()
	for _, k := range left.kept {
		d.running.Go(func() {
			if d.waitFor(ctx, name, k) {
				d.queue.Add(name)
			}
		})
	}
}

func (d *deletion) stopWaiting(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cancel := d.waits[name]; cancel != nil {
		cancel()
		delete(d.waits, name)
	}
}

// waitFor returns true when the objects in k have been deleted, and false if the watch fails or ends before.
func (d *deletion) waitFor(ctx context.Context, namespace string, k objectCount) bool {
	w, err := d.objects.Resource(k.resource).Namespace(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: k.revision})
	if err != nil {
		return false
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		switch event.Type {
		case watch.Deleted:
			if k.count--; k.count == 0 {
				return true
			}
		case watch.Error:
			return false
		}
	}
	return false
}
