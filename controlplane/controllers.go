package controlplane

import (
	"context"
	"slices"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/controlplane/garbage"
	"github.com/annexapi/annex/internal/controlplane/migration"
	"github.com/annexapi/annex/internal/controlplane/policies"
	"github.com/annexapi/annex/internal/controlplane/publish"
	"github.com/annexapi/annex/internal/controlplane/quota"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/server/loopback"
)

// controller is a controller of the control plane.
type controller struct {
	name, account string
	// shares is set if the account's role there permits only the controller's writes: the controller reads from
	// informers, which kube-controller-manager shares among all controllers.
	shares bool
	kind   schema.GroupResource
	run    func(context.Context, *rest.Config, *annex.Env) error
}

// controllers have the names of kube-controller-manager, and act as its accounts. A controller runs if its kind is
// served; a controller without a kind always runs.
func (p plane) controllers() []controller {
	return []controller{
		{
			"garbage-collector-controller",
			"generic-garbage-collector",
			false,
			schema.GroupResource{},
			func(ctx context.Context, config *rest.Config, _ *annex.Env) error {
				collector, err := garbage.New(config, garbage.Options{})
				if err != nil {
					return err
				}
				return collector.Run(ctx)
			},
		},
		{
			"serviceaccount-controller",
			"service-account-controller",
			true,
			schema.GroupResource{},
			func(ctx context.Context, config *rest.Config, _ *annex.Env) error {
				return publish.RunServiceAccounts(ctx, config)
			},
		},
		{
			"root-ca-certificate-publisher-controller",
			"root-ca-cert-publisher",
			true,
			corev1.Resource("configmaps"),
			func(ctx context.Context, config *rest.Config, env *annex.Env) error {
				return publish.RunRootCA(ctx, config, env.RootCA)
			},
		},
		{
			"resourcequota-controller",
			"resourcequota-controller",
			false,
			quota.Resource,
			func(ctx context.Context, config *rest.Config, env *annex.Env) error {
				controller, err := quota.NewController(config, p.creates.of(env.ClientConfig()), p.evaluators()...)
				if err != nil {
					return err
				}
				return controller.Run(ctx)
			},
		},
		{
			"storage-version-migrator-controller",
			"storage-version-migrator-controller",
			true,
			migration.Resource,
			func(ctx context.Context, config *rest.Config, _ *annex.Env) error {
				controller, err := migration.NewController(config)
				if err != nil {
					return err
				}
				return controller.Run(ctx)
			},
		},
		{
			"validatingadmissionpolicy-status-controller",
			"validatingadmissionpolicy-status-controller",
			false,
			admissionregistrationv1.Resource(policies.PoliciesResource),
			func(ctx context.Context, config *rest.Config, _ *annex.Env) error {
				return policies.RunTypeChecks(ctx, config)
			},
		},
	}
}

// declaredControllers returns the controllers whose kinds are not left out, and those of the extension.
func (p plane) declaredControllers() ([]define.Controller, error) {
	all := []define.Controller{{Name: define.NamespaceController}}
	serves := p.served()
	for _, c := range p.controllers() {
		if !c.kind.Empty() && !serves(c.kind) {
			continue
		}
		all = append(all, define.Controller{Name: c.name, Account: c.account, Run: func(ctx context.Context, env any) error {
			server := env.(*annex.Env)
			config := loopback.As(server.ClientConfig(), c.account)
			if c.shares {
				config = loopback.SharingReads(server.ClientConfig(), user.KubeControllerManager, c.account)
			}
			return c.run(ctx, config, server)
		}})
	}
	if !p.extends {
		return all, nil
	}
	more, err := p.extension.Controllers()
	return append(all, more...), err
}

// evaluators return what objects of the extension use of a quota.
func (p plane) evaluators() []quotav1.Evaluator {
	if !p.extends {
		return nil
	}
	return p.extension.QuotaEvaluators()
}

// admissionPlugins returns the names of the plugins whose kinds are not left out, and of the plugins of the extension.
func (p plane) admissionPlugins() (on, off []string) {
	serves := p.served()
	if p.extends {
		on, off = p.extension.AdmissionPlugins()
	}
	names := policies.Names(func(resource string) bool { return serves(admissionregistrationv1.Resource(resource)) })
	if serves(quota.Resource) {
		names = append(names, quota.PluginName)
	}
	return slices.Concat(on, names), off
}

// served returns a function that reports whether a kind is served, that is, not left out.
func (p plane) served() func(kind schema.GroupResource) bool {
	var all []schema.GroupResource
	groups, _ := p.kinds.Groups() // with those in whose place the extension serves its own
	for _, g := range groups {
		for _, k := range g.Kinds {
			all = append(all, schema.GroupResource{Group: g.Name, Resource: k.Resource})
		}
	}
	return func(kind schema.GroupResource) bool { return slices.Contains(all, kind) }
}

// addQuotas adds the plugin that enforces quotas, if it is enabled. It comes last, so that it counts only the objects
// that all other plugins admit.
func (p plane) addQuotas(opened *definition.Opened, server definition.Host) error {
	if !slices.Contains(server.Admission, quota.PluginName) {
		return nil
	}
	enforced, err := quota.NewAdmission(server.Client, p.creates.of(server.Client), server.Stopped, p.evaluators()...)
	if err != nil {
		return err
	}
	opened.Admission = append(opened.Admission, enforced.Plugin())
	alongside(opened, func(ctx context.Context) {
		defer p.creates.drop(server.Client)
		enforced.Run(ctx)
	})
	return nil
}

// creates holds the state that admission and the controller of quotas share, for each server of a control plane. Both
// identify a server by the bearer token of its loopback.
type creates struct {
	mu      sync.Mutex
	servers map[string]*quota.Creates
}

func (c *creates) of(loopback *rest.Config) *quota.Creates {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.servers[loopback.BearerToken] == nil {
		c.servers[loopback.BearerToken] = &quota.Creates{}
	}
	return c.servers[loopback.BearerToken]
}

func (c *creates) drop(loopback *rest.Config) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.servers, loopback.BearerToken)
}

// alongside runs a function beside the control plane; the function returns when its context ends.
func alongside(opened *definition.Opened, more func(context.Context)) {
	run := opened.Run
	opened.Run = func(ctx context.Context) error {
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() { more(ctx) })
		return run(ctx)
	}
}
