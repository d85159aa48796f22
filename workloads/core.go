package workloads

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubelet "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/registry/core/componentstatus"
	endpoints "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	nodes "k8s.io/kubernetes/pkg/registry/core/node/storage"
	volumes "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	claims "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	pods "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	templates "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	controllers "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
)

// errNoNodes answers requests that a kube-apiserver passes on to the kubelet of a node.
var errNoNodes = errors.New("this server connects to no nodes: no pod runs")

func refuse(context.Context, string, string) (net.Conn, error) { return nil, errNoNodes }

// coreGroup makes the endpoints of the kinds of the core group that the control plane lacks.
type coreGroup struct {
	options   Options
	client    kubernetes.Interface
	shared    informers.SharedInformerFactory
	authorize authorizer.Authorizer
	storage   generic.RESTOptionsGetter
	// runtimeConfig turns kinds off.
	runtimeConfig map[string]bool
}

func (g coreGroup) open() (*server.APIGroupInfo, *services, error) {
	all := map[string]rest.Storage{
		"componentstatuses": componentstatus.NewStorage(func() map[string]componentstatus.Server { return nil }),
	}
	for _, add := range []func(generic.RESTOptionsGetter, map[string]rest.Storage) error{addVolumes, addControllers} {
		if err := add(g.storage, all); err != nil {
			return nil, nil, err
		}
	}
	transport := &http.Transport{DialContext: refuse}
	pod, err := g.addPods(transport, all)
	if err != nil {
		return nil, nil, err
	}
	services, err := addServices(g.options, g.client, g.shared, pod, transport, g.storage, all)
	if err != nil {
		return nil, nil, err
	}
	maps.DeleteFunc(all, func(path string, s rest.Storage) bool {
		resource, _, _ := strings.Cut(path, "/")
		on, given := g.runtimeConfig["api/v1/"+resource]
		return given && !on
	})
	info := server.NewDefaultAPIGroupInfo(corev1.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	info.PrioritizedVersions = []schema.GroupVersion{corev1.SchemeGroupVersion}
	info.VersionedResourcesStorageMap[corev1.SchemeGroupVersion.Version] = all
	return &info, services, nil
}

func addVolumes(storage generic.RESTOptionsGetter, to map[string]rest.Storage) error {
	volume, volumeStatus, err := volumes.NewREST(storage)
	if err != nil {
		return fmt.Errorf("persistentvolumes: %w", err)
	}
	claim, claimStatus, err := claims.NewREST(storage)
	if err != nil {
		return fmt.Errorf("persistentvolumeclaims: %w", err)
	}
	maps.Copy(to, map[string]rest.Storage{
		"persistentvolumes":             volume,
		"persistentvolumes/status":      volumeStatus,
		"persistentvolumeclaims":        claim,
		"persistentvolumeclaims/status": claimStatus,
	})
	return nil
}

func addControllers(storage generic.RESTOptionsGetter, to map[string]rest.Storage) error {
	controller, err := controllers.NewStorage(storage)
	if err != nil {
		return fmt.Errorf("replicationcontrollers: %w", err)
	}
	template, err := templates.NewREST(storage)
	if err != nil {
		return fmt.Errorf("podtemplates: %w", err)
	}
	endpoint, err := endpoints.NewREST(storage)
	if err != nil {
		return fmt.Errorf("endpoints: %w", err)
	}
	maps.Copy(to, map[string]rest.Storage{
		"replicationcontrollers":        controller.Controller,
		"replicationcontrollers/status": controller.Status,
		"replicationcontrollers/scale":  controller.Scale,
		"podtemplates":                  template,
		"endpoints":                     endpoint,
	})
	return nil
}

// addPods adds pods and nodes. Their proxies, logs and connections are refused by the transport, as for a node that
// cannot be reached.
func (g coreGroup) addPods(transport http.RoundTripper, to map[string]rest.Storage) (*pods.REST, error) {
	node, err := nodes.NewStorage(g.storage, kubelet.KubeletClientConfig{
		Port:                  10250,
		PreferredAddressTypes: []string{string(corev1.NodeHostName), string(corev1.NodeInternalIP), string(corev1.NodeExternalIP)},
		Lookup: func(egressselector.NetworkContext) (utilnet.DialFunc, error) {
			return refuse, nil
		},
	}, transport)
	if err != nil {
		return nil, fmt.Errorf("nodes: %w", err)
	}
	pod, err := pods.NewStorage(g.storage, node.KubeletConnectionInfo, transport, g.client.PolicyV1(), g.authorize)
	if err != nil {
		return nil, fmt.Errorf("pods: %w", err)
	}
	maps.Copy(to, map[string]rest.Storage{
		"nodes":                    node.Node,
		"nodes/proxy":              node.Proxy,
		"nodes/status":             node.Status,
		"pods":                     pod.Pod,
		"pods/attach":              pod.Attach,
		"pods/binding":             pod.Binding,
		"pods/ephemeralcontainers": pod.EphemeralContainers,
		"pods/eviction":            pod.Eviction,
		"pods/exec":                pod.Exec,
		"pods/log":                 pod.Log,
		"pods/portforward":         pod.PortForward,
		"pods/proxy":               pod.Proxy,
		"pods/resize":              pod.Resize,
		"pods/status":              pod.Status,
		"bindings":                 pod.LegacyBinding,
	})
	return pod.Pod, nil
}
