package garbage

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/standalone/resources"
)

// Long runs: go test ./internal/controlplane/garbage -run Model -steps 1000000
var (
	steps = flag.Int("steps", 100_000, "steps of the model test")
	seed  = flag.Uint64("seed", 0, "seed of the model test; 0 is a random one")
)

// The collector runs in one goroutine together with clients that do anything. Which event arrives, which object is
// checked, and what clients do between two requests of the collector is random. An object that the collector deletes
// must not have an existing owner. When all events have been observed, no object may remain whose owners are all
// gone.
func TestModel(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	count := *steps
	if testing.Short() {
		count = min(count, 10_000)
	}
	t.Logf("go test ./internal/controlplane/garbage -run Model -steps %d -seed %d", count, *seed)
	w := newWorld(t, *seed)
	for i := range count {
		w.step()
		if i%2000 == 1999 {
			w.settle()
		}
	}
	w.free()
	w.settle()
	t.Logf("%d objects created, %d deletions by clients; by the collector: %d deletions, %d patches, %d restarts; %d injected failures",
		w.created, w.deletedByClients, w.collected, w.patched, w.restarts, w.failed)
	if w.collected == 0 || w.patched == 0 || w.failed == 0 || w.restarts == 0 {
		t.Error("the model does not do what it is for")
	}
}

// The kinds of the world. Alphas are served in two versions.
var (
	alphas  = schema.GroupResource{Group: "a.example.com", Resource: "alphas"}
	betas   = schema.GroupResource{Group: "b.example.com", Resource: "betas"}
	gammas  = schema.GroupResource{Resource: "gammas"}
	spheres = schema.GroupResource{Group: "a.example.com", Resource: "spheres"} // cluster-scoped
	names   = map[schema.GroupResource]string{alphas: "Alpha", betas: "Beta", gammas: "Gamma", spheres: "Sphere"}
	all     = []schema.GroupResource{alphas, betas, gammas, spheres}
)

// availability is the state of a kind.
type availability int

const (
	served   availability = iota
	vanished              // missing in discovery; its paths return not found
	stale                 // its server does not respond
)

type place struct {
	resource        schema.GroupResource
	namespace, name string
}

type event struct {
	deleted bool
	object  *metav1.PartialObjectMetadata
}

// world is an in-memory API server with its clients and the collector.
type world struct {
	t      *testing.T
	random *rand.Rand
	trace  []string

	revision int
	objects  map[place]*metav1.PartialObjectMetadata
	events   map[schema.GroupResource][]event
	state    map[schema.GroupResource]availability
	// orphans are the dependents, by UID, of owners that were deleted with the policy Orphan.
	orphans map[types.UID]map[types.UID]bool
	// changing are owners that were deleted with a policy of the collector. Clients may delete them again with
	// another policy after the collector has begun.
	changing map[types.UID]bool

	collector *Collector
	queue     *lottery
	kinds     *resources.Set // as last discovered by the collector
	watches   map[schema.GroupResource]*watched
	calm      bool // no failures, and no actions of clients
	inside    bool // a client acts between two requests of the collector

	created, deletedByClients, collected, patched, restarts, failed int
}

// watched is the collector's position in a resource.
type watched struct {
	list   bool // a list comes first
	next   int  // index of the next event
	leaves bool
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t:        t,
		random:   rand.New(rand.NewPCG(seed, 0)),
		objects:  map[place]*metav1.PartialObjectMetadata{},
		events:   map[schema.GroupResource][]event{},
		state:    map[schema.GroupResource]availability{},
		orphans:  map[types.UID]map[types.UID]bool{},
		changing: map[types.UID]bool{},
	}
	w.restart()
	return w
}

func (w *world) record(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
	if len(w.trace) > 300 {
		w.trace = w.trace[100:]
	}
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(w.trace, "\n"))
}

func (w *world) chance(percent float64) bool { return w.random.Float64()*100 < percent }

func pick[T any](w *world, from []T) (one T) {
	if len(from) > 0 {
		one = from[w.random.IntN(len(from))]
	}
	return one
}

func (w *world) step() {
	switch n := w.random.IntN(1000); {
	case n < 250:
		w.client()
	case n < 580:
		w.deliver(pick(w, all))
	case n < 900:
		w.work()
	case n < 930:
		w.queue.time()
	case n < 955:
		w.discover()
	case n < 990:
		w.watches[pick(w, all)].list = true // the watch broke
	case n < 992:
		w.restart()
	default:
		w.change(pick(w, all))
	}
}

// restart replaces the collector by a new one without state.
func (w *world) restart() {
	w.record("RESTART")
	w.restarts++
	w.queue = &lottery{random: w.random}
	w.collector = newCollector(w, w.queue)
	w.collector.askForAll = func(context.Context) (*resources.Set, error) { return w.discovery(), w.mayFail() }
	w.kinds = nil
	w.watches = map[schema.GroupResource]*watched{}
	for _, resource := range all {
		w.watches[resource] = &watched{list: true}
	}
	w.discover()
}

func (w *world) change(resource schema.GroupResource) {
	if w.state[resource] != served {
		w.state[resource] = served
	} else if w.chance(40) {
		w.state[resource] = vanished
		if w.chance(30) {
			// The resource is removed after all of its objects.
			for _, at := range w.places() {
				if at.resource == resource {
					w.remove(at)
				}
			}
			w.record("all of %s is deleted", resource)
		}
	} else {
		w.state[resource] = stale
	}
	w.record("%s is %d", resource, w.state[resource])
	w.forgetOrphans(resource)
}

// forgetOrphans drops the expectations for a kind: dependents in a kind that cannot be listed may be missed.
func (w *world) forgetOrphans(resource schema.GroupResource) {
	for at, m := range w.objects {
		if at.resource == resource {
			delete(w.orphans, m.UID)
		}
	}
}

func (w *world) discover() {
	w.kinds = w.discovery()
	w.collector.setKinds(w.kinds)
	for _, resource := range all {
		state, watch := w.state[resource], w.watches[resource]
		if state == served && watch.leaves {
			*watch = watched{list: true}
		}
		watch.leaves = watch.leaves || state == vanished
	}
}

func (w *world) discovery() *resources.Set {
	var groups []apidiscovery.APIGroupDiscovery
	for _, resource := range all {
		if w.state[resource] == vanished {
			continue
		}
		scope := apidiscovery.ScopeNamespace
		if resource == spheres {
			scope = apidiscovery.ScopeCluster
		}
		fresh := apidiscovery.DiscoveryFreshnessCurrent
		if w.state[resource] == stale {
			fresh = apidiscovery.DiscoveryFreshnessStale
		}
		group := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: resource.Group}}
		versions := []string{"v1"}
		switch resource {
		case alphas:
			versions = []string{"v2", "v1"}
		case spheres:
			versions = []string{"v3"} // a single version may be stale
		}
		for _, version := range versions {
			group.Versions = append(
				group.Versions,
				apidiscovery.APIVersionDiscovery{Version: version, Freshness: fresh, Resources: []apidiscovery.APIResourceDiscovery{{
					Resource: resource.Resource, Scope: scope, Verbs: []string{"get", "list", "watch", "delete", "patch"},
					ResponseKind: &metav1.GroupVersionKind{Group: resource.Group, Version: version, Kind: names[resource]},
				}}},
			)
		}
		groups = append(groups, group)
	}
	return resources.NewSet(groups)
}

// deliver makes the collector observe the next event of a resource, or a list.
func (w *world) deliver(resource schema.GroupResource) bool {
	watch := w.watches[resource]
	source := newSource(w.collector, resource.WithVersion("v1"))
	if watch.list {
		if w.state[resource] != served {
			return false
		}
		var list []any
		for _, at := range w.places() {
			if at.resource == resource {
				list = append(list, w.objects[at].DeepCopy())
			}
		}
		watch.list, watch.next = false, len(w.events[resource])
		w.check(source.Replace(list, ""))
		return true
	}
	if watch.next == len(w.events[resource]) {
		return false
	}
	event := w.events[resource][watch.next]
	watch.next++
	if event.deleted {
		w.check(source.Delete(event.object))
	} else {
		w.check(source.Update(event.object))
	}
	return true
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.fail("%v", err)
	}
}

// work makes the collector handle an object. It begins only when all available kinds have been listed.
func (w *world) work() bool {
	for _, resource := range all {
		if w.watches[resource].list && w.state[resource] == served {
			return false
		}
	}
	i, ok := w.queue.draw()
	if !ok {
		return false
	}
	w.collector.process(klog.NewContext(w.t.Context(), logr.Discard()), i)
	return true
}

// settle ends all disturbances, lets the collector finish, and inspects the result.
func (w *world) settle() {
	w.calm = true
	clear(w.state)
	w.discover()
	for again, rounds := true, 0; again; rounds++ {
		if rounds > 100_000 {
			w.fail("the collector does not come to an end")
		}
		again = false
		for _, resource := range all {
			for w.deliver(resource) {
				again = true
			}
		}
		for w.work() {
			again = true
		}
		again = w.queue.time() || again
	}
	w.inspect()
	w.calm = false
}

// free removes the finalizers of clients.
func (w *world) free() {
	for _, at := range w.places() {
		m := w.objects[at].DeepCopy()
		m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == "example.com/hold" })
		w.write(at, m)
	}
}

func (w *world) places() []place {
	return slices.SortedFunc(maps.Keys(w.objects), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.resource.Resource, b.resource.Resource), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
}

// The true state of an owner.

type standing int

const (
	absent standing = iota
	holding
	waiting
	unknown // cannot be determined
)

func (w *world) standing(at place, reference metav1.OwnerReference) standing {
	gv, _ := schema.ParseGroupVersion(reference.APIVersion)
	for resource, kind := range names {
		if kind != reference.Kind || resource.Group != gv.Group {
			continue
		}
		place := place{resource, at.namespace, reference.Name}
		if resource == spheres {
			place.namespace = ""
		} else if at.namespace == "" {
			return unknown
		}
		owner := w.objects[place]
		switch {
		case owner == nil || owner.UID != reference.UID:
			return absent
		case owner.DeletionTimestamp != nil && slices.Contains(owner.Finalizers, metav1.FinalizerDeleteDependents):
			return waiting
		}
		return holding
	}
	return unknown
}

func (w *world) standings(at place) map[standing]int {
	count := map[standing]int{}
	for _, reference := range w.objects[at].OwnerReferences {
		count[w.standing(at, reference)]++
	}
	return count
}

// inspect checks a world in which nothing more will happen by itself.
func (w *world) inspect() {
	stuck := map[types.UID]bool{}
	for more := true; more; {
		more = false
		for _, at := range w.places() {
			m := w.objects[at]
			if stuck[m.UID] {
				continue
			}
			deleting := m.DeletionTimestamp != nil
			stuck[m.UID] = deleting && slices.Contains(m.Finalizers, "example.com/hold") || !deleting && w.standings(at)[unknown] > 0
			if deleting && slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents) {
				for _, at := range w.places() {
					blocks := slices.ContainsFunc(w.objects[at].OwnerReferences, func(reference metav1.OwnerReference) bool {
						return reference.UID == m.UID && blocks(reference) && w.standing(at, reference) == waiting
					})
					stuck[m.UID] = stuck[m.UID] || blocks && stuck[w.objects[at].UID]
				}
			}
			more = more || stuck[m.UID]
		}
	}
	if len(w.collector.graph.nodes) != len(w.objects) {
		w.fail("%d objects are in the graph, of %d", len(w.collector.graph.nodes), len(w.objects))
	}
	for i := range w.collector.graph.unresolved {
		if w.collector.graph.nodes[i] == nil {
			w.fail("%v is kept after it has gone", i)
		}
	}
	for uid := range w.collector.graph.gone {
		if len(w.collector.graph.dependents[uid]) == 0 {
			w.fail("%s is remembered, and has no dependents", uid)
		}
	}
	for _, at := range w.places() {
		m, owners := w.objects[at], w.standings(at)
		switch {
		case m.DeletionTimestamp != nil && slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents):
			w.fail("%v keeps the finalizer orphan", at)
		case m.DeletionTimestamp != nil && slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents) && !stuck[m.UID]:
			w.fail("%v keeps the finalizer foregroundDeletion: %+v", at, m)
		case m.DeletionTimestamp != nil || owners[unknown] > 0 || len(m.OwnerReferences) == 0:
		case owners[holding] == 0:
			w.fail("%v is an orphan: %+v", at, m.OwnerReferences)
		case owners[holding] < len(m.OwnerReferences) && !twice(m.OwnerReferences):
			w.fail("%v keeps references to owners that are gone: %+v", at, m.OwnerReferences)
		}
	}
}

// twice reports whether there are several references to one UID.
func twice(references []metav1.OwnerReference) bool {
	uids := map[types.UID]bool{}
	for _, reference := range references {
		uids[reference.UID] = true
	}
	return len(uids) < len(references)
}

// The clients.

func (w *world) client() {
	places := slices.DeleteFunc(w.places(), func(at place) bool { return w.state[at.resource] != served })
	resource := pick(w, all)
	if w.state[resource] == served && (len(places) < 10 || w.chance(max(5, float64(50-len(places))))) {
		w.create(resource)
		return
	}
	if len(places) == 0 {
		return
	}
	at := pick(w, places)
	m := w.objects[at].DeepCopy()
	switch w.random.IntN(6) {
	case 0:
		m.OwnerReferences = append(m.OwnerReferences, w.reference(at))
		w.record("%v gets %+v", at, m.OwnerReferences)
		delete(w.orphans, m.UID)
	case 1:
		if len(m.OwnerReferences) > 0 {
			i := w.random.IntN(len(m.OwnerReferences))
			m.OwnerReferences = slices.Delete(m.OwnerReferences, i, i+1)
		}
		w.record("%v has only %+v", at, m.OwnerReferences)
		delete(w.orphans, m.UID)
	case 2:
		held := slices.Index(m.Finalizers, "example.com/hold")
		if held >= 0 {
			m.Finalizers = slices.Delete(m.Finalizers, held, held+1)
		} else if m.DeletionTimestamp == nil && w.chance(30) {
			m.Finalizers = append(m.Finalizers, "example.com/hold")
		}
		w.record("%v has %v", at, m.Finalizers)
	case 3:
		m.Labels = map[string]string{"touched": strconv.Itoa(w.revision)}
	default:
		policies := []*metav1.DeletionPropagation{
			nil,
			new(metav1.DeletePropagationBackground),
			new(metav1.DeletePropagationForeground),
			new(metav1.DeletePropagationOrphan),
		}
		w.deletedByClients++
		w.delete(at, pick(w, policies))
		return
	}
	w.write(at, m)
}

func (w *world) create(resource schema.GroupResource) {
	at := place{resource, pick(w, []string{"red", "blue"}), "o" + strconv.Itoa(w.random.IntN(20))}
	if resource == spheres {
		at.namespace = ""
	}
	if w.objects[at] != nil {
		return
	}
	w.created++
	m := &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Namespace: at.namespace, Name: at.name, UID: types.UID("u" + strconv.Itoa(w.created))},
	}
	for w.chance(60) && len(m.OwnerReferences) < 4 {
		m.OwnerReferences = append(m.OwnerReferences, w.reference(at))
	}
	if w.chance(10) {
		m.Finalizers = []string{"example.com/hold"}
	}
	w.record("create %v %s with %+v", at, m.UID, m.OwnerReferences)
	w.write(at, m)
}

// reference names an owner: usually an existing object, as a client would, and sometimes an object that never existed.
func (w *world) reference(from place) metav1.OwnerReference {
	places := slices.DeleteFunc(
		w.places(),
		func(at place) bool { return at.namespace != "" && at.namespace != from.namespace && !w.chance(5) },
	)
	at := pick(w, places)
	if at.name == "" || w.chance(4) {
		return metav1.OwnerReference{APIVersion: "a.example.com/v1", Kind: "Alpha", Name: "never", UID: "never"}
	}
	version := pick(w, []string{"v1", "v1", "v2", "v0"}) // v0 is no longer served
	reference := metav1.OwnerReference{
		APIVersion: schema.GroupVersion{Group: at.resource.Group, Version: version}.String(),
		Kind:       names[at.resource],
		Name:       at.name,
		UID:        w.objects[at].UID,
	}
	if w.chance(60) {
		reference.BlockOwnerDeletion = new(w.chance(80))
	}
	switch {
	case w.chance(2):
		reference.UID = "another"
	case w.chance(2):
		reference.Name = "another"
	case w.chance(0.5):
		reference.Kind = "Nowhere"
	}
	return reference
}

// The API server.

func (w *world) write(at place, m *metav1.PartialObjectMetadata) {
	if m.DeletionTimestamp != nil && len(m.Finalizers) == 0 {
		w.objects[at] = m
		w.remove(at)
		return
	}
	w.revision++
	m.ResourceVersion = strconv.Itoa(w.revision)
	w.objects[at] = m
	w.events[at.resource] = append(w.events[at.resource], event{object: m.DeepCopy()})
}

func (w *world) remove(at place) {
	m := w.objects[at]
	w.record("%v %s is gone", at, m.UID)
	delete(w.objects, at)
	delete(w.orphans, m.UID)
	if slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents) {
		for _, owners := range w.orphans {
			delete(owners, m.UID) // it goes with its kind
		}
	}
	w.events[at.resource] = append(w.events[at.resource], event{deleted: true, object: m.DeepCopy()})
}

func (w *world) delete(at place, policy *metav1.DeletionPropagation) {
	m := w.objects[at].DeepCopy()
	orphans, waits := slices.Contains(
		m.Finalizers,
		metav1.FinalizerOrphanDependents,
	), slices.Contains(
		m.Finalizers,
		metav1.FinalizerDeleteDependents,
	)
	if policy != nil {
		orphans, waits = *policy == metav1.DeletePropagationOrphan, *policy == metav1.DeletePropagationForeground
	}
	m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if orphans {
		m.Finalizers = append(m.Finalizers, metav1.FinalizerOrphanDependents)
	}
	if waits {
		m.Finalizers = append(m.Finalizers, metav1.FinalizerDeleteDependents)
	}
	w.changing[m.UID] = w.changing[m.UID] || orphans || waits
	w.record("delete %v %s, finalizers %v", at, m.UID, m.Finalizers)
	for _, other := range w.places() {
		dependent := w.objects[other]
		if !orphans {
			delete(w.orphans[dependent.UID], m.UID)
			continue
		}
		refers := slices.ContainsFunc(dependent.OwnerReferences, func(reference metav1.OwnerReference) bool {
			return reference.UID == m.UID && w.standing(other, reference) == holding
		})
		if refers && m.DeletionTimestamp == nil && w.state[other.resource] == served {
			if w.orphans[dependent.UID] == nil {
				w.orphans[dependent.UID] = map[types.UID]bool{}
			}
			w.orphans[dependent.UID][m.UID] = true
		}
	}
	if m.DeletionTimestamp == nil {
		m.DeletionTimestamp = new(metav1.NewTime(time.Unix(int64(w.revision), 0)))
	}
	w.write(at, m)
}

// The requests of the collector.

// request simulates a request of the collector, during which clients may act. It may fail.
func (w *world) request(resource schema.GroupResource) error {
	if !w.calm && !w.inside && w.chance(20) {
		w.inside = true
		for w.chance(60) {
			w.client()
			w.deliver(pick(w, all))
		}
		if w.chance(3) {
			w.change(pick(w, all))
		}
		w.inside = false
	}
	switch w.state[resource] {
	case vanished:
		return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource, "", "404 page not found", 0, true)
	case stale:
		return apierrors.NewServiceUnavailable("no endpoints")
	}
	return w.mayFail()
}

func (w *world) mayFail() error {
	if !w.calm && w.chance(3) {
		w.failed++
		return apierrors.NewInternalError(fmt.Errorf("drawn by lot"))
	}
	return nil
}

// Resource implements metadata.Interface.
func (w *world) Resource(resource schema.GroupVersionResource) metadata.Getter {
	return client{world: w, resource: resource.GroupResource()}
}

// client is the collector's client. It implements the methods of a metadata client that the collector uses.
type client struct {
	metadata.ResourceInterface
	world     *world
	resource  schema.GroupResource
	namespace string
}

func (c client) Namespace(namespace string) metadata.ResourceInterface {
	c.namespace = namespace
	return c
}

func (c client) find(name string) (place, *metav1.PartialObjectMetadata, error) {
	at := place{c.resource, c.namespace, name}
	if err := c.world.request(c.resource); err != nil {
		return at, nil, err
	}
	m := c.world.objects[at]
	if m == nil {
		return at, nil, apierrors.NewNotFound(c.resource, name)
	}
	return at, m, nil
}

func (c client) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	_, m, err := c.find(name)
	return m.DeepCopy(), err
}

func (c client) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if err := c.world.request(c.resource); err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{}
	for _, at := range c.world.places() {
		if at.resource == c.resource && (c.namespace == "" || at.namespace == c.namespace) {
			list.Items = append(list.Items, *c.world.objects[at].DeepCopy())
		}
	}
	return list, nil
}

func (c client) Delete(_ context.Context, name string, options metav1.DeleteOptions, _ ...string) error {
	at, m, err := c.find(name)
	if err != nil {
		return err
	}
	if *options.Preconditions.UID != m.UID || *options.Preconditions.ResourceVersion != m.ResourceVersion {
		return apierrors.NewConflict(c.resource, name, fmt.Errorf("precondition"))
	}
	c.world.record("COLLECT %v %s", at, m.UID)
	if len(m.OwnerReferences) == 0 {
		c.world.fail("the collector deletes %v, which has no owner", at)
	}
	for _, reference := range m.OwnerReferences {
		if c.world.holds(at, reference) {
			c.world.fail("the collector deletes %v, which has an owner: %+v", at, reference)
		}
		if c.world.orphans[m.UID][reference.UID] {
			c.world.fail("the collector deletes %v, which was to be an orphan", at)
		}
	}
	c.world.collected++
	c.world.delete(at, options.PropagationPolicy)
	return c.world.mayFail()
}

func (c client) Patch(
	_ context.Context,
	name string,
	_ types.PatchType,
	body []byte,
	_ metav1.PatchOptions,
	_ ...string,
) (*metav1.PartialObjectMetadata, error) {
	at, old, err := c.find(name)
	if err != nil {
		return nil, err
	}
	var change struct{ Metadata metav1.ObjectMeta }
	c.world.check(json.Unmarshal(body, &change))
	if change.Metadata.UID != old.UID || change.Metadata.ResourceVersion != old.ResourceVersion {
		return nil, apierrors.NewConflict(c.resource, name, fmt.Errorf("precondition"))
	}
	c.world.record("PATCH %v %s: %s", at, old.UID, body)
	m := old.DeepCopy()
	c.world.check(json.Unmarshal(body, &struct{ Metadata *metav1.ObjectMeta }{&m.ObjectMeta}))
	if strings.Contains(string(body), "ownerReferences") {
		m.OwnerReferences = change.Metadata.OwnerReferences
		c.taken(at, old, m)
	}
	if strings.Contains(string(body), "finalizers") {
		m.Finalizers = change.Metadata.Finalizers
		if old.DeletionTimestamp == nil {
			c.world.fail("the collector takes finalizers from %v", at)
		}
	}
	c.world.patched++
	c.world.write(at, m)
	return m, c.world.mayFail()
}

// holds reports whether the collector must not act as if an owner were gone.
func (w *world) holds(at place, reference metav1.OwnerReference) bool {
	if w.changing[reference.UID] {
		return false
	}
	switch w.standing(at, reference) {
	case holding:
		return true
	case unknown:
		return slices.ContainsFunc(
			slices.Collect(maps.Values(w.objects)),
			func(m *metav1.PartialObjectMetadata) bool { return m.UID == reference.UID },
		)
	}
	return false
}

// taken checks the references that the collector removes, which must not be to existing owners.
func (c client) taken(at place, old, m *metav1.PartialObjectMetadata) {
	for _, reference := range old.OwnerReferences {
		keeps := slices.ContainsFunc(m.OwnerReferences, func(other metav1.OwnerReference) bool {
			return reference.UID == other.UID && reference.Kind == other.Kind && reference.Name == other.Name
		})
		if !keeps && c.world.holds(at, reference) {
			c.world.fail("the collector takes %+v from %v", reference, at)
		}
	}
}

// lottery is a queue that returns objects in random order.
type lottery struct {
	workqueue.TypedRateLimitingInterface[id]
	random       *rand.Rand
	ready, later []id
	tries        int // of each object
}

func (l *lottery) Add(i id) {
	if !slices.Contains(l.ready, i) {
		l.ready = append(l.ready, i)
	}
}

func (l *lottery) AddRateLimited(i id) {
	if !slices.Contains(l.later, i) {
		l.later = append(l.later, i)
	}
}

func (l *lottery) Forget(id) {}

func (l *lottery) NumRequeues(id) int { return l.tries }

func (l *lottery) draw() (id, bool) {
	if len(l.ready) == 0 {
		return id{}, false
	}
	i := l.random.IntN(len(l.ready))
	drawn := l.ready[i]
	l.ready = slices.Delete(l.ready, i, i+1)
	return drawn, true
}

// time advances the time until all delayed objects are due, and reports whether there are any.
func (l *lottery) time() bool {
	later := l.later
	l.later = nil
	for _, i := range later {
		l.Add(i)
	}
	return len(later) > 0
}

// A removed kind takes its objects with it, and afterwards they cannot be read.
func TestGraph_ownerGoesWithKind(t *testing.T) {
	for name, seen := range map[string]bool{"seen to go": true, "not seen to go": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.calm = true
			owner, owned := place{spheres, "", "owner"}, place{betas, "red", "owned"}
			w.write(owner, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "owner", UID: "owner"}})
			w.write(
				owned,
				&metav1.PartialObjectMetadata{
					ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "owned", UID: "owned", OwnerReferences: []metav1.OwnerReference{
						{APIVersion: "a.example.com/v3", Kind: "Sphere", Name: "owner", UID: "owner"},
					}},
				},
			)
			for _, resource := range all {
				w.deliver(resource)
			}
			w.state[spheres] = vanished
			w.discover()
			w.remove(owner)
			if seen {
				w.deliver(spheres)
			}
			w.deliver(betas)
			for w.work() || w.queue.time() {
			}
			if gone := w.objects[owned] == nil; gone != seen {
				t.Errorf("what it owned is gone: %v", gone)
			}
		})
	}
}

// Two groups may serve the same objects, and mirrored systems reuse UIDs.
func TestGraph_reusedUID_isNotGone(t *testing.T) {
	g := newGraph()
	g.put(&node{id: id{betas, "owned"}, owners: []metav1.OwnerReference{{UID: "owner"}}})
	owner := &node{id: id{alphas, "owner"}}
	g.put(owner)
	if affected := g.remove(owner.id); len(affected) != 1 || !g.isGone("owner") {
		t.Errorf("affected are %v", affected)
	}
	if g.put(owner); g.isGone("owner") {
		t.Error("it is gone")
	}
}

func bare(at place, uid types.UID) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: at.namespace, Name: at.name, UID: uid}}
}

// quietWorld has an owner and a dependent, which the collector has not observed yet.
func quietWorld(t *testing.T) (w *world, owner, owned place) {
	w = newWorld(t, 1)
	w.calm = true
	owner, owned = place{alphas, "red", "owner"}, place{betas, "red", "owned"}
	for _, resource := range all {
		w.deliver(resource)
	}
	w.write(owner, bare(owner, "owner"))
	dependent := bare(owned, "owned")
	dependent.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "a.example.com/v1", Kind: "Alpha", Name: "owner", UID: "owner", BlockOwnerDeletion: new(true)},
	}
	w.write(owned, dependent)
	return w, owner, owned
}

// The deletion of an owner that was never observed cannot be observed either.
func TestCollect_unobservedOwner_isRetried(t *testing.T) {
	w, owner, owned := quietWorld(t)
	w.deliver(betas)
	for w.work() {
	}
	w.remove(owner)
	w.watches[alphas].list = true
	w.deliver(alphas)
	for w.work() || w.queue.time() {
	}
	if w.objects[owned] != nil {
		t.Error("what it owned is left")
	}
}

// A policy that is withdrawn and set again between two lists counts as new.
func TestGraph_policyChangeBetweenLists(t *testing.T) {
	w, owner, owned := quietWorld(t)
	held := w.objects[owner].DeepCopy()
	held.Finalizers = []string{"example.com/hold"}
	w.write(owner, held)
	w.delete(owner, new(metav1.DeletePropagationForeground))
	for w.deliver(alphas) || w.deliver(betas) {
	}
	w.delete(owner, new(metav1.DeletePropagationBackground))
	for w.work() || w.queue.time() {
	}
	if w.objects[owned] == nil {
		t.Fatal("deleted in the foreground of an owner that is deleted in the background")
	}
	w.delete(owner, new(metav1.DeletePropagationForeground))
	w.watches[alphas].list = true
	w.settle()
	if w.objects[owned] != nil {
		t.Error("what blocks the owner is left")
	}
}

// A kind that cannot be listed may contain dependents to orphan: their owner waits, but not forever.
func TestOrphan_unlistableKind_isGivenUp(t *testing.T) {
	w, owner, _ := quietWorld(t)
	w.state[betas] = stale
	w.delete(owner, new(metav1.DeletePropagationOrphan))
	for w.deliver(alphas) {
	}
	process := func() {
		_ = w.collector.look(klog.NewContext(t.Context(), logr.Discard()), w.kinds, id{alphas, "owner"})
	}
	if process(); w.objects[owner] == nil {
		t.Fatal("it did not wait")
	}
	w.queue.tries = orphanTries
	if process(); w.objects[owner] != nil {
		t.Error("it waits for ever")
	}
}
