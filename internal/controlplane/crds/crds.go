// Package crds serves custom resources: the kind CustomResourceDefinition, and the resources that its objects define
// while the server runs. It is upstream's apiextensions server, behind the server's own groups and over the server's
// own storage.
package crds

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/annexapi/annex/internal/fastpath/reads"
	"github.com/annexapi/annex/internal/server/upstream"
)

// Resource is the resource of definitions in storage and in errors.
var Resource = schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"}

// Config is the interface of the server for custom resources.
type Config struct {
	// Storage opens the storage of resources that are encoded by a codec.
	Storage func(codec runtime.Codec) generic.RESTOptionsGetter
	// Client has all rights.
	Client *rest.Config
	// Self is the client of conversion webhooks that name the Service kubernetes of the namespace default. They are
	// handlers of this server.
	Self *rest.Config
	// Shared means that other servers may serve the same custom resources.
	Shared bool
	// Follower is notified of the existing custom resources; nil for none.
	Follower Follower
	// Resolver finds the servers of conversion webhooks that name a Service.
	Resolver webhook.ServiceResolver
}

// Follower follows the resources of definitions. Its methods do not block, and are not called concurrently.
type Follower interface {
	// Serve receives the served versions of a group, the preferred one first; none if the group is gone.
	Serve(group string, versions []string)
	// Follow is called before Serve. start is done when Serve has been called for all existing definitions.
	Follow(start cache.DoneChecker)
}

// Delegation returns the server of custom resources and their definitions.
func Delegation(c Config) *upstream.Delegation {
	return &upstream.Delegation{
		Scheme: apiserver.Scheme,
		Groups: []string{apiextensionsv1.GroupName},
		New:    c.build,
	}
}

func (c Config) build(config server.Config) (*upstream.Delegate, error) {
	config.Serializer = apiserver.Codecs
	config.RESTOptionsGetter = c.Storage(apiserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion))
	config.MergedResourceConfig = apiserver.DefaultAPIResourceConfigSource()
	extensions := apiserver.Config{
		GenericConfig: &server.RecommendedConfig{Config: config},
		ExtraConfig: apiserver.ExtraConfig{
			CRDRESTOptionsGetter: c.Storage(unstructured.UnstructuredJSONScheme),
			MasterCount:          1,
			ServiceResolver:      c.Resolver,
			AuthResolverWrapper:  webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, c.Self, config.TracerProvider),
		},
	}
	behind, err := extensions.Complete().New(server.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	handler := behind.GenericAPIServer.Handler
	handler.Director = reads.Lists(handler.Director, func(*request.RequestInfo) *reads.ListConfig {
		return &reads.ListConfig{Serializer: apiserver.Codecs}
	})
	definitions := behind.Informers.Apiextensions().V1().CustomResourceDefinitions()
	// The watch fails when the server ends, which is not an error.
	if err := definitions.Informer().SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if ctx.Err() == nil {
			cache.DefaultWatchErrorHandler(ctx, r, err)
		}
	}); err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	if !c.Shared {
		if err := definitions.Informer().SetTransform(established); err != nil {
			return nil, fmt.Errorf("custom resources: %w", err)
		}
	}
	return &upstream.Delegate{
		Server: behind.GenericAPIServer,
		ReadFirst: func(ctx context.Context) {
			behind.Informers.Start(ctx.Done())
			cache.WaitFor(ctx, "", definitions.Informer().HasSyncedChecker())
		},
		Queried: (&queryResources{definitions: definitions.Lister()}).resources,
		Join: func(front *server.GenericAPIServer) error {
			// Upstream's controllers update these.
			behind.GenericAPIServer.StaticOpenAPISpec = front.StaticOpenAPISpec
			behind.GenericAPIServer.OpenAPIVersionedService = front.OpenAPIVersionedService
			behind.GenericAPIServer.OpenAPIV3VersionedService = front.OpenAPIV3VersionedService
			front.DiscoveryGroupManager.AddGroup(groupOf(apiextensionsv1.GroupName, apiextensionsv1.SchemeGroupVersion.Version))
			registered, err := definitions.Informer().AddEventHandler(&root{front.DiscoveryGroupManager, definitions.Lister(), c.Follower})
			if err != nil {
				return err
			}
			if c.Follower != nil {
				c.Follower.Follow(registered.HasSyncedChecker())
			}
			return nil
		},
	}, nil
}

// settled is how long upstream delays creates of custom resources after their definition is established, because
// other replicas of kube-apiserver may not know it yet.
const settled = 2 * time.Second

// established backdates the condition of a definition that has just been established. Only this server establishes
// definitions, so it knows the definition, and the first objects need not wait for two seconds.
func established(obj any) (any, error) {
	definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return obj, nil
	}
	condition := apihelpers.FindCRDCondition(definition, apiextensionsv1.Established)
	if condition != nil && time.Since(condition.LastTransitionTime.Time) < settled {
		condition.LastTransitionTime = metav1.NewTime(condition.LastTransitionTime.Add(-settled))
	}
	return definition, nil
}

func groupOf(name string, versions ...string) metav1.APIGroup {
	group := metav1.APIGroup{Name: name}
	for _, v := range versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: schema.GroupVersion{Group: name, Version: v}.String(), Version: v,
		})
	}
	group.PreferredVersion = group.Versions[0]
	return group
}
