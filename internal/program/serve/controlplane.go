package serve

import (
	"context"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/standalone/resources"
)

// controlPlane stands alone, and is all that a cluster's API is.
type controlPlane struct {
	*standalone
	opened *definition.Opened
}

func (m *controlPlane) certificates(options *certs.Options) {
	m.standalone.certificates(options)
	options.FrontProxy = true
	o := &m.standalone.plan.Options
	options.FrontProxyFiles = certs.FrontProxyFiles{
		CertFile: o.ControlPlane.ProxyClientCertFile, KeyFile: o.ControlPlane.ProxyClientKeyFile,
		CAFile: o.RequestHeader.ClientCAFile, Names: o.RequestHeader.AllowedNames,
	}
}

// open of a control plane lets namespaces take with them what discovery shows: custom resources,
// and those of other servers behind this one, are not in the definition.
func (m *controlPlane) open(ctx context.Context, s *Server) error {
	if err := m.standalone.open(ctx, s); err != nil {
		return err
	}
	discovery, err := resources.NewClient(m.loopback.Config())
	if err != nil {
		return err
	}
	m.content = discovery.Content
	return nil
}

func (m *controlPlane) configure(c *upstream.Config, own plugins) error {
	own.plane = func(authorize authorizer.Authorizer) ([]admit.Plugin, error) {
		var err error
		m.opened, err = m.plan.ControlPlane.Open(definition.Host{
			Name:       c.Definition.Name,
			Storage:    func(codec runtime.Codec) generic.RESTOptionsGetter { return m.guard(c.Stores.Custom(codec)) },
			Client:     m.loopback.Config(),
			Groups:     groupsOf(c),
			Versions:   versionsOf(c),
			Shared:     m.standalone.plan.Options.Storage.Traits().Remote,
			Admission:  m.standalone.plan.BuiltInAdmissionPlugins(),
			Authorizer: authorize,
			Version:    upstream.EffectiveVersion(c.Definition),
			Stopped:    c.Stopping,
			Front:      definition.Front{Proxy: m.certs.FrontProxy(), UserCA: m.certs.ClientCA()},
		})
		if err != nil {
			return nil, err
		}
		c.Delegation, c.Aggregation, c.Gathered = m.opened.Delegation, m.opened.Aggregation, m.opened.Metrics
		return m.opened.Admission, nil
	}
	return m.standalone.configure(c, own)
}

func (m *controlPlane) controllers() []func(context.Context) error {
	return append(m.standalone.controllers(), m.opened.Run)
}

// lead is in the namespace in which a cluster's controllers have their Leases.
func (m *controlPlane) lead(ctx context.Context, run func(context.Context)) {
	m.leadIn(ctx, metav1.NamespaceSystem, run)
}

// checks wait for what the control plane brings at the start.
func (m *controlPlane) checks() []healthz.HealthChecker {
	return append(m.standalone.checks(), healthz.NamedCheck("control-plane", func(*http.Request) error {
		if m.opened.Ready == nil {
			return nil
		}
		return m.opened.Ready()
	}))
}

// collectsGarbage is true wherever the collector runs.
func (m *controlPlane) collectsGarbage() bool { return true }

// groupsOf are the groups of the kinds that the server has itself, and of its reviews.
func groupsOf(c *upstream.Config) []string {
	groups := []string{corev1.GroupName, authenticationv1.GroupName, authorizationv1.GroupName}
	for _, g := range c.Definition.Groups {
		groups = append(groups, g.Name)
	}
	return groups
}

// versionsOf are the versions of these groups.
func versionsOf(c *upstream.Config) []schema.GroupVersion {
	versions := []schema.GroupVersion{corev1.SchemeGroupVersion, authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion}
	for i := range c.Definition.Groups {
		for _, v := range c.Definition.Groups[i].ServedVersions() {
			if !slices.Contains(versions, v) {
				versions = append(versions, v)
			}
		}
	}
	return versions
}
