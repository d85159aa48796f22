// Package controlplane makes a server that stands alone a whole cluster's API, without nodes and
// workloads: with CustomResourceDefinitions that are served as they are applied, the kinds that
// every cluster has, garbage collection, and admission by webhooks and policies.
//
// It is a package of its own because it links much: servers that do not import it stay small.
package controlplane

import (
	"time"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/admit"
	"github.com/annexapi/annex/internal/builtin"
	"github.com/annexapi/annex/internal/crds"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/policies"
	"github.com/annexapi/annex/internal/serve"
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
}

// New returns the control plane for annex.Server. It may be given to any number of servers. A
// mistake in the options is told by annex.New.
func New(options Options) annex.ControlPlane {
	return plane{builtin.Options{Without: options.Without, EventTTL: options.EventTTL}}
}

type plane struct{ kinds builtin.Options }

var _ serve.ControlPlane = plane{}

// ControlPlane implements annex.ControlPlane.
func (plane) ControlPlane() {}

// Check implements define.ControlPlane.
func (p plane) Check() error {
	_, err := p.kinds.Groups()
	return err
}

// Groups implements define.ControlPlane.
func (p plane) Groups() []define.Group {
	groups, _ := p.kinds.Groups() // Check has found no mistake
	return groups
}

// Open implements serve.ControlPlane.
func (plane) Open(p serve.Plane) (*serve.OpenedPlane, error) {
	decided, err := policies.New(policies.Config{Client: p.Client, Enabled: p.Admission, Authorizer: p.Authorizer, Version: p.Version, Stopped: p.Stopped})
	if err != nil {
		return nil, err
	}
	local, err := localAPIServices(p)
	if err != nil {
		return nil, err
	}
	opened := &serve.OpenedPlane{
		Delegation: crds.Delegation(crds.Config{Storage: p.Storage, Client: p.Client, Shared: p.Shared, Follower: local}),
		Admission:  append(decided.Plugins(), decided.Params(), admit.Made("CustomResourceDefinitions", crds.Admission(p.Groups))),
		Run:        decided.Run,
	}
	if local != nil {
		alongside(opened, local.Run)
	}
	return opened, addQuotas(opened, p)
}
