package upstream

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// Foreign are API groups whose types, codecs and endpoints are another project's. Their endpoints must store objects in
// the server's storage. Requests for them are left to upstream's handlers.
type Foreign struct {
	// Groups have one scheme each. A group may have versions that the definition has, too, if no resource is in both.
	Groups []*server.APIGroupInfo
	// Scheme has the public types of all groups, by which OpenAPI names them.
	Scheme *runtime.Scheme
	// Definitions returns the OpenAPI definitions of these types. It is called when a document is built.
	Definitions common.GetOpenAPIDefinitions
}

func (f *Foreign) schemes() []*runtime.Scheme {
	if f == nil {
		return nil
	}
	return []*runtime.Scheme{f.Scheme}
}

// group returns the group of a name; nil if there is none.
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
		all := f.Definitions(ref)
		maps.Copy(all, own(ref))
		return all
	}
}

// models returns the type converter of all foreign types. Their schemas are built for the first request that needs them,
// because they are a hundred times as many as a small server's own.
func (f *Foreign) models(builder *openAPIv3Builder) managedfields.TypeConverter {
	return &lazyTypes{made: sync.OnceValues(func() (managedfields.TypeConverter, error) {
		names, err := f.typeNames()
		if err != nil {
			return nil, err
		}
		schemas, err := builder.schemas(names...)
		if err != nil {
			return nil, fmt.Errorf("models of foreign types: %w", err)
		}
		return managedfields.NewTypeConverter(schemas, false)
	})}
}

// typeNames returns the names of the Go types of all endpoints.
func (f *Foreign) typeNames() ([]string, error) {
	var names []string
	for _, g := range f.Groups {
		for _, gv := range g.PrioritizedVersions {
			for _, storage := range g.VersionedResourcesStorageMap[gv.Version] {
				kind, err := genericapi.GetResourceKind(gv, storage, g.Scheme)
				if err != nil {
					return nil, err
				}
				sample, err := g.Scheme.New(kind)
				if err != nil {
					return nil, err
				}
				names = append(names, util.GetCanonicalTypeName(sample))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// lazyTypes is a type converter that is made when it is first used.
type lazyTypes struct {
	made func() (managedfields.TypeConverter, error)
}

// ObjectToTyped implements managedfields.TypeConverter.
func (l *lazyTypes) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	converter, err := l.made()
	if err != nil {
		return nil, err
	}
	return converter.ObjectToTyped(obj, options...)
}

// TypedToObject implements managedfields.TypeConverter.
func (l *lazyTypes) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	converter, err := l.made()
	if err != nil {
		return nil, err
	}
	return converter.TypedToObject(value)
}
