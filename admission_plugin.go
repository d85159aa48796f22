package annex

import (
	"context"
	"io"

	"k8s.io/apiserver/pkg/admission"

	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
)

// AdmissionPlugin takes part in the admission of all kinds of a server, including namespaces and roles: of creates,
// updates and deletes, and of connections, such as an exec. Objects have the hub's Go type; the object of a connection
// is its options. Plugins run before the hooks of kinds, in the order of Server.AdmissionPlugins; in an aggregated
// server, after those of the cluster. They also see writes of the server itself, by the user system:apiserver: a
// plugin that rejects the namespace default prevents the server from starting. Files that people add to the storage
// files do not pass admission.
type AdmissionPlugin struct {
	// Name consists of letters and digits and begins with a capital, as in ImagePolicy. Options.Admission enables,
	// disables and configures the plugin by this name, which is also a label in metrics.
	Name string
	// Set exactly one of Plugin and New. Plugin serves all servers of the definition. New makes the plugin of one
	// server; annex.New calls it once. Mutating and Validating make plugins of functions.
	//
	// A plugin that implements upstream's initializer interfaces gets the authorizer, the feature gates, the version
	// and the drained notification from the server. It gets clients and informers in New, from env.
	//
	// An error of such a plugin that neither is nor wraps an API status is answered with 500, as by kube-apiserver.
	//
	// The configuration is the plugin's section of Options.Admission.ConfigFile, or nil without such a section.
	Plugin admission.Interface
	New    func(env *Env, configuration io.Reader) (admission.Interface, error)
	// Disabled plugins run only if Options.Admission.EnablePlugins names them.
	Disabled bool
}

func (p AdmissionPlugin) define() define.AdmissionPlugin {
	compiled := define.AdmissionPlugin{Name: p.Name, Disabled: p.Disabled}
	switch {
	case p.Plugin != nil && p.New == nil:
		compiled.New = func(any, io.Reader) (admission.Interface, error) { return p.Plugin, nil }
	case p.New != nil && p.Plugin == nil:
		compiled.New = func(env any, configuration io.Reader) (admission.Interface, error) {
			return p.New(env.(*Env), configuration)
		}
	}
	return compiled
}

// AdmissionFunc reviews a request for any kind. An error rejects it, as that of an AdmitFunc does.
type AdmissionFunc func(ctx context.Context, a admission.Attributes) error

// Mutating makes a plugin of a function that may change the object of a create or update. The function is also called
// for deletes and connections.
func Mutating(review AdmissionFunc) admission.Interface { return mutating{review} }

// Validating makes a plugin of a function that decides after all mutating plugins. Its changes of the object have no
// effect.
func Validating(review AdmissionFunc) admission.Interface { return validating{review} }

type mutating struct{ review AdmissionFunc }

func (mutating) Handles(admission.Operation) bool { return true }

func (m mutating) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return m.review.call(ctx, a)
}

type validating struct{ review AdmissionFunc }

func (validating) Handles(admission.Operation) bool { return true }

func (v validating) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return v.review.call(ctx, a)
}

func (f AdmissionFunc) call(ctx context.Context, a admission.Attributes) error {
	if err := f(ctx, a); err != nil {
		return admit.Refusal(a, err)
	}
	return nil
}
