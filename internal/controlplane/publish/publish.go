// Package publish maintains the objects that every namespace has: the service account default, and the authorities
// with which programs verify the server. They are created with the namespace, and restored when they are deleted or
// modified. It also maintains the ConfigMap in kube-system by which servers behind this one authenticate it and its
// callers.
package publish

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/worker"
)

const (
	// ServiceAccountName is the name of the account that every namespace has.
	ServiceAccountName = "default"
	// ConfigMapName is the name of the ConfigMap that every namespace has.
	ConfigMapName = "kube-root-ca.crt"

	bundleKey = "ca.crt"
	// descriptionKey is an annotation that kube-controller-manager sets on its objects.
	descriptionKey = "kubernetes.io/description"
	description    = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the " +
		"internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."

	workers    = 4
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
	// renewed is the maximum delay until a ConfigMap contains changed authorities.
	renewed = 10 * time.Minute
)

// RunServiceAccounts maintains a service account default in each namespace until the context ends. It returns an
// error only if the client cannot be created; all other errors are logged and retried.
func RunServiceAccounts(ctx context.Context, config *rest.Config) error {
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for service accounts: %w", err)
	}
	return run(ctx, core, publishedObject{
		resource: "serviceaccounts", name: ServiceAccountName, empty: &corev1.ServiceAccount{},
		create: func(ctx context.Context, namespace string) error {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: ServiceAccountName, Namespace: namespace}}
			_, err := core.ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
			return err
		},
		repair: func(context.Context, runtime.Object) error { return nil },
	})
}

// RunRootCA maintains a ConfigMap kube-root-ca.crt in each namespace, with the current bundle of roots, until the
// context ends. It returns an error only if the client cannot be created; all other errors are logged and retried.
func RunRootCA(ctx context.Context, config *rest.Config, roots func() []byte) error {
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for the ConfigMap %s: %w", ConfigMapName, err)
	}
	return run(ctx, core, publishedObject{
		resource: "configmaps", name: ConfigMapName, empty: &corev1.ConfigMap{},
		create: func(ctx context.Context, namespace string) error {
			published := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{
					Name: ConfigMapName, Namespace: namespace, Annotations: map[string]string{descriptionKey: description},
				},
				Data: map[string]string{bundleKey: string(roots())},
			}
			_, err := core.ConfigMaps(namespace).Create(ctx, published, metav1.CreateOptions{})
			return err
		},
		repair: func(ctx context.Context, obj runtime.Object) error {
			published, data := obj.(*corev1.ConfigMap), map[string]string{bundleKey: string(roots())}
			if maps.Equal(published.Data, data) && published.Annotations[descriptionKey] != "" {
				return nil
			}
			published = published.DeepCopy()
			published.Data = data
			metav1.SetMetaDataAnnotation(&published.ObjectMeta, descriptionKey, description)
			_, err := core.ConfigMaps(published.Namespace).Update(ctx, published, metav1.UpdateOptions{})
			return err
		},
	})
}

// publishedObject describes the object to maintain in each namespace, or in a single one.
type publishedObject struct {
	resource, name string
	// only is the single namespace; empty means all.
	only string
	// changed signals a change of the published content; nil means never.
	changed <-chan struct{}
	empty   runtime.Object
	create  func(ctx context.Context, namespace string) error
	// repair restores the content of an existing object. It must not modify obj.
	repair func(ctx context.Context, obj runtime.Object) error
}

// publisher maintains one object in each namespace.
type publisher struct {
	publishedObject
	namespaces, published cache.SharedIndexInformer
	queue                 worker.Queue[string] // of namespaces
}

func run(ctx context.Context, core *corev1client.CoreV1Client, o publishedObject) error {
	informer := func(resource string, selector fields.Selector, empty runtime.Object) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(
			cache.NewListWatchFromClient(core.RESTClient(), resource, "", selector),
			empty,
			renewed,
			cache.Indexers{},
		)
	}
	namespaces := fields.Everything()
	if o.only != "" {
		namespaces = fields.OneTermEqualSelector(metav1.ObjectNameField, o.only)
	}
	p := &publisher{
		publishedObject: o,
		namespaces:      informer("namespaces", namespaces, &corev1.Namespace{}),
		published:       informer(o.resource, fields.OneTermEqualSelector(metav1.ObjectNameField, o.name), o.empty),
		queue:           worker.NewQueue[string](firstRetry, lastRetry),
	}
	if err := p.follow(); err != nil {
		return fmt.Errorf("informer of %s: %w", o.resource, err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer p.queue.ShutDown()
	all.Go(func() { p.namespaces.RunWithContext(ctx) })
	all.Go(func() { p.published.RunWithContext(ctx) })
	if !cache.WaitFor(ctx, "", p.namespaces.HasSyncedChecker(), p.published.HasSyncedChecker()) {
		return nil
	}
	all.Go(func() {
		worker.Run(ctx, p.queue, workers, worker.Retrying(p.queue, p.publish, func(ctx context.Context, namespace string, err error) {
			klog.FromContext(ctx).Error(err, "Failed to publish the default objects of a namespace, trying again",
				"resource", p.resource, "name", p.name, "namespace", namespace)
		}))
	})
	for {
		select {
		case <-o.changed:
			p.queue.Add(o.only)
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *publisher) follow() error {
	// Updates of namespaces, such as the start of their deletion, require no action.
	if _, err := p.namespaces.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { p.queue.Add(obj.(*corev1.Namespace).Name) },
	}); err != nil {
		return err
	}
	changed := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil && (p.only == "" || p.only == key.Namespace) {
			p.queue.Add(key.Namespace)
		}
	}
	_, err := p.published.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }, DeleteFunc: changed,
	})
	return err
}

func (p *publisher) publish(ctx context.Context, namespace string) error {
	ns, exists, err := p.namespaces.GetStore().GetByKey(namespace)
	if err != nil || !exists || ns.(*corev1.Namespace).DeletionTimestamp != nil {
		return err
	}
	obj, exists, err := p.published.GetStore().GetByKey(cache.NewObjectName(namespace, p.name).String())
	if err != nil {
		return err
	}
	if exists {
		return p.repair(ctx, obj.(runtime.Object))
	}
	err = p.create(ctx, namespace)
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the caches are stale
	}
	return err
}
