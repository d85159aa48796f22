package upstream

import (
	"fmt"
	"slices"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	aggregateddiscovery "k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	endpoints "k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/util"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/fastpath/reads"
	"github.com/annexapi/annex/internal/fastpath/writes"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/internal/wire/managed"
)

// apiGroup is a group to be served.
type apiGroup struct {
	info      server.APIGroupInfo
	machinery *convert.Machinery // nil if all of the group is foreign
	kinds     []*registry.Kind
	// foreign has the resources of the group that are foreign; nil if there are none, or if all are.
	foreign *server.APIGroupInfo
}

// installGroups replaces server.InstallAPIGroups. It uses the machinery's convertors for server-side apply and for
// tables, which keep zero values, instead of upstream's.
func installGroups(
	generic *server.GenericAPIServer,
	config server.CompletedConfig,
	groups []apiGroup,
	admit admission.Interface,
	to fastPath,
	foreign managedfields.TypeConverter,
) error {
	// Groups that share objects must know each other's field managers.
	models, err := typeConverter(config, slices.DeleteFunc(slices.Clone(groups), apiGroup.isForeign))
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	for _, g := range groups {
		own := foreign
		if !g.isForeign() {
			own = g.machinery.TypeConverter(models)
		}
		if err := g.install(generic, config, own, admit, to, foreign); err != nil {
			return fmt.Errorf("install the group %s: %w", groupName(&g.info), err)
		}
	}
	return nil
}

func (g apiGroup) isForeign() bool { return g.machinery == nil }

func (g apiGroup) install(
	generic *server.GenericAPIServer,
	config server.CompletedConfig,
	models managedfields.TypeConverter,
	admit admission.Interface,
	to fastPath,
	foreign managedfields.TypeConverter,
) error {
	info := &g.info
	for _, k := range g.kinds {
		if err := k.ManageFields(models, info.Scheme); err != nil {
			return err
		}
	}
	group := metav1.APIGroup{Name: groupName(info)}
	prefix, aggregated := server.APIGroupPrefix, generic.AggregatedDiscoveryGroupManager
	if group.Name == "" {
		prefix, aggregated = server.DefaultLegacyAPIPrefix, generic.AggregatedLegacyDiscoveryGroupManager
	}
	version := func(info *server.APIGroupInfo, gv schema.GroupVersion, models managedfields.TypeConverter) *genericapi.APIGroupVersion {
		return &genericapi.APIGroupVersion{
			Root:                        prefix,
			Storage:                     info.VersionedResourcesStorageMap[gv.Version],
			GroupVersion:                gv,
			AllServedVersionsByResource: servedVersions(info),
			OptionsExternalVersion:      info.OptionsExternalVersion,
			MetaGroupVersion:            info.MetaGroupVersion,
			Serializer:                  info.NegotiatedSerializer,
			ParameterCodec:              info.ParameterCodec,
			Typer:                       info.Scheme,
			Creater:                     info.Scheme,
			Convertor:                   info.Scheme,
			ConvertabilityChecker:       info.Scheme,
			Defaulter:                   info.Scheme,
			Namer:                       runtime.Namer(meta.NewAccessor()),
			UnsafeConvertor:             runtime.UnsafeObjectConvertor(info.Scheme),
			TypeConverter:               models,
			EquivalentResourceRegistry:  generic.EquivalentResourceRegistry,
			Authorizer:                  generic.Authorizer,
			Admit:                       admit,
			MinRequestTimeout:           time.Duration(config.MinRequestTimeout) * time.Second,
			MaxRequestBodyBytes:         config.MaxRequestBodyBytes,
		}
	}
	for _, gv := range info.PrioritizedVersions {
		storage := info.VersionedResourcesStorageMap[gv.Version]
		if len(storage) == 0 {
			continue
		}
		own := version(info, gv, models)
		parts := []*genericapi.APIGroupVersion{own}
		if !g.isForeign() {
			own.Convertor = g.machinery.Documents()
			if g.foreign != nil && len(g.foreign.VersionedResourcesStorageMap[gv.Version]) > 0 {
				parts = append(parts, version(g.foreign, gv, foreign))
			}
		}
		resources, err := discovered(parts...)
		if err != nil {
			return fmt.Errorf("discovery of %s: %w", gv, err)
		}
		aggregatedResources, err := genericapi.ConvertGroupVersionIntoToDiscovery(resources)
		if err != nil {
			return fmt.Errorf("discovery of %s: %w", gv, err)
		}
		to.later.add(generic.Handler.GoRestfulContainer, resources, parts)
		if err := g.register(own, to); err != nil {
			return err
		}
		aggregated.AddGroupVersion(gv.Group, apidiscoveryv2.APIVersionDiscovery{
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
			Version:   gv.Version,
			Resources: aggregatedResources,
		})
		group.Versions = append(group.Versions, discoveryOf(gv))
		for _, part := range parts {
			for resource, s := range part.Storage {
				if ready, ok := s.(rest.StorageWithReadiness); ok {
					generic.StorageReadinessHook.RegisterStorage(metav1.GroupVersionResource(gv.WithResource(resource)), ready)
				}
			}
		}
	}
	generic.RegisterDestroyFunc(func() {
		for _, storages := range []*server.APIGroupInfo{info, g.foreign} {
			if storages == nil {
				continue
			}
			for _, storage := range storages.VersionedResourcesStorageMap {
				for _, s := range storage {
					s.Destroy()
				}
			}
		}
	})
	if group.Name == "" {
		versions := discovery.NewLegacyRootAPIHandler(config.DiscoveryAddresses, generic.Serializer, prefix)
		wrapped := aggregateddiscovery.WrapAggregatedDiscoveryToHandler(versions, aggregated, aggregated)
		generic.Handler.GoRestfulContainer.Add(wrapped.GenerateWebService(prefix, metav1.APIVersions{}))
		return nil
	}
	group.PreferredVersion = discoveryOf(info.PrioritizedVersions[0])
	generic.DiscoveryGroupManager.AddGroup(group)
	generic.Handler.GoRestfulContainer.Add(discovery.NewAPIGroupHandler(generic.Serializer, group).WebService())
	return nil
}

// fastPath holds the gate of a server, the answerers behind it, and the routes of upstream's handlers that are made later.
type fastPath struct {
	gate   *fastpath.Gate
	reader *reads.Reader
	writer *writes.Writer
	later  *laterRoutes
}

// register lets requests for the kinds of a version through the gate.
func (g apiGroup) register(version *genericapi.APIGroupVersion, to fastPath) error {
	for _, k := range g.kinds {
		of := func(v *define.Version) bool { return v.GroupVersion == version.GroupVersion && !v.Unserved }
		i := slices.IndexFunc(k.Definition.Versions, of)
		if i < 0 || !k.Definition.IsStored() {
			continue
		}
		v, storage := k.Definition.Versions[i], version.Storage[k.Definition.Resource]
		var reader, writer fastpath.Answerer
		if r := to.reader.Kind(k.Definition, v, storage, version.Serializer, g.machinery); r != nil {
			reader = r
		}
		endpoint, err := g.endpoint(version, k, storage)
		if err != nil {
			return err
		}
		if endpoint != nil {
			endpoint.Encoding = to.reader.Encoding(endpoint.Scope.Resource)
			if w := to.writer.Kind(*endpoint); w != nil {
				writer = w
			}
		}
		to.gate.Add(k.Definition, v, storage, reader, writer)
	}
	return nil
}

// endpoint returns the main endpoint of a kind for package writes. It returns nil if the storage has no
// rest.ResetFieldsStrategy, so that upstream has to manage the fields.
func (g apiGroup) endpoint(version *genericapi.APIGroupVersion, k *registry.Kind, storage rest.Storage) (*writes.Resource, error) {
	reset, ok := storage.(rest.ResetFieldsStrategy)
	if !ok {
		return nil, nil
	}
	kind := version.GroupVersion.WithKind(k.Definition.Name)
	manager, err := managed.New(managed.Config{
		Types: version.TypeConverter, Convertor: version.UnsafeConvertor, Defaulter: version.Defaulter, Creater: version.Creater,
		Kind: kind, Reset: fieldpath.NewExcludeFilterSetMap(reset.GetResetFields()), Documents: g.machinery.HasZeros,
	})
	if err != nil {
		return nil, err
	}
	scope := endpoints.RequestScope{
		Serializer: version.Serializer, ParameterCodec: version.ParameterCodec, Creater: version.Creater, Convertor: version.Convertor,
		Defaulter: version.Defaulter, Typer: version.Typer, UnsafeConvertor: version.UnsafeConvertor, Authorizer: version.Authorizer,
		EquivalentResourceMapper: version.EquivalentResourceRegistry,
		Resource:                 version.GroupVersion.WithResource(k.Definition.Resource),
		Kind:                     kind,
		HubGroupVersion:          schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal},
		MetaGroupVersion:         metav1.SchemeGroupVersion, MaxRequestBodyBytes: version.MaxRequestBodyBytes,
	}
	if version.MetaGroupVersion != nil {
		scope.MetaGroupVersion = *version.MetaGroupVersion
	}
	return &writes.Resource{Scope: scope, Storage: storage, Admission: version.Admit, Manager: manager}, nil
}

func discoveryOf(gv schema.GroupVersion) metav1.GroupVersionForDiscovery {
	return metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
}

// typeConverter builds a type converter from the OpenAPI definitions of the types that the groups serve.
func typeConverter(config server.CompletedConfig, groups []apiGroup) (managedfields.TypeConverter, error) {
	var names []string
	for _, g := range groups {
		for _, gv := range g.info.PrioritizedVersions {
			for _, storage := range g.info.VersionedResourcesStorageMap[gv.Version] {
				kind, err := genericapi.GetResourceKind(gv, storage, g.info.Scheme)
				if err != nil {
					return nil, err
				}
				sample, err := g.info.Scheme.New(kind)
				if err != nil {
					return nil, err
				}
				names = append(names, util.GetCanonicalTypeName(sample))
			}
		}
	}
	models, err := builder3.BuildOpenAPIDefinitionsForResources(config.OpenAPIV3Config, names...)
	if err != nil {
		return nil, err
	}
	return managedfields.NewTypeConverter(models, false)
}

// servedVersions returns the served versions of each resource of a group.
func servedVersions(info *server.APIGroupInfo) map[string][]string {
	served := map[string][]string{}
	for _, gv := range info.PrioritizedVersions {
		for resource := range info.VersionedResourcesStorageMap[gv.Version] {
			served[resource] = append(served[resource], gv.String())
		}
	}
	return served
}
