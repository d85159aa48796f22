package serve

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/upstream"
)

// plugins are the admission plugins that the definition declares, the hooks of its kinds among
// them, and how plugins are configured.
type plugins struct {
	server        *Server
	hooks         *admit.Hooks
	configuration admission.ConfigProvider
	// plane opens those of the control plane; nil for a server without one.
	plane func(authorizer.Authorizer) ([]admit.Plugin, error)
}

func (s *Server) admissionPlugins(hooks *admit.Hooks) (plugins, error) {
	configuration, err := admit.ReadConfiguration(s.plan.Options.Admission.ConfigFile, s.plan.KnownAdmissionPlugins())
	return plugins{server: s, hooks: hooks, configuration: configuration}, err
}

// with returns the declared plugins for a server that decides with an authorizer what callers
// may do. Hooks come last, so that they see what is going to be stored.
func (p plugins) with(authorize authorizer.Authorizer) ([]admit.Plugin, error) {
	given := admit.Initialization{Authorizer: authorize, Version: upstream.EffectiveVersion(p.server.definition), Stopped: p.server.stopping}
	all := admit.NewPlugins(p.server.plan.AdmissionPlugins, p.server.env, given)
	if p.plane != nil {
		plane, err := p.plane(authorize)
		if err != nil {
			return nil, err
		}
		all = append(all, plane...)
	}
	return append(all, admit.NewPlugin(define.HooksPlugin, p.hooks)), nil
}
