package mvcc

import (
	"context"
	"fmt"
	"slices"
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
	// mostLabels bounds the indexed labels of a resource, beside the labels that its Indexers declare.
	mostLabels = 16
	// mostAsked bounds the number of these indexes that one list may use.
	mostAsked = 4
	// replaceTime is the time without a list after which an index may be replaced by another.
	replaceTime = time.Minute
)

// labelIndexes are the indexes of labels that no Indexer declares. The second list of many objects that selects by a
// label builds the index of that label. Each index is maintained on its own, like declared indexes.
type labelIndexes struct {
	mu     sync.Mutex
	byName map[string]*labelIndex
}

type labelIndex struct {
	*indexes
	wanted bool // set once a second list has selected by the label
}

// labelled is the name prefix of an index that has one value for all objects with a label.
const labelled = "labelled:"

// labelLookup returns the lookup for a requirement; false if no index can help.
func labelLookup(r labels.Requirement) (lookup, bool) {
	switch {
	case namesValues(r):
		return lookup{storage.LabelIndex(r.Key()), r.ValuesUnsorted()}, true
	case r.Operator() == selection.Exists:
		return lookup{labelled + r.Key(), []string{""}}, true
	}
	return lookup{}, false
}

// planLabels adds the lookups in indexes of undeclared labels to a plan.
func (s *resourceStore) planLabels(ctx context.Context, p plan, prefix string, predicate storage.SelectionPredicate) (plan, error) {
	if predicate.Label == nil || predicate.Label.Empty() {
		return p, nil
	}
	if !s.core.snapshot().latest.atLeast(int(s.core.options.LabelObjects), prefix, below(prefix)) {
		return p, nil
	}
	requirements, _ := predicate.Label.Requirements()
	// Unlike the functions of Indexers, the functions of these indexes compute exactly the labels that the requirement
	// matches, so the predicate's own GetAttrs is not called, and its errors would not exclude an object. Without a
	// field selector it has no errors: for kinds of the server it reads only labels, and the fields of custom resources
	// are paths that lead to at most one value.
	decides := len(requirements) == 1 && (predicate.Field == nil || predicate.Field.Empty()) && predicate.ShardSelector == nil
	began, asked := s.core.clock.Now(), 0
	for _, r := range requirements {
		l, ok := labelLookup(r)
		if !ok || s.indexes != nil && s.indexes.byName[l.index] != nil {
			continue
		}
		if asked++; asked > mostAsked || s.core.clock.Since(began) > updateTime {
			break
		}
		x := s.labelIndex(r.Key(), l.index)
		if x == nil {
			continue
		}
		state, err := x.state(ctx)
		if err != nil {
			return nil, err
		}
		if p = p.with(x, state, l); state != nil {
			p[len(p)-1].decides = decides
		}
	}
	return p, nil
}

// labelIndex returns the index of a label. It returns nil for the first list that selects by the label, and if there is
// no room for another index.
func (s *resourceStore) labelIndex(key, name string) *indexes {
	all := &s.labels
	all.mu.Lock()
	defer all.mu.Unlock()
	now := s.core.clock.Now()
	if x := all.byName[name]; x != nil {
		if !x.wanted {
			x.wanted = true
			s.maintain(x.indexes)
		}
		x.used.Store(now.UnixNano())
		return x.indexes
	}
	if len(all.byName) >= mostLabels && !s.makeRoom(now) {
		return nil
	}
	x := &indexes{store: s, token: make(chan struct{}, 1), bounded: true, byName: map[string]*index{name: {values: labelValue(key, name)}}}
	x.used.Store(now.UnixNano())
	if all.byName == nil {
		all.byName = map[string]*labelIndex{}
	}
	all.byName[name] = &labelIndex{indexes: x}
	return nil
}

// makeRoom removes the least recently used index, if its last use is at least replaceTime ago. It requires the mutex of
// labels.
func (s *resourceStore) makeRoom(now time.Time) bool {
	oldest, used := "", now.Add(-replaceTime).UnixNano()
	for name, x := range s.labels.byName {
		if last := x.used.Load(); last <= used {
			oldest, used = name, last
		}
	}
	if oldest == "" {
		return false
	}
	x := s.labels.byName[oldest].indexes
	delete(s.labels.byName, oldest)
	s.core.mu.Lock()
	defer s.core.mu.Unlock()
	s.keyspace.indexes = slices.DeleteFunc(slices.Clone(s.keyspace.indexes), func(other *indexes) bool { return other == x })
	return true
}

// labelValue returns the function of an index of a label.
func labelValue(key, name string) cache.IndexFunc {
	return func(object any) ([]string, error) {
		o, ok := object.(runtime.Object)
		if !ok {
			return nil, fmt.Errorf("index of label %s: %T is no object", key, object)
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, fmt.Errorf("index of label %s: %w", key, err)
		}
		value, ok := m.GetLabels()[key]
		switch {
		case !ok:
			return nil, nil
		case name == labelled+key:
			return []string{""}, nil
		}
		return []string{value}, nil
	}
}
