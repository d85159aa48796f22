package registry

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/objects"
)

// indexers are how a backend finds the objects of a kind by its indexed fields and
// labels; nil if there are none.
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
				return nil, fmt.Errorf("index %s: %T is no object", path, obj)
			}
			return []string{value(object)}, nil
		}
	}
	for _, key := range k.IndexLabels {
		byName[storage.LabelIndex(key)] = func(obj any) ([]string, error) {
			object, ok := obj.(runtime.Object)
			if !ok {
				return nil, fmt.Errorf("index of label %s: %T is no object", key, obj)
			}
			if value, labelled := objects.Meta(object).GetLabels()[key]; labelled {
				return []string{value}, nil
			}
			return nil, nil
		}
	}
	return &byName
}

// triggers is the first indexed field: a watch cache has room for one.
func triggers(k *define.Kind) storage.IndexerFuncs {
	if len(k.IndexFields) == 0 {
		return nil
	}
	path := k.IndexFields[0]
	return storage.IndexerFuncs{path: selectable(k, path)}
}

// selectable returns the value of a selectable field, which is declared.
func selectable(k *define.Kind, path string) func(runtime.Object) string {
	i := slices.IndexFunc(k.Selectable, func(f define.SelectableField) bool { return f.Path == path })
	return k.Selectable[i].Value
}
