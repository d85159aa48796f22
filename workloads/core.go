package workloads

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
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

	"github.com/annexapi/annex/internal/program/definition"
)

// errNoNodes answers requests that a kube-apiserver passes on to the kubelet of a node.
var errNoNodes = errors.New("this server connects to no nodes: no pod runs")

func refuse(context.Context, string, string) (net.Conn, error) { return nil, errNoNodes }

// coreGroup returns the kinds of the core group that the control plane lacks.
func coreGroup(host definition.Host, storage generic.RESTOptionsGetter) (*server.APIGroupInfo, error) {
	all := map[string]rest.Storage{
		"componentstatuses": componentstatus.NewStorage(func() map[string]componentstatus.Server { return nil }),
	}
	for _, add := range []func(generic.RESTOptionsGetter, map[string]rest.Storage) error{addVolumes, addControllers} {
		if err := add(storage, all); err != nil {
			return nil, err
		}
	}
	if err := addPods(host, storage, all); err != nil {
		return nil, err
	}
	info := server.NewDefaultAPIGroupInfo(corev1.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	info.PrioritizedVersions = []schema.GroupVersion{corev1.SchemeGroupVersion}
	info.VersionedResourcesStorageMap[corev1.SchemeGroupVersion.Version] = all
	return &info, nil
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
func addPods(host definition.Host, storage generic.RESTOptionsGetter, to map[string]rest.Storage) error {
	transport := &http.Transport{DialContext: refuse}
	node, err := nodes.NewStorage(storage, kubelet.KubeletClientConfig{
		Port:                  10250,
		PreferredAddressTypes: []string{string(corev1.NodeHostName), string(corev1.NodeInternalIP), string(corev1.NodeExternalIP)},
		Lookup: func(egressselector.NetworkContext) (utilnet.DialFunc, error) {
			return refuse, nil
		},
	}, transport)
	if err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	budgets, err := policyclient.NewForConfig(host.Client)
	if err != nil {
		return fmt.Errorf("client of the server: %w", err)
	}
	pod, err := pods.NewStorage(storage, node.KubeletConnectionInfo, transport, budgets, host.Authorizer)
	if err != nil {
		return fmt.Errorf("pods: %w", err)
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
	return nil
}
