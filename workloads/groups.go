package workloads

import (
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/kubernetes"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apps "k8s.io/kubernetes/pkg/registry/apps/rest"
	autoscaling "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batch "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificates "k8s.io/kubernetes/pkg/registry/certificates/rest"
	discovery "k8s.io/kubernetes/pkg/registry/discovery/rest"
	networking "k8s.io/kubernetes/pkg/registry/networking/rest"
	node "k8s.io/kubernetes/pkg/registry/node/rest"
	policy "k8s.io/kubernetes/pkg/registry/policy/rest"
	resource "k8s.io/kubernetes/pkg/registry/resource/rest"
	scheduling "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storage "k8s.io/kubernetes/pkg/registry/storage/rest"

	// The types of these groups, and of groups that share their kinds.
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/extensions/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
)

// provider makes the endpoints of one group.
type provider interface {
	GroupName() string
	NewRESTStorage(enabled serverstorage.APIResourceConfigSource, storage generic.RESTOptionsGetter) (server.APIGroupInfo, error)
}

// providers returns the groups other than core in the order of a kube-apiserver, which is the order of discovery.
func providers(client kubernetes.Interface, authorize authorizer.Authorizer) []provider {
	return []provider{
		autoscaling.RESTStorageProvider{},
		batch.RESTStorageProvider{},
		certificates.RESTStorageProvider{Authorizer: authorize},
		discovery.StorageProvider{},
		networking.RESTStorageProvider{},
		node.RESTStorageProvider{},
		policy.RESTStorageProvider{},
		scheduling.RESTStorageProvider{},
		storage.RESTStorageProvider{},
		apps.StorageProvider{},
		resource.RESTStorageProvider{NamespaceClient: client.CoreV1().Namespaces(), Authorizer: authorize},
	}
}

// versions returns the versions and resources that a runtime configuration turns on. By default these are the versions that
// a kube-apiserver serves: all that are generally available. Keys of other kinds are ignored.
func versions(runtimeConfig map[string]bool) (*serverstorage.ResourceConfig, error) {
	enabled := serverstorage.NewResourceConfig()
	for _, group := range groupNames {
		enabled.DisableVersions(legacyscheme.Scheme.PrioritizedVersionsForGroup(group)...)
	}
	enabled.EnableVersions(
		appsv1.SchemeGroupVersion,
		autoscalingv1.SchemeGroupVersion,
		autoscalingv2.SchemeGroupVersion,
		batchv1.SchemeGroupVersion,
		certificatesv1.SchemeGroupVersion,
		discoveryv1.SchemeGroupVersion,
		networkingv1.SchemeGroupVersion,
		nodev1.SchemeGroupVersion,
		policyv1.SchemeGroupVersion,
		resourcev1.SchemeGroupVersion,
		schedulingv1.SchemeGroupVersion,
		storagev1.SchemeGroupVersion,
	)
	own := cliflag.ConfigurationMap{}
	for key, on := range runtimeConfig {
		if strings.HasPrefix(key, "api/") && !isCore(key) || serves(key) {
			own[key] = strconv.FormatBool(on)
		}
	}
	return resourceconfig.MergeAPIResourceConfigs(enabled, own, legacyscheme.Scheme)
}

// groupNames are the groups of providers.
var groupNames = []string{
	appsv1.GroupName, autoscalingv1.GroupName, batchv1.GroupName, certificatesv1.GroupName, discoveryv1.GroupName, networkingv1.GroupName,
	nodev1.GroupName, policyv1.GroupName, resourcev1.GroupName, schedulingv1.GroupName, storagev1.GroupName,
}

// serves reports whether a key of a runtime configuration is about a version of these groups, or a kind of the core group that
// is not the control plane's.
func serves(key string) bool {
	group, rest, _ := strings.Cut(key, "/")
	if isCore(key) {
		return slices.Contains(coreResources, strings.TrimPrefix(key, "api/v1/"))
	}
	version, _, _ := strings.Cut(rest, "/")
	return slices.Contains(groupNames, group) && legacyscheme.Scheme.IsVersionRegistered(schema.GroupVersion{Group: group, Version: version})
}

func isCore(key string) bool { return key == "api/v1" || strings.HasPrefix(key, "api/v1/") }

// coreResources are the kinds of coreGroup.
var coreResources = []string{
	"bindings", "componentstatuses", "endpoints", "nodes", "persistentvolumeclaims", "persistentvolumes", "pods", "podtemplates",
	"replicationcontrollers", "services",
}
