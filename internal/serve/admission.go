package serve

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex/internal/admit"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/upstream"
)

// plugins are the admission plugins that the definition declares, the hooks of its kinds among
// them, and how plugins are configured.
type plugins struct {
	server        *Server
	hooks         *admit.Hooks
	configuration admission.ConfigProvider
	plane         []admit.Plugin // of the control plane
}

func (s *Server) admissionPlugins(hooks *admit.Hooks) (plugins, error) {
	configuration, err := admit.ReadConfiguration(s.plan.Options.Admission.ConfigFile, s.plan.KnownAdmissionPlugins())
	return plugins{server: s, hooks: hooks, configuration: configuration}, err
}

// with returns the declared plugins for a server that decides with an authorizer what callers
// may do. Hooks come last, so that they see what is going to be stored.
func (p plugins) with(authorize authorizer.Authorizer) []admit.Plugin {
	given := admit.Given{Authorizer: authorize, Version: upstream.EffectiveVersion(p.server.definition), Stopped: p.server.stopping}
	declared := admit.Declared(p.server.plan.AdmissionPlugins, p.server.env, given)
	return append(append(declared, p.plane...), admit.Made(define.HooksPlugin, p.hooks))
}
