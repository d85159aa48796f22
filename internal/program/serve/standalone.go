package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/registry/generic"
	registryrest "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/annexapi/annex/internal/identity/accounts"
	"github.com/annexapi/annex/internal/identity/auth"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/identity/rbac"
	"github.com/annexapi/annex/internal/identity/reviews"
	"github.com/annexapi/annex/internal/identity/rights"
	"github.com/annexapi/annex/internal/model/admit"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/loopback"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/standalone/coreapi"
	"github.com/annexapi/annex/internal/standalone/fairness"
	"github.com/annexapi/annex/internal/storage/registry"
)

// standalone authenticates callers by its own certificate authority and a token file, authorizes them by its own
// roles, and stores namespaces.
type standalone struct {
	plan     *plan.Plan
	certs    *certs.Certs
	loopback *loopback.Loopback
	tokens   *auth.TokenFile // nil without Options.TokenAuthFile
	callers  *callers
	keys     *accounts.Keys // of service accounts, and of signed-in users
	login    *login.Login   // nil without Options.Login.UserFile
	// policy has the stored roles and bindings. It allows nothing before they are loaded.
	policy     *rbac.Policy
	decisions  *auth.Authorization
	namespaces *coreapi.Namespaces
	rights     *rights.Keeper
	fairness   *fairness.Keeper // nil without Options.PriorityAndFairness
	// content are the resources whose objects are deleted with their namespaces.
	content coreapi.Content
	// system are the initial namespaces besides default.
	system []string
	// hasNamespaces is closed when the initial namespaces exist.
	hasNamespaces chan struct{}
}

var _ mode = (*standalone)(nil)

func (m *standalone) certificates(options *certs.Options) {
	options.ClientCAFile = m.plan.Options.ClientCAFile
	options.TokenLifetime = m.plan.Options.Kubeconfig.EphemeralTokenDuration
	options.PKCS12Password = m.plan.Options.Kubeconfig.PKCS12Password
}

func (m *standalone) open(ctx context.Context, s *Server) error {
	m.certs, m.loopback, m.hasNamespaces = s.certs, s.loopback, make(chan struct{})
	m.policy = rbac.NewPolicy()
	m.content = func(context.Context) ([]schema.GroupVersionResource, error) {
		return upstream.NamespacedResources(s.kinds), nil
	}
	var err error
	if m.callers, err = openCallers(ctx, s.plan, s.certs.ClientCA()); err != nil {
		return err
	}
	s.onClose(m.callers.close)
	if err := m.openDecisions(ctx); err != nil {
		return err
	}
	if m.keys, err = openAccountKeys(m.plan); err != nil {
		return err
	}
	if err := m.openLogin(s); err != nil {
		return err
	}
	if err := m.openFairness(s); err != nil {
		return err
	}
	if m.plan.Options.TokenAuthFile == "" {
		return nil
	}
	m.tokens, err = auth.OpenTokenFile(m.plan.Options.TokenAuthFile)
	return err
}

func (m *standalone) types() []func(*runtime.Scheme, bool) error {
	return []func(*runtime.Scheme, bool) error{coreapi.AddToScheme, reviews.AddToScheme, accounts.AddToScheme}
}

func (m *standalone) store(s *Server) error {
	var err error
	m.namespaces, err = coreapi.NewNamespaces(coreapi.Config{
		Typer: s.machinery.Scheme, Storage: s.stores, System: m.system, GarbageCollected: s.mode.collectsGarbage(),
	})
	if err != nil {
		return err
	}
	s.destroyOnClose(m.namespaces.Storage())
	m.rights, err = rights.NewKeeper(m.plan.Definition, s.informers, m.policy)
	return err
}

func (m *standalone) guard(storage generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return m.namespaces.Guard(storage)
}

func (m *standalone) collectsGarbage() bool { return false }

func (m *standalone) configure(c *upstream.Config, own plugins) error {
	credentials := auth.Credentials{
		ClientCA: m.certs.ClientCA(),
		Revoked:  m.certs.Revoked,
		Tokens:   []authenticator.Token{auth.LoopbackTokens(m.loopback.Token()), auth.NewTokens(m.identities())},
	}
	if m.tokens != nil {
		credentials.Tokens = append(credentials.Tokens, m.tokens)
	}
	c.BuiltIn = map[schema.GroupVersion]map[string]registryrest.Storage{corev1.SchemeGroupVersion: m.namespaces.Storage()}
	credentials.Tokens = append(credentials.Tokens, serveAccounts(m.plan, m.keys, c), m.certs.Tokens(m.plan.Options.APIAudiences))
	if m.login != nil {
		credentials.Tokens = append(credentials.Tokens, m.login)
		c.Handlers = append(c.Handlers, m.loginHandlers()...)
	}
	m.callers.configure(&credentials)
	for _, k := range c.Kinds {
		if k.Definition.Group == rbacv1.GroupName {
			m.rights.StoreIn(k.Definition.Resource, k.Storage()[k.Definition.Resource].(registry.Editable))
		}
	}
	authorize, rules, err := auth.NewAuthorizer(m.policies()...)
	if err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	c.Authorizer = authorize
	if m.fairness != nil {
		c.FlowControl = m.fairness.FlowControl()
	}
	known := auth.NewAuthenticator(credentials)
	c.Authenticator, c.RequestHeaders = auth.Quiet(known), credentials.RequestHeaders
	c.OpenAPI = convert.Definitions(m.plan.Definition, coreapi.OpenAPI, reviews.OpenAPI)
	maps.Copy(c.BuiltIn, reviews.Storage(reviews.Config{Authenticator: known, Authorizer: authorize, Rules: rules}))
	declared, err := own.with(authorize)
	if err != nil {
		return err
	}
	all := append([]admit.Plugin{
		admit.NewPlugin("NamespaceLifecycle", m.namespaces.Admission()),
		admit.NewPlugin(define.RightsPlugin, m.rights.Admission(authorize)),
	}, declared...)
	for i, p := range all {
		all[i].Unmeasured = i < 2 || p.Name == define.HooksPlugin
	}
	c.Admission, err = admit.Chain(nil, all, own.configuration, admission.PluginInitializers{})
	return err
}

// editors returns the editors of kinds, which create missing namespaces, and the editors of namespaces.
func (m *standalone) editors(s *Server) map[string][]*registry.Editor {
	namespaces := m.namespaces.Storage()[coreapi.Resource.Resource].(registry.Editable)
	all := s.editorsOf(func(ctx context.Context, name string) error {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err := namespaces.Create(ctx, namespace, registryrest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	all[registry.KeyPrefix(coreapi.Resource)] = []*registry.Editor{{
		Resource:  coreapi.Resource,
		Kind:      "Namespace",
		Served:    []string{corev1.SchemeGroupVersion.Version},
		Storage:   namespaces,
		Stored:    s.machinery.StorageCodec(corev1.SchemeGroupVersion, ""),
		Machinery: s.machinery,
		// The API rejects its deletion, too.
		Keep: m.namespaces.Permanent,
	}}
	return all
}

func (m *standalone) namespaceNames(ctx context.Context) ([]string, error) {
	return m.namespaces.Names(ctx)
}

// mostNamespaces is bounded by the time for authorization in each namespace, a few microseconds.
func (m *standalone) mostNamespaces() int { return 5000 }

func (m *standalone) serving() dynamiccertificates.CertKeyContentProvider { return m.certs.Serving() }

func (m *standalone) clientCA() dynamiccertificates.CAContentProvider {
	return m.callers.authorities(m.certs.ClientCA())
}

func (m *standalone) administers() bool { return true }

func (m *standalone) checks() []healthz.HealthChecker {
	made := func(name string, done <-chan struct{}, missing string) healthz.HealthChecker {
		return healthz.NamedCheck(name, func(*http.Request) error {
			select {
			case <-done:
				return nil
			default:
				return errors.New(missing)
			}
		})
	}
	checks := []healthz.HealthChecker{
		made("default-namespace", m.hasNamespaces, "the namespace default does not exist yet"),
		made("bootstrap-roles", m.rights.Bootstrapped(), "not all roles that every server has exist yet"),
	}
	if m.fairness != nil {
		checks = append(
			checks,
			made(
				"bootstrap-priority-levels",
				m.fairness.Bootstrapped(),
				"not all priority levels and flow schemas that every server has exist yet",
			),
		)
	}
	return checks
}

func (m *standalone) metrics() []prometheus.Collector { return revocationMetrics(m.certs) }

func (m *standalone) background(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { m.keys.Run(ctx) })
	if m.tokens != nil {
		all.Go(func() { m.tokens.Run(ctx) })
	}
	if m.login != nil {
		all.Go(func() { m.login.Run(ctx) })
	}
	all.Go(func() { m.callers.run(ctx) })
	all.Go(func() { m.decisions.Run(ctx) })
}

func (m *standalone) controllers(func(string) error) []func(context.Context) error {
	all := []func(context.Context) error{
		func(ctx context.Context) error { return m.namespaces.RunDeletion(ctx, m.loopback.Config(), m.content) },
		m.rights.Run,
	}
	if m.fairness != nil {
		all = append(all, m.fairness.Run)
	}
	return all
}

func (m *standalone) initialize(ctx context.Context) error {
	if err := m.namespaces.Bootstrap(ctx, m.loopback.Config()); err != nil {
		return err
	}
	close(m.hasNamespaces)
	return m.bootstrap(ctx)
}

func (m *standalone) blocked() error { return nil }

// lead elects one of the replicas over a shared storage, by a Lease of their own. Without the kind Lease, each
// replica leads.
func (m *standalone) lead(ctx context.Context, run func(context.Context)) {
	m.leadIn(ctx, metav1.NamespaceDefault, run)
}

func (m *standalone) leadIn(ctx context.Context, namespace string, run func(context.Context)) {
	if !m.plan.Options.Storage.Traits().Remote || !m.servesLeases() {
		run(ctx)
		return
	}
	leadAlone(ctx, m.plan.Definition.Name, m.loopback.Config(), namespace, run)
}

func (m *standalone) servesLeases() bool {
	return slices.ContainsFunc(m.plan.Definition.Kinds(), func(k *define.Kind) bool {
		return k.BuiltIn && k.GroupResource() == coordinationv1.Resource("leases")
	})
}

func (m *standalone) leave(context.Context) {}

func (m *standalone) cluster() string { return "" }
