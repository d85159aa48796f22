package garbage

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/annexapi/annex/internal/standalone/resources"
)

// id identifies an object in the graph. A UID alone is not sufficient: two groups may serve the same objects.
type id struct {
	resource schema.GroupResource
	uid      types.UID
}

// node is the last observed state of an object. It is immutable.
type node struct {
	id
	namespace, name string
	owners          []metav1.OwnerReference
	// deleting means that the object will be removed as soon as it has no finalizers. foreground and orphan are set
	// if it has the respective finalizer of the collector.
	deleting, foreground, orphan bool
}

func nodeOf(resource schema.GroupResource, m *metav1.PartialObjectMetadata) *node {
	return &node{
		id:         id{resource, m.UID},
		namespace:  m.Namespace,
		name:       m.Name,
		owners:     slices.Clone(m.OwnerReferences),
		deleting:   m.DeletionTimestamp != nil,
		foreground: slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents),
		orphan:     slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents),
	}
}

// waits reports whether the object stays until its dependents have gone.
func (n *node) waits() bool { return n.deleting && n.foreground }

// graph contains the observed objects. It may lag behind the server, so it only determines which objects to check: no
// object is modified without reading it first.
//
// An owner need not be in the graph. Its dependents are found by its UID, which is the only reliable part of a
// reference.
type graph struct {
	mu         sync.Mutex
	kinds      *resources.Set
	nodes      map[id]*node
	dependents map[types.UID]map[id]struct{}
	// waiting are the objects in foreground deletion.
	waiting map[types.UID]map[id]struct{}
	// unresolved are objects that cannot be handled with the current kinds.
	unresolved map[id]struct{}
	// gone are UIDs that have dependents and whose deletion was observed. For owners whose kind was removed with
	// them, there is no other information.
	gone map[types.UID]bool
}

func newGraph() *graph {
	return &graph{
		kinds:      &resources.Set{},
		nodes:      map[id]*node{},
		dependents: map[types.UID]map[id]struct{}{},
		waiting:    map[types.UID]map[id]struct{}{},
		unresolved: map[id]struct{}{},
		gone:       map[types.UID]bool{},
	}
}

// setKinds sets the kinds by which references are resolved, and returns the affected objects.
func (g *graph) setKinds(kinds *resources.Set) []id {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kinds = kinds
	affected := slices.SortedFunc(maps.Keys(g.unresolved), compareIDs)
	clear(g.unresolved)
	return affected
}

func (g *graph) currentKinds() *resources.Set {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kinds
}

// resolveLater registers an object to be checked when the kinds differ from these. It returns false if they already
// do.
func (g *graph) resolveLater(i id, kinds *resources.Set) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.kinds != kinds {
		return false
	}
	if g.nodes[i] != nil {
		g.unresolved[i] = struct{}{}
	}
	return true
}

func (g *graph) get(i id) *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.nodes[i]
}

// isGone reports whether the deletion of an object was observed.
func (g *graph) isGone(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gone[uid]
}

// settled reports whether the observed state allows an object to stay: it has no owners, or all of them exist and do
// not wait for its deletion.
func (g *graph) settled(n *node) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.settledLocked(n)
}

func (g *graph) settledLocked(n *node) bool {
	for _, reference := range n.owners {
		if owner := g.owner(n, reference); owner == nil || owner.waits() {
			return false
		}
	}
	return true
}

// observed reports whether the owner in a reference is in the graph.
func (g *graph) observed(n *node, reference metav1.OwnerReference) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.owner(n, reference) != nil
}

// owner returns the observed owner in a reference, or nil. Name, kind and namespace of the reference have to match
// the owner with the UID, else it is not a reference to that owner.
func (g *graph) owner(n *node, reference metav1.OwnerReference) *node {
	resource, ok := g.kinds.Of(schema.FromAPIVersionAndKind(reference.APIVersion, reference.Kind))
	if !ok {
		return nil
	}
	owner := g.nodes[id{resource.GroupResource(), reference.UID}]
	if owner == nil || owner.name != reference.Name || owner.namespace != "" && owner.namespace != n.namespace {
		return nil
	}
	return owner
}

// put records an object, and returns the objects to check because of it.
func (g *graph) put(n *node) []id {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.nodes[n.id]
	g.nodes[n.id] = n
	delete(g.gone, n.uid) // mirrored systems may reuse a UID
	referred := old == nil || !sameOwners(old.owners, n.owners)
	if referred {
		g.unlink(old)
		for _, reference := range n.owners {
			insert(g.dependents, reference.UID, n.id)
		}
	}
	if n.waits() {
		insert(g.waiting, n.uid, n.id)
	} else {
		erase(g.waiting, n.uid, n.id)
	}
	var affected []id
	switch {
	case n.waits() && (old == nil || !old.waits() || referred):
		affected = append(g.dependentsOf(n.uid), n.id)
	case n.waits() || n.deleting && n.orphan:
		// Between two lists the finalizer may have been removed and added again.
		affected = append(affected, n.id)
	case !n.deleting && referred && !g.settledLocked(n):
		affected = append(affected, n.id)
	}
	if old != nil && referred {
		affected = append(affected, g.waitingOwners(old)...) // they may no longer be blocked
	}
	return affected
}

// remove records the deletion of an object, and returns the objects to check because of it.
func (g *graph) remove(i id) []id {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.removeLocked(i)
}

func (g *graph) removeLocked(i id) []id {
	n := g.nodes[i]
	if n == nil {
		return nil
	}
	delete(g.nodes, i)
	delete(g.unresolved, i)
	g.unlink(n)
	erase(g.waiting, i.uid, i)
	affected := g.dependentsOf(i.uid)
	if len(affected) > 0 {
		g.gone[i.uid] = true
	}
	return append(affected, g.waitingOwners(n)...)
}

// retain records a complete list of a resource: objects that are not in keep have gone.
func (g *graph) retain(resource schema.GroupResource, keep map[types.UID]bool) []id {
	g.mu.Lock()
	defer g.mu.Unlock()
	var lost []id
	for i := range g.nodes {
		if i.resource == resource && !keep[i.uid] {
			lost = append(lost, i)
		}
	}
	slices.SortFunc(lost, compareIDs)
	var affected []id
	for _, i := range lost {
		affected = append(affected, g.removeLocked(i)...)
	}
	return affected
}

// blockers returns the objects that an owner in foreground deletion waits for.
func (g *graph) blockers(owner *node) []*node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.blockersLocked(owner)
}

func (g *graph) blockersLocked(owner *node) []*node {
	var all []*node
	for _, i := range g.dependentsOf(owner.uid) {
		dependent := g.nodes[i]
		if slices.ContainsFunc(dependent.owners, func(reference metav1.OwnerReference) bool {
			return blocks(reference) && g.owner(dependent, reference) == owner
		}) {
			all = append(all, dependent)
		}
	}
	return all
}

// cycle returns the UIDs of the owners that wait for an object while it waits for them: its blocking owners that also
// block it, directly or through others.
func (g *graph) cycle(n *node) map[types.UID]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	reached := map[id]bool{}
	for next := []*node{n}; len(next) > 0; next = next[1:] {
		for _, blocker := range g.blockersLocked(next[0]) {
			if blocker.waits() && !reached[blocker.id] {
				reached[blocker.id] = true
				next = append(next, blocker)
			}
		}
	}
	if !reached[n.id] {
		return nil
	}
	uids := map[types.UID]bool{}
	for _, reference := range n.owners {
		if owner := g.owner(n, reference); owner != nil && blocks(reference) && reached[owner.id] {
			uids[owner.uid] = true
		}
	}
	return uids
}

// hasDependents reports whether any known object has this one as an owner.
func (g *graph) hasDependents(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.dependents[uid]) > 0
}

func (g *graph) dependentsOf(uid types.UID) []id {
	return slices.SortedFunc(maps.Keys(g.dependents[uid]), compareIDs)
}

// waitingOwners returns the owners of an object that are in foreground deletion. They are found by UID alone, because
// it may not be possible yet to verify the rest of a reference.
func (g *graph) waitingOwners(n *node) []id {
	var all []id
	for _, reference := range n.owners {
		all = slices.AppendSeq(all, maps.Keys(g.waiting[reference.UID]))
	}
	slices.SortFunc(all, compareIDs)
	return all
}

// unlink removes an object from the dependents of its owners.
func (g *graph) unlink(n *node) {
	if n == nil {
		return
	}
	for _, reference := range n.owners {
		erase(g.dependents, reference.UID, n.id)
		if len(g.dependents[reference.UID]) == 0 {
			delete(g.gone, reference.UID)
		}
	}
}

func insert(index map[types.UID]map[id]struct{}, uid types.UID, i id) {
	if index[uid] == nil {
		index[uid] = map[id]struct{}{}
	}
	index[uid][i] = struct{}{}
}

func erase(index map[types.UID]map[id]struct{}, uid types.UID, i id) {
	delete(index[uid], i)
	if len(index[uid]) == 0 {
		delete(index, uid)
	}
}

func blocks(reference metav1.OwnerReference) bool {
	return reference.BlockOwnerDeletion != nil && *reference.BlockOwnerDeletion
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.OwnerReference) bool {
		return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID && blocks(a) == blocks(b)
	})
}

func compareIDs(a, b id) int {
	return cmp.Or(
		cmp.Compare(a.resource.Group, b.resource.Group),
		cmp.Compare(a.resource.Resource, b.resource.Resource),
		cmp.Compare(a.uid, b.uid),
	)
}
