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

// id is what the graph knows an object by. A UID alone would not do: two groups may serve the
// same objects.
type id struct {
	resource schema.GroupResource
	uid      types.UID
}

// node is what the collector knows of an object, as it was observed last. It never changes.
type node struct {
	id
	namespace, name string
	owners          []metav1.OwnerReference
	// deleting says that the object goes as soon as it has no finalizers; foreground and
	// orphan, which of the collector's finalizers it has.
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

// waits tells whether the object stays until its dependents have gone.
func (n *node) waits() bool { return n.deleting && n.foreground }

// graph is what has been observed, which may be behind the server. It only says what is worth
// looking at: nothing is changed without asking the server.
//
// An owner need not be in it. What depends on it is found by its UID, which is all that is sure
// of a reference: all else in it may be wrong.
type graph struct {
	mu         sync.Mutex
	kinds      *resources.Set
	nodes      map[id]*node
	dependents map[types.UID]map[id]struct{}
	// waiting are the objects in foreground deletion.
	waiting map[types.UID]map[id]struct{}
	// unresolved are objects of which nothing can be said with these kinds.
	unresolved map[id]struct{}
	// gone are UIDs that have dependents and were observed to go. It is all that is left to
	// know of owners whose kind has gone with them.
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

// setKinds says by what references are understood from now on, and returns what is to be looked
// at because of it.
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

// resolveLater has an object looked at when there are other kinds than these. It tells whether
// that is not now.
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

// isGone tells whether an object was observed to go.
func (g *graph) isGone(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.gone[uid]
}

// settled tells whether an object may stay for all that has been observed: it has no owners,
// or all of them are there and do not wait for it to go.
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

// observed tells whether the owner that a reference names is in the graph.
func (g *graph) observed(n *node, reference metav1.OwnerReference) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.owner(n, reference) != nil
}

// owner is the observed owner of an object by a reference, nil if nothing like that is known:
// another name, kind or namespace than the UID's own is no reference to it.
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

// put observes an object, and returns what is to be looked at because of it.
func (g *graph) put(n *node) []id {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.nodes[n.id]
	g.nodes[n.id] = n
	delete(g.gone, n.uid) // systems that are mirrored may use a UID again
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
		// Between two lists the finalizer may have been taken and given again.
		affected = append(affected, n.id)
	case !n.deleting && referred && !g.settledLocked(n):
		affected = append(affected, n.id)
	}
	if old != nil && referred {
		affected = append(affected, g.waitingOwners(old)...) // they may not be blocked any more
	}
	return affected
}

// remove observes that an object has gone, and returns what is to be looked at because of it.
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

// retain observes a whole resource: what is not in keep has gone.
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

// blockers are the objects that an owner in foreground deletion waits for.
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

// cycle returns the owners of an object that wait for it while it waits for them: the UIDs of
// those among its blocking owners that it is blocked by, directly or by others.
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

// hasDependents tells whether objects are known that name this one as an owner.
func (g *graph) hasDependents(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.dependents[uid]) > 0
}

func (g *graph) dependentsOf(uid types.UID) []id {
	return slices.SortedFunc(maps.Keys(g.dependents[uid]), compareIDs)
}

// waitingOwners are the owners of an object that are in foreground deletion. They are found
// by their UIDs alone: whether the rest of a reference is right may not be known at this time.
func (g *graph) waitingOwners(n *node) []id {
	var all []id
	for _, reference := range n.owners {
		all = slices.AppendSeq(all, maps.Keys(g.waiting[reference.UID]))
	}
	slices.SortFunc(all, compareIDs)
	return all
}

// unlink takes an object out of its owners' dependents.
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
