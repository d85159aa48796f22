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
	"k8s.io/apiserver/pkg/authorization/union"
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
	plan *plan.Plan
	// system are the initial namespaces besides default.
	system []string
}

var _ mode = standalone{}

func (m standalone) certificates(options *certs.Options) {
	options.ClientCAFile, options.ClientCA = m.plan.Options.ClientCAFile, m.plan.Options.ClientCA
	options.TokenLifetime = m.plan.Options.Kubeconfig.EphemeralTokenDuration
	options.PKCS12Password = m.plan.Options.Kubeconfig.PKCS12Password
}

func (m standalone) open(ctx context.Context, b base) (modeFiles, error) {
	return m.openFiles(ctx, b)
}

func (m standalone) openFiles(ctx context.Context, b base) (*standaloneFiles, error) {
	callers, err := openCallers(ctx, m.plan, b.certs.ClientCA())
	if err != nil {
		return nil, err
	}
	b.closing.add(callers.close)
	policy := rbac.NewPolicy()
	decisions, err := openDecisions(ctx, m.plan, policy)
	if err != nil {
		return nil, err
	}
	keys, err := openAccountKeys(m.plan)
	if err != nil {
		return nil, err
	}
	users, err := openLogin(m.plan, b.storages, keys, callers)
	if err != nil {
		return nil, err
	}
	fair, err := openFairness(m.plan, b)
	if err != nil {
		return nil, err
	}
	var tokens *auth.TokenFile
	if file := m.plan.Options.TokenAuthFile; file != "" {
		if tokens, err = auth.OpenTokenFile(file); err != nil {
			return nil, err
		}
	}
	return &standaloneFiles{
		standalone: m, certs: b.certs, loopback: b.loopback, tokens: tokens, callers: callers, keys: keys, login: users,
		policy: policy, decisions: decisions, fairness: fair,
	}, nil
}

// openDecisions opens the authorization modes.
func openDecisions(ctx context.Context, p *plan.Plan, policy *rbac.Policy) (*auth.Authorization, error) {
	o := &p.Options
	return auth.OpenAuthorization(ctx, auth.AuthorizationOptions{
		File: o.AuthorizationConfigFile, Server: p.Definition.Name,
		Modes: o.AuthorizationModes, Webhook: o.AuthorizationWebhook, RBAC: policy,
	})
}

// openFairness sets up request queues by the server's own priority levels; nil if the plan does not enable them.
func openFairness(p *plan.Plan, b base) (*fairness.Keeper, error) {
	inFlight := p.InFlight()
	if inFlight == 0 {
		return nil, nil
	}
	keeper, err := fairness.NewKeeper(b.loopback.Config(), inFlight)
	if err != nil {
		return nil, err
	}
	b.closing.run(keeper.Close)
	return keeper, nil
}

// standaloneFiles are the open files of a standalone server, and its clients.
type standaloneFiles struct {
	standalone
	certs    *certs.Certs
	loopback *loopback.Loopback
	tokens   *auth.TokenFile // nil without Options.TokenAuthFile
	callers  *callers
	keys     *accounts.Keys // of service accounts, and of signed-in users
	login    *login.Login   // nil without Options.Login.UserFile
	// policy has the stored roles and bindings. It allows nothing before they are loaded.
	policy    *rbac.Policy
	decisions *auth.Authorization
	fairness  *fairness.Keeper // nil without Options.PriorityAndFairness
}

var _ modeFiles = (*standaloneFiles)(nil)

func (m *standaloneFiles) types() []func(*runtime.Scheme, bool) error {
	return []func(*runtime.Scheme, bool) error{coreapi.AddToScheme, reviews.AddToScheme, accounts.AddToScheme}
}

func (m *standaloneFiles) store(in model, closing *closers) (modeStorage, error) {
	return m.storeNamespaces(in, closing, m.collectsGarbage())
}

func (m *standaloneFiles) storeNamespaces(in model, closing *closers, garbageCollected bool) (*standaloneStorage, error) {
	namespaces, err := coreapi.NewNamespaces(coreapi.Config{
		Typer: in.schemes.Scheme, Storage: in.stores, System: m.system, GarbageCollected: garbageCollected,
	})
	if err != nil {
		return nil, err
	}
	closing.destroy(namespaces.Storage())
	keeper, err := rights.NewKeeper(m.plan.Definition, in.informers, m.policy)
	if err != nil {
		return nil, err
	}
	return &standaloneStorage{standaloneFiles: m, namespaces: namespaces, rights: keeper, hasNamespaces: make(chan struct{})}, nil
}

func (m *standaloneFiles) collectsGarbage() bool { return false }

func (m *standaloneFiles) serving() dynamiccertificates.CertKeyContentProvider {
	return m.certs.Serving()
}

func (m *standaloneFiles) clientCA() dynamiccertificates.CAContentProvider {
	return m.callers.authorities(m.certs.ClientCA())
}

func (m *standaloneFiles) administers() bool { return true }

func (m *standaloneFiles) signIn() *login.Login { return m.login }

func (m *standaloneFiles) cluster() string { return "" }

func (m *standaloneFiles) background(ctx context.Context) {
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

func (m *standaloneFiles) blocked() error { return nil }

// lead elects one of the replicas over a shared storage, by a Lease of their own. Without the kind Lease, each
// replica leads.
func (m *standaloneFiles) lead(ctx context.Context, run func(context.Context)) {
	m.leadIn(ctx, metav1.NamespaceDefault, run)
}

func (m *standaloneFiles) leadIn(ctx context.Context, namespace string, run func(context.Context)) {
	if !m.plan.Options.Storage.Traits().Remote || !m.servesLeases() {
		run(ctx)
		return
	}
	leadAlone(ctx, m.plan.Definition.Name, m.loopback.Config(), namespace, run)
}

func (m *standaloneFiles) servesLeases() bool {
	return slices.ContainsFunc(m.plan.Definition.Kinds(), func(k *define.Kind) bool {
		return k.BuiltIn && k.GroupResource() == coordinationv1.Resource("leases")
	})
}

func (m *standaloneFiles) leave(context.Context) {}

// policies returns the authorizers in order.
func (m *standaloneFiles) policies() []union.NamedAuthorizer {
	var all []union.NamedAuthorizer
	if own := m.plan.Definition.Authorizer; own != nil {
		all = append(all, union.NamedAuthorizer{AuthorizerName: "server", Authorizer: own})
	}
	return append(all, union.NamedAuthorizer{AuthorizerName: "modes", Authorizer: m.decisions})
}

// standaloneStorage has the stored namespaces and rights of a standalone server.
type standaloneStorage struct {
	*standaloneFiles
	namespaces *coreapi.Namespaces
	rights     *rights.Keeper
	// hasNamespaces is closed when the initial namespaces exist.
	hasNamespaces chan struct{}
}

var _ modeStorage = (*standaloneStorage)(nil)

func (m *standaloneStorage) guard(storage generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return m.namespaces.Guard(storage)
}

func (m *standaloneStorage) namespaceNames(ctx context.Context) ([]string, error) {
	return m.namespaces.Names(ctx)
}

// mostNamespaces is bounded by the time for authorization in each namespace, a few microseconds.
func (m *standaloneStorage) mostNamespaces() int { return 5000 }

func (m *standaloneStorage) configure(c *upstream.Config, own plugins) (modeService, error) {
	kinds := c.Kinds
	content := func(context.Context) ([]schema.GroupVersionResource, error) {
		return upstream.NamespacedResources(kinds), nil
	}
	return m.serve(c, own, content)
}

// serve configures a server in which the resources of content are deleted with their namespaces.
func (m *standaloneStorage) serve(c *upstream.Config, own plugins, content coreapi.Content) (*standaloneService, error) {
	credentials := m.credentials(c)
	for _, k := range c.Kinds {
		if k.Definition.Group == rbacv1.GroupName {
			m.rights.StoreIn(k.Definition.Resource, k.Storage()[k.Definition.Resource].(registry.Editable))
		}
	}
	authorize, rules, err := auth.NewAuthorizer(m.policies()...)
	if err != nil {
		return nil, fmt.Errorf("authorization: %w", err)
	}
	c.Authorizer = authorize
	if m.fairness != nil {
		c.FlowControl = m.fairness.FlowControl()
	}
	known := auth.NewAuthenticator(credentials)
	if m.login != nil && m.plan.Links() {
		m.login.AcceptLinks(known)
	}
	c.Authenticator, c.RequestHeaders = auth.Quiet(known), credentials.RequestHeaders
	c.OpenAPI = convert.Definitions(m.plan.Definition, coreapi.OpenAPI, reviews.OpenAPI)
	maps.Copy(c.BuiltIn, reviews.Storage(reviews.Config{Authenticator: known, Authorizer: authorize, Rules: rules}))
	declared, err := own.with(authorize)
	if err != nil {
		return nil, err
	}
	all := append([]admit.Plugin{
		admit.NewPlugin("NamespaceLifecycle", m.namespaces.Admission()),
		admit.NewPlugin(define.RightsPlugin, m.rights.Admission(authorize)),
	}, declared...)
	for i, p := range all {
		all[i].Unmeasured = i < 2 || p.Name == define.HooksPlugin
	}
	if c.Admission, err = admit.Chain(nil, all, own.configuration, admission.PluginInitializers{}); err != nil {
		return nil, err
	}
	return &standaloneService{m, content}, nil
}

// credentials returns the ways to authenticate. It adds the paths to the configuration at which callers get credentials.
func (m *standaloneStorage) credentials(c *upstream.Config) auth.Credentials {
	credentials := auth.Credentials{
		ClientCA: m.certs.ClientCA(),
		Revoked:  m.certs.Revoked,
		Tokens:   []authenticator.Token{auth.LoopbackTokens(m.loopback.Token()), auth.NewTokens(identities(m.plan, m.decisions, m.loopback))},
	}
	if m.tokens != nil {
		credentials.Tokens = append(credentials.Tokens, m.tokens)
	}
	c.BuiltIn = map[schema.GroupVersion]map[string]registryrest.Storage{corev1.SchemeGroupVersion: m.namespaces.Storage()}
	credentials.Tokens = append(credentials.Tokens, serveAccounts(m.plan, m.keys, c), m.certs.Tokens(m.plan.Options.APIAudiences))
	if m.login != nil {
		credentials.Tokens = append(credentials.Tokens, m.login)
		c.Handlers = append(c.Handlers, loginHandlers(m.login)...)
	}
	m.callers.configure(&credentials)
	return credentials
}

// standaloneService is a configured standalone server.
type standaloneService struct {
	*standaloneStorage
	// content are the resources whose objects are deleted with their namespaces.
	content coreapi.Content
}

var _ modeService = (*standaloneService)(nil)

// editors returns the editors of kinds, which create missing namespaces, and the editors of namespaces.
func (m *standaloneService) editors(kinds []*registry.Kind, schemes *convert.Machinery) map[string][]*registry.Editor {
	namespaces := m.namespaces.Storage()[coreapi.Resource.Resource].(registry.Editable)
	all := editorsOf(kinds, schemes, func(ctx context.Context, name string) error {
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
		Stored:    schemes.StorageCodec(corev1.SchemeGroupVersion, ""),
		Machinery: schemes,
		// The API rejects its deletion, too.
		Keep: m.namespaces.Permanent,
	}}
	return all
}

func (m *standaloneService) checks() []healthz.HealthChecker {
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
		made("bootstrap-roles", m.rights.Bootstrapped(), "some of the default roles do not exist yet"),
	}
	if m.fairness != nil {
		checks = append(
			checks,
			made(
				"bootstrap-priority-levels",
				m.fairness.Bootstrapped(),
				"some of the default priority levels and flow schemas do not exist yet",
			),
		)
	}
	return checks
}

func (m *standaloneService) metrics() []prometheus.Collector { return revocationMetrics(m.certs) }

func (m *standaloneService) followers() []func(context.Context) error {
	all := []func(context.Context) error{m.rights.Run}
	if m.fairness != nil {
		all = append(all, m.fairness.Run)
	}
	return all
}

func (m *standaloneService) controllers(func(string) error) []func(context.Context) error {
	if !m.plan.DeletesNamespaces() {
		return nil
	}
	return []func(context.Context) error{
		func(ctx context.Context) error { return m.namespaces.RunDeletion(ctx, m.loopback.Config(), m.content) },
	}
}

func (m *standaloneService) initialize(ctx context.Context) error {
	if err := m.namespaces.Bootstrap(ctx, m.loopback.Config()); err != nil {
		return err
	}
	close(m.hasNamespaces)
	return m.bootstrap(ctx)
}

// bootstrap creates the roles, and the priority levels if enabled, that every server has.
func (m *standaloneService) bootstrap(ctx context.Context) error {
	if err := m.rights.Bootstrap(ctx); err != nil || m.fairness == nil {
		return err
	}
	return m.fairness.Bootstrap(ctx)
}
