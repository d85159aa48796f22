package upstream

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Foreign are API groups whose types, codecs and endpoints are another project's. Their endpoints must store objects in
// the server's storage. Requests for them are left to upstream's handlers.
type Foreign struct {
	// Groups have one scheme each. A group may have versions that the definition has, too, if no resource is in both.
	Groups []*server.APIGroupInfo
	// Types are the public types of all groups.
	Types *ForeignTypes
}

// ForeignTypes are the public types of another project. Any number of servers may share them, and then make their models
// once.
type ForeignTypes struct {
	scheme      *runtime.Scheme
	definitions common.GetOpenAPIDefinitions
	converter   func() (managedfields.TypeConverter, error)
}

// NewForeignTypes returns the types of a scheme, by which OpenAPI names them. definitions returns their OpenAPI
// definitions, and is called when a document is built, or when the models are: these have the types of groups.
func NewForeignTypes(scheme *runtime.Scheme, definitions common.GetOpenAPIDefinitions, groups ...string) *ForeignTypes {
	t := &ForeignTypes{scheme: scheme, definitions: definitions}
	t.converter = sync.OnceValues(func() (managedfields.TypeConverter, error) {
		config := server.DefaultOpenAPIV3Config(definitions, openapi.NewDefinitionNamer(scheme))
		schemas, err := builder3.BuildOpenAPIDefinitionsForResources(config, t.names(groups)...)
		if err != nil {
			return nil, fmt.Errorf("models of foreign types: %w", err)
		}
		return managedfields.NewTypeConverter(schemas, false)
	})
	return t
}

// names returns the names of the Go types that have metadata, and so may have field managers.
func (t *ForeignTypes) names(groups []string) []string {
	var names []string
	for kind := range t.scheme.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal || !slices.Contains(groups, kind.Group) {
			continue
		}
		sample, err := t.scheme.New(kind)
		if err != nil {
			continue
		}
		if _, ok := sample.(metav1.ObjectMetaAccessor); ok {
			names = append(names, util.GetCanonicalTypeName(sample))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (f *Foreign) schemes() []*runtime.Scheme {
	if f == nil {
		return nil
	}
	return []*runtime.Scheme{f.Types.scheme}
}

// Versions returns the versions of all groups, the preferred version of each group first. A nil Foreign has none.
func (f *Foreign) Versions() []schema.GroupVersion {
	var all []schema.GroupVersion
	for _, g := range f.groups() {
		for _, v := range g.PrioritizedVersions {
			if len(g.VersionedResourcesStorageMap[v.Version]) > 0 {
				all = append(all, v)
			}
		}
	}
	return all
}

// group returns the group of a name; nil if there is none.
// Getter returns the storage of a kind, its resource, and whether its objects have namespaces. It is nil for a kind that no
// group has, or whose objects cannot be read one by one. A nil Foreign has none.
func (f *Foreign) Getter(kind schema.GroupVersionKind) (resource schema.GroupResource, getter rest.Getter, namespaced bool) {
	if f == nil {
		return resource, nil, false
	}
	for _, g := range f.Groups {
		for name, storage := range g.VersionedResourcesStorageMap[kind.Version] {
			if len(g.PrioritizedVersions) == 0 || g.PrioritizedVersions[0].Group != kind.Group || strings.Contains(name, "/") {
				continue
			}
			kinds, _, err := g.Scheme.ObjectKinds(storage.New())
			if err != nil || !slices.ContainsFunc(kinds,
				func(k schema.GroupVersionKind) bool { return k.GroupKind() == kind.GroupKind() }) {
				continue
			}
			if reader, ok := storage.(rest.Getter); ok {
				scoper, ok := storage.(rest.Scoper)
				return schema.GroupResource{Group: kind.Group, Resource: name}, reader, ok && scoper.NamespaceScoped()
			}
		}
	}
	return resource, nil, false
}

func (f *Foreign) group(name string) *server.APIGroupInfo {
	for _, g := range f.groups() {
		if groupName(g) == name {
			return g
		}
	}
	return nil
}

func (f *Foreign) groups() []*server.APIGroupInfo {
	if f == nil {
		return nil
	}
	return f.Groups
}

// groupName returns the name of a group, which has at least one version.
func groupName(g *server.APIGroupInfo) string { return g.PrioritizedVersions[0].Group }

// with returns definitions with those of the foreign types. If both define a type, the given definition is kept.
func (f *Foreign) with(own common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
	if f == nil {
		return own
	}
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := f.Types.definitions(ref)
		maps.Copy(all, own(ref))
		return all
	}
}

// models returns the type converter of all foreign types; nil if there are none.
func (f *Foreign) models() managedfields.TypeConverter {
	if f == nil {
		return nil
	}
	return lazyTypes{f.Types.converter}
}

// lazyTypes is a type converter that is made when it is first used, because the types are a hundred times as many as those of a
// small server.
type lazyTypes struct {
	made func() (managedfields.TypeConverter, error)
}

// ObjectToTyped implements managedfields.TypeConverter.
func (l lazyTypes) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	converter, err := l.made()
	if err != nil {
		return nil, err
	}
	return converter.ObjectToTyped(obj, options...)
}

// TypedToObject implements managedfields.TypeConverter.
func (l lazyTypes) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	converter, err := l.made()
	if err != nil {
		return nil, err
	}
	return converter.TypedToObject(value)
}
