package controlplane

import (
	"context"
	"slices"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/garbage"
	"github.com/annexapi/annex/internal/migration"
	"github.com/annexapi/annex/internal/policies"
	"github.com/annexapi/annex/internal/publish"
	"github.com/annexapi/annex/internal/quota"
	"github.com/annexapi/annex/internal/serve"
)

// controllers have the names of kube-controller-manager. Each is there if its kind is; one without
// a kind always is.
var controllers = []struct {
	name string
	kind schema.GroupResource
	run  func(context.Context, *annex.Env) error
}{
	{"garbage-collector-controller", schema.GroupResource{}, func(ctx context.Context, env *annex.Env) error {
		collector, err := garbage.New(env.ClientConfig(), garbage.Options{})
		if err != nil {
			return err
		}
		return collector.Run(ctx)
	}},
	{"serviceaccount-controller", schema.GroupResource{}, func(ctx context.Context, env *annex.Env) error {
		return publish.RunServiceAccounts(ctx, env.ClientConfig())
	}},
	{"root-ca-certificate-publisher-controller", corev1.Resource("configmaps"), func(ctx context.Context, env *annex.Env) error {
		return publish.RunRootCA(ctx, env.ClientConfig(), env.RootCA)
	}},
	{"resourcequota-controller", quota.Resource, func(ctx context.Context, env *annex.Env) error {
		controller, err := quota.NewController(env.ClientConfig())
		if err != nil {
			return err
		}
		return controller.Run(ctx)
	}},
	{"storage-version-migrator-controller", migration.Resource, func(ctx context.Context, env *annex.Env) error {
		controller, err := migration.NewController(env.ClientConfig())
		if err != nil {
			return err
		}
		return controller.Run(ctx)
	}},
	{"validatingadmissionpolicy-status-controller", admissionregistrationv1.Resource(policies.PoliciesResource), func(ctx context.Context, env *annex.Env) error {
		return policies.RunTypeChecks(ctx, env.ClientConfig())
	}},
}

// Controllers implements define.ControlPlane.
func (p plane) Controllers() []define.Controller {
	var all []define.Controller
	serves := p.served()
	for _, c := range controllers {
		if c.kind.Empty() || serves(c.kind) {
			all = append(all, define.Controller{Name: c.name, Run: func(ctx context.Context, env any) error { return c.run(ctx, env.(*annex.Env)) }})
		}
	}
	return all
}

// AdmissionPlugins implements define.ControlPlane.
func (p plane) AdmissionPlugins() []string {
	serves := p.served()
	names := policies.Names(func(resource string) bool { return serves(admissionregistrationv1.Resource(resource)) })
	if serves(quota.Resource) {
		names = append(names, quota.PluginName)
	}
	return names
}

// served tells of kinds whether they are not left out.
func (p plane) served() func(kind schema.GroupResource) bool {
	var all []schema.GroupResource
	for _, g := range p.Groups() {
		for _, k := range g.Kinds {
			all = append(all, schema.GroupResource{Group: g.Name, Resource: k.Resource})
		}
	}
	return func(kind schema.GroupResource) bool { return slices.Contains(all, kind) }
}

// addQuotas adds the plugin that enforces quotas, if it is enabled. It is the last, so that it
// counts what all others have let through.
func addQuotas(opened *serve.OpenedPlane, p serve.Plane) error {
	if !slices.Contains(p.Admission, quota.PluginName) {
		return nil
	}
	enforced, err := quota.NewAdmission(p.Client, p.Stopped)
	if err != nil {
		return err
	}
	opened.Admission = append(opened.Admission, enforced.Plugin())
	alongside(opened, enforced.Run)
	return nil
}

// alongside lets the control plane run what ends with its context.
func alongside(opened *serve.OpenedPlane, more func(context.Context)) {
	run := opened.Run
	opened.Run = func(ctx context.Context) error {
		var all sync.WaitGroup
		defer all.Wait()
		all.Go(func() { more(ctx) })
		return run(ctx)
	}
}
