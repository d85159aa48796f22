package workloads

import (
	"fmt"
	"io"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/antiaffinity"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/gc"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/scheduling/podgroupprotection"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"

	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/program/definition"
)

// admissionPlugins are the plugins of a kube-apiserver in its order. The control plane has those for namespaces, webhooks,
// policies and quotas itself. Left out are plugins that admit or deny everything, or that call a server of images.
var admissionPlugins = []struct {
	name     string
	register func(*admission.Plugins)
	// off plugins run only if they are enabled, as in a kube-apiserver.
	off bool
}{
	{antiaffinity.PluginName, antiaffinity.Register, true},
	{limitranger.PluginName, limitranger.Register, false},
	{serviceaccount.PluginName, serviceaccount.Register, false},
	{noderestriction.PluginName, noderestriction.Register, true},
	{nodetaint.PluginName, nodetaint.Register, false},
	{alwayspullimages.PluginName, alwayspullimages.Register, true},
	{podsecurity.PluginName, podsecurity.Register, false},
	{podnodeselector.PluginName, podnodeselector.Register, true},
	{priority.PluginName, priority.Register, false},
	{defaulttolerationseconds.PluginName, defaulttolerationseconds.Register, false},
	{podtolerationrestriction.PluginName, podtolerationrestriction.Register, true},
	{eventratelimit.PluginName, eventratelimit.Register, true},
	{extendedresourcetoleration.PluginName, extendedresourcetoleration.Register, true},
	{setdefault.PluginName, setdefault.Register, false},
	{storageobjectinuseprotection.PluginName, storageobjectinuseprotection.Register, false},
	{podgroupprotection.PluginName, podgroupprotection.Register, false},
	{gc.PluginName, gc.Register, true},
	{resize.PluginName, resize.Register, false},
	{runtimeclass.PluginName, runtimeclass.Register, false},
	{approval.PluginName, approval.Register, false},
	{signing.PluginName, signing.Register, false},
	{ctbattest.PluginName, ctbattest.Register, false},
	{subjectrestriction.PluginName, subjectrestriction.Register, false},
	{defaultingressclass.PluginName, defaultingressclass.Register, false},
	{denyserviceexternalips.PluginName, denyserviceexternalips.Register, true},
	{podtopologylabels.PluginName, podtopologylabels.Register, false},
	{nodedeclaredfeatures.PluginName, nodedeclaredfeatures.Register, false},
	{podresize.PluginName, podresize.Register, false},
}

// plugins are the admission plugins of one server.
type plugins struct {
	known       *admission.Plugins
	initializer admission.PluginInitializer
}

func newPlugins(host definition.Host, client kubernetes.Interface, shared informers.SharedInformerFactory) (*plugins, error) {
	objects, err := dynamic.NewForConfig(host.Client)
	if err != nil {
		return nil, fmt.Errorf("client of the server: %w", err)
	}
	p := &plugins{known: admission.NewPlugins()}
	p.initializer = initializer.New(
		client, objects, shared, host.Authorizer, utilfeature.DefaultFeatureGate, host.Version, host.Stopped,
		restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
	)
	for _, plugin := range admissionPlugins {
		plugin.register(p.known)
	}
	return p, nil
}

// enabled returns the plugins with the given names.
func (p *plugins) enabled(names []string) []admit.Plugin {
	var all []admit.Plugin
	for _, plugin := range admissionPlugins {
		if slices.Contains(names, plugin.name) {
			all = append(all, admit.Plugin{Name: plugin.name, Make: func(configuration io.Reader) (admission.Interface, error) {
				made, err := p.known.InitPlugin(plugin.name, configuration, p.initializer)
				if err != nil {
					return nil, err
				}
				return withInternals(made), nil
			}})
		}
	}
	return all
}
