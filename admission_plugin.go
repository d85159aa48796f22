package annex

import (
	"context"
	"io"

	"k8s.io/apiserver/pkg/admission"

	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/define"
)

// AdmissionPlugin is an admission plugin for all kinds of a server, including namespaces and roles. It reviews
// creates, updates, deletes and connections such as an exec. Objects have the hub's Go type; the object of a
// connection is its options. Plugins run before the hooks of kinds, in the order of Server.AdmissionPlugins; in an
// aggregated server, they run after the cluster's plugins.
//
// Plugins also review the server's own writes, by user system:apiserver: a plugin that rejects the namespace
// default keeps the server from starting. Files that a user writes into the storage Files pass no admission.
type AdmissionPlugin struct {
	// Name consists of letters and digits and begins with a capital, as in ImagePolicy. Options.Admission refers to
	// the plugin by this name, and metrics have it as a label.
	Name string
	// Plugin is shared by all servers of the definition; New creates the plugin of one server, and annex.New calls
	// it once. Exactly one of them must be set. Mutating and Validating turn functions into plugins.
	//
	// A plugin that implements upstream's initializer interfaces gets the authorizer, the feature gates, the
	// version and the drained notification. New gets clients and informers from env.
	//
	// An error of an upstream plugin that neither is nor wraps an API status becomes a 500 response, as in
	// kube-apiserver.
	//
	// The configuration is the plugin's part of Options.Admission.ConfigFile; nil if the file has none.
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

// AdmissionFunc reviews a request for any kind. An error rejects the request, as the error of an AdmitFunc does.
type AdmissionFunc func(ctx context.Context, a admission.Attributes) error

// Mutating turns a function into a plugin that may change the object of a create or update. The function is also
// called for deletes and connections.
func Mutating(review AdmissionFunc) admission.Interface { return mutating{review} }

// Validating turns a function into a plugin that runs after all mutating plugins. A change of the object has no
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
