package index

import (
	"slices"
	"strings"
	"sync"

	"github.com/tidwall/btree"
	"k8s.io/client-go/tools/cache"
)

// Values are the values of an object by the name of the index. It is nil if the values cannot be computed.
type Values map[string][]string

// Entry is one value of one object. In an order, Version is the latest version of the object at the revision of the
// indexes; otherwise it is zero.
type Entry[V Version] struct {
	Value, Key string
	Version    V
}

// Compare compares two entries by value, then by key.
func (e Entry[V]) Compare(other Entry[V]) int {
	if byValue := strings.Compare(e.Value, other.Value); byValue != 0 {
		return byValue
	}
	return strings.Compare(e.Key, other.Key)
}

func (e Entry[V]) less(other Entry[V]) bool {
	if e.Value != other.Value {
		return e.Value < other.Value
	}
	return e.Key < other.Key
}

// valueIndex is one index of a set. Changing it requires the token of the set; changing the groups also requires mu.
type valueIndex[V Version] struct {
	values  cache.IndexFunc
	entries *btree.BTreeG[Entry[V]]
	byKey   map[string][]string // the values of each key
	order   bool                // set for an order, which has no groups

	mu     sync.Mutex
	groups map[string]*group // by value
}

// group is the set of objects with one value. Its objects without another value share the slice values.
type group struct {
	values []string
	count  int
}

// reset removes all entries. It also makes the trees and maps of a new index.
func (x *valueIndex[V]) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	// It repeats less: calling a method of a generic type here would make building a tenth slower.
	byValue := func(a, b Entry[V]) bool {
		if a.Value != b.Value {
			return a.Value < b.Value
		}
		return a.Key < b.Key
	}
	x.entries = btree.NewBTreeGOptions(byValue, btree.Options{NoLocks: true})
	x.byKey, x.groups = map[string][]string{}, map[string]*group{}
}

// setValues sets the values of a key.
func (x *valueIndex[V]) setValues(key string, values []string) {
	old := x.byKey[key]
	if slices.Equal(old, values) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, value := range old {
		x.entries.Delete(Entry[V]{Value: value, Key: key})
		if g := x.groups[value]; g.count > 1 {
			g.count--
		} else {
			delete(x.groups, value)
		}
	}
	for _, value := range values {
		g := x.groups[value]
		if g == nil {
			// A copy, because the value may be a substring of a large string that it would keep alive.
			g = &group{values: []string{strings.Clone(value)}}
			x.groups[g.values[0]] = g
		}
		g.count++
		x.entries.Set(Entry[V]{Value: g.values[0], Key: key})
	}
	switch len(values) {
	case 0:
		delete(x.byKey, key)
	case 1:
		x.byKey[key] = x.groups[values[0]].values
	default:
		x.byKey[key] = slices.Clone(values)
	}
}

// setPosition is like setValues, for an order: there few objects share a value, and each object has one value.
func (x *valueIndex[V]) setPosition(v V, values []string) {
	key := v.Key()
	old := x.byKey[key]
	if len(old) > 0 && !slices.Equal(old, values) {
		x.entries.Delete(Entry[V]{Value: old[0], Key: key})
	}
	if len(values) == 0 {
		delete(x.byKey, key)
		return
	}
	x.entries.Set(Entry[V]{values[0], key, v})
	x.byKey[key] = values
}

// count returns the approximate number of objects with any of the values.
func (x *valueIndex[V]) count(values []string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	count := 0
	for _, value := range values {
		if g := x.groups[value]; g != nil {
			count += g.count
		}
	}
	return count
}
