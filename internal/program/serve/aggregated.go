package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/aggregated/cluster"
	"github.com/annexapi/annex/internal/aggregated/requirements"
	"github.com/annexapi/annex/internal/aggregated/servingcert"
	"github.com/annexapi/annex/internal/identity/auth"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/identity/login"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/storage/registry"
)

// aggregated delegates authentication, authorization and namespaces to the cluster in front of it.
type aggregated struct{ plan *plan.Plan }

var _ mode = aggregated{}

// certificates restricts the certificates to serving: clients authenticate to the cluster, and a file of
// authorities replaces the cluster's.
func (m aggregated) certificates(options *certs.Options) { options.ServingOnly = true }

func (m aggregated) open(_ context.Context, b base) (modeFiles, error) { return m.openFiles(b) }

func (m aggregated) openFiles(b base) (*aggregatedFiles, error) {
	front, err := cluster.Open(cluster.Config{
		Options:       m.plan.Options.Cluster,
		Server:        m.plan.Definition.Name,
		Admission:     m.plan.Options.Admission,
		ClientCAFile:  m.plan.Options.ClientCAFile,
		RequestHeader: m.plan.Options.RequestHeader,
		Version:       upstream.EffectiveVersion(m.plan.Definition),
		Own:           auth.LoopbackTokens(b.loopback.Token()),
		InFlight:      m.plan.InFlight(),
	})
	if err != nil {
		return nil, err
	}
	b.closing.run(front.Close)
	return &aggregatedFiles{m, b.certs, front}, nil
}

// aggregatedFiles has the client of the cluster in front. An aggregated server stores nothing besides its kinds, so this
// is all.
type aggregatedFiles struct {
	aggregated
	certs *certs.Certs
	front *cluster.Cluster
}

var (
	_ modeFiles   = (*aggregatedFiles)(nil)
	_ modeStorage = (*aggregatedFiles)(nil)
	_ modeService = (*aggregatedFiles)(nil)
)

func (m *aggregatedFiles) types() []func(*runtime.Scheme, bool) error { return nil }

func (m *aggregatedFiles) store(model, *closers) (modeStorage, error) { return m, nil }

// guard does nothing: a namespace of the cluster may be deleted at any moment. The cluster's namespace controller
// deletes the content of a terminating namespace repeatedly until none is left.
func (m *aggregatedFiles) guard(storage generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return storage
}

func (m *aggregatedFiles) collectsGarbage() bool { return true }

func (m *aggregatedFiles) configure(config *upstream.Config, own plugins) (modeService, error) {
	config.OpenAPI = convert.Definitions(m.plan.Definition)
	config.Authenticator, config.Authorizer, config.Cluster = m.front, m.front.Authorizer(), m.front
	config.FlowControl, config.FlowControlled = m.front.FlowControl(), m.front.FlowControlled
	config.RequestHeaders = m.front.RequestHeaders()
	var err error
	if own := m.plan.Definition.Authorizer; own != nil {
		config.Authorizer, err = union.New(
			union.NamedAuthorizer{AuthorizerName: "open", Authorizer: m.front.Open()},
			union.NamedAuthorizer{AuthorizerName: "server", Authorizer: own},
			union.NamedAuthorizer{AuthorizerName: "cluster", Authorizer: m.front.Authorizer()})
		if err != nil {
			return nil, fmt.Errorf("authorization: %w", err)
		}
	}
	all, err := own.with(config.Authorizer)
	if err != nil {
		return nil, err
	}
	if config.Admission, err = m.front.Admission(all, own.configuration); err != nil {
		return nil, err
	}
	return m, nil
}

// editors reject objects whose namespace does not exist in the cluster.
func (m *aggregatedFiles) editors(kinds []*registry.Kind, schemes *convert.Machinery) map[string][]*registry.Editor {
	all := editorsOf(kinds, schemes, nil)
	for _, editors := range all {
		for _, e := range editors {
			e.CheckNamespace = m.front.HasNamespace
		}
	}
	return all
}

func (m *aggregatedFiles) namespaceNames(ctx context.Context) ([]string, error) {
	return m.front.Namespaces(ctx)
}

// mostNamespaces is low because each namespace takes one request to the cluster.
func (m *aggregatedFiles) mostNamespaces() int { return 100 }

func (m *aggregatedFiles) serving() dynamiccertificates.CertKeyContentProvider {
	return m.certs.Serving()
}

func (m *aggregatedFiles) clientCA() dynamiccertificates.CAContentProvider { return m.front.ClientCA() }

func (m *aggregatedFiles) administers() bool { return false }

func (m *aggregatedFiles) signIn() *login.Login { return nil }

func (m *aggregatedFiles) checks() []healthz.HealthChecker {
	checks := []healthz.HealthChecker{healthz.NamedCheck("cluster", func(*http.Request) error { return m.front.Problem() })}
	if m.front.FlowControl() != nil {
		checks = append(checks, flowCheck{m.front})
	}
	return checks
}

// flowCheck shows at /readyz?verbose whether requests are queued by the cluster's priority levels. The server is
// ready either way.
type flowCheck struct{ cluster *cluster.Cluster }

var _ healthz.GroupedHealthChecker = flowCheck{}

const flowCheckName = "priority-and-fairness"

func (c flowCheck) GroupName() string { return flowCheckName }

func (c flowCheck) Name() string {
	if !c.cluster.FlowControlled() {
		return flowCheckName + " (disabled, because the server may not read the cluster's flow schemas)"
	}
	return flowCheckName
}

func (c flowCheck) Check(*http.Request) error { return nil }

func (m *aggregatedFiles) metrics() []prometheus.Collector {
	one := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "annex_cluster_usable",
			Help: "1 if the server can read everything that it requires from the cluster, 0 if it is not ready because it cannot.",
		}, func() float64 { return one(m.front.Problem() == nil) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "annex_cluster_priority_and_fairness",
			Help: "1 if the server queues requests by the cluster's priority levels, 0 if it only limits the number of requests in flight.",
		}, func() float64 { return one(m.front.FlowControlled()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "annex_cluster_clock_skew_seconds",
			Help: "Difference between the cluster's clock and this machine's, positive if the cluster's is ahead; 0 if it is too small to " +
				"measure.",
		}, func() float64 { return m.front.ClockSkew().Seconds() }),
	}
}

func (m *aggregatedFiles) background(ctx context.Context) { m.front.Run(ctx) }

func (m *aggregatedFiles) followers() []func(context.Context) error { return nil }

func (m *aggregatedFiles) controllers(func(string) error) []func(context.Context) error { return nil }

func (m *aggregatedFiles) initialize(context.Context) error { return nil }

func (m *aggregatedFiles) blocked() error { return m.front.Problem() }

// lead elects one of the replicas by a Lease in the cluster. Without a namespace for the Lease, each replica leads.
func (m *aggregatedFiles) lead(ctx context.Context, run func(context.Context)) {
	if m.plan.Options.Cluster.LeaseNamespace == "" {
		run(ctx)
		return
	}
	leadAlone(ctx, m.plan.Definition.Name, m.front.ClientConfig(), m.plan.Options.Cluster.LeaseNamespace, run)
}

func (m *aggregatedFiles) leave(context.Context) {}

func (m *aggregatedFiles) cluster() string {
	line := m.front.URL()
	if _, leftOut := m.plan.Requirements(); len(leftOut) > 0 {
		line += ", without " + strings.Join(leftOut, ", ")
	}
	return line
}

// selfCertified is aggregated, and keeps its serving certificate in the cluster.
type selfCertified struct{ aggregated }

var _ mode = selfCertified{}

func (m selfCertified) open(_ context.Context, b base) (modeFiles, error) {
	files, err := m.openFiles(b)
	if err != nil {
		return nil, err
	}
	o := m.plan.Options.SelfCertify
	domain := o.ServiceName + "." + o.ServiceNamespace + ".svc"
	names := []string{domain, domain + ".cluster.local", "localhost"}
	secret := requirements.ServingSecret(o.ServiceName)
	keeper, err := servingcert.New(files.front.ClientConfig(),
		servingcert.Place{Namespace: o.ServiceNamespace, Secret: secret, Lease: secret, Workload: o.Workload},
		servingcert.Options{
			DNSNames: names, APIServices: m.plan.Definition.APIServiceNames(),
			ServiceName: o.ServiceName, ServiceNamespace: o.ServiceNamespace,
			Lifetime: o.Lifetime,
		})
	if err != nil {
		return nil, err
	}
	return &selfCertifiedFiles{files, keeper}, nil
}

// selfCertifiedFiles has the clients of the cluster in front.
type selfCertifiedFiles struct {
	*aggregatedFiles
	keeper *servingcert.Keeper
}

var (
	_ modeFiles   = (*selfCertifiedFiles)(nil)
	_ modeStorage = (*selfCertifiedFiles)(nil)
	_ modeService = (*selfCertifiedFiles)(nil)
)

// leaveTimeout bounds the cluster's response time while the server drains.
const leaveTimeout = 3 * time.Second

const certificateCheck = "serving-certificate"

func (m *selfCertifiedFiles) store(model, *closers) (modeStorage, error) { return m, nil }

func (m *selfCertifiedFiles) configure(config *upstream.Config, own plugins) (modeService, error) {
	if _, err := m.aggregatedFiles.configure(config, own); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *selfCertifiedFiles) serving() dynamiccertificates.CertKeyContentProvider { return m.keeper }

func (m *selfCertifiedFiles) checks() []healthz.HealthChecker {
	return append(m.aggregatedFiles.checks(), healthz.NamedCheck(certificateCheck, func(*http.Request) error { return m.keeper.Check() }))
}

func (m *selfCertifiedFiles) controllers(readyBut func(check string) error) []func(context.Context) error {
	return []func(context.Context) error{func(ctx context.Context) error {
		return m.keeper.Run(ctx, func() error { return readyBut(certificateCheck) })
	}}
}

func (m *selfCertifiedFiles) blocked() error {
	return errors.Join(m.aggregatedFiles.blocked(), m.keeper.Check())
}

// leave removes a server that is no longer wanted from its APIServices.
func (m *selfCertifiedFiles) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := m.keeper.Leave(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "APIServices may still point to this server, which no longer answers; delete them with annex "+
			"uninstall")
	}
}
