package plan

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
)

// checkFrontProxy returns the first mistake in the client certificate for aggregated servers.
func checkFrontProxy(server *define.Server, o *config.Options) error {
	cert, key := o.ControlPlane.ProxyClientCertFile, o.ControlPlane.ProxyClientKeyFile
	switch {
	case cert == "" && key == "":
		return nil
	case cert == "":
		return errors.New("Options.ControlPlane.ProxyClientKeyFile requires Options.ControlPlane.ProxyClientCertFile, the certificate " +
			"of the key")
	case key == "":
		return errors.New("Options.ControlPlane.ProxyClientCertFile requires Options.ControlPlane.ProxyClientKeyFile, the key of the " +
			"certificate")
	case server.Plane == nil:
		return errors.New("Options.ControlPlane.ProxyClientCertFile requires a server with a control plane")
	case o.RequestHeader.ClientCAFile == "":
		return errors.New("Options.ControlPlane.ProxyClientCertFile requires Options.RequestHeader.ClientCAFile, the certificate " +
			"authorities with which aggregated servers verify the certificate")
	}
	return nil
}

// withPlane returns the definition with the operator's options of its control plane.
func withPlane(d *definition.Definition, o config.ControlPlaneOptions) (*definition.Definition, error) {
	if o.EventTTL == 0 && len(o.RuntimeConfig) == 0 && len(o.CRDs) == 0 && o.Workloads == nil {
		return d, nil
	}
	switch {
	case d.ControlPlane == nil && o.EventTTL != 0:
		return nil, errors.New("Options.ControlPlane.EventTTL requires a server with a control plane")
	case d.ControlPlane == nil && len(o.CRDs) > 0:
		return nil, errors.New("Options.ControlPlane.CRDs requires a server with a control plane")
	case d.ControlPlane == nil && o.Workloads != nil:
		return nil, errors.New("Options.ControlPlane.Workloads requires a server with a control plane")
	case d.ControlPlane == nil:
		return nil, errors.New("Options.ControlPlane.RuntimeConfig requires a server with a control plane")
	case o.EventTTL > 0 && o.EventTTL%time.Second != 0:
		return nil, fmt.Errorf("Options.ControlPlane.EventTTL %s: must be a whole number of seconds", o.EventTTL)
	}
	plane, err := d.ControlPlane.With(
		define.PlaneOptions{EventTTL: o.EventTTL, RuntimeConfig: o.RuntimeConfig, CRDs: o.CRDs, Workloads: o.Workloads},
	)
	switch {
	case errors.Is(err, define.ErrNoExtension):
		return nil, fmt.Errorf("Options.ControlPlane.Workloads: %w", err)
	case err != nil:
		return nil, fmt.Errorf("Options.ControlPlane.RuntimeConfig: %w", err)
	}
	server := *d.Server
	if server.Plane = plane.Plane(); server.Plane.Mistake != nil {
		return nil, fmt.Errorf("control plane: %w", server.Plane.Mistake)
	}
	return &definition.Definition{Server: &server, ControlPlane: plane, NewEnv: d.NewEnv}, nil
}

// dropOffControllers removes from the control plane the controllers that are off and not selected: they need no accounts
// and roles.
func (p *Plan) dropOffControllers() {
	if p.Definition.Plane == nil {
		return
	}
	definition, plane := *p.Definition, *p.Definition.Plane
	plane.Controllers = slices.DeleteFunc(slices.Clone(plane.Controllers), func(c define.Controller) bool {
		return c.Off && !slices.ContainsFunc(p.Controllers, func(selected define.Controller) bool { return selected.Name == c.Name })
	})
	definition.Plane = &plane
	p.Definition = &definition
}

// DeletesNamespaces reports whether the server deletes the content of terminating namespaces. Only a control plane can be
// told not to, as a kube-apiserver without a kube-controller-manager does not.
func (p *Plan) DeletesNamespaces() bool {
	return p.Mode != ControlPlane || slices.ContainsFunc(p.Controllers, func(c define.Controller) bool { return c.Name == define.NamespaceController })
}
