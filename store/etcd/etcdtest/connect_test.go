package etcdtest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/annexapi/annex/store/etcd"
)

// authority signs certificates for a test, and keeps their files.
type authority struct {
	t           testing.TB
	dir         string
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	file        string
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = a.write("ca.crt", "CERTIFICATE", der)
	return a
}

// sign returns the files of a certificate for loopback addresses and of its key.
func (a *authority) sign(name string) (certFile, keyFile string) {
	a.t.Helper()
	return a.signFor(name)
}

// signFor is sign for a client that is in groups.
func (a *authority) signFor(name string, groups ...string) (certFile, keyFile string) {
	a.t.Helper()
	key := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".crt", "CERTIFICATE", der), a.write(name+".key", "PRIVATE KEY", encoded)
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	return writeFile(a.t, filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// startSecured starts a member that only accepts clients with a certificate.
func startSecured(t testing.TB, a *authority) []*member {
	t.Helper()
	return startCluster(t, 1, func(config *embed.Config) {
		config.ListenClientUrls[0].Scheme, config.AdvertiseClientUrls[0].Scheme = "https", "https"
		config.ClientTLSInfo.CertFile, config.ClientTLSInfo.KeyFile = a.sign("etcd")
		config.ClientTLSInfo.TrustedCAFile, config.ClientTLSInfo.ClientCertAuth = a.file, true
	})
}

func TestOpen_clientCertificate(t *testing.T) {
	a := newAuthority(t)
	backend := open(t, startSecured(t, a), func(o *etcd.Options) {
		o.CAFile = a.file
		o.CertFile, o.KeyFile = a.sign("server")
	})
	pods := openPods(t, backend)
	w := watchFrom(t, pods, mustCreate(t, pods, "a").ResourceVersion)
	mustCreate(t, pods, "b")
	expectAdded(t, w, "b")
	if err := backend.Health(); err != nil {
		t.Error(err)
	}
}

func TestOpen_unusableEtcd_namesReason(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	certFile, keyFile := a.sign("server")
	strangeCert, strangeKey := stranger.sign("stranger")
	secured, plain := startSecured(t, a)[0].endpoint(), startCluster(t, 1, nil)[0].endpoint()
	unreachable := "http://" + freePorts(t, 1)[0]
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	other := func(scheme, endpoint string) string {
		_, address, _ := strings.Cut(endpoint, "://")
		return scheme + "://" + address
	}

	for _, test := range []struct {
		name    string
		options etcd.Options
		want    []string
		waits   bool
	}{
		{"no server listens", etcd.Options{Endpoints: []string{unreachable}}, []string{unreachable, "connection refused", "gave up after"}, true},
		{"no server listens at several", etcd.Options{Endpoints: []string{unreachable, other("http", web.URL)}},
			[]string{unreachable, "connection refused", web.URL, "etcd's protocol"}, true},
		{"no TLS there", etcd.Options{Endpoints: []string{other("https", plain)}},
			[]string{other("https", plain), "it may require http://"}, true},
		{"a web server", etcd.Options{Endpoints: []string{web.URL}}, []string{web.URL, "does not use etcd's protocol"}, false},
		{"an authority that we do not know", etcd.Options{Endpoints: []string{secured}, CertFile: certFile, KeyFile: keyFile},
			[]string{secured, "unknown authority", "CA file"}, false},
		{"another authority", etcd.Options{Endpoints: []string{secured}, CAFile: stranger.file, CertFile: certFile, KeyFile: keyFile},
			[]string{secured, "unknown authority", "CA file"}, false},
		{"another host", etcd.Options{Endpoints: []string{strings.Replace(secured, "127.0.0.1", "localhost", 1)}, CAFile: a.file,
			CertFile: certFile, KeyFile: keyFile}, []string{"localhost", "not valid for any names"}, false},
		{"no client certificate", etcd.Options{Endpoints: []string{secured}, CAFile: a.file}, []string{secured, "client certificate"}, false},
		{"a stranger's client certificate", etcd.Options{Endpoints: []string{secured}, CAFile: a.file, CertFile: strangeCert,
			KeyFile: strangeKey}, []string{secured, "client certificate"}, false},
		{"TLS there", etcd.Options{Endpoints: []string{other("http", secured)}},
			[]string{other("http", secured), "it may require https://"}, true},
		{"a web server with TLS expected", etcd.Options{Endpoints: []string{other("https", web.URL)}},
			[]string{web.Listener.Addr().String(), "does not use TLS"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.HealthcheckTimeout = 500 * time.Millisecond
			test.options.StartTimeout = patience
			if test.waits {
				test.options.StartTimeout = time.Second
			}
			backend, err := etcd.Open(t.Context(), test.options)
			if err == nil {
				_ = backend.Close()
				t.Fatal("it opens")
			}
			t.Log(err)
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\ndoes not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
			if waited := strings.Contains(err.Error(), "gave up after"); waited != test.waits {
				t.Errorf("waited: %v, want %v: %v", waited, test.waits, err)
			}
		})
	}
}

func TestOpen_waitsForEtcd(t *testing.T) {
	members := startCluster(t, 1, nil)
	members[0].stop()
	opened := make(chan error, 1)
	go func() {
		backend, err := etcd.Open(t.Context(), etcd.Options{Endpoints: endpoints(members), StartTimeout: patience})
		if err == nil {
			err = backend.Close()
		}
		opened <- err
	}()
	members[0].start(t)
	select {
	case err := <-opened:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it waits for ever")
	}
}

func TestOpen_canceledContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	unreachable := "http://" + freePorts(t, 1)[0]
	if _, err := etcd.Open(ctx, etcd.Options{Endpoints: []string{unreachable}, StartTimeout: patience}); err == nil {
		t.Error("it opens")
	} else if !strings.Contains(err.Error(), unreachable) {
		t.Error(err)
	}
}
