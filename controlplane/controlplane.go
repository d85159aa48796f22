// Package controlplane makes a server that stands alone a whole cluster's API, without nodes: with
// CustomResourceDefinitions that are served as they are applied.
//
// It is a package of its own because it links much: servers that do not import it stay small.
package controlplane

import (
	"context"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/admit"
	"github.com/annexapi/annex/internal/crds"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/garbage"
	"github.com/annexapi/annex/internal/serve"
	"github.com/annexapi/annex/internal/upstream"
)

// New returns the control plane for annex.Server. It may be given to any number of servers.
func New() annex.ControlPlane { return plane{} }

type plane struct{}

var _ serve.ControlPlane = plane{}

// ControlPlane implements annex.ControlPlane.
func (plane) ControlPlane() {}

// Groups implements define.ControlPlane.
func (plane) Groups() []define.Group { return nil }

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
	}
}

// Delegation implements serve.ControlPlane.
func (plane) Delegation(p serve.Plane) *upstream.Delegation {
	return crds.Delegation(crds.Config{Storage: p.Storage, Client: p.Client, Shared: p.Shared})
}

// Admission implements serve.ControlPlane.
func (plane) Admission(p serve.Plane) []admit.Plugin {
	return []admit.Plugin{admit.Made("CustomResourceDefinitions", crds.Admission(p.Groups))}
}
