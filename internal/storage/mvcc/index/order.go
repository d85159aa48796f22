package index

import (
	"context"
	"fmt"
	"sync"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/base/ordered"
)

// orders are the indexes that queries sort by, by field. Each is built on its own. Like other indexes, an order is
// brought up to date by its readers and dropped when it is not used.
type orders[V Version] struct {
	mu     sync.Mutex
	byName map[orderName]*set[V]
}

// orderName identifies an order: its field, and whether the namespace comes before the value.
type orderName struct {
	field      string
	namespaced bool
}

// orderIndex is the name of the only index of an order.
const orderIndex = "order"

// afterNamespace separates the namespace, which cannot contain it, from the value.
const afterNamespace = "\x00"

// Order is the order of all objects by one field, at one revision. It is immutable.
type Order[V Version] struct {
	state    *state[V]
	revision uint64
}

// Order returns the order of a field at a revision that is not older than the call. It waits until the order is built.
// If namespaced is set, it is the order within each namespace. Fields with the same OrderName must have equal values.
func (x *Indexes[V]) Order(ctx context.Context, field ordered.Field, namespaced bool) (Order[V], error) {
	current, revision, err := x.orderSet(field, namespaced).readLatest(ctx)
	if err != nil {
		return Order[V]{}, err
	}
	return Order[V]{current, revision}, nil
}

// Revision returns the revision of the order. The versions in it are those of its last event up to that revision.
func (o Order[V]) Revision() uint64 { return o.revision }

// Unreadable returns the keys of the objects that are missing in the order because their values could not be computed
// during the call of Order. The caller must not change the slice.
func (o Order[V]) Unreadable() []string { return o.state.unreadable }

// entries returns the objects in order.
func (o Order[V]) entries() *btree.BTreeG[Entry[V]] { return o.state.entries[orderIndex] }

// orderSet returns the set of an order.
func (x *Indexes[V]) orderSet(field ordered.Field, namespaced bool) *set[V] {
	x.orders.mu.Lock()
	defer x.orders.mu.Unlock()
	name := orderName{field.OrderName(), namespaced}
	if s := x.orders.byName[name]; s != nil {
		return s
	}
	s := x.newSet()
	s.noTimeout = true
	if field.FromKey != nil {
		s.fromKey = func(key string) []string {
			namespace, name := x.NameOf(key)
			value := string(ordered.Encode(field.FromKey(namespace, name)))
			if namespaced {
				value = namespace + afterNamespace + value
			}
			return []string{value}
		}
	}
	s.byName[orderIndex] = &valueIndex[V]{order: true, values: func(object any) ([]string, error) {
		o, ok := object.(runtime.Object)
		if !ok {
			return nil, fmt.Errorf("order by %s: %T is not an object", field.Name, object)
		}
		value := field.OrderValue(o)
		if namespaced {
			value = objects.Meta(o).GetNamespace() + afterNamespace + value
		}
		return []string{value}, nil
	}}
	if x.orders.byName == nil {
		x.orders.byName = map[orderName]*set[V]{}
	}
	x.orders.byName[name] = s
	x.Maintenance.add(s)
	return s
}
