// Package controlplane makes a server that stands alone a whole cluster's API, without nodes and
// workloads: with CustomResourceDefinitions that are served as they are applied, the kinds that
// every cluster has, garbage collection, and admission by webhooks and policies.
//
// It is a package of its own because it links much: servers that do not import it stay small.
package controlplane

import (
	"io/fs"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/controlplane/builtin"
	"github.com/annexapi/annex/internal/controlplane/crds"
	"github.com/annexapi/annex/internal/controlplane/policies"
	"github.com/annexapi/annex/internal/controlplane/quota"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/server/loopback"
)

// Options say what a control plane has.
type Options struct {
	// Without are the names of kinds and groups that are left out: those of resources, such as
	// configmaps and leases.coordination.k8s.io, and those of groups, such as
	// admissionregistration.k8s.io. What is left out of kinds is not admitted by, either.
	Without []string
	// EventTTL is how long an event is kept after it was last written, in whole seconds; 0 is
	// an hour, and negative is for ever.
	EventTTL time.Duration
	// CRDs are folders whose files, in YAML or JSON and called *.yaml, *.yml or *.json, hold
	// CustomResourceDefinitions. They are applied by server-side apply, forced, when the server
	// starts, which is not ready until their objects are served, and again when the files
	// change. A file that is wrong at the start is an error of annex.New; later, it is logged
	// and changes nothing. What is in no file any more stays. Paths are relative to the
	// working directory.
	CRDs []string
	// CRDFiles is a folder of such files that the program brings along, an embed.FS say; nil is none.
	// They are read by annex.New, and those of folders within are not.
	CRDFiles fs.FS
}

// New returns the control plane for annex.Server. It may be given to any number of servers. A
// mistake in the options is told by annex.New.
func New(options Options) *annex.ControlPlane {
	controlPlane := &annex.ControlPlane{}
	definition.Hold(controlPlane, plane{
		kinds: builtin.Options{Without: options.Without, EventTTL: options.EventTTL}, crds: options.CRDs, brought: options.CRDFiles,
		creates: &creates{servers: map[string]*quota.Creates{}},
	})
	return controlPlane
}

type plane struct {
	kinds   builtin.Options
	crds    []string // folders
	brought fs.FS    // another one; nil is none
	creates *creates
}

var _ definition.ControlPlane = plane{}

// Plane implements definition.ControlPlane.
func (p plane) Plane() *define.Plane {
	if _, err := p.kinds.Groups(); err != nil {
		return &define.Plane{Mistake: err}
	}
	return &define.Plane{Groups: p.groups, Controllers: p.declaredControllers(), AdmissionPlugins: p.admissionPlugins()}
}

func (p plane) groups() []define.Group {
	groups, _ := p.kinds.Groups() // Plane has reported a mistake
	return groups
}

// Open implements definition.ControlPlane.
func (p plane) Open(server definition.Host) (*definition.Opened, error) {
	services, err := followServices(server.Client, p.served())
	if err != nil {
		return nil, err
	}
	self, resolver := loopback.AsService(server.Client), webhooks{services.resolver}
	decided, err := policies.New(policies.Config{
		Server:     server.Name,
		Client:     server.Client,
		Self:       self,
		Enabled:    server.Admission,
		Authorizer: server.Authorizer,
		Version:    server.Version,
		Stopped:    server.Stopped,
		Resolver:   resolver,
		Complete:   builtin.Complete,
	})
	if err != nil {
		return nil, err
	}
	opened := &definition.Opened{Run: decided.Run}
	alongside(opened, services.run)
	if p.served()(corev1.Resource("configmaps")) {
		addAuthentication(opened, server)
	}
	local, err := addAPIServices(opened, server, services)
	if err != nil {
		return nil, err
	}
	opened.Delegation = crds.Delegation(
		crds.Config{Storage: server.Storage, Client: server.Client, Self: self, Shared: server.Shared, Follower: local, Resolver: resolver},
	)
	opened.Admission = append(decided.Plugins(), decided.Params(), admit.Made("CustomResourceDefinitions", crds.Admission(server.Groups)))
	if len(p.crds) > 0 || p.brought != nil {
		manifests, err := crds.NewManifests(p.crds, p.brought, server.Client)
		if err != nil {
			return nil, err
		}
		opened.Ready = manifests.Ready
		alongside(opened, manifests.Run)
	}
	return opened, addQuotas(opened, server, p.creates)
}
