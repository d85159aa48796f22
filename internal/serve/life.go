package serve

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/annexapi/annex/store/driver"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/admit"
	"github.com/annexapi/annex/internal/auth"
	"github.com/annexapi/annex/internal/cluster"
	"github.com/annexapi/annex/internal/convert"
	"github.com/annexapi/annex/internal/coreapi"
	"github.com/annexapi/annex/internal/upstream"
)

// A server lives one of two lives. Alone, it knows its callers by its own authority and
// token file, decides what they may do, and keeps namespaces. Aggregated, it asks its cluster
// for all of that. What is different is in this file.

// ownClientCAFile is the file whose authorities are believed besides the server's own.
func (s *Server) ownClientCAFile() string {
	if s.plan.Options.Aggregated {
		return "" // it replaces the cluster's
	}
	return s.plan.Options.ClientCAFile
}

// openCluster prepares to ask the cluster of an aggregated server.
func (s *Server) openCluster() error {
	if !s.plan.Options.Aggregated {
		return nil
	}
	var err error
	s.cluster, err = cluster.Open(cluster.Config{
		Options:      s.plan.Options.Cluster,
		Server:       s.definition.Name,
		ClientCAFile: s.plan.Options.ClientCAFile,
		Version:      upstream.EffectiveVersion(),
		Own:          authenticator.RequestFunc(s.authenticateOwn),
		InFlight:     upstream.MaxInFlight,
	})
	if err != nil {
		return err
	}
	s.onClose(func() error { s.cluster.Close(); return nil })
	return nil
}

// authenticateOwn knows the server itself. There is no server yet when the cluster is opened.
func (s *Server) authenticateOwn(r *http.Request) (*authenticator.Response, bool, error) {
	return s.own.AuthenticateRequest(r)
}

// ownTypes registers the kinds that the server has by itself.
func (s *Server) ownTypes() []func(scheme *runtime.Scheme, aliases bool) error {
	if s.plan.Options.Aggregated {
		return nil
	}
	return []func(*runtime.Scheme, bool) error{coreapi.AddToScheme}
}

// guard lets objects be created only in namespaces that live. Those of a cluster may end at
// any moment, and its controller then deletes what is in them again and again.
func (s *Server) guard(storage generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	if s.namespaces == nil {
		return storage
	}
	return s.namespaces.Guard(storage)
}

// configureLife says who callers are, what they may do, and which writes may happen.
func (s *Server) configureLife(config *upstream.Config, hooks *admit.Hooks) error {
	var err error
	if s.cluster != nil {
		config.OpenAPI = convert.Definitions(s.definition)
		config.Authenticator, config.Authorizer, config.Cluster = s.cluster, s.cluster.Authorizer(), s.cluster
		s.own = auth.NewAuthenticator(auth.Credentials{Tokens: []authenticator.Token{auth.LoopbackTokens(s.loopback.Token())}})
		config.Admission, err = s.cluster.Admission(hooks)
		return err
	}
	credentials := auth.Credentials{
		ClientCA: s.certs.ClientCA(),
		Tokens:   []authenticator.Token{auth.LoopbackTokens(s.loopback.Token())},
	}
	if s.tokens != nil {
		credentials.Tokens = append(credentials.Tokens, s.tokens)
	}
	if config.Authorizer, err = auth.NewAuthorizer(); err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	config.Core = s.namespaces.Storage()
	config.OpenAPI = convert.Definitions(s.definition, coreapi.OpenAPI)
	config.Authenticator = auth.NewAuthenticator(credentials)
	config.Admission = admission.NewChainHandler(s.namespaces.Admission(), hooks)
	return nil
}

// clientCA is what client certificates are verified against.
func (s *Server) clientCA() dynamiccertificates.CAContentProvider {
	if s.cluster != nil {
		return s.cluster.ClientCA()
	}
	return s.certs.ClientCA()
}

// lifeChecks are the checks of /readyz that one of the lives has.
func (s *Server) lifeChecks() []healthz.HealthChecker {
	if s.cluster != nil {
		checks := []healthz.HealthChecker{healthz.NamedCheck("cluster", func(*http.Request) error { return s.cluster.Problem() })}
		if s.cluster.FlowControl() != nil {
			checks = append(checks, flowCheck{s.cluster})
		}
		return checks
	}
	return []healthz.HealthChecker{healthz.NamedCheck("default-namespace", func(*http.Request) error {
		select {
		case <-s.settled:
			return nil
		default:
			return errors.New("the namespace default does not exist yet")
		}
	})}
}

// flowCheck shows at /readyz?verbose whether requests are queued by the cluster's priority
// levels. The server is ready without.
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

// clusterMetrics say how the server gets on with its cluster.
type clusterMetrics struct{ cluster *cluster.Cluster }

var (
	clusterUsable = prometheus.NewDesc("annex_cluster_usable",
		"1 if the cluster gives all that the server needs, 0 if the server is not ready for want of it.", nil, nil)
	clusterFlowControlled = prometheus.NewDesc("annex_cluster_priority_and_fairness",
		"1 if requests are queued by the cluster's priority levels, 0 if they are only counted.", nil, nil)
	clusterSkew = prometheus.NewDesc("annex_cluster_clock_skew_seconds",
		"By how much the cluster's clock is ahead of this machine's; 0 if they cannot be told apart.", nil, nil)
)

func (m clusterMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- clusterUsable
	out <- clusterFlowControlled
	out <- clusterSkew
}

func (m clusterMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, yes bool) {
		value := 0.0
		if yes {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(clusterUsable, m.cluster.Problem() == nil)
	gauge(clusterFlowControlled, m.cluster.FlowControlled())
	out <- prometheus.MustNewConstMetric(clusterSkew, prometheus.GaugeValue, m.cluster.ClockSkew().Seconds())
}

// ClusterOf says in one line which cluster an aggregated server has and what is left out, empty
// for one that stands alone.
func (s *Server) ClusterOf() string {
	if s.cluster == nil {
		return ""
	}
	line := s.cluster.URL()
	if _, leftOut := s.plan.Requirements(); len(leftOut) > 0 {
		line += ", without " + strings.Join(leftOut, ", ")
	}
	return line
}

// KeepsNothing says whether an aggregated server with these options needs no data
// directory: its objects are elsewhere, and so is its certificate.
func KeepsNothing(o config.Options, storage driver.Driver) bool {
	return o.Aggregated && (storage.Traits().Remote || storage.Traits().Ephemeral) && (o.CertDir != "" || o.TLSCertFile != "" || o.SelfCertify.Enabled)
}
