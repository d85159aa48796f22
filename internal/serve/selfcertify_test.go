package serve

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annexapi/annex/internal/define"
)

func TestAServerThatIsToldToStopAnswersForTheDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{options: Options{ShutdownDelay: 5 * time.Second}, leaving: make(chan struct{}), stopping: make(chan struct{})}
		began := time.Now()
		go func() {
			<-s.leaving
			if took := time.Since(began); took != 0 {
				t.Errorf("it was ready for another %s", took)
			}
		}()
		s.leave(t.Context())
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("it answered for %s", took)
		}
		select {
		case <-s.stopping:
			t.Error("watches were ended")
		default:
		}
	})
}

func TestMistakesOfSelfCertification(t *testing.T) {
	t.Parallel()
	self := func(change func(*Options)) *Options {
		o := &Options{Aggregated: true, SelfCertify: SelfCertify{Enabled: true, ServiceNamespace: "shops"}}
		change(o)
		return o
	}
	for want, o := range map[string]*Options{
		"": self(func(*Options) {}),
		"--self-certify is for a server in a cluster: add --aggregated":                      self(func(o *Options) { o.Aggregated = false }),
		"--self-certify makes the certificate that --tls-cert-file names":                    self(func(o *Options) { o.TLSCertFile = "x" }),
		"--certificate-lifetime 29s is less than 30s":                                        self(func(o *Options) { o.SelfCertify.Lifetime = 29 * time.Second }),
		"--certificate-lifetime -1h0m0s is less than 30s":                                    self(func(o *Options) { o.SelfCertify.Lifetime = -time.Hour }),
		"--self-certify needs --service-namespace: this is no pod":                           self(func(o *Options) { o.SelfCertify.ServiceNamespace = "" }),
		`--service-name "A": a lowercase RFC 1123 label`:                                     self(func(o *Options) { o.SelfCertify.ServiceName = "A" }),
		`--service-namespace "a.b": must not contain dots`:                                   self(func(o *Options) { o.SelfCertify.ServiceNamespace = "a.b" }),
		`--workload "shop": want deployments/NAME or statefulsets/NAME`:                      self(func(o *Options) { o.SelfCertify.Workload = "shop" }),
		`--workload "pods/shop": want deployments/NAME or statefulsets/NAME`:                 self(func(o *Options) { o.SelfCertify.Workload = "pods/shop" }),
		`--workload "deployments/": want deployments/NAME or statefulsets/NAME`:              self(func(o *Options) { o.SelfCertify.Workload = "deployments/" }),
		"--service-name, --service-namespace, --certificate-lifetime and --workload are for": self(func(o *Options) { o.SelfCertify.Enabled = false }),
	} {
		err := o.completeSelfCertify(&define.Server{Name: "shop"})
		if want == "" {
			if err != nil || o.SelfCertify.ServiceName != "shop" || o.SelfCertify.Lifetime != 720*time.Hour {
				t.Errorf("%+v, %v", o.SelfCertify, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
