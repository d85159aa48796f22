package registry

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/base/objects"
	"github.com/annexapi/annex/internal/model/define"
)

// indexers returns the index functions of a kind's indexed fields and labels; nil if there are none.
func indexers(k *define.Kind) *cache.Indexers {
	if len(k.IndexFields)+len(k.IndexLabels) == 0 {
		return nil
	}
	byName := cache.Indexers{}
	for _, path := range k.IndexFields {
		value := selectable(k, path)
		byName[storage.FieldIndex(path)] = func(obj any) ([]string, error) {
			object, ok := obj.(runtime.Object)
			if !ok {
				return nil, fmt.Errorf("index %s: %T is not an object", path, obj)
			}
			return []string{value(object)}, nil
		}
	}
	for _, key := range k.IndexLabels {
		byName[storage.LabelIndex(key)] = func(obj any) ([]string, error) {
			object, ok := obj.(runtime.Object)
			if !ok {
				return nil, fmt.Errorf("index of label %s: %T is not an object", key, obj)
			}
			if value, labelled := objects.Meta(object).GetLabels()[key]; labelled {
				return []string{value}, nil
			}
			return nil, nil
		}
	}
	return &byName
}

// triggers returns the first indexed field only, because a watch cache supports one.
func triggers(k *define.Kind) storage.IndexerFuncs {
	if len(k.IndexFields) == 0 {
		return nil
	}
	path := k.IndexFields[0]
	return storage.IndexerFuncs{path: selectable(k, path)}
}

// customIndexes index custom resources by the selectable fields of their definition: the fields of its attributes apart
// from name and namespace. They are empty if there are none.
type customIndexes struct {
	fields   []string
	indexers *cache.Indexers
	triggers storage.IndexerFuncs
}

func indexesOf(example runtime.Object, attributes storage.AttrFunc) customIndexes {
	_, all, err := attributes(example)
	if err != nil {
		return customIndexes{} // no selector finds anything in this case, either
	}
	var x customIndexes
	for field := range all {
		if field != "metadata.name" && field != "metadata.namespace" {
			x.fields = append(x.fields, field)
		}
	}
	if len(x.fields) == 0 {
		return x
	}
	slices.Sort(x.fields)
	of := &fieldCache{attributes: attributes}
	x.indexers = &cache.Indexers{}
	for _, field := range x.fields {
		(*x.indexers)[storage.FieldIndex(field)] = func(obj any) ([]string, error) {
			object, ok := obj.(runtime.Object)
			if !ok {
				return nil, fmt.Errorf("index %s: %T is not an object", field, obj)
			}
			values, err := of.values(object)
			if err != nil {
				return nil, fmt.Errorf("index %s: %w", field, err)
			}
			return []string{values[field]}, nil
		}
	}
	first := x.fields[0]
	x.triggers = storage.IndexerFuncs{first: func(object runtime.Object) string {
		values, _ := of.values(object) // an object whose values cannot be computed is not selected
		return values[first]
	}}
	return x
}

// fieldCache computes the fields of an object once for several indexes that read them one after the other: attributes
// takes as long for one field as for all. Indexed objects do not change.
type fieldCache struct {
	attributes storage.AttrFunc
	last       sync.Pool // of *cachedFields, one for each concurrent caller
}

type cachedFields struct {
	object runtime.Object
	values fields.Set
}

func (f *fieldCache) values(object runtime.Object) (fields.Set, error) {
	last, _ := f.last.Get().(*cachedFields)
	if last == nil || last.object != object {
		_, values, err := f.attributes(object)
		if err != nil {
			return nil, err
		}
		last = &cachedFields{object, values}
	}
	f.last.Put(last)
	return last.values, nil
}

// indexedSelectors adds the indexed fields to the predicates for a watch cache.
type indexedSelectors struct {
	storage.Interface
	fields []string
}

// Below implements store.Layer.
func (s indexedSelectors) Below() storage.Interface { return s.Interface }

// GetList implements storage.Interface.
func (s indexedSelectors) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	s.setIndexFields(&opts.Predicate)
	return s.Interface.GetList(ctx, key, opts, listObj)
}

// Watch implements storage.Interface.
func (s indexedSelectors) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	s.setIndexFields(&opts.Predicate)
	return s.Interface.Watch(ctx, key, opts)
}

func (s indexedSelectors) setIndexFields(p *storage.SelectionPredicate) {
	if p.Field != nil { // a watch cache reads IndexFields only in this case
		p.IndexFields = s.fields
	}
}

// selectable returns the function that returns the value of a selectable field. The field must be declared.
func selectable(k *define.Kind, path string) func(runtime.Object) string {
	i := slices.IndexFunc(k.Selectable, func(f define.SelectableField) bool { return f.Path == path })
	return k.Selectable[i].Value
}
