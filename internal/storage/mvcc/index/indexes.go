package index

import (
	"context"
	"slices"
	"sync"

	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Config configures the indexes of a resource. All fields are required, unless they state otherwise.
type Config[V Version] struct {
	Source Source[V]
	// Indexers are the functions of the declared indexes, named as storage.LabelIndex and storage.FieldIndex name them.
	// May be empty.
	Indexers cache.Indexers
	// NameOf returns the namespace and name of the object with a key.
	NameOf func(key string) (namespace, name string)
	// SlowObjects is set if Source.Object may call a webhook. Maintenance then never calls it for this resource.
	SlowObjects bool
	// LabelObjects is the number of objects from which a list may create the index of an undeclared label.
	LabelObjects int64
	// Maintenance maintains the indexes until Close.
	Maintenance *Maintenance[V]
	// Clock measures the time that building takes, and the time without use.
	Clock clock.Clock
}

// Indexes are all indexes of one resource: those that its Indexers declare, those of undeclared labels, and the orders
// of queries. Its methods may be called concurrently. Each error that they return is due to the end of their context.
type Indexes[V Version] struct {
	Config[V]
	declared *set[V] // nil if the resource declares none
	labels   labelSets[V]
	orders   orders[V]
	closed   bool // guarded by the mutex of Maintenance
}

// New returns the indexes of a resource. Nothing is built before a list or query needs it.
func New[V Version](config Config[V]) *Indexes[V] {
	x := &Indexes[V]{Config: config}
	if len(config.Indexers) > 0 {
		x.declared = x.newSet()
		for name, values := range config.Indexers {
			x.declared.byName[name] = &valueIndex[V]{values: values}
		}
		x.Maintenance.add(x.declared)
	}
	return x
}

// Close ends the maintenance of all indexes. They can still be used.
func (x *Indexes[V]) Close() { x.Maintenance.removeAll(x) }

// Maintenance maintains the indexes of all resources of a core: compaction calls it, so that no events are trimmed that
// indexes have not seen, and that unused indexes are dropped. It also bounds the memory of indexes of undeclared labels.
type Maintenance[V Version] struct {
	labelEntries int64 // bounds the entries of all bounded sets

	mu   sync.Mutex
	sets []*set[V] // never changed in place
}

// NewMaintenance returns the maintenance of a core whose indexes of undeclared labels may have that many entries
// together.
func NewMaintenance[V Version](labelEntries int64) *Maintenance[V] {
	return &Maintenance[V]{labelEntries: labelEntries}
}

// BeforeTrim prepares all indexes for trimming the events up to a revision. It returns early if ctx ends.
func (m *Maintenance[V]) BeforeTrim(ctx context.Context, revision uint64) {
	for _, s := range m.all() {
		s.beforeTrim(ctx, revision)
	}
}

// DropUnused drops the indexes that no list or query has used for ten minutes.
func (m *Maintenance[V]) DropUnused() {
	for _, s := range m.all() {
		s.dropUnused()
	}
}

// LabelEntries returns the number of entries of all indexes of undeclared labels.
func (m *Maintenance[V]) LabelEntries() int64 {
	entries := int64(0)
	for _, s := range m.all() {
		entries += s.entries.Load()
	}
	return entries
}

func (m *Maintenance[V]) all() []*set[V] {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sets
}

// add maintains a set from now on, unless its resource is closed.
func (m *Maintenance[V]) add(s *set[V]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !s.of.closed {
		m.sets = append(m.sets[:len(m.sets):len(m.sets)], s)
	}
}

func (m *Maintenance[V]) remove(s *set[V]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets = slices.DeleteFunc(slices.Clone(m.sets), func(other *set[V]) bool { return other == s })
}

func (m *Maintenance[V]) removeAll(x *Indexes[V]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x.closed = true
	m.sets = slices.DeleteFunc(slices.Clone(m.sets), func(s *set[V]) bool { return s.of == x })
}
