package quota

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
)

// Creates are the objects that admission has counted and that may not be stored yet. A count of the stored objects
// misses them, and would grant their share of the quota a second time. Its methods may be called concurrently; the
// zero value is ready to use.
type Creates struct {
	mu  sync.Mutex
	all map[place]map[*create]struct{}
}

// place is a kind in a namespace.
type place struct {
	kind      schema.GroupResource
	namespace string
}

// create is an object to be stored.
type create struct {
	name string    // empty if the storage generates it
	uid  types.UID // empty if the storage generates it
	// object is a copy of an object whose kind is measured; otherwise nil.
	object runtime.Object
	// decided is closed when admission has accepted or refused the object; refused is valid from then on.
	decided chan struct{}
	refused bool
}

// begin records an object before admission counts it, until it is observed in the storage, or until shortly after the
// end of its request. The returned function records the decision; a refused object is forgotten. A measured object is
// copied, because the storage changes it later.
func (c *Creates) begin(ctx context.Context, a admission.Attributes, measured bool) (decide func(admitted bool)) {
	where := place{a.GetResource().GroupResource(), a.GetNamespace()}
	one := &create{name: a.GetName(), decided: make(chan struct{})}
	if measured {
		one.object = a.GetObject().DeepCopyObject()
	}
	if m, err := meta.Accessor(a.GetObject()); err == nil {
		one.name, one.uid = m.GetName(), m.GetUID()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[place]map[*create]struct{}{}
	}
	if c.all[where] == nil {
		c.all[where] = map[*create]struct{}{}
	}
	c.all[where][one] = struct{}{}
	drop := func() { c.forget(where, func(other *create) bool { return other == one }) }
	// The write may briefly outlast its request, which a client or a deadline can end.
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(settled, drop) })
	return func(admitted bool) {
		one.refused = !admitted
		close(one.decided)
		if !admitted {
			stop()
			drop()
		}
	}
}

// stored forgets an object that has been observed in the storage or was deleted from it.
func (c *Creates) stored(kind schema.GroupResource, namespace string, uid types.UID) {
	c.forget(place{kind, namespace}, func(one *create) bool { return one.uid == uid })
}

func (c *Creates) forget(where place, which func(*create) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for one := range c.all[where] {
		if which(one) {
			delete(c.all[where], one)
		}
	}
	if len(c.all[where]) == 0 {
		delete(c.all, where)
	}
}

// pending returns the objects that may not be stored yet. It waits, for a limited time, for the decisions on objects
// that admission is about to count: if a count included such an object, admission would count it again, and refuse
// it.
func (c *Creates) pending(ctx context.Context, kind schema.GroupResource, namespace string) []*create {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.all[place{kind, namespace}]))
	c.mu.Unlock()
	late, cancel := context.WithTimeout(ctx, settled)
	defer cancel()
	return slices.DeleteFunc(all, func(one *create) bool {
		select {
		case <-one.decided:
			return one.refused
		case <-late.Done():
			return false
		}
	})
}

// recordingPlugin records in Creates the objects that a quota plugin admits.
type recordingPlugin struct {
	admission.ValidationInterface
	admission *Admission
}

// Validate implements admission.ValidationInterface.
func (n recordingPlugin) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" || a.IsDryRun() || !n.admission.limits(a.GetNamespace()) {
		return n.ValidationInterface.Validate(ctx, a, o)
	}
	admitted := false
	decide := n.admission.creates.begin(ctx, a, n.admission.measures.of(a.GetResource().GroupResource()) != nil)
	defer func() { decide(admitted) }() // also after a panic
	err := n.ValidationInterface.Validate(ctx, a, o)
	admitted = err == nil
	return err
}
