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
type controlPlane struct{ standalone }

var _ mode = controlPlane{}

func (m controlPlane) certificates(options *certs.Options) {
	m.standalone.certificates(options)
	options.FrontProxy = true
	o := &m.plan.Options
	options.FrontProxyFiles = certs.FrontProxyFiles{
		CertFile: o.ControlPlane.ProxyClientCertFile, KeyFile: o.ControlPlane.ProxyClientKeyFile,
		CAFile: o.RequestHeader.ClientCAFile, Names: o.RequestHeader.AllowedNames,
	}
}

func (m controlPlane) open(ctx context.Context, b base) (modeFiles, error) {
	files, err := m.openFiles(ctx, b)
	if err != nil {
		return nil, err
	}
	discovery, err := resources.NewClient(b.loopback.Config())
	if err != nil {
		return nil, err
	}
	return &controlPlaneFiles{files, discovery}, nil
}

// controlPlaneFiles are the open files of a control plane, and its clients.
type controlPlaneFiles struct {
	*standaloneFiles
	discovery *resources.Client
}

var _ modeFiles = (*controlPlaneFiles)(nil)

func (m *controlPlaneFiles) store(in model, closing *closers) (modeStorage, error) {
	storage, err := m.storeNamespaces(in, closing, m.collectsGarbage())
	if err != nil {
		return nil, err
	}
	return &controlPlaneStorage{storage, m.discovery}, nil
}

// collectsGarbage returns true if the garbage collector runs, which is always.
func (m *controlPlaneFiles) collectsGarbage() bool { return true }

// lead elects in the namespace where a cluster's controllers have their Leases.
func (m *controlPlaneFiles) lead(ctx context.Context, run func(context.Context)) {
	m.leadIn(ctx, metav1.NamespaceSystem, run)
}

// controlPlaneStorage has the stored namespaces and rights of a control plane.
type controlPlaneStorage struct {
	*standaloneStorage
	discovery *resources.Client
}

var _ modeStorage = (*controlPlaneStorage)(nil)

// configure makes the deletion of a namespace delete every resource in discovery: the definition lacks custom resources
// and the resources of aggregated servers.
func (m *controlPlaneStorage) configure(c *upstream.Config, own plugins) (modeService, error) {
	var plane *definition.Opened
	own.plane = func(authorize authorizer.Authorizer) ([]admit.Plugin, error) {
		var err error
		if plane, err = m.plan.ControlPlane.Open(m.host(c, authorize)); err != nil {
			return nil, err
		}
		c.Delegation, c.Aggregation, c.Gathered, c.Foreign = plane.Delegation, plane.Aggregation, plane.Metrics, plane.Foreign
		return plane.Admission, nil
	}
	service, err := m.serve(c, own, m.discovery.Content)
	if err != nil {
		return nil, err
	}
	return &controlPlaneService{service, plane}, nil
}

func (m *controlPlaneStorage) host(c *upstream.Config, authorize authorizer.Authorizer) definition.Host {
	return definition.Host{
		Name:    c.Definition.Name,
		Storage: func(codec runtime.Codec) generic.RESTOptionsGetter { return m.guard(c.Stores.Custom(codec)) },
		Foreign: func(codec func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error)) generic.RESTOptionsGetter {
			return m.guard(c.Stores.Foreign(codec))
		},
		Client:     m.loopback.Config(),
		Groups:     groupsOf(c),
		Versions:   versionsOf(c),
		Shared:     m.plan.Options.Storage.Traits().Remote,
		Admission:  m.plan.BuiltInAdmissionPlugins(),
		Authorizer: authorize,
		Version:    upstream.EffectiveVersion(c.Definition),
		Stopped:    c.Stopping,
		Front:      definition.Front{Proxy: m.certs.FrontProxy(), UserCA: m.certs.ClientCA()},
	}
}

// controlPlaneService is a configured control plane.
type controlPlaneService struct {
	*standaloneService
	plane *definition.Opened
}

var _ modeService = (*controlPlaneService)(nil)

func (m *controlPlaneService) followers() []func(context.Context) error {
	return append(m.standaloneService.followers(), m.plane.Run)
}

// checks wait for the control plane's initialization.
func (m *controlPlaneService) checks() []healthz.HealthChecker {
	return append(m.standaloneService.checks(), healthz.NamedCheck("control-plane", func(*http.Request) error {
		if m.plane.Ready == nil {
			return nil
		}
		return m.plane.Ready()
	}))
}

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
