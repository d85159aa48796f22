// Package workloads adds the kinds of Kubernetes that programs run with to a control plane: pods, nodes, volumes,
// deployments, jobs, ingresses, and all others that a kube-apiserver serves by default.
//
// Their types, defaults, validation, strategies, subresources and table columns are those of k8s.io/kubernetes, and the
// server stores the objects. So a create, an update or a patch has the answer of a kube-apiserver of the same version. No
// pod runs: there is no scheduler, no node, and no connection to one.
//
// The package is a module of its own, because it needs k8s.io/kubernetes:
//
//	annex.Server{
//		Name:         "test",
//		ControlPlane: controlplane.New(controlplane.Options{Extension: workloads.New(workloads.Options{})}),
//	}
package workloads

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/server/upstream"
)

// Options configure the kinds. The zero value is usual.
type Options struct {
	// ServiceIPRanges are the ranges from which Services get addresses, one of each IP family at most, the primary one
	// first. Empty means 10.0.0.0/24.
	ServiceIPRanges []string
	// ServiceNodePorts are the node ports of Services. Empty means 30000-32767.
	ServiceNodePorts string
	// Controllers are the controllers of workloads that run unless the operator excludes them, in the syntax of
	// annex.Options.Controllers: * is all of them, and -name excludes one. Those that remove the finalizers of volumes, claims
	// and their classes run unless they are excluded; the operator selects others by annex.Options.Controllers.
	//
	// There are daemonset-controller, deployment-controller, replicaset-controller, replicationcontroller-controller,
	// statefulset-controller, job-controller, cronjob-controller, ttl-after-finished-controller, endpoints-controller,
	// endpointslice-controller, endpointslice-mirroring-controller, disruption-controller,
	// horizontal-pod-autoscaler-controller, ephemeral-volume-controller, persistentvolumeclaim-protection-controller,
	// persistentvolume-protection-controller, volumeattributesclass-protection-controller and service-cidr-controller. Pods
	// that they create stay pending: there is no scheduler and no node.
	Controllers []string
}

// New returns the kinds for controlplane.Options. Any number of control planes may share them, which saves each but the first
// a tenth of a second. annex.New reports mistakes
// in the options.
func New(options Options) *controlplane.Extension {
	if len(options.ServiceIPRanges) == 0 {
		options.ServiceIPRanges = []string{"10.0.0.0/24"}
	}
	if options.ServiceNodePorts == "" {
		options.ServiceNodePorts = "30000-32767"
	}
	e := &controlplane.Extension{}
	types := upstream.NewForeignTypes(legacyscheme.Scheme, openapi.GetOpenAPIDefinitions, append([]string{""}, groupNames...)...)
	definition.HoldExtension(e, extension{options: options, types: types, informers: &informerSets{byServer: map[string]*informerSet{}}})
	return e
}

type extension struct {
	options       Options
	types         *upstream.ForeignTypes
	runtimeConfig map[string]bool
	informers     *informerSets
}

var _ definition.Extension = extension{}

// Replaces implements definition.Extension. Without pods, the control plane has rules of its own for the templates of pods,
// and Services without addresses.
func (extension) Replaces() []schema.GroupResource {
	return []schema.GroupResource{{Resource: "podtemplates"}, {Resource: "services"}}
}

// Serves implements definition.Extension.
func (extension) Serves(key string) bool { return serves(key) }

// With implements definition.Extension.
func (e extension) With(runtimeConfig map[string]bool) (definition.Extension, error) {
	e.runtimeConfig = runtimeConfig
	_, err := versions(runtimeConfig)
	return e, err
}

// AdmissionPlugins implements definition.Extension.
func (extension) AdmissionPlugins() (on, off []string) {
	for _, p := range admissionPlugins {
		if p.off {
			off = append(off, p.name)
		} else {
			on = append(on, p.name)
		}
	}
	return on, off
}

// Open implements definition.Extension.
func (e extension) Open(host definition.Host) (*definition.Extended, error) {
	permitPrivileged()
	client, err := kubernetes.NewForConfig(host.Client)
	if err != nil {
		return nil, fmt.Errorf("client of the server: %w", err)
	}
	storage, shared := host.Foreign(codecs()), newIdleInformers(client, host.Stopped)
	core, services, err := coreGroup{e.options, client, shared, host.Authorizer, storage, e.runtimeConfig}.open()
	if err != nil {
		return nil, fmt.Errorf("kinds of the core group: %w", err)
	}
	groups := []*server.APIGroupInfo{core}
	all := providers(client, host.Authorizer)
	enabled, err := versions(e.runtimeConfig)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		info, err := p.NewRESTStorage(enabled, storage)
		if err != nil {
			return nil, fmt.Errorf("kinds of %s: %w", p.GroupName(), err)
		}
		if len(info.VersionedResourcesStorageMap) > 0 {
			groups = append(groups, &info)
		}
	}
	initial := &initial{client, services, make(chan struct{})}
	plugins, err := newPlugins(host, client, shared)
	if err != nil {
		return nil, err
	}
	return &definition.Extended{
		Foreign:   &upstream.Foreign{Groups: groups, Types: e.types},
		Admission: plugins.enabled(host.Admission),
		Ready:     initial.ready,
		Run: func(ctx context.Context) {
			shared.StartWithContext(ctx)
			var all sync.WaitGroup
			all.Go(func() { services.keepPorts(ctx) })
			all.Go(func() { initial.run(ctx) })
			all.Wait()
			shared.Shutdown()
		},
	}, nil
}

// permitPrivileged permits privileged containers, as clusters do. The setting is one of the process.
func permitPrivileged() { capabilities.Setup(true, 0) }
