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

// controlPlane is standalone and serves the API of a whole cluster.
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

// open makes the deletion of a namespace delete every resource in discovery: the definition lacks custom resources
// and the resources of aggregated servers.
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

func (m *controlPlane) controllers(readyBut func(check string) error) []func(context.Context) error {
	return append(m.standalone.controllers(readyBut), m.opened.Run)
}

// lead elects in the namespace where a cluster's controllers have their Leases.
func (m *controlPlane) lead(ctx context.Context, run func(context.Context)) {
	m.leadIn(ctx, metav1.NamespaceSystem, run)
}

// checks wait for the control plane's initialization.
func (m *controlPlane) checks() []healthz.HealthChecker {
	return append(m.standalone.checks(), healthz.NamedCheck("control-plane", func(*http.Request) error {
		if m.opened.Ready == nil {
			return nil
		}
		return m.opened.Ready()
	}))
}

// collectsGarbage returns true if the garbage collector runs, which is always.
func (m *controlPlane) collectsGarbage() bool { return true }

// groupsOf returns the groups of the server's own kinds and of its reviews.
func groupsOf(c *upstream.Config) []string {
	groups := []string{corev1.GroupName, authenticationv1.GroupName, authorizationv1.GroupName}
	for _, g := range c.Definition.Groups {
		groups = append(groups, g.Name)
	}
	return groups
}

// versionsOf returns the versions of these groups.
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
