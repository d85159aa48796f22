// Package policies contains the admission plugins of a control plane for webhooks and policies, which are objects of
// admissionregistration.k8s.io in the server's own storage. The plugins are upstream's; they follow the objects as
// clients of the server.
package policies

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	webhookinitializer "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/tracing"

	"github.com/annexapi/annex/internal/model/admit"
)

// mapperAge is the maximum age of cached discovery for parameters and types. A failed lookup triggers a new discovery
// anyway.
const mapperAge = 30 * time.Second

// Config is the interface of the server for the plugins.
type Config struct {
	// Server is the name of the server in metrics.
	Server string
	// Client has all rights. Its requests may wait until the server runs.
	Client *rest.Config
	// Self is the client of webhooks that name the Service kubernetes of the namespace default. They are handlers of
	// this server.
	Self *rest.Config
	// Enabled are the plugins to run, a subset of Names.
	Enabled    []string
	Authorizer authorizer.Authorizer
	// Resolver finds the servers of webhooks that name a Service.
	Resolver webhook.ServiceResolver
	Version  compatibility.EffectiveVersion
	// Complete fills in the defaults of an object from a file, and validates it.
	Complete func(runtime.Object) error
	// Stopped is closed when no more requests arrive.
	Stopped <-chan struct{}
}

// Policies creates the plugins of one server.
type Policies struct {
	config    Config
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	informers informers.SharedInformerFactory
	mapper    *restmapper.DeferredDiscoveryRESTMapper
}

// plugins are in kube-apiserver's order: policies come before webhooks. Without the resources in follows, a plugin
// would wait forever. The plugin is called only for resources that a rule in an object of the first of these resources names.
var plugins = []struct {
	name    string
	follows []string
	make    func(io.Reader) (admission.Interface, error)
}{
	{
		mutating.PluginName,
		[]string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"},
		func(configuration io.Reader) (admission.Interface, error) { return mutating.NewPlugin(configuration) },
	},
	{mutatingwebhook.PluginName, []string{"mutatingwebhookconfigurations"}, func(configuration io.Reader) (admission.Interface, error) {
		return mutatingwebhook.NewMutatingWebhook(configuration)
	}},
	{
		validating.PluginName,
		[]string{PoliciesResource, "validatingadmissionpolicybindings"},
		func(configuration io.Reader) (admission.Interface, error) { return validating.NewPlugin(configuration) },
	},
	{validatingwebhook.PluginName, []string{"validatingwebhookconfigurations"}, func(configuration io.Reader) (admission.Interface, error) {
		return validatingwebhook.NewValidatingAdmissionWebhook(configuration)
	}},
}

// PoliciesResource is the resource of the policies whose types are checked.
const PoliciesResource = "validatingadmissionpolicies"

// Names returns the names of the plugins, in order, that a server can run if it serves these resources of
// admissionregistration.k8s.io.
func Names(serves func(resource string) bool) []string {
	var names []string
	for _, p := range plugins {
		if !slices.ContainsFunc(p.follows, func(resource string) bool { return !serves(resource) }) {
			names = append(names, p.name)
		}
	}
	return names
}

// New creates the clients. It sends no requests.
func New(c Config) (*Policies, error) {
	client, err := kubernetes.NewForConfig(c.Client)
	if err != nil {
		return nil, fmt.Errorf("client for policies: %w", err)
	}
	p := &Policies{config: c, client: client, informers: informers.NewSharedInformerFactory(client, 0)}
	if p.dynamic, err = dynamic.NewForConfig(c.Client); err != nil {
		return nil, fmt.Errorf("client for the parameters of policies: %w", err)
	}
	p.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	return p, nil
}

// reviews are not objects, so policies do not apply to them.
var reviews = []schema.GroupResource{
	{Group: authenticationv1.GroupName, Resource: "selfsubjectreviews"},
	{Group: authenticationv1.GroupName, Resource: "tokenreviews"},
	{Group: authorizationv1.GroupName, Resource: "localsubjectaccessreviews"},
	{Group: authorizationv1.GroupName, Resource: "selfsubjectaccessreviews"},
	{Group: authorizationv1.GroupName, Resource: "selfsubjectrulesreviews"},
	{Group: authorizationv1.GroupName, Resource: "subjectaccessreviews"},
}

// Plugins returns the enabled plugins. A write waits until they have read their policies and webhooks.
func (p *Policies) Plugins() []admit.Plugin {
	later := newSchemas(p.config.Stopped)
	initialize := initializer.New(
		client{p.client, later},
		p.dynamic,
		p.informers,
		p.config.Authorizer,
		utilfeature.DefaultFeatureGate,
		p.config.Version,
		p.config.Stopped,
		p.mapper,
	)
	hooks := webhookinitializer.NewPluginInitializer(
		webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, p.config.Self, tracing.NewNoopTracerProvider()),
		p.config.Resolver,
	)
	var enabled []admit.Plugin
	for _, known := range plugins {
		if !slices.Contains(p.config.Enabled, known.name) {
			continue
		}
		enabled = append(enabled, admit.Plugin{Name: known.name, Make: func(configuration io.Reader) (admission.Interface, error) {
			made, err := known.make(configuration)
			if err != nil {
				return nil, err
			}
			if wants, ok := made.(initializer.WantsExcludedAdmissionResources); ok {
				wants.SetExcludedAdmissionResources(reviews)
			}
			p.followFiles(made)
			initialize.Initialize(made)
			hooks.Initialize(made)
			if err := admission.ValidateInitialization(made); err != nil {
				return nil, err
			}
			if mutates, ok := made.(*mutating.Plugin); ok {
				if _, err := p.informers.Admissionregistration().V1().MutatingAdmissionPolicies().Informer().AddEventHandler(later); err != nil {
					return nil, err
				}
				if configuration != nil {
					later.need() // it may name policies in files
				}
				made = plugin{mutates, later}
			}
			if configuration != nil {
				return made, nil // it may have policies or webhooks in files
			}
			first, err := p.informers.ForResource(admissionregistrationv1.SchemeGroupVersion.WithResource(known.follows[0]))
			if err != nil {
				return nil, err
			}
			d, err := newDormancy(first.Informer(), p.config.Stopped)
			if err != nil {
				return nil, err
			}
			return d.dormant(made), nil
		}})
	}
	return enabled
}

// Run follows the objects until the context ends. It must be called once, after the plugins have been created.
func (p *Policies) Run(ctx context.Context) error {
	p.informers.StartWithContext(ctx)
	defer p.informers.Shutdown()
	wait.UntilWithContext(ctx, func(context.Context) { p.mapper.Reset() }, mapperAge)
	return nil
}
