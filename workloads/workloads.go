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
//		ControlPlane: controlplane.New(controlplane.Options{Extension: workloads.New()}),
//	}
package workloads

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/server/upstream"
)

// New returns the kinds for controlplane.Options. Any number of control planes may share them.
func New() *controlplane.Extension {
	e := &controlplane.Extension{}
	definition.HoldExtension(e, extension{})
	return e
}

type extension struct{}

var _ definition.Extension = extension{}

// Replaces implements definition.Extension. The control plane checks the templates of pods by rules of its own, if it has
// no pods.
func (extension) Replaces() []schema.GroupResource {
	return []schema.GroupResource{{Resource: "podtemplates"}}
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
func (extension) Open(host definition.Host) (*definition.Extended, error) {
	storage := host.Foreign(codecs())
	core, err := coreGroup(host, storage)
	if err != nil {
		return nil, fmt.Errorf("kinds of the core group: %w", err)
	}
	groups := []*server.APIGroupInfo{core}
	all, err := providers(host)
	if err != nil {
		return nil, err
	}
	enabled := versions()
	for _, p := range all {
		info, err := p.NewRESTStorage(enabled, storage)
		if err != nil {
			return nil, fmt.Errorf("kinds of %s: %w", p.GroupName(), err)
		}
		groups = append(groups, &info)
	}
	initial, err := newInitial(host.Client)
	if err != nil {
		return nil, err
	}
	plugins, err := newPlugins(host)
	if err != nil {
		return nil, err
	}
	return &definition.Extended{
		Foreign:   &upstream.Foreign{Groups: groups, Scheme: legacyscheme.Scheme, Definitions: openapi.GetOpenAPIDefinitions},
		Admission: plugins.enabled(host.Admission),
		Run: func(ctx context.Context) {
			var all sync.WaitGroup
			all.Go(func() { initial.run(ctx) })
			all.Go(func() { plugins.run(ctx) })
			all.Wait()
		},
	}, nil
}
