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
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/program/plan"
	"github.com/annexapi/annex/internal/server/upstream"
	"github.com/annexapi/annex/internal/storage/registry"
)

// aggregated delegates authentication, authorization and namespaces to the cluster in front of it.
type aggregated struct {
	plan  *plan.Plan
	certs *certs.Certs
	front *cluster.Cluster
}

var _ mode = (*aggregated)(nil)

// certificates restricts the certificates to serving: clients authenticate to the cluster, and a file of
// authorities replaces the cluster's.
func (m *aggregated) certificates(options *certs.Options) { options.ServingOnly = true }

func (m *aggregated) open(_ context.Context, s *Server) error {
	m.certs = s.certs
	var err error
	m.front, err = cluster.Open(cluster.Config{
		Options:       m.plan.Options.Cluster,
		Server:        m.plan.Definition.Name,
		Admission:     m.plan.Options.Admission,
		ClientCAFile:  m.plan.Options.ClientCAFile,
		RequestHeader: m.plan.Options.RequestHeader,
		Version:       upstream.EffectiveVersion(m.plan.Definition),
		Own:           auth.LoopbackTokens(s.loopback.Token()),
		InFlight:      m.plan.InFlight(),
	})
	if err != nil {
		return err
	}
	s.onClose(func() error { m.front.Close(); return nil })
	return nil
}

func (m *aggregated) types() []func(*runtime.Scheme, bool) error { return nil }

func (m *aggregated) store(*Server) error { return nil }

// guard does nothing: a namespace of the cluster may be deleted at any moment. The cluster's namespace controller
// deletes the content of a terminating namespace repeatedly until none is left.
func (m *aggregated) guard(storage generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return storage
}

func (m *aggregated) collectsGarbage() bool { return true }

func (m *aggregated) configure(config *upstream.Config, own plugins) error {
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
			return fmt.Errorf("authorization: %w", err)
		}
	}
	all, err := own.with(config.Authorizer)
	if err != nil {
		return err
	}
	config.Admission, err = m.front.Admission(all, own.configuration)
	return err
}

// editors reject objects whose namespace does not exist in the cluster.
func (m *aggregated) editors(s *Server) map[string][]*registry.Editor {
	all := s.editorsOf(nil)
	for _, editors := range all {
		for _, e := range editors {
			e.CheckNamespace = m.front.HasNamespace
		}
	}
	return all
}

func (m *aggregated) namespaceNames(ctx context.Context) ([]string, error) {
	return m.front.Namespaces(ctx)
}

// mostNamespaces is low because each namespace takes one request to the cluster.
func (m *aggregated) mostNamespaces() int { return 100 }

func (m *aggregated) serving() dynamiccertificates.CertKeyContentProvider { return m.certs.Serving() }

func (m *aggregated) clientCA() dynamiccertificates.CAContentProvider { return m.front.ClientCA() }

func (m *aggregated) administers() bool { return false }

func (m *aggregated) checks() []healthz.HealthChecker {
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
		return flowCheckName + " (left out, the cluster does not say how)"
	}
	return flowCheckName
}

func (c flowCheck) Check(*http.Request) error { return nil }

func (m *aggregated) metrics() []prometheus.Collector {
	one := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "annex_cluster_usable",
			Help: "1 if the cluster gives all that the server needs, 0 if the server is not ready for want of it.",
		}, func() float64 { return one(m.front.Problem() == nil) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "annex_cluster_priority_and_fairness",
			Help: "1 if requests are queued by the cluster's priority levels, 0 if they are only counted.",
		}, func() float64 { return one(m.front.FlowControlled()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "annex_cluster_clock_skew_seconds",
			Help: "By how much the cluster's clock is ahead of this machine's; 0 if they cannot be told apart.",
		}, func() float64 { return m.front.ClockSkew().Seconds() }),
	}
}

func (m *aggregated) background(ctx context.Context) { m.front.Run(ctx) }

func (m *aggregated) controllers(func(string) error) []func(context.Context) error { return nil }

func (m *aggregated) initialize(context.Context) error { return nil }

func (m *aggregated) blocked() error { return m.front.Problem() }

// lead elects one of the replicas by a Lease in the cluster. Without a namespace for the Lease, each replica leads.
func (m *aggregated) lead(ctx context.Context, run func(context.Context)) {
	if m.plan.Options.Cluster.LeaseNamespace == "" {
		run(ctx)
		return
	}
	leadAlone(ctx, m.plan.Definition.Name, m.front.ClientConfig(), m.plan.Options.Cluster.LeaseNamespace, run)
}

func (m *aggregated) leave(context.Context) {}

func (m *aggregated) cluster() string {
	line := m.front.URL()
	if _, leftOut := m.plan.Requirements(); len(leftOut) > 0 {
		line += ", without " + strings.Join(leftOut, ", ")
	}
	return line
}

// selfCertified is aggregated, and keeps its serving certificate in the cluster.
type selfCertified struct {
	*aggregated
	keeper *servingcert.Keeper
}

var _ mode = (*selfCertified)(nil)

// leaveTimeout bounds the cluster's response time while the server drains.
const leaveTimeout = 3 * time.Second

const certificateCheck = "serving-certificate"

func (m *selfCertified) open(ctx context.Context, s *Server) error {
	if err := m.aggregated.open(ctx, s); err != nil {
		return err
	}
	o := m.plan.Options.SelfCertify
	domain := o.ServiceName + "." + o.ServiceNamespace + ".svc"
	names := []string{domain, domain + ".cluster.local", "localhost"}
	secret := requirements.ServingSecret(o.ServiceName)
	var err error
	m.keeper, err = servingcert.New(m.front.ClientConfig(),
		servingcert.Place{Namespace: o.ServiceNamespace, Secret: secret, Lease: secret, Workload: o.Workload},
		servingcert.Options{
			DNSNames: names, APIServices: m.plan.Definition.APIServiceNames(),
			ServiceName: o.ServiceName, ServiceNamespace: o.ServiceNamespace,
			Lifetime: o.Lifetime,
		})
	return err
}

func (m *selfCertified) serving() dynamiccertificates.CertKeyContentProvider { return m.keeper }

func (m *selfCertified) checks() []healthz.HealthChecker {
	return append(m.aggregated.checks(), healthz.NamedCheck(certificateCheck, func(*http.Request) error { return m.keeper.Check() }))
}

func (m *selfCertified) controllers(readyBut func(check string) error) []func(context.Context) error {
	return []func(context.Context) error{func(ctx context.Context) error {
		return m.keeper.Run(ctx, func() error { return readyBut(certificateCheck) })
	}}
}

func (m *selfCertified) blocked() error {
	return errors.Join(m.aggregated.blocked(), m.keeper.Check())
}

// leave removes a server that is no longer wanted from its APIServices.
func (m *selfCertified) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := m.keeper.Leave(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "The server may still be in its APIServices, without answering; annex uninstall takes them away")
	}
}

// readyBut returns the error of the first failing check of /readyz, ignoring the check named aside.
func (s *Server) readyBut(aside string) error {
	select {
	case <-s.initialized:
	default:
		return errors.New("the server has not begun to answer")
	}
	for _, check := range s.readyChecks() {
		if check.Name() == aside {
			continue
		}
		if err := check.Check(nil); err != nil {
			return fmt.Errorf("%s: %w", check.Name(), err)
		}
	}
	return nil
}
