package index

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
)

const (
	// maxLabelSets bounds the indexed labels of a resource, beside the labels that its Indexers declare.
	maxLabelSets = 16
	// maxLabelsPerList bounds the number of these indexes that one list may use.
	maxLabelsPerList = 4
	// replaceTime is the time without a list after which an index may be replaced by another.
	replaceTime = time.Minute
)

// labelSets are the indexes of labels that no Indexer declares. The second list of many objects that selects by a label
// builds the index of that label. Each index is maintained on its own, like declared indexes.
type labelSets[V Version] struct {
	mu     sync.Mutex
	byName map[string]*labelSet[V]
}

type labelSet[V Version] struct {
	*set[V]
	confirmed bool // set once a second list has selected by the label
}

// existence is the name prefix of an index that has one value for all objects with a label.
const existence = "exists:"

// labelLookup returns the lookup for a requirement; false if no index can help.
func labelLookup(r labels.Requirement) (lookup, bool) {
	switch {
	case hasValues(r):
		return lookup{storage.LabelIndex(r.Key()), r.ValuesUnsorted()}, true
	case r.Operator() == selection.Exists:
		return lookup{existence + r.Key(), []string{""}}, true
	}
	return lookup{}, false
}

// planLabels adds the lookups in indexes of undeclared labels to a plan.
func (x *Indexes[V]) planLabels(ctx context.Context, p Plan[V], prefix string, predicate storage.SelectionPredicate) (Plan[V], error) {
	if predicate.Label == nil || predicate.Label.Empty() {
		return p, nil
	}
	if !x.Source.HasObjects(x.LabelObjects, prefix) {
		return p, nil
	}
	requirements, _ := predicate.Label.Requirements()
	// Unlike the functions of Indexers, the functions of these indexes compute exactly the labels that the requirement
	// matches, so the predicate's own GetAttrs is not called, and its errors would not exclude an object. Without a
	// field selector it has no errors: for kinds of the server it reads only labels, and the fields of custom resources
	// are paths that lead to at most one value.
	exact := len(requirements) == 1 && (predicate.Field == nil || predicate.Field.Empty()) && predicate.ShardSelector == nil
	began, lookups := x.Clock.Now(), 0
	for _, r := range requirements {
		l, ok := labelLookup(r)
		if !ok || x.declares(l.index) {
			continue
		}
		if lookups++; lookups > maxLabelsPerList || x.Clock.Since(began) > updateTimeout {
			break
		}
		s := x.labelSet(r.Key(), l.index)
		if s == nil {
			continue
		}
		current, err := s.read(ctx)
		if err != nil {
			return nil, err
		}
		if p = p.with(s, current, l); current != nil {
			p[len(p)-1].exact = exact
		}
	}
	return p, nil
}

// declares reports whether an Indexer declares the index.
func (x *Indexes[V]) declares(name string) bool {
	return x.declared != nil && x.declared.byName[name] != nil
}

// labelSet returns the index of a label. It returns nil for the first list that selects by the label, and if there is
// no room for another index.
func (x *Indexes[V]) labelSet(key, name string) *set[V] {
	all := &x.labels
	all.mu.Lock()
	defer all.mu.Unlock()
	if s := all.byName[name]; s != nil {
		if !s.confirmed {
			s.confirmed = true
			x.Maintenance.add(s.set)
		}
		s.markUsed()
		return s.set
	}
	if len(all.byName) >= maxLabelSets && !x.removeOldestLabel() {
		return nil
	}
	s := x.newSet()
	s.bounded = true
	s.byName[name] = &valueIndex[V]{values: labelValue(key, name)}
	s.markUsed()
	if all.byName == nil {
		all.byName = map[string]*labelSet[V]{}
	}
	all.byName[name] = &labelSet[V]{set: s}
	return nil
}

// removeOldestLabel removes the least recently used index, and reports whether it did. It keeps all indexes whose last
// use is less than replaceTime ago. It requires the mutex of labels.
func (x *Indexes[V]) removeOldestLabel() bool {
	oldest, used := "", x.Clock.Now().Add(-replaceTime).UnixNano()
	for name, s := range x.labels.byName {
		if last := s.used.Load(); last <= used {
			oldest, used = name, last
		}
	}
	if oldest == "" {
		return false
	}
	x.Maintenance.remove(x.labels.byName[oldest].set)
	delete(x.labels.byName, oldest)
	return true
}

// labelValue returns the function of an index of a label.
func labelValue(key, name string) cache.IndexFunc {
	return func(object any) ([]string, error) {
		o, ok := object.(runtime.Object)
		if !ok {
			return nil, fmt.Errorf("index of label %s: %T is not an object", key, object)
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, fmt.Errorf("index of label %s: %w", key, err)
		}
		value, ok := m.GetLabels()[key]
		switch {
		case !ok:
			return nil, nil
		case name == existence+key:
			return []string{""}, nil
		}
		return []string{value}, nil
	}
}
