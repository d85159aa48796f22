package serve

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/upstream"
)

// plugins are the definition's admission plugins, the hooks of its kinds, and the plugins' configuration.
type plugins struct {
	plan          *plan.Plan
	env           any
	hooks         *admit.Hooks
	stopping      <-chan struct{}
	configuration admission.ConfigProvider
	// plane opens the control plane's plugins; nil for a server without a control plane.
	plane func(authorizer.Authorizer) ([]admit.Plugin, error)
}

func admissionPlugins(p *plan.Plan, env any, hooks *admit.Hooks, stopping <-chan struct{}) (plugins, error) {
	configuration, err := admit.ReadConfiguration(p.Options.Admission.ConfigFile, p.KnownAdmissionPlugins())
	return plugins{plan: p, env: env, hooks: hooks, stopping: stopping, configuration: configuration}, err
}

// with returns the declared plugins for a server with the given authorizer. Hooks come last, so that they see
// objects as they will be stored.
func (p plugins) with(authorize authorizer.Authorizer) ([]admit.Plugin, error) {
	given := admit.Initialization{Authorizer: authorize, Version: upstream.EffectiveVersion(p.plan.Definition), Stopped: p.stopping}
	all := admit.NewPlugins(p.plan.AdmissionPlugins, p.env, given)
	if p.plane != nil {
		plane, err := p.plane(authorize)
		if err != nil {
			return nil, err
		}
		all = append(all, plane...)
	}
	return append(all, admit.NewPlugin(define.HooksPlugin, p.hooks)), nil
}
