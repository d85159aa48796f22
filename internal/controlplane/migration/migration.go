// Package migration carries out storage migrations: it rewrites every object of a resource, in the version, media
// type and encryption with which it would be written now.
//
// An object is patched with nothing but its observed resource version. The storage writes it only if the bytes
// differ, and a conflict means that another client has just written it. All state is in the migration's status, so a
// new controller continues where another one ended.
package migration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	storagemigrationclient "k8s.io/client-go/kubernetes/typed/storagemigration/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/base/worker"
	"github.com/annexapi/annex/internal/standalone/resources"
)

// Resource is the resource of migrations in storage and in errors.
var Resource = storagemigrationv1.Resource("storageversionmigrations")

// The conditions have kube-controller-manager's reasons and messages.
const (
	runningReason   = "MigrationRunning"
	runningMessage  = "The migration is running"
	endedReason     = "MigrationCompleted"
	endedMessage    = "Migration completed"
	succeededReason = "StorageVersionMigrationSucceeded"
	failedReason    = "StorageVersionMigrationFailed"
	unsupported     = "resource %q does not support discovery operations: %v"
)

const (
	// patience is how long a migration waits for a missing resource, whose definition may be applied at the same time.
	patience = time.Minute

	// writers is the number of objects that are written concurrently, so that they share syncs.
	writers = 16

	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Controller carries out the migrations of one server, one after the other.
type Controller struct {
	client     *storagemigrationclient.StoragemigrationV1Client
	all        metadata.Interface
	kinds      *resources.Client
	migrations cache.SharedIndexInformer
	queue      worker.Queue[string]
}

// NewController returns a controller. The client needs the rights to list and patch all objects. It should have no
// rate limit, which would slow migrations down.
func NewController(config *rest.Config) (*Controller, error) {
	client, err := storagemigrationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for storage migrations: %w", err)
	}
	all, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for metadata: %w", err)
	}
	kinds, err := resources.NewClient(config)
	if err != nil {
		return nil, err
	}
	listed := cache.NewListWatchFromClient(client.RESTClient(), Resource.Resource, "", fields.Everything())
	c := &Controller{
		client: client, all: all, kinds: kinds,
		migrations: cache.NewSharedIndexInformer(listed, &storagemigrationv1.StorageVersionMigration{}, 0, cache.Indexers{}),
		queue:      worker.NewQueue[string](firstRetry, lastRetry),
	}
	enqueue := func(obj any) { c.queue.Add(obj.(*storagemigrationv1.StorageVersionMigration).Name) }
	if _, err := c.migrations.AddEventHandler(
		cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }},
	); err != nil {
		return nil, fmt.Errorf("informer of storage migrations: %w", err)
	}
	return c, nil
}

// Run carries out migrations until the context ends, and then returns nil. Errors are logged and retried. It must be
// called once.
func (c *Controller) Run(ctx context.Context) error {
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { c.migrations.RunWithContext(ctx) })
	worker.Run(ctx, c.queue, 1, worker.Retrying(c.queue, c.migrate, func(ctx context.Context, name string, err error) {
		klog.FromContext(ctx).Error(err, "Failed to continue a storage migration, trying again", "migration", name)
	}))
	return nil
}

// migrate carries out one migration. It continues from the progress recorded in the status of the migration.
func (c *Controller) migrate(ctx context.Context, name string) error {
	obj, exists, err := c.migrations.GetStore().GetByKey(name)
	if err != nil || !exists {
		return err
	}
	m := obj.(*storagemigrationv1.StorageVersionMigration).DeepCopy()
	if is(m, storagemigrationv1.MigrationSucceeded) || is(m, storagemigrationv1.MigrationFailed) {
		return nil
	}
	if !is(m, storagemigrationv1.MigrationRunning) {
		if m, err = c.update(ctx, m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, runningReason, runningMessage); err != nil {
			return ignoreNotFound(err)
		}
	}
	resource, err := c.resourceOf(ctx, m)
	if err == nil && m.Status.ResourceVersion == "" {
		m, err = c.begin(ctx, m, resource)
	}
	if err == nil {
		err = c.rewrite(ctx, resource, m.Status.ResourceVersion)
	}
	return c.end(ctx, m, err)
}

func is(m *storagemigrationv1.StorageVersionMigration, condition storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(condition))
}

// hopeless is the error of a migration that can never be carried out.
type hopeless struct{ error }

func (h hopeless) Unwrap() error { return h.error }

func (c *Controller) resourceOf(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) (schema.GroupVersionResource, error) {
	kind := schema.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}
	set, err := c.kinds.AskForAll(ctx)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	r, served := set.Get(kind)
	switch {
	case !served && set.Err() != nil:
		return schema.GroupVersionResource{}, fmt.Errorf("cannot check for %s: %w", kind, set.Err())
	case !served && time.Since(m.CreationTimestamp.Time) < patience:
		return schema.GroupVersionResource{}, fmt.Errorf("resource %s does not exist yet", kind)
	case !served:
		return schema.GroupVersionResource{}, hopeless{fmt.Errorf("resource %s does not exist", kind)}
	}
	if missing := slices.DeleteFunc([]string{"update", "patch", "list"}, func(verb string) bool { return r.Can(verb) }); len(missing) > 0 {
		return schema.GroupVersionResource{}, hopeless{fmt.Errorf(unsupported, r.GroupVersionResource, missing)}
	}
	return r.GroupVersionResource, nil
}

// begin records the resource version up to which objects have to be rewritten.
func (c *Controller) begin(
	ctx context.Context,
	m *storagemigrationv1.StorageVersionMigration,
	resource schema.GroupVersionResource,
) (*storagemigrationv1.StorageVersionMigration, error) {
	list, err := c.all.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return m, fmt.Errorf("list %s: %w", resource.GroupResource(), err)
	}
	m.Status.ResourceVersion = list.ResourceVersion
	return c.updateStatus(ctx, m)
}

// end writes the outcome of a migration to its status. It returns a temporary error unchanged.
func (c *Controller) end(ctx context.Context, m *storagemigrationv1.StorageVersionMigration, err error) error {
	ended, reason, message := storagemigrationv1.MigrationSucceeded, succeededReason, endedMessage
	if err != nil {
		if _, never := errors.AsType[hopeless](err); !never {
			return err
		}
		ended, reason, message = storagemigrationv1.MigrationFailed, failedReason, err.Error()
	}
	set(m, storagemigrationv1.MigrationRunning, metav1.ConditionFalse, endedReason, endedMessage)
	_, err = c.update(ctx, m, ended, metav1.ConditionTrue, reason, message)
	return ignoreNotFound(err)
}

func set(
	m *storagemigrationv1.StorageVersionMigration,
	condition storagemigrationv1.MigrationConditionType,
	status metav1.ConditionStatus,
	reason, message string,
) {
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{Type: string(condition), Status: status, Reason: reason, Message: message})
}

func (c *Controller) update(
	ctx context.Context,
	m *storagemigrationv1.StorageVersionMigration,
	condition storagemigrationv1.MigrationConditionType,
	status metav1.ConditionStatus,
	reason, message string,
) (*storagemigrationv1.StorageVersionMigration, error) {
	set(m, condition, status, reason, message)
	return c.updateStatus(ctx, m)
}

// updateStatus returns m itself with an error.
func (c *Controller) updateStatus(
	ctx context.Context,
	m *storagemigrationv1.StorageVersionMigration,
) (*storagemigrationv1.StorageVersionMigration, error) {
	updated, err := c.client.StorageVersionMigrations().UpdateStatus(ctx, m, metav1.UpdateOptions{})
	if err != nil {
		return m, fmt.Errorf("write the status: %w", err)
	}
	return updated, nil
}

// rewrite rewrites each object that is not newer than version.
func (c *Controller) rewrite(ctx context.Context, resource schema.GroupVersionResource, version string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	objects := make(chan *metav1.PartialObjectMetadata)
	var writing sync.WaitGroup
	for range writers {
		writing.Go(func() {
			for m := range objects {
				if err := c.write(ctx, resource, m); err != nil {
					stop(err)
				}
			}
		})
	}
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.all.Resource(resource).List(ctx, options)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		m := obj.(*metav1.PartialObjectMetadata)
		if order, err := resourceversion.CompareResourceVersion(m.ResourceVersion, version); err == nil && order > 0 {
			return nil
		}
		select {
		case objects <- m:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(objects)
	writing.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", resource.GroupResource(), err)
	}
	return nil
}

func (c *Controller) write(ctx context.Context, resource schema.GroupVersionResource, m *metav1.PartialObjectMetadata) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": m.UID, "resourceVersion": m.ResourceVersion}})
	if err != nil {
		return err
	}
	_, err = c.all.Resource(resource).Namespace(m.Namespace).Patch(ctx, m.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err):
		return hopeless{fmt.Errorf("the update of %s %s without changes is "+
			"rejected: %w", resource.GroupResource(), cache.NewObjectName(m.Namespace, m.Name), err)}
	}
	return fmt.Errorf("write %s %s: %w", resource.GroupResource(), cache.NewObjectName(m.Namespace, m.Name), err)
}

// ignoreNotFound ignores errors of deleted migrations.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
