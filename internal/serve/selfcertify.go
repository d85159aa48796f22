package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/plan"
	"github.com/annexapi/annex/internal/servingcert"
)

// leaveTimeout bounds how long a server that stops waits for its cluster.
const leaveTimeout = 3 * time.Second

// openSelfCertify prepares to keep the serving certificate in the cluster.
func (s *Server) openSelfCertify() error {
	o := s.plan.Options.SelfCertify
	if !o.Enabled {
		return nil
	}
	domain := o.ServiceName + "." + o.ServiceNamespace + ".svc"
	names := []string{domain, domain + ".cluster.local", "localhost"}
	secret := plan.ServingSecret(o.ServiceName)
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
