package admit

import (
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/compatibility"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/model/define"
)

// Plugin is an admission plugin, under the name that configurations and metrics know.
type Plugin struct {
	Name string
	// Make is called once, with the plugin's configuration or nil.
	Make admission.Factory
	// Unmeasured plugins are in no metric, which cost a microsecond for each write.
	Unmeasured bool
}

// Made is a plugin that is there already and has no configuration.
func Made(name string, plugin admission.Interface) Plugin {
	return Plugin{Name: name, Make: func(io.Reader) (admission.Interface, error) { return plugin, nil }}
}

// Given is what a server gives those of a definition's plugins that want it, by upstream's
// interfaces.
type Given struct {
	Authorizer authorizer.Authorizer
	Version    compatibility.EffectiveVersion
	// Stopped is closed when no more requests come.
	Stopped <-chan struct{}
}

// Declared returns the plugins of a definition for one server, given the façade's handle on it.
func Declared(plugins []define.AdmissionPlugin, env any, given Given) []Plugin {
	var all []Plugin
	for _, p := range plugins {
		all = append(all, Plugin{Name: p.Name, Make: func(configuration io.Reader) (admission.Interface, error) {
			plugin, err := p.New(env, configuration)
			if err != nil {
				return nil, err
			}
			if plugin == nil {
				return nil, errors.New("there is no plugin: New returned none")
			}
			given.initialize(plugin)
			if err := admission.ValidateInitialization(plugin); err != nil {
				return nil, err
			}
			// Initializers of the cluster's plugins must not reach the plugin; a chain has none of their interfaces.
			return answered{admission.NewChainHandler(plugin)}, nil
		}})
	}
	return all
}

// answered is the chain of one plugin whose errors may wrap an API status: upstream's handlers would answer such an
// error with 500.
type answered struct {
	chain admission.Interface
}

var (
	_ admission.MutationInterface   = answered{}
	_ admission.ValidationInterface = answered{}
)

func (p answered) Handles(operation admission.Operation) bool { return p.chain.Handles(operation) }

func (p answered) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if mutating, ok := p.chain.(admission.MutationInterface); ok {
		return apierr.Outermost(mutating.Admit(ctx, a, o))
	}
	return nil
}

func (p answered) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if validating, ok := p.chain.(admission.ValidationInterface); ok {
		return apierr.Outermost(validating.Validate(ctx, a, o))
	}
	return nil
}

func (g Given) initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsDrainedNotification); ok {
		wants.SetDrainedNotification(g.Stopped)
	}
	if wants, ok := plugin.(initializer.WantsEffectiveVersion); ok {
		wants.InspectEffectiveVersion(g.Version)
	}
	if wants, ok := plugin.(initializer.WantsFeatures); ok {
		wants.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	}
	if wants, ok := plugin.(initializer.WantsUnconditionalAuthorizer); ok {
		wants.SetUnconditionalAuthorizer(g.Authorizer)
	}
	if wants, ok := plugin.(initializer.WantsAuthorizer); ok {
		wants.SetAuthorizer(g.Authorizer)
	}
}

// Chain runs plugins in their order, all that mutate before all that validate. A mutation
// that asks for it is followed by a second round of those that mutate. A plugin without Make
// is one of the known, which may be nil; those want what the initializer gives.
func Chain(
	known *admission.Plugins,
	plugins []Plugin,
	configuration admission.ConfigProvider,
	initializer admission.PluginInitializer,
) (admission.Interface, error) {
	if known == nil {
		known = admission.NewPlugins()
	}
	var names []string
	unmeasured := map[string]bool{}
	for _, p := range plugins {
		if p.Make != nil {
			known.Register(p.Name, p.Make)
		}
		names = append(names, p.Name)
		unmeasured[p.Name] = p.Unmeasured
	}
	measure := admission.DecoratorFunc(func(plugin admission.Interface, name string) admission.Interface {
		if unmeasured[name] {
			return plugin
		}
		return admissionmetrics.WithControllerMetrics(plugin, name)
	})
	chain, err := known.NewFromPlugins(names, configuration, initializer, measure)
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return chain, nil
}
