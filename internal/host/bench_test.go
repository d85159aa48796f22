package host

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"testing"

	"github.com/annexapi/annex/internal/host/hosttest"
	"github.com/annexapi/annex/internal/testwait"
)

// BenchmarkAuthentication is of a request that the host sends on, and of one by a client
// certificate of the cluster.
func BenchmarkAuthentication(b *testing.B) {
	host := hosttest.Start(b)
	h, err := Open(Config{Options: Options{Kubeconfig: host.Kubeconfig()}, Server: "shop", InFlight: 10})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	defer run(b, b.Context(), h)()
	testwait.Until(b, "it is well", func() bool { return h.Problem() == nil })
	for name, pair := range map[string]tls.Certificate{
		"proxy":  host.RequestHeaderCA.Issue(b, "front-proxy-client"),
		"client": host.ClientCA.Issue(b, "jane"),
	} {
		b.Run(name, func(b *testing.B) {
			leaf, err := x509.ParseCertificate(pair.Certificate[0])
			if err != nil {
				b.Fatal(err)
			}
			r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "/", nil)
			if err != nil {
				b.Fatal(err)
			}
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
			b.ReportAllocs()
			for b.Loop() {
				r.Header = http.Header{"X-Remote-User": {"jane"}}
				if who, ok, err := h.AuthenticateRequest(r); !ok || err != nil || who.User.GetName() != "jane" {
					b.Fatal(who, ok, err)
				}
			}
		})
	}
}
