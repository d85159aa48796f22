// Package controlplane makes a server that stands alone a whole cluster's API, without nodes and
// workloads: with CustomResourceDefinitions that are served as they are applied, the kinds that
// every cluster has, garbage collection, and admission by webhooks and policies.
//
// It is a package of its own because it links much: servers that do not import it stay small.
package controlplane

import (
	"context"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/admit"
	"github.com/annexapi/annex/internal/builtin"
	"github.com/annexapi/annex/internal/crds"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/garbage"
	"github.com/annexapi/annex/internal/policies"
	"github.com/annexapi/annex/internal/serve"
)

// New returns the control plane for annex.Server. It may be given to any number of servers.
func New() annex.ControlPlane { return plane{} }

type plane struct{}

var _ serve.ControlPlane = plane{}

// ControlPlane implements annex.ControlPlane.
func (plane) ControlPlane() {}

// Groups implements define.ControlPlane.
func (plane) Groups() []define.Group { return builtin.Groups() }

// Controllers implements define.ControlPlane. Their names are those of kube-controller-manager.
func (plane) Controllers() []define.Controller {
	return []define.Controller{
		{Name: "garbage-collector-controller", Run: func(ctx context.Context, env any) error {
			collector, err := garbage.New(env.(*annex.Env).ClientConfig(), garbage.Options{})
			if err != nil {
				return err
			}
			return collector.Run(ctx)
		}},
		{Name: "validatingadmissionpolicy-status-controller", Run: func(ctx context.Context, env any) error {
			return policies.RunTypeChecks(ctx, env.(*annex.Env).ClientConfig())
		}},
	}
}

// AdmissionPlugins implements define.ControlPlane.
func (plane) AdmissionPlugins() []string { return policies.Names() }

// Open implements serve.ControlPlane.
func (plane) Open(p serve.Plane) (*serve.OpenedPlane, error) {
	decided, err := policies.New(policies.Config{Client: p.Client, Enabled: p.Admission, Authorizer: p.Authorizer, Version: p.Version, Stopped: p.Stopped})
	if err != nil {
		return nil, err
	}
	return &serve.OpenedPlane{
		Delegation: crds.Delegation(crds.Config{Storage: p.Storage, Client: p.Client, Shared: p.Shared}),
		Admission:  append(decided.Plugins(), admit.Made("CustomResourceDefinitions", crds.Admission(p.Groups))),
		Run:        decided.Run,
	}, nil
}
