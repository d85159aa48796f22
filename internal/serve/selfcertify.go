package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/cluster"
	"github.com/annexapi/annex/internal/define"
	"github.com/annexapi/annex/internal/servingcert"
)

// SelfCertify is the façade's options of that name, which document them.
type SelfCertify = struct {
	Enabled          bool
	ServiceName      string
	ServiceNamespace string
	Lifetime         time.Duration
	Workload         string
}

const (
	// certificateLife is that of a serving certificate unless the options say otherwise.
	certificateLife = 30 * 24 * time.Hour
	// shortestLife leaves clusters the time to notice what has changed.
	shortestLife = 30 * time.Second
	// leaveTimeout bounds how long a server that stops waits for its cluster.
	leaveTimeout = 3 * time.Second
)

// completeSelfCertify fills in defaults and returns the first mistake.
func (o *Options) completeSelfCertify(definition *define.Server) error {
	s := &o.SelfCertify
	if !s.Enabled {
		if s.ServiceName != "" || s.ServiceNamespace != "" || s.Lifetime != 0 || s.Workload != "" {
			return errors.New("--service-name, --service-namespace, --certificate-lifetime and --workload are for --self-certify")
		}
		return nil
	}
	switch {
	case !o.Aggregated:
		return errors.New("--self-certify is for a server in a cluster: add --aggregated")
	case o.TLSCertFile != "" || o.TLSPrivateKeyFile != "":
		return errors.New("--self-certify makes the certificate that --tls-cert-file names: give one of them")
	case s.Lifetime < 0 || s.Lifetime > 0 && s.Lifetime < shortestLife:
		return fmt.Errorf("--certificate-lifetime %s is less than %s", s.Lifetime, shortestLife)
	}
	if s.Lifetime == 0 {
		s.Lifetime = certificateLife
	}
	if s.ServiceName == "" {
		s.ServiceName = definition.Name
	}
	if s.ServiceNamespace == "" {
		if s.ServiceNamespace = cluster.PodNamespace(); s.ServiceNamespace == "" {
			return errors.New("--self-certify needs --service-namespace: this is no pod, whose namespace it would be")
		}
	}
	for _, label := range []struct{ flag, value string }{{"--service-name", s.ServiceName}, {"--service-namespace", s.ServiceNamespace}} {
		if mistakes := validation.IsDNS1123Label(label.value); len(mistakes) > 0 {
			return fmt.Errorf("%s %q: %s", label.flag, label.value, mistakes[0])
		}
	}
	if s.Workload == "" {
		return nil
	}
	resource, name, ok := strings.Cut(s.Workload, "/")
	if !ok || !slices.Contains([]string{"deployments", "statefulsets"}, resource) || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("--workload %q: want deployments/NAME or statefulsets/NAME", s.Workload)
	}
	return nil
}

// selfCertifyNeeds are what the certificate needs of the cluster.
func (o *Options) selfCertifyNeeds(definition *define.Server) []cluster.Requirement {
	self := o.SelfCertify
	if !self.Enabled {
		return nil
	}
	if self.ServiceName == "" { // describe does not complete the options
		self.ServiceName = definition.Name
	}
	const purpose = "serving certificate"
	need := func(group, resource, namespace, name string, verbs ...string) cluster.Requirement {
		return cluster.Requirement{GroupVersionResource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, Namespace: namespace, Name: name, Verbs: verbs, For: purpose}
	}
	secret := self.ServiceName + "-serving"
	needs := []cluster.Requirement{
		need("", "secrets", self.ServiceNamespace, secret, "get", "list", "watch", "update", "patch"),
		need("coordination.k8s.io", "leases", self.ServiceNamespace, secret, "get", "update", "patch"),
	}
	for _, name := range definition.APIServiceNames() {
		needs = append(needs, need("apiregistration.k8s.io", "apiservices", "", name, "get", "patch"))
	}
	if resource, name, ok := strings.Cut(self.Workload, "/"); ok {
		needs = append(needs, need("apps", resource, self.ServiceNamespace, name, "get"))
	}
	return needs
}

// openSelfCertify prepares to keep the serving certificate in the cluster.
func (s *Server) openSelfCertify() error {
	o := s.options.SelfCertify
	if !o.Enabled {
		return nil
	}
	domain := o.ServiceName + "." + o.ServiceNamespace + ".svc"
	names := []string{domain, domain + ".cluster.local", "localhost"}
	secret := o.ServiceName + "-serving"
	var err error
	s.selfCertified, err = servingcert.New(s.cluster.ClientConfig(),
		servingcert.Place{Namespace: o.ServiceNamespace, Secret: secret, Lease: secret, Workload: o.Workload},
		servingcert.Options{
			DNSNames: names, APIServices: s.definition.APIServiceNames(),
			ServiceName: o.ServiceName, ServiceNamespace: o.ServiceNamespace,
			Lifetime: o.Lifetime, Ready: s.readyButForCertificate,
		})
	return err
}

// serving is the certificate that the server shows.
func (s *Server) serving() dynamiccertificates.CertKeyContentProvider {
	if s.selfCertified != nil {
		return s.selfCertified
	}
	return s.certs.Serving()
}

func (s *Server) certificateChecks() []healthz.HealthChecker {
	if s.selfCertified == nil {
		return nil
	}
	return []healthz.HealthChecker{healthz.NamedCheck(certificateCheck, func(*http.Request) error { return s.selfCertified.Check() })}
}

const certificateCheck = "serving-certificate"

// readyButForCertificate says why the server does not answer yet, its certificate aside.
func (s *Server) readyButForCertificate() error {
	select {
	case <-s.leaving:
		return errors.New("the server is shutting down")
	case <-s.settled:
	default:
		return errors.New("the server has not begun to answer")
	}
	for _, check := range s.readyChecks() {
		if check.Name() == certificateCheck {
			continue
		}
		if err := check.Check(nil); err != nil {
			return fmt.Errorf("%s: %w", check.Name(), err)
		}
	}
	return nil
}

// runSelfCertify keeps the certificate until the context ends.
func (s *Server) runSelfCertify(ctx context.Context) error {
	if s.selfCertified == nil {
		return nil
	}
	return s.selfCertified.Run(ctx)
}

// leaveCluster takes a server that nobody wants to run any more out of its APIServices.
func (s *Server) leaveCluster(ctx context.Context) {
	if s.selfCertified == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := s.selfCertified.Leave(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "The server may still be in its APIServices, without answering; annex uninstall takes them away")
	}
}
