package upstream

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/storage/registry"
)

// Verbs returns the verbs of a storage, which upstream derives from the interfaces that it implements.
func Verbs(storage rest.Storage) []string {
	var verbs []string
	for _, v := range []struct {
		serves bool
		verb   string
	}{
		{is[rest.Creater](storage) || is[rest.NamedCreater](storage), "create"},
		{is[rest.GracefulDeleter](storage), "delete"},
		{is[rest.CollectionDeleter](storage), "deletecollection"},
		{is[rest.Getter](storage) || is[rest.GetterWithOptions](storage), "get"},
		{is[rest.Lister](storage), "list"},
		{is[rest.Patcher](storage), "patch"},
		{is[rest.Updater](storage), "update"},
		{is[rest.Watcher](storage), "watch"},
	} {
		if v.serves {
			verbs = append(verbs, v.verb)
		}
	}
	return verbs
}

func is[T any](storage rest.Storage) bool {
	_, ok := storage.(T)
	return ok
}

// Served returns the verbs of a kind's main endpoint, and its subresources in alphabetical order.
func Served(k *registry.Kind) (verbs, subresources []string) {
	for path, storage := range k.Storage() {
		if _, sub, ok := strings.Cut(path, "/"); ok {
			subresources = append(subresources, sub)
		} else {
			verbs = Verbs(storage)
		}
	}
	slices.Sort(subresources)
	return verbs, subresources
}

// NamespacedResources returns the namespaced resources whose objects can be deleted, each in one version. Shared
// objects are included once.
func NamespacedResources(kinds []*registry.Kind) []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for _, kind := range kinds {
		k := kind.Definition
		verbs, _ := Served(kind)
		if k.ClusterScoped || k.AliasOf != nil || !slices.Contains(verbs, "delete") {
			continue
		}
		for _, v := range k.Versions {
			if !v.Unserved {
				all = append(all, v.GroupVersion.WithResource(k.Resource))
				break
			}
		}
	}
	return all
}
