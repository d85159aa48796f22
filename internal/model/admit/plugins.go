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

// Plugin is an admission plugin. Name is its name in configurations and metrics.
type Plugin struct {
	Name string
	// Make is called once, with the plugin's configuration or nil.
	Make admission.Factory
	// Unmeasured excludes the plugin from metrics, which cost a microsecond per write.
	Unmeasured bool
}

// NewPlugin returns a Plugin for an existing plugin without a configuration.
func NewPlugin(name string, plugin admission.Interface) Plugin {
	return Plugin{Name: name, Make: func(io.Reader) (admission.Interface, error) { return plugin, nil }}
}

// Initialization contains the values that are passed to plugins that implement upstream's interfaces for them.
type Initialization struct {
	Authorizer authorizer.Authorizer
	Version    compatibility.EffectiveVersion
	// Stopped is closed when no more requests arrive.
	Stopped <-chan struct{}
}

// NewPlugins returns the plugins of a definition for one server. env is the façade's handle on the server.
func NewPlugins(plugins []define.AdmissionPlugin, env any, given Initialization) []Plugin {
	var all []Plugin
	for _, p := range plugins {
		all = append(all, Plugin{Name: p.Name, Make: func(configuration io.Reader) (admission.Interface, error) {
			plugin, err := p.New(env, configuration)
			if err != nil {
				return nil, err
			}
			if plugin == nil {
				return nil, errors.New("its constructor returned no plugin")
			}
			given.initialize(plugin)
			if err := admission.ValidateInitialization(plugin); err != nil {
				return nil, err
			}
			// The chain hides the plugin's interfaces, so that initializers of the cluster's plugins cannot reach it.
			return statusUnwrapper{admission.NewChainHandler(plugin)}, nil
		}})
	}
	return all
}

// statusUnwrapper is a chain of one plugin. It unwraps API statuses in the plugin's errors, because upstream's handlers
// would answer a wrapped one with 500.
type statusUnwrapper struct {
	chain admission.Interface
}

var (
	_ admission.MutationInterface   = statusUnwrapper{}
	_ admission.ValidationInterface = statusUnwrapper{}
)

func (p statusUnwrapper) Handles(operation admission.Operation) bool {
	return p.chain.Handles(operation)
}

func (p statusUnwrapper) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if mutating, ok := p.chain.(admission.MutationInterface); ok {
		return apierr.Outermost(mutating.Admit(ctx, a, o))
	}
	return nil
}

func (p statusUnwrapper) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if validating, ok := p.chain.(admission.ValidationInterface); ok {
		return apierr.Outermost(validating.Validate(ctx, a, o))
	}
	return nil
}

func (g Initialization) initialize(plugin admission.Interface) {
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

// Chain returns a plugin that runs plugins in order, all mutating before all validating ones. A mutation can request
// a second round of the mutating plugins. A plugin without Make is taken from known, which may be nil, and is
// initialized by initializer.
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
