package annex

import (
	"context"
	"io"

	"k8s.io/apiserver/pkg/admission"

	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
)

// AdmissionPlugin takes part in the admission of all kinds of a server, namespaces and roles
// included: of creates, updates and deletes, and of connections, such as an exec. Objects are of the
// hub's Go type, and a connection's are its options. Plugins come before the hooks of kinds, in
// the order of Server.AdmissionPlugins; in an aggregated server, after those of the cluster.
// They see what the server itself writes, too, as user system:apiserver: one that refuses the namespace
// default keeps the server from starting. Files that people put into the storage Files pass no admission.
type AdmissionPlugin struct {
	// Name is letters and digits that begin with a capital, as in ImagePolicy. Options.Admission
	// enables, disables and configures plugins by it, and metrics have it.
	Name string
	// Plugin is used by all servers of the definition; New makes the plugin of one server and
	// is called once, by annex.New. One of them is set. Mutating and Validating
	// make plugins of functions.
	//
	// A plugin of upstream's kind is given the authorizer, the feature gates, the version and the
	// drained notification if it wants them. Clients and informers it gets in New, of env.
	//
	// An error of a plugin of upstream's kind that neither is nor wraps an API status is answered with
	// 500, as by kube-apiserver.
	//
	// The configuration is what Options.Admission.ConfigFile says of the plugin; nil if that is
	// nothing.
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

// AdmissionFunc reviews a request for any kind. An error refuses it, as that of an AdmitFunc does.
type AdmissionFunc func(ctx context.Context, a admission.Attributes) error

// Mutating makes a plugin of a function that may change the object of a create or update. It is
// called for deletes and connections as well.
func Mutating(review AdmissionFunc) admission.Interface { return mutating{review} }

// Validating makes a plugin of a function that decides, after all plugins that mutate. A change
// of the object has no effect.
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
