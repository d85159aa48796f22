package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"testing"

	"github.com/annexapi/annex/internal/aggregated/cluster/clustertest"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// BenchmarkAuthentication authenticates a request that the cluster forwards, and one with a client certificate of the
// cluster.
func BenchmarkAuthentication(b *testing.B) {
	cluster := clustertest.Start(b)
	h, err := Open(Config{Options: Options{Kubeconfig: cluster.Kubeconfig()}, Server: "shop", InFlight: 10})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	defer run(b, b.Context(), h)()
	testwait.Until(b, "it is well", func() bool { return h.Problem() == nil })
	for name, pair := range map[string]tls.Certificate{
		"proxy":  cluster.RequestHeaderCA.Issue(b, "front-proxy-client"),
		"client": cluster.ClientCA.Issue(b, "jane"),
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
