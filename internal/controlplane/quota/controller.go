package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/await"
	"github.com/annexapi/annex/internal/base/worker"
	"github.com/annexapi/annex/internal/standalone/resources"
)

const (
	workers = 5
	// resync is the interval of counts without a cause.
	resync = 5 * time.Minute
	// settled is how long a quota must be unchanged before all admitted objects count as stored.
	settled = time.Second
	// kindsInterval is the maximum delay until a kind is counted that appears after its quota.
	kindsInterval = 10 * time.Second
	// page is the number of objects that a count reads at a time, if the storage does not return the number of
	// remaining objects.
	page = 500

	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
)

// Controller maintains the status of the quotas of one server.
type Controller struct {
	core   *corev1client.CoreV1Client
	groups map[string]rest.Interface // clients for the measured kinds, by group
	all    metadata.Interface
	kinds  *resources.Client
	quotas cache.SharedIndexInformer
	queue  worker.Queue[item]
	// creates are those of the admission of the same server. Other replicas' are not known: of them, counts that
	// wait until a quota is settled take account.
	creates  *Creates
	measures measures
	// named signals that quotas name other kinds than before.
	named chan struct{}

	mu      sync.Mutex
	touched map[cache.ObjectName]time.Time     // when quotas last changed
	took    map[cache.ObjectName]time.Duration // how long their last counts have taken
	sources map[schema.GroupResource]*observer
	running sync.WaitGroup
}

// item is a quota to count: at once, or when it is settled.
type item struct {
	cache.ObjectName
	whenSettled bool
}

// NewController returns a controller. The client needs the rights to list all objects and to write quotas. creates and
// evaluators are those of the admission of the same server.
func NewController(config *rest.Config, creates *Creates, evaluators ...quota.Evaluator) (*Controller, error) {
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for quotas: %w", err)
	}
	groups, err := clientsOf(config, evaluators)
	if err != nil {
		return nil, fmt.Errorf("client for measured kinds: %w", err)
	}
	all, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for metadata: %w", err)
	}
	kinds, err := resources.NewClient(config)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		core: core, groups: groups, all: all, kinds: kinds, quotas: informerOf(core, resync), creates: creates, measures: evaluators,
		queue:   worker.NewQueue[item](firstRetry, lastRetry),
		named:   make(chan struct{}, 1),
		touched: map[cache.ObjectName]time.Time{},
		took:    map[cache.ObjectName]time.Duration{},
		sources: map[schema.GroupResource]*observer{},
	}
	if _, err := c.quotas.AddEventHandler(
		cache.ResourceEventHandlerFuncs{AddFunc: c.added, UpdateFunc: c.updated, DeleteFunc: c.deleted},
	); err != nil {
		return nil, fmt.Errorf("informer of quotas: %w", err)
	}
	return c, nil
}

// Run maintains the status of quotas until the context ends, and then returns nil. Errors are logged and retried. It
// must be called once.
func (c *Controller) Run(ctx context.Context) error {
	defer c.running.Wait()
	defer c.queue.ShutDown()
	c.running.Go(func() { c.quotas.RunWithContext(ctx) })
	if !cache.WaitFor(ctx, "", c.quotas.HasSyncedChecker()) {
		return nil
	}
	c.running.Go(func() {
		worker.Run(ctx, c.queue, workers, worker.Retrying(c.queue, c.handle, func(ctx context.Context, i item, err error) {
			klog.FromContext(ctx).Error(err, "Failed to update the status of a quota, trying again", "quota", i.ObjectName)
		}))
	})
	c.followKinds(ctx)
	return nil
}

func nameOf(q *corev1.ResourceQuota) cache.ObjectName {
	return cache.NewObjectName(q.Namespace, q.Name)
}

func (c *Controller) added(obj any) {
	c.queue.Add(item{ObjectName: nameOf(obj.(*corev1.ResourceQuota))})
	await.Notify(c.named)
}

func (c *Controller) updated(was, is any) {
	old, q := was.(*corev1.ResourceQuota), is.(*corev1.ResourceQuota)
	name := nameOf(q)
	switch {
	case !apiequality.Semantic.DeepEqual(old.Spec, q.Spec):
		await.Notify(c.named)
		c.queue.Add(item{ObjectName: name})
	case old.ResourceVersion == q.ResourceVersion: // a resync
		c.queue.Add(item{ObjectName: name, whenSettled: true})
	default:
		c.mu.Lock()
		c.touched[name] = time.Now()
		c.mu.Unlock()
		c.queue.AddAfter(item{ObjectName: name, whenSettled: true}, settled)
	}
}

func (c *Controller) deleted(obj any) {
	await.Notify(c.named)
	if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
		c.mu.Lock()
		delete(c.touched, name)
		delete(c.took, name)
		c.mu.Unlock()
	}
}

// changed queues the quotas that name a kind; in all namespaces if namespace is empty.
func (c *Controller) changed(kind schema.GroupResource, namespace string) {
	quotas := c.quotas.GetStore().List()
	if namespace != "" {
		// ByIndex fails only for an index that does not exist.
		quotas, _ = c.quotas.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	}
	for _, obj := range quotas {
		q := obj.(*corev1.ResourceQuota)
		for name := range q.Spec.Hard {
			if named, ok := c.measures.kindOf(name); ok && named == kind {
				c.queue.AddAfter(item{ObjectName: nameOf(q)}, c.pause(nameOf(q)))
			}
		}
	}
}

// pause returns how long the next count of a quota has to wait, so that counts of many objects, each of which is deleted,
// take no more than a fifth of a processor.
func (c *Controller) pause(name cache.ObjectName) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if took := c.took[name]; took > 20*time.Millisecond {
		return 4 * took
	}
	return 0
}

func (c *Controller) handle(ctx context.Context, i item) error {
	if left := c.unsettled(i); left > 0 {
		return worker.After(left)
	}
	return c.sync(ctx, i.ObjectName)
}

func (c *Controller) unsettled(i item) time.Duration {
	if !i.whenSettled {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return settled - time.Since(c.touched[i.ObjectName])
}

// sync updates the status of one quota. Resources that cannot be counted keep their last value.
func (c *Controller) sync(ctx context.Context, name cache.ObjectName) error {
	obj, exists, err := c.quotas.GetStore().GetByKey(name.String())
	if err != nil || !exists {
		return err
	}
	q, began := obj.(*corev1.ResourceQuota), time.Now()
	t := &tally{q: q, used: corev1.ResourceList{}}
	c.countNames(ctx, t)
	c.measureNames(ctx, t)
	c.mu.Lock()
	c.took[name] = time.Since(began)
	c.mu.Unlock()
	if t.unstored {
		// If an admitted object is not stored in the end, no other event triggers a new count.
		c.queue.AddAfter(item{ObjectName: name, whenSettled: true}, settled)
	}
	status := corev1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: t.used}
	if q.Status.Used != nil && apiequality.Semantic.DeepEqual(status.Hard, q.Status.Hard) && quota.Equals(status.Used, q.Status.Used) {
		return errors.Join(t.errs...)
	}
	q = q.DeepCopy()
	q.Status = status
	_, err = c.core.ResourceQuotas(q.Namespace).UpdateStatus(ctx, q, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return err // unchanged
	}
	return errors.Join(append(t.errs, ignoreNotFound(err))...)
}

// tally is what the objects of a quota's namespace use of it.
type tally struct {
	q    *corev1.ResourceQuota
	used corev1.ResourceList
	errs []error
	// unstored is set if used includes objects that are admitted and may not be stored yet.
	unstored bool
}

// keep records an error, after which names keep their last value.
func (t *tally) keep(err error, names ...corev1.ResourceName) {
	t.errs = append(t.errs, err)
	for _, name := range names {
		if last, there := t.q.Status.Used[name]; there {
			t.used[name] = last
		}
	}
}

// countNames counts the objects of kinds that are not measured.
func (c *Controller) countNames(ctx context.Context, t *tally) {
	counts := map[schema.GroupResource]int64{}
	for name := range t.q.Spec.Hard {
		if c.measures.naming(name) != nil {
			continue
		}
		kind, generic, ok := kindOf(name)
		if !ok && !generic {
			t.used[name] = resource.Quantity{Format: resource.DecimalSI} // there are no objects to use it
		}
		if !ok {
			continue
		}
		n, known := counts[kind]
		if !known {
			var more bool
			var err error
			n, more, known, err = c.count(ctx, kind, t.q)
			t.unstored = t.unstored || more
			if err != nil {
				t.keep(err, name)
				continue
			}
			if known {
				counts[kind] = n
			}
		}
		if known || !generic {
			t.used[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
}

// count returns how many objects of a kind are in the quota's namespace, including admitted objects that may still be
// stored; unstored reports whether there are any of the latter. known is false if the server has no such kind.
//
// The quota was read before the count. Therefore each object in its status is either stored by now, or is among the
// pending creates, which are read first and wait for their decision. If another object is admitted later, the quota
// has changed, and the write of the status fails.
func (c *Controller) count(
	ctx context.Context, kind schema.GroupResource, q *corev1.ResourceQuota,
) (n int64, unstored, known bool, err error) {
	set, err := c.kinds.Ask(ctx)
	if err != nil {
		return 0, false, false, err
	}
	r, served := set.Get(kind)
	if !served || !r.Namespaced || !r.Can("list", "watch") {
		return 0, false, false, nil
	}
	if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil && len(q.Spec.ScopeSelector.MatchExpressions) > 0 {
		return 0, false, true, nil // scopes apply to pods and volumes only
	}
	pending := c.creates.pending(ctx, kind, q.Namespace)
	objects := c.all.Resource(r.GroupVersionResource).Namespace(q.Namespace)
	n, revision, err := countStored(ctx, objects)
	if apierrors.IsNotFound(err) {
		return 0, false, false, nil // the kind is being removed
	}
	if err != nil {
		return 0, false, false, fmt.Errorf("count %s: %w", kind, err)
	}
	for _, one := range pending {
		if !isStored(ctx, objects, one, revision) {
			n, unstored = n+1, true
		}
	}
	return n, unstored, true, nil
}

// countStored returns how many objects are stored, and the resource version of the count.
func countStored(ctx context.Context, objects metadata.ResourceInterface) (n int64, revision string, err error) {
	for options := (metav1.ListOptions{Limit: 1}); ; options.Limit = page {
		list, err := objects.List(ctx, options)
		if err != nil {
			return 0, "", err
		}
		n += int64(len(list.Items))
		if list.RemainingItemCount != nil {
			return n + *list.RemainingItemCount, list.ResourceVersion, nil
		}
		if list.Continue == "" {
			return n, list.ResourceVersion, nil
		}
		options.Continue = list.Continue
	}
}

// isStored reports whether an admitted object is known to exist at a resource version. A custom storage may not
// support such a list.
func isStored(ctx context.Context, objects metadata.ResourceInterface, one *create, revision string) bool {
	if one.name == "" || revision == "" {
		return false
	}
	list, err := objects.List(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, one.name).String(),
		ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	})
	return err == nil && slices.ContainsFunc(list.Items, func(m metav1.PartialObjectMetadata) bool {
		return m.Name == one.name && (one.uid == "" || m.UID == one.uid)
	})
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
