package upstream

import (
	"fmt"
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
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/util"

	"github.com/annexapi/annex/internal/convert"
	"github.com/annexapi/annex/internal/registry"
)

// installGroup is server.InstallAPIGroup, but for how applied configurations are merged and
// objects put into tables: upstream makes the convertors itself, and here they are the
// machinery's, which keep zeros.
func installGroup(generic *server.GenericAPIServer, config server.CompletedConfig, info server.APIGroupInfo, machinery *convert.Machinery, kinds []*registry.Kind, admit admission.Interface) error {
	models, err := typeConverter(config, &info)
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	models = machinery.TypeConverter(models)
	for _, k := range kinds {
		if err := k.ManageFields(models, info.Scheme); err != nil {
			return err
		}
	}
	group := metav1.APIGroup{Name: info.PrioritizedVersions[0].Group}
	for _, gv := range info.PrioritizedVersions {
		storage := info.VersionedResourcesStorageMap[gv.Version]
		if len(storage) == 0 {
			continue
		}
		version := &genericapi.APIGroupVersion{
			Root:                        server.APIGroupPrefix,
			Storage:                     storage,
			GroupVersion:                gv,
			AllServedVersionsByResource: servedVersions(&info),
			OptionsExternalVersion:      info.OptionsExternalVersion,
			MetaGroupVersion:            info.MetaGroupVersion,
			Serializer:                  info.NegotiatedSerializer,
			ParameterCodec:              info.ParameterCodec,
			Typer:                       info.Scheme,
			Creater:                     info.Scheme,
			Convertor:                   machinery.Documents(),
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
		resources, _, err := version.InstallREST(generic.Handler.GoRestfulContainer)
		if err != nil {
			return fmt.Errorf("install %s: %w", gv, err)
		}
		generic.AggregatedDiscoveryGroupManager.AddGroupVersion(gv.Group, apidiscoveryv2.APIVersionDiscovery{
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
			Version:   gv.Version,
			Resources: resources,
		})
		group.Versions = append(group.Versions, discoveryOf(gv))
		for resource, s := range storage {
			if ready, ok := s.(rest.StorageWithReadiness); ok {
				generic.StorageReadinessHook.RegisterStorage(metav1.GroupVersionResource(gv.WithResource(resource)), ready)
			}
		}
	}
	generic.RegisterDestroyFunc(func() {
		for _, storage := range info.VersionedResourcesStorageMap {
			for _, s := range storage {
				s.Destroy()
			}
		}
	})
	group.PreferredVersion = discoveryOf(info.PrioritizedVersions[0])
	generic.DiscoveryGroupManager.AddGroup(group)
	generic.Handler.GoRestfulContainer.Add(discovery.NewAPIGroupHandler(generic.Serializer, group).WebService())
	return nil
}

func discoveryOf(gv schema.GroupVersion) metav1.GroupVersionForDiscovery {
	return metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
}

// typeConverter is made of the OpenAPI definitions of what the group serves.
func typeConverter(config server.CompletedConfig, info *server.APIGroupInfo) (managedfields.TypeConverter, error) {
	var names []string
	for _, gv := range info.PrioritizedVersions {
		for _, storage := range info.VersionedResourcesStorageMap[gv.Version] {
			kind, err := genericapi.GetResourceKind(gv, storage, info.Scheme)
			if err != nil {
				return nil, err
			}
			sample, err := info.Scheme.New(kind)
			if err != nil {
				return nil, err
			}
			names = append(names, util.GetCanonicalTypeName(sample))
		}
	}
	models, err := builder3.BuildOpenAPIDefinitionsForResources(config.OpenAPIV3Config, names...)
	if err != nil {
		return nil, err
	}
	info.StaticOpenAPISpec = models
	return managedfields.NewTypeConverter(models, false)
}

// servedVersions are the versions that each resource of a group is served in.
func servedVersions(info *server.APIGroupInfo) map[string][]string {
	served := map[string][]string{}
	for _, gv := range info.PrioritizedVersions {
		for resource := range info.VersionedResourcesStorageMap[gv.Version] {
			served[resource] = append(served[resource], gv.String())
		}
	}
	return served
}
