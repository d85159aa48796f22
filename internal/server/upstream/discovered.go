package upstream

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/registry/rest"
)

// discovered returns the resources of a group version for discovery, as upstream's installer returns them. The installer
// also makes all routes, which takes most of the time and memory of a start and can wait for a request. parts are all of
// the same group version. discovered registers the kinds of the resources, by which webhooks find equivalent ones.
func discovered(parts ...*genericapi.APIGroupVersion) ([]metav1.APIResource, error) {
	var all []metav1.APIResource
	for _, part := range parts {
		for path, storage := range part.Storage {
			resource, err := discoveredOne(part, path, storage)
			if err != nil {
				return nil, fmt.Errorf("resource %s: %w", path, err)
			}
			all = append(all, resource)
		}
	}
	slices.SortFunc(all, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func discoveredOne(part *genericapi.APIGroupVersion, path string, storage rest.Storage) (metav1.APIResource, error) {
	resource, subresource, isSubresource := strings.Cut(path, "/")
	kind, err := genericapi.GetResourceKind(part.GroupVersion, storage, part.Typer)
	if err != nil {
		return metav1.APIResource{}, err
	}
	scoper, ok := part.Storage[resource].(rest.Scoper)
	if !ok {
		return metav1.APIResource{}, fmt.Errorf("%s must implement rest.Scoper", resource)
	}
	made := metav1.APIResource{Name: path, Namespaced: scoper.NamespaceScoped(), Kind: kind.Kind, Verbs: discoveredVerbs(storage)}
	if provider, ok := storage.(rest.KindProvider); ok {
		made.Kind = provider.Kind()
	}
	if provider, ok := storage.(rest.GroupVersionKindProvider); ok {
		other := provider.GroupVersionKind(part.GroupVersion)
		made.Group, made.Version, made.Kind = other.Group, other.Version, other.Kind
	}
	if provider, ok := storage.(rest.ShortNamesProvider); ok {
		made.ShortNames = provider.ShortNames()
	}
	if provider, ok := storage.(rest.CategoriesProvider); ok {
		made.Categories = provider.Categories()
	}
	if provider, ok := storage.(rest.SingularNameProvider); ok && !isSubresource {
		made.SingularName = provider.GetSingularName()
	}
	if made.StorageVersionHash, err = storageVersionHash(part, storage); err != nil {
		return metav1.APIResource{}, err
	}
	part.EquivalentResourceRegistry.RegisterKindFor(part.GroupVersion.WithResource(resource), subresource, kind)
	return made, nil
}

// storageVersionHash returns the hash of the version in which objects are stored, empty if the storage does not name it.
func storageVersionHash(part *genericapi.APIGroupVersion, storage rest.Storage) (string, error) {
	provider, ok := storage.(rest.StorageVersionProvider)
	if !ok || provider.StorageVersion() == nil {
		return "", nil
	}
	kinds, _, err := part.Typer.ObjectKinds(storage.New())
	if err != nil {
		return "", err
	}
	stored, ok := provider.StorageVersion().KindForGroupVersionKinds(kinds)
	if !ok {
		return "", fmt.Errorf("%s has no version in which it is stored", schema.GroupVersionKind(kinds[0]))
	}
	return discovery.StorageVersionHash(stored.Group, stored.Version, stored.Kind), nil
}

// connectVerbs are the verbs in discovery of the methods of a connection.
var connectVerbs = map[string]string{
	http.MethodDelete: "delete", http.MethodGet: "get", http.MethodPatch: "patch", http.MethodPost: "create", http.MethodPut: "update",
}

// discoveredVerbs returns the verbs of a storage and of its connections, sorted.
func discoveredVerbs(storage rest.Storage) metav1.Verbs {
	verbs := append(metav1.Verbs{}, Verbs(storage)...) // an empty list is no null
	if connecter, ok := storage.(rest.Connecter); ok {
		for _, method := range connecter.ConnectMethods() {
			if verb, known := connectVerbs[method]; known {
				verbs = append(verbs, verb)
			}
		}
	}
	slices.Sort(verbs)
	return slices.Compact(verbs)
}
