package serve

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/annexapi/annex/internal/admit"
	"github.com/annexapi/annex/internal/auth"
	"github.com/annexapi/annex/internal/controllers"
	"github.com/annexapi/annex/internal/convert"
	"github.com/annexapi/annex/internal/coreapi"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/host"
	"github.com/annexapi/annex/internal/upstream"
)

// A server lives one of two lives. Alone, it knows its callers by its own authority and
// token file, decides what they may do, and keeps namespaces. Aggregated, it asks its host
// for all of that. What is different is in this file.

// completeLife returns the first mistake in what one of the two lives does not have.
func (o *Options) completeLife() error {
	if o.TLSCertFile == "" && o.TLSPrivateKeyFile == "" && o.CertDir != "" {
		// The names that upstream's servers give them.
		cert, key := filepath.Join(o.CertDir, "apiserver.crt"), filepath.Join(o.CertDir, "apiserver.key")
		if isFile(cert) && isFile(key) {
			o.TLSCertFile, o.TLSPrivateKeyFile = cert, key
		}
	}
	if !o.Aggregated {
		for _, given := range []struct {
			flag string
			is   bool
		}{
			{"--kubeconfig", o.Host.Kubeconfig != ""},
			{"--authentication-kubeconfig", o.Host.AuthenticationKubeconfig != ""},
			{"--authorization-kubeconfig", o.Host.AuthorizationKubeconfig != ""},
			{"--authentication-skip-lookup", o.Host.SkipLookup},
			{"--authentication-tolerate-lookup-failure", o.Host.TolerateLookupFailure},
			{"--requestheader-client-ca-file", o.Host.RequestHeaderClientCAFile != ""},
			{"--enable-admission-plugins", len(o.Host.EnableAdmissionPlugins) > 0},
			{"--disable-admission-plugins", len(o.Host.DisableAdmissionPlugins) > 0},
			{"--leader-elect-resource-namespace", o.Host.LeaseNamespace != ""},
		} {
			if given.is {
				return fmt.Errorf("%s is for a server in a cluster: add --aggregated", given.flag)
			}
		}
		return nil
	}
	if o.TokenAuthFile != "" {
		return errors.New("--token-auth-file is for a server that stands alone: an aggregated one asks its cluster about tokens")
	}
	if o.Host.LeaseNamespace == "" && host.InPod() {
		o.Host.LeaseNamespace = host.PodNamespace()
	}
	if namespace := o.Host.LeaseNamespace; namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0 {
		return fmt.Errorf("--leader-elect-resource-namespace %q: %s", namespace, validation.IsDNS1123Label(namespace)[0])
	}
	return host.Check(o.Host)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// certDir is where certificates that the server makes are kept; nowhere if it is empty.
func (o *Options) certDir() string {
	if o.CertDir != "" {
		return o.CertDir
	}
	return o.path("cert")
}

// ownClientCAFile is the file whose authorities are believed besides the server's own.
func (o *Options) ownClientCAFile() string {
	if o.Aggregated {
		return "" // it replaces the host's
	}
	return o.ClientCAFile
}

// AsksOfHost says, line by line, what an aggregated server with these options asks of its
// host, and what is left out.
func (o *Options) AsksOfHost(definition *define.Server) (asks []host.Need, leftOut []string) {
	if !o.Aggregated {
		return nil, nil
	}
	_, leftOut = host.Enabled(o.Host)
	if o.Host.DisablePriorityAndFairness {
		leftOut = append(leftOut, "priority and fairness")
	}
	asks = append(host.Needs(o.Host, o.ClientCAFile), o.selfCertifyNeeds(definition)...)
	selection := o.Controllers
	if selection == nil {
		selection = []string{controllers.All}
	}
	if selected, err := controllers.Select(definition.Controllers, selection); err == nil && len(selected) > 0 && o.Host.LeaseNamespace != "" {
		asks = append(asks, host.Need{
			GroupVersionResource: coordinationv1.SchemeGroupVersion.WithResource("leases"), Namespace: o.Host.LeaseNamespace, Name: leaseName(definition.Name),
			Verbs: []string{"get", "update"}, For: "controllers",
		})
	}
	return asks, leftOut
}

// openHost prepares to ask the host of an aggregated server.
func (s *Server) openHost() error {
	if !s.options.Aggregated {
		return nil
	}
	var err error
	s.hosted, err = host.Open(host.Config{
		Options:      s.options.Host,
		Server:       s.definition.Name,
		ClientCAFile: s.options.ClientCAFile,
		Version:      upstream.EffectiveVersion(),
		Own:          authenticator.RequestFunc(s.authenticateOwn),
		InFlight:     upstream.MaxInFlight,
	})
	if err != nil {
		return err
	}
	s.onClose(func() error { s.hosted.Close(); return nil })
	return nil
}

// authenticateOwn knows the server itself. There is no server yet when the host is opened.
func (s *Server) authenticateOwn(r *http.Request) (*authenticator.Response, bool, error) {
	return s.own.AuthenticateRequest(r)
}

// ownTypes registers the kinds that the server has by itself.
func (s *Server) ownTypes() []func(scheme *runtime.Scheme, aliases bool) error {
	if s.options.Aggregated {
		return nil
	}
	return []func(*runtime.Scheme, bool) error{coreapi.AddToScheme}
}

// guard lets objects be created only in namespaces that live. Those of a host may end at
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
	if s.hosted != nil {
		config.OpenAPI = convert.Definitions(s.definition)
		config.Authenticator, config.Authorizer, config.Host = s.hosted, s.hosted.Authorizer(), s.hosted
		s.own = auth.NewAuthenticator(auth.Credentials{Tokens: []authenticator.Token{auth.LoopbackTokens(s.loopback.Token())}})
		config.Admission, err = s.hosted.Admission(hooks)
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
	if s.hosted != nil {
		return s.hosted.ClientCA()
	}
	return s.certs.ClientCA()
}

// lifeChecks are the checks of /readyz that one of the lives has.
func (s *Server) lifeChecks() []healthz.HealthChecker {
	if s.hosted != nil {
		checks := []healthz.HealthChecker{healthz.NamedCheck("host", func(*http.Request) error { return s.hosted.Problem() })}
		if s.hosted.FlowControl() != nil {
			checks = append(checks, flowCheck{s.hosted})
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

// flowCheck shows at /readyz?verbose whether requests are queued by the host's priority
// levels. The server is ready without.
type flowCheck struct{ host *host.Host }

var _ healthz.GroupedHealthChecker = flowCheck{}

const flowCheckName = "priority-and-fairness"

func (c flowCheck) GroupName() string { return flowCheckName }

func (c flowCheck) Name() string {
	if !c.host.FlowControlled() {
		return flowCheckName + " (left out, the host does not say how)"
	}
	return flowCheckName
}

func (c flowCheck) Check(*http.Request) error { return nil }

// hostMetrics say how the server gets on with its host.
type hostMetrics struct{ host *host.Host }

var (
	hostWell = prometheus.NewDesc("annex_host_usable",
		"1 if the host gives all that the server needs, 0 if the server is not ready for want of it.", nil, nil)
	hostFlowControlled = prometheus.NewDesc("annex_host_priority_and_fairness",
		"1 if requests are queued by the host's priority levels, 0 if they are only counted.", nil, nil)
	hostSkew = prometheus.NewDesc("annex_host_clock_skew_seconds",
		"By how much the host's clock is ahead of this machine's; 0 if they cannot be told apart.", nil, nil)
)

func (m hostMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- hostWell
	out <- hostFlowControlled
	out <- hostSkew
}

func (m hostMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, yes bool) {
		value := 0.0
		if yes {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(hostWell, m.host.Problem() == nil)
	gauge(hostFlowControlled, m.host.FlowControlled())
	out <- prometheus.MustNewConstMetric(hostSkew, prometheus.GaugeValue, m.host.ClockSkew().Seconds())
}

// HostOf says in one line which host an aggregated server has and what is left out, empty
// for one that stands alone.
func (s *Server) HostOf() string {
	if s.hosted == nil {
		return ""
	}
	line := s.hosted.URL()
	if _, leftOut := s.options.AsksOfHost(s.definition); len(leftOut) > 0 {
		line += ", without " + strings.Join(leftOut, ", ")
	}
	return line
}

// OpenPaths, HostPlugins and InPod are what flags have to know of a host.
func OpenPaths() []string   { return host.OpenPaths() }
func HostPlugins() []string { return host.Plugins() }
func InPod() bool           { return host.InPod() }

// KeepsNothing says whether an aggregated server with these options needs no data
// directory: its objects are elsewhere, and so is its certificate.
func KeepsNothing(o Options) bool {
	return o.Aggregated && (o.Storage == "etcd" || o.Storage == "memory") && (o.CertDir != "" || o.TLSCertFile != "" || o.SelfCertify.Enabled)
}
