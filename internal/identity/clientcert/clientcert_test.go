package clientcert

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"reflect"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/aggregated/cluster/clustertest"
)

// request returns a request over a connection with a client certificate.
func request(t *testing.T, pair tls.Certificate) *http.Request {
	t.Helper()
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	return r
}

// verified is a Verifier whose authorities and clock a test modifies.
type verified struct {
	*Verifier
	roots *x509.CertPool
	clock *clocktesting.FakePassiveClock
}

func newVerified(authority *clustertest.Authority) *verified {
	v := &verified{roots: pool(authority), clock: clocktesting.NewFakePassiveClock(time.Now())}
	v.Verifier = New(func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{
			Roots:       v.roots,
			KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			CurrentTime: v.clock.Now(),
		}, v.roots != nil
	})
	v.Verifier.clock = v.clock
	return v
}

func pool(authority *clustertest.Authority) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(authority.PEM)
	return p
}

func name(t *testing.T, a authenticator.Request, r *http.Request) string {
	t.Helper()
	who, ok, err := a.AuthenticateRequest(r)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return ""
	}
	return who.User.GetName()
}

func TestVerified_cachesValidCertificates(t *testing.T) {
	ours, theirs := clustertest.NewAuthority(t, "ours", time.Now()), clustertest.NewAuthority(t, "theirs", time.Now())
	v := newVerified(ours)
	users := v.Users()
	jane, stranger := request(t, ours.Issue(t, "jane", "kitchen")), request(t, theirs.Issue(t, "jane"))
	for range 2 {
		if got := name(t, users, jane); got != "jane" {
			t.Errorf("ours: %q", got)
		}
		if got := name(t, users, stranger); got != "" {
			t.Errorf("a stranger's: %q", got)
		}
	}
	chain := v.Chain(jane)
	if again := v.Chain(jane); &again[0] != &chain[0] {
		t.Error("verified once more")
	}
	v.clock.SetTime(v.clock.Now().Add(memory))
	if again := v.Chain(jane); &again[0] == &chain[0] {
		t.Error("remembered for longer than memory lasts")
	}

	v.roots = pool(theirs)
	if got := name(t, users, jane); got != "" {
		t.Errorf("of authorities that are not ours any more: %q", got)
	}
	if got := name(t, users, stranger); got != "jane" {
		t.Errorf("of authorities that are ours now: %q", got)
	}
	v.roots = nil
	if got := name(t, users, stranger); got != "" {
		t.Errorf("without authorities: %q", got)
	}
	if plain := request(t, ours.Issue(t, "jane")); true {
		plain.TLS = nil
		if got := name(t, users, plain); got != "" {
			t.Errorf("without a certificate: %q", got)
		}
	}
}

func TestVerified_expired_isForgotten(t *testing.T) {
	authority := clustertest.NewAuthority(t, "ours", time.Now())
	v := newVerified(authority)
	jane := request(t, authority.Issue(t, "jane"))
	end := jane.TLS.PeerCertificates[0].NotAfter
	v.clock.SetTime(end.Add(-memory / 2))
	if v.Chain(jane) == nil {
		t.Fatal("not verified")
	}
	v.clock.SetTime(end.Add(time.Second))
	if v.Chain(jane) != nil {
		t.Error("remembered after its end")
	}
}

func TestProxies_needAllowedName(t *testing.T) {
	authority := clustertest.NewAuthority(t, "ours", time.Now())
	headers, err := headerrequest.New([]string{"X-Remote-User"}, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	names := headerrequest.StaticStringSlice{"proxy"}
	proxies := newVerified(authority).Proxies(&names, headers)
	proxy, other := request(t, authority.Issue(t, "proxy")), request(t, authority.Issue(t, "other"))
	for _, r := range []*http.Request{proxy, other} {
		r.Header.Set("X-Remote-User", "jane")
	}
	if got := name(t, proxies, proxy); got != "jane" {
		t.Errorf("the proxy says %q", got)
	}
	if got := name(t, proxies, other); got != "" {
		t.Errorf("another says %q", got)
	}
	names = headerrequest.StaticStringSlice{"other"}
	if got := name(t, proxies, other); got != "jane" {
		t.Errorf("the proxy of now says %q", got)
	}
	names = nil
	proxy.Header.Set("X-Remote-User", "jane") // the first request has removed the header
	if got := name(t, proxies, proxy); got != "jane" {
		t.Errorf("without names: %q", got)
	}
}

func TestVerified_boundedMemory(t *testing.T) {
	authority := clustertest.NewAuthority(t, "ours", time.Now())
	v := newVerified(authority)
	pair := authority.Issue(t, "jane")
	for range most + 10 {
		if v.Chain(request(t, pair)) == nil {
			t.Fatal("not verified")
		}
	}
	if n := len(v.cache); n > most {
		t.Errorf("%d certificates are remembered", n)
	}
}

func TestUsers_likeUpstream(t *testing.T) {
	authority := clustertest.NewAuthority(t, "ours", time.Now())
	v := newVerified(authority)
	for _, owner := range [][]string{{"jane"}, {"jane", "kitchen", "bar"}, {"jane", "system:authenticated"},
		{"jane", "system:unauthenticated"}, {"system:anonymous"}, {""}} {
		r := request(t, authority.Issue(t, owner[0], owner[1:]...))
		upstream := group.NewAuthenticatedGroupAdder(x509request.NewDynamic(v.options, x509request.CommonNameUserConversion))
		want, known, err := upstream.AuthenticateRequest(r)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, ok, err := v.Users().AuthenticateRequest(r)
			if ok != known || err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%q: %+v, %v, %v; upstream: %+v, %v", owner, got, ok, err, want, known)
			}
		}
	}
}
