package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/standalone/resources"
)

const (
	pageSize = 500
	// orphanTries is the number of attempts to find the dependents of an owner before kinds that cannot be listed are
	// ignored. With the backoff, this takes half a minute.
	orphanTries = 12
)

var (
	// errUnresolved means that the location of an object or its owner is unknown.
	errUnresolved = errors.New("the kind is not served")
	// errUnobserved means that an owner exists, but that the graph would not observe its deletion yet.
	errUnobserved = errors.New("the owner has not been observed yet")
	// errScope means that a cluster-scoped object has a namespaced owner, which is not allowed.
	errScope = errors.New("cluster-scoped objects cannot have namespaced owners")
	// errChanged means that an object has changed since it was read.
	errChanged = errors.New("the object has changed meanwhile")
)

// process handles an object, and queues it again unless that is complete.
func (c *Collector) process(ctx context.Context, i id) {
	kinds := c.graph.currentKinds()
	err := c.look(ctx, kinds, i)
	switch {
	case err == nil:
		c.queue.Forget(i)
	case errors.Is(err, errScope):
		c.queue.Forget(i) // it is reported, and otherwise ignored
	case errors.Is(err, errUnresolved):
		c.queue.Forget(i)
		if !c.graph.resolveLater(i, kinds) {
			c.queue.Add(i)
		}
	default:
		if ctx.Err() == nil && !errors.Is(err, errUnobserved) && !errors.Is(err, errChanged) {
			klog.FromContext(ctx).Error(err, "The garbage collector will retry an object", "resource", i.resource, "uid", i.uid)
		}
		c.queue.AddRateLimited(i)
	}
}

func (c *Collector) look(ctx context.Context, kinds *resources.Set, i id) error {
	n := c.graph.get(i)
	switch {
	case n == nil:
		return nil
	case n.deleting && n.orphan:
		return c.orphanDependents(ctx, kinds, n)
	case n.waits():
		return c.awaitDependents(ctx, kinds, n)
	case n.deleting, c.graph.settled(n):
		return nil
	}
	return c.collect(ctx, kinds, n)
}

// collect deletes an object without existing owners. If some owners exist, it removes the references to absent ones.
func (c *Collector) collect(ctx context.Context, kinds *resources.Set, n *node) error {
	objects, err := c.objects(kinds, n)
	if err != nil {
		return err
	}
	live, err := get(ctx, objects, n)
	if live == nil || err != nil || live.DeletionTimestamp != nil {
		return err
	}
	owners, err := c.classify(ctx, kinds, n, live.OwnerReferences)
	if err != nil {
		return err
	}
	idle := func(reference metav1.OwnerReference) bool { return !slices.Contains(owners.holding, reference.UID) }
	switch {
	case len(live.OwnerReferences) == 0:
		return nil
	case len(owners.holding) > 0:
		if rest := slices.DeleteFunc(slices.Clone(live.OwnerReferences), idle); len(rest) < len(live.OwnerReferences) {
			if err := patch(ctx, objects, live, "ownerReferences", rest); err != nil {
				return err
			}
		}
		if owners.unobserved {
			return errUnobserved
		}
		return nil
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case slices.Contains(live.Finalizers, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(live.Finalizers, metav1.FinalizerDeleteDependents),
		owners.waiting && c.graph.hasDependents(n.uid):
		policy = metav1.DeletePropagationForeground
	}
	err = objects.Delete(ctx, live.Name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion},
		PropagationPolicy: &policy,
	})
	return ignoreAbsence(err, live.Name)
}

// owners is the current state of an object's owners.
type owners struct {
	// holding are the UIDs of the existing owners that do not wait for the deletion of the object.
	holding []types.UID
	waiting bool
	// unobserved is set if one of the holding owners is not in the graph.
	unobserved bool
}

func (c *Collector) classify(ctx context.Context, kinds *resources.Set, n *node, references []metav1.OwnerReference) (owners, error) {
	var all owners
	for _, reference := range references {
		owner, err := c.owner(ctx, kinds, n, reference)
		switch {
		case err != nil:
			return all, fmt.Errorf("owner %s %s: %w", reference.Kind, reference.Name, err)
		case owner == nil:
		case owner.DeletionTimestamp != nil && slices.Contains(owner.Finalizers, metav1.FinalizerDeleteDependents):
			all.waiting = true
		default:
			all.holding = append(all.holding, reference.UID)
			all.unobserved = all.unobserved || !c.graph.observed(n, reference)
		}
	}
	return all, nil
}

// owner reads the owner that a reference names. It returns nil if the owner does not exist.
func (c *Collector) owner(
	ctx context.Context,
	kinds *resources.Set,
	n *node,
	reference metav1.OwnerReference,
) (*metav1.PartialObjectMetadata, error) {
	resource, ok := kinds.Of(schema.FromAPIVersionAndKind(reference.APIVersion, reference.Kind))
	switch {
	case !ok && c.graph.isGone(reference.UID):
		return nil, nil
	case !ok:
		return nil, errUnresolved
	case resource.Namespaced && n.namespace == "":
		c.reportNamespace(ctx, kinds, n, reference)
		return nil, errScope
	}
	owner := &node{id: id{resource.GroupResource(), reference.UID}, name: reference.Name}
	if resource.Namespaced {
		owner.namespace = n.namespace
	}
	live, err := get(ctx, c.client.Resource(resource.GroupVersionResource).Namespace(owner.namespace), owner)
	if elsewhere := c.graph.get(owner.id); live == nil && err == nil && elsewhere != nil && elsewhere.namespace != owner.namespace {
		c.reportNamespace(ctx, kinds, n, reference)
	}
	return live, err
}

// awaitDependents finishes the foreground deletion of an owner once no dependent blocks it.
func (c *Collector) awaitDependents(ctx context.Context, kinds *resources.Set, n *node) error {
	blockers := c.graph.blockers(n)
	if len(blockers) == 0 {
		return c.finish(ctx, kinds, n, metav1.FinalizerDeleteDependents)
	}
	for _, blocker := range blockers {
		if !blocker.deleting {
			c.queue.Add(blocker.id)
		}
	}
	circular := c.graph.cycle(n)
	if len(circular) == 0 {
		return nil
	}
	// All objects of the cycle would wait for each other forever, so this one stops blocking its owners.
	objects, err := c.objects(kinds, n)
	if err != nil {
		return err
	}
	live, err := get(ctx, objects, n)
	if live == nil || err != nil {
		return err
	}
	references := slices.Clone(live.OwnerReferences)
	for i := range references {
		if circular[references[i].UID] {
			references[i].BlockOwnerDeletion = new(false)
		}
	}
	return patch(ctx, objects, live, "ownerReferences", references)
}

// orphanDependents removes the references to an owner from all its dependents, and then finishes its deletion. It
// lists the dependents instead of using the graph: a dependent that the graph has not observed yet would later be
// found without its owner, and be deleted.
func (c *Collector) orphanDependents(ctx context.Context, kinds *resources.Set, n *node) error {
	now, err := c.askForAll(ctx)
	if err != nil {
		return err
	}
	failures := []error{now.Err()}
	for _, resource := range now.All() {
		if !collects(resource) || n.namespace != "" && !resource.Namespaced {
			continue
		}
		if err := c.orphan(ctx, resource, n); err != nil {
			failures = append(failures, fmt.Errorf("orphan the dependents among %s: %w", resource.GroupResource(), err))
		}
	}
	if err := errors.Join(failures...); err != nil {
		if ctx.Err() != nil || c.queue.NumRequeues(n.id) < orphanTries {
			return err
		}
		klog.FromContext(ctx).
			Error(err, "Deleting an owner with dependents that are not orphaned", "resource", n.resource, "namespace", n.namespace, "name", n.name)
	}
	return c.finish(ctx, kinds, n, metav1.FinalizerOrphanDependents)
}

// orphan removes the references to an owner from the objects of a resource.
func (c *Collector) orphan(ctx context.Context, resource resources.Resource, owner *node) error {
	refers := func(reference metav1.OwnerReference) bool { return reference.UID == owner.uid }
	all := c.client.Resource(resource.GroupVersionResource)
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := all.Namespace(owner.namespace).List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			m := &page.Items[i]
			rest := slices.DeleteFunc(slices.Clone(m.OwnerReferences), refers)
			if len(rest) == len(m.OwnerReferences) {
				continue
			}
			if err := patch(ctx, all.Namespace(m.Namespace), m, "ownerReferences", rest); err != nil {
				return err
			}
		}
		if page.Continue == "" {
			return nil
		}
		options.Continue = page.Continue
	}
}

// finish removes a finalizer of the collector from an object.
func (c *Collector) finish(ctx context.Context, kinds *resources.Set, n *node, finalizer string) error {
	objects, err := c.objects(kinds, n)
	if err != nil {
		return err
	}
	live, err := get(ctx, objects, n)
	if live == nil || err != nil {
		return err
	}
	rest := slices.DeleteFunc(slices.Clone(live.Finalizers), func(f string) bool { return f == finalizer })
	if live.DeletionTimestamp == nil || len(rest) == len(live.Finalizers) {
		return nil
	}
	return patch(ctx, objects, live, "finalizers", rest)
}

// objects returns the client for an object of the graph.
func (c *Collector) objects(kinds *resources.Set, n *node) (metadata.ResourceInterface, error) {
	resource, ok := kinds.Get(n.resource)
	if !ok {
		return nil, errUnresolved
	}
	return c.client.Resource(resource.GroupVersionResource).Namespace(n.namespace), nil
}

// get reads an object. It returns nil if no object with that name and UID exists.
func get(ctx context.Context, objects metadata.ResourceInterface, n *node) (*metav1.PartialObjectMetadata, error) {
	live, err := objects.Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return nil, ignoreAbsence(err, n.name)
	}
	if live.UID != n.uid {
		return nil, nil
	}
	return live, nil
}

// patch replaces a list in an object's metadata, on the condition that the object has not changed.
func patch(ctx context.Context, objects metadata.ResourceInterface, live *metav1.PartialObjectMetadata, field string, list any) error {
	body, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"uid": live.UID, "resourceVersion": live.ResourceVersion, field: list}},
	)
	if err != nil {
		return err
	}
	_, err = objects.Patch(ctx, live.Name, types.MergePatchType, body, metav1.PatchOptions{})
	return ignoreAbsence(err, live.Name)
}

// ignoreAbsence returns nil if the error reports that the object itself does not exist. A path that is not served is
// also answered with not found, but that means nothing for the object.
func ignoreAbsence(err error, name string) error {
	status := apierrors.APIStatus(nil)
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: %w", errChanged, err)
	case !apierrors.IsNotFound(err) || !errors.As(err, &status):
		return err
	}
	details := status.Status().Details
	if details == nil || details.Name != name || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return err
	}
	return nil
}
