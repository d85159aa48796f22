package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/testing/testwait"
)

const year = 365 * 24 * time.Hour

func open(t *testing.T, options Options) *Certs {
	t.Helper()
	c, err := Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func openAt(t *testing.T, dir string, now time.Time, hosts ...string) *Certs {
	t.Helper()
	return open(t, Options{Dir: dir, Hosts: hosts, Clock: clocktesting.NewFakeClock(now)})
}

func TestOpen_firstStart_makesPrivateFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "cert")
	open(t, Options{Dir: dir})
	want := map[string]fs.FileMode{
		"ca.crt": 0o644, "ca.key": 0o600,
		"server.crt": 0o644, "server.key": 0o600,
		"admin.crt": 0o644, "admin.key": 0o600,
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		mode, ok := want[entry.Name()]
		if !ok || mode != info.Mode().Perm() {
			t.Errorf("%s has mode %v, want %v", entry.Name(), info.Mode().Perm(), mode)
		}
		delete(want, entry.Name())
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, %v", info.Mode(), err)
	}
}

func TestFrontProxy_ownAuthority(t *testing.T) {
	options := Options{Dir: filepath.Join(t.TempDir(), "cert"), FrontProxy: true}
	c := open(t, options)
	certPEM, keyPEM := c.FrontProxy().Client()
	loaded, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	client, err := x509.ParseCertificate(loaded.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	verify := func(pem []byte) error {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		_, err := client.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err
	}
	if err := verify(c.FrontProxy().CA()); err != nil || client.Subject.CommonName != ProxyUser {
		t.Errorf("%s: %v", client.Subject, err)
	}
	if verify(c.ClientCA().CurrentCABundleContent()) == nil {
		t.Error("the authority of users has issued it")
	}
	for _, name := range []string{"front-proxy-ca.key", "front-proxy-client.key"} {
		if info, err := os.Stat(filepath.Join(options.Dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if again, _ := open(t, options).FrontProxy().Client(); !bytes.Equal(again, certPEM) {
		t.Error("a restart makes another one")
	}
	if open(t, Options{}).FrontProxy() != nil {
		t.Error("a server with none behind has it, too")
	}
}

func TestOpen_restart(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	tests := []struct {
		name                        string
		after                       time.Duration
		hosts                       []string
		wantCA, wantServer, wantAdm bool // certificates to be replaced
	}{
		{name: "the next day keeps everything", after: 24 * time.Hour},
		{name: "two thirds into the leaves' life keeps everything", after: year*2/3 - time.Hour},
		{name: "past two thirds renews the leaves", after: year*2/3 + time.Hour, wantServer: true, wantAdm: true},
		{name: "expired leaves are renewed", after: 2 * year, wantServer: true, wantAdm: true},
		{name: "past two thirds of its life the authority is renewed", after: 8 * year, wantCA: true, wantServer: true, wantAdm: true},
		{name: "a certificate of the future is renewed", after: -year, wantCA: true, wantServer: true, wantAdm: true},
		{name: "a new address renews the serving certificate", hosts: []string{"192.0.2.1"}, wantServer: true},
		{name: "a new name renews the serving certificate", hosts: []string{"annex.example.com"}, wantServer: true},
		{name: "a new wildcard renews the serving certificate", hosts: []string{"*.example.com"}, wantServer: true},
		{name: "hosts that are covered keep it", hosts: []string{"LOCALHOST", "127.0.0.1", "::1", "0.0.0.0", "::"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			first := openAt(t, dir, start)
			now := start.Add(test.after)
			second := openAt(t, dir, now, test.hosts...)
			third := openAt(t, dir, now, test.hosts...)
			for _, check := range []struct {
				name                 string
				first, second, third *pair
				want                 bool
			}{
				{"ca", first.authority, second.authority, third.authority, test.wantCA},
				{"server", first.server, second.server, third.server, test.wantServer},
				{"admin", first.admin, second.admin, third.admin, test.wantAdm},
			} {
				if got := !check.first.cert.Equal(check.second.cert); got != check.want {
					t.Errorf("%s replaced: %v, want %v", check.name, got, check.want)
				}
				if string(check.first.keyPEM) != string(check.second.keyPEM) {
					t.Errorf("%s: the key was replaced", check.name)
				}
				if !check.second.cert.Equal(check.third.cert) {
					t.Errorf("%s: replaced again by a start without reason", check.name)
				}
			}

			// Old and new certificates verify under both authorities.
			for _, root := range []*pair{first.authority, second.authority} {
				pool := x509.NewCertPool()
				pool.AddCert(root.cert)
				for _, leaf := range []*pair{first.admin, second.admin} {
					if now.Before(leaf.cert.NotBefore) || now.After(leaf.cert.NotAfter) ||
						now.Before(root.cert.NotBefore) || now.After(root.cert.NotAfter) {
						continue
					}
					if _, err := leaf.cert.Verify(x509.VerifyOptions{
						Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
					}); err != nil {
						t.Errorf("admin certificate until %v under authority until %v: %v", leaf.cert.NotAfter, root.cert.NotAfter, err)
					}
				}
			}
		})
	}
}

func TestServing_coversHosts(t *testing.T) {
	c := open(t, Options{Hosts: []string{"10.1.2.3", "2001:db8::1", "Annex.Example.com", "*.example.org", "0.0.0.0"}})
	for _, host := range []string{"127.0.0.1", "::1", "localhost", "10.1.2.3", "2001:db8::1", "annex.example.com", "x.example.org"} {
		if err := c.server.cert.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	for _, host := range []string{"0.0.0.0", "10.1.2.4", "example.com"} {
		if c.server.cert.VerifyHostname(host) == nil {
			t.Errorf("covers %s", host)
		}
	}
}

func TestOpen_interruptedFirstStart_isCompleted(t *testing.T) {
	for _, lost := range [][]string{
		{"ca.crt", "server.key", "server.crt", "admin.key", "admin.crt"},
		{"server.key", "server.crt"},
		{"server.crt"},
		{"admin.crt"},
		{"ca.crt"},
	} {
		t.Run(strings.Join(lost, " "), func(t *testing.T) {
			dir := t.TempDir()
			open(t, Options{Dir: dir})
			for _, name := range lost {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			// The remains of an interrupted write.
			if err := os.WriteFile(filepath.Join(dir, "."+lost[0]+".1"), []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
			roundTrip(t, open(t, Options{Dir: dir}))
		})
	}
}

func TestOpen_damagedFile_isNotOverwritten(t *testing.T) {
	otherDir := t.TempDir()
	open(t, Options{Dir: otherDir})
	other := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(otherDir, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	tests := []struct {
		name   string
		file   string
		data   []byte // nil removes the file
		expect []string
	}{
		{"certificate is garbage", "server.crt", []byte("garbage"), []string{"server.crt", "remove"}},
		{"certificate is empty", "admin.crt", []byte{}, []string{"admin.crt", "remove"}},
		{"key is garbage", "server.key", []byte("garbage"), []string{"server.key", "restore"}},
		{"key is missing", "admin.key", nil, []string{"admin.key", "missing", "restore", "remove"}},
		{"authority's key is missing", "ca.key", nil, []string{"ca.key", "missing"}},
		{"authority's certificate is garbage", "ca.crt", []byte("garbage"), []string{"ca.crt"}},
		{"key of another certificate", "server.key", other("server.key"), []string{"server.crt", "server.key", "match"}},
		{"certificate of another key", "admin.crt", other("admin.crt"), []string{"admin.crt", "match"}},
		{"authority of another folder", "ca.crt", other("ca.crt"), []string{"ca.crt", "match"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			open(t, Options{Dir: dir})
			path := filepath.Join(dir, test.file)
			if test.data == nil {
				os.Remove(path)
			} else if err := os.WriteFile(path, test.data, 0o600); err != nil {
				t.Fatal(err)
			}
			before := snapshot(t, dir)
			_, err := Open(t.Context(), Options{Dir: dir})
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range test.expect {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error is not one line: %q", err)
			}
			if after := snapshot(t, dir); after != before {
				t.Error("the folder was changed")
			}
		})
	}

	t.Run("leaf of another authority", func(t *testing.T) {
		dir := t.TempDir()
		open(t, Options{Dir: dir})
		for _, name := range []string{"ca.crt", "ca.key"} {
			if err := os.WriteFile(filepath.Join(dir, name), other(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(t.Context(), Options{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), "admin.crt was not issued by the certificate authority in the same folder") {
			t.Errorf("got %v", err)
		}
	})
}

func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(entry.Name() + "\n" + string(data))
	}
	return all.String()
}

func TestOpen_invalidOptions(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "good")
	open(t, Options{Dir: good, FrontProxy: true})
	missing := filepath.Join(dir, "missing")
	proxy, proxyCA := good+"/front-proxy-client", good+"/front-proxy-ca.crt"
	front := func(files FrontProxyFiles) Options { return Options{FrontProxy: true, FrontProxyFiles: files} }
	tests := []struct {
		name    string
		options Options
		expect  string
	}{
		{"host that is none", Options{Hosts: []string{"not a host"}}, `"not a host"`},
		{"folder that is a file", Options{Dir: file}, file},
		{"certificate without key", Options{CertFile: good + "/server.crt"}, "together"},
		{"key without certificate", Options{KeyFile: good + "/server.key"}, "together"},
		{"certificate missing", Options{CertFile: missing, KeyFile: good + "/server.key"}, missing},
		{"certificate garbage", Options{CertFile: file, KeyFile: good + "/server.key"}, file},
		{"key of another certificate", Options{CertFile: good + "/server.crt", KeyFile: good + "/admin.key"}, good + "/admin.key"},
		{"client authorities missing", Options{ClientCAFile: missing}, missing},
		{"client authorities garbage", Options{ClientCAFile: file}, file},
		{"client authorities in memory garbage", Options{ClientCA: []byte("garbage")}, "client authorities in memory"},
		{"front proxy missing", front(FrontProxyFiles{CertFile: missing, KeyFile: missing, CAFile: proxyCA}), missing},
		{
			"front proxy's key of another certificate",
			front(FrontProxyFiles{CertFile: proxy + ".crt", KeyFile: good + "/admin.key", CAFile: proxyCA}),
			good + "/admin.key",
		},
		{"front proxy's authority missing", front(FrontProxyFiles{CertFile: proxy + ".crt", KeyFile: proxy + ".key", CAFile: missing}), missing},
		{
			"front proxy's authority garbage",
			front(FrontProxyFiles{CertFile: proxy + ".crt", KeyFile: proxy + ".key", CAFile: file}),
			"must have certificates in PEM",
		},
		{
			"front proxy of another authority",
			front(FrontProxyFiles{CertFile: proxy + ".crt", KeyFile: proxy + ".key", CAFile: good + "/ca.crt"}),
			"issued by an authority in Options.RequestHeader.ClientCAFile " + good + "/ca.crt",
		},
		{
			"front proxy that is a server",
			front(FrontProxyFiles{CertFile: good + "/server.crt", KeyFile: good + "/server.key", CAFile: good + "/ca.crt"}),
			"use a client certificate",
		},
		{
			"front proxy of another name",
			front(FrontProxyFiles{CertFile: proxy + ".crt", KeyFile: proxy + ".key", CAFile: proxyCA, Names: []string{"a", "b"}}),
			`has the common name "front-proxy-client", which aggregated servers would reject: use a certificate for a, b, or add`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Open(t.Context(), test.options)
			if err == nil || !strings.Contains(err.Error(), test.expect) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, test.expect)
			}
		})
	}
}

// serve responds with the common name of the client's verified certificate, and reads the certificates from c for
// every connection.
func serve(t *testing.T, c *Certs) (address *net.TCPAddr) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		options, _ := c.ClientCA().VerifyOptions()
		if len(req.TLS.PeerCertificates) == 0 {
			http.Error(w, "no certificate", http.StatusUnauthorized)
			return
		}
		if _, err := req.TLS.PeerCertificates[0].Verify(options); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		io.WriteString(w, req.TLS.PeerCertificates[0].Subject.String())
	}))
	server.TLS = &tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, err := tls.X509KeyPair(c.Serving().CurrentCertKeyContent())
			return &tls.Config{ClientAuth: tls.RequestClientCert, Certificates: []tls.Certificate{cert}}, err
		},
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().(*net.TCPAddr)
}

func get(t *testing.T, config *rest.Config) string {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	response, err := client.Get(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

const adminSubject = "CN=annex-admin,O=system:masters"

func roundTrip(t *testing.T, c *Certs) {
	t.Helper()
	address := serve(t, c)
	config, err := c.ClientConfig(ServerURL(address.IP, address.Port))
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, config); got != adminSubject {
		t.Errorf("server saw %q, want %q", got, adminSubject)
	}
}

func TestClientConfig_reachesServer(t *testing.T) {
	t.Run("in memory", func(t *testing.T) { roundTrip(t, open(t, Options{})) })
	t.Run("on disk", func(t *testing.T) { roundTrip(t, open(t, Options{Dir: t.TempDir()})) })

	mine := t.TempDir()
	open(t, Options{Dir: mine, Hosts: []string{"api.example.com"}})
	t.Run("with a serving certificate of the user's", func(t *testing.T) {
		roundTrip(t, open(t, Options{CertFile: mine + "/server.crt", KeyFile: mine + "/server.key"}))
	})
	t.Run("with a serving certificate for another name", func(t *testing.T) {
		other := open(t, Options{})
		tmpl := serverTemplate(hosts{names: []string{"*.example.com"}})
		certPEM, err := issue(time.Now(), tmpl, other.server.key, other.authority)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		write(t, dir+"/tls.crt", certPEM)
		write(t, dir+"/tls.key", other.server.keyPEM)
		roundTrip(t, open(t, Options{CertFile: dir + "/tls.crt", KeyFile: dir + "/tls.key"}))
	})
	t.Run("with client authorities of the user's, which are all believed", func(t *testing.T) {
		fromMemory := open(t, Options{})
		c := open(t, Options{ClientCAFile: mine + "/ca.crt", ClientCA: fromMemory.authority.certPEM})
		roundTrip(t, c)
		address := serve(t, c)
		for _, users := range []*Certs{open(t, Options{Dir: mine}), fromMemory} {
			config, err := c.ClientConfig(ServerURL(address.IP, address.Port))
			if err != nil {
				t.Fatal(err)
			}
			config.CertData, config.KeyData = users.admin.certPEM, users.admin.keyPEM
			if got := get(t, config); got != adminSubject {
				t.Errorf("server saw %q, want %q", got, adminSubject)
			}
		}
	})
	t.Run("but not with a client certificate of a stranger", func(t *testing.T) {
		c, stranger := open(t, Options{}), open(t, Options{})
		address := serve(t, c)
		config, err := c.ClientConfig(ServerURL(address.IP, address.Port))
		if err != nil {
			t.Fatal(err)
		}
		config.CertData, config.KeyData = stranger.admin.certPEM, stranger.admin.keyPEM
		if got := get(t, config); got == adminSubject {
			t.Error("the stranger was let in")
		}
	})
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// listener wakes the test, which then inspects the state itself.
type listener chan struct{}

func (l listener) Enqueue() {
	select {
	case l <- struct{}{}:
	default:
	}
}

func run(t *testing.T, c *Certs) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func TestRun_renewal(t *testing.T) {
	// Both the old and the new certificates are valid by the system's clock.
	fake := clocktesting.NewFakeClock(time.Now().Add(-year * 7 / 10))
	dir := t.TempDir()
	c := open(t, Options{Dir: dir, Clock: fake})
	path := filepath.Join(dir, "kubeconfig")
	address := serve(t, c)
	if err := c.WriteKubeconfig(path, "annex", ServerURL(address.IP, address.Port)); err != nil {
		t.Fatal(err)
	}
	before, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := c.Serving().CurrentCertKeyContent()

	woken := make(listener, 1)
	c.Serving().AddListener(woken)
	run(t, c)
	// Run sets its timer before it checks the certificates, so it observes this step at any moment.
	fake.Step(year * 7 / 10)
	<-woken

	if now, _ := c.Serving().CurrentCertKeyContent(); string(now) == string(cert) {
		t.Error("the serving certificate is still the old one")
	}
	if got := get(t, before); got != adminSubject {
		t.Errorf("the kubeconfig handed out before: %q", got)
	}
	admin, err := c.ClientConfig("https://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the kubeconfig has the new certificate", func() bool {
		after, err := clientcmd.LoadFromFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(after.AuthInfos["annex-admin"].ClientCertificateData) == string(admin.CertData)
	})
}

func TestRun_userFiles_areReloaded(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	open(t, Options{Dir: one})
	second := open(t, Options{Dir: two})
	c := open(t, Options{CertFile: one + "/server.crt", KeyFile: one + "/server.key", ClientCAFile: one + "/ca.crt"})
	serving, clients := make(listener, 1), make(listener, 1)
	c.Serving().AddListener(serving)
	c.ClientCA().AddListener(clients)
	run(t, c)

	write(t, one+"/server.key", second.server.keyPEM)
	write(t, one+"/server.crt", second.server.certPEM)
	write(t, one+"/ca.crt", second.authority.certPEM)
	<-serving
	<-clients
	if cert, _ := c.Serving().CurrentCertKeyContent(); string(cert) != string(second.server.certPEM) {
		t.Error("the serving certificate is still the old one")
	}
	roundTrip(t, c)
	options, _ := c.ClientCA().VerifyOptions()
	if _, err := second.admin.cert.Verify(options); err != nil {
		t.Errorf("certificate of the new authority: %v", err)
	}
}

// verifiedBy returns an error unless an authority of bundle verifies the client certificate.
func verifiedBy(certPEM, bundle []byte, now time.Time) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	block, _ := pem.Decode(certPEM)
	client, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	_, err = client.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// During a renewal, servers behind this one may have the old or the new authority.
func TestFrontProxy_renewal_staysAccepted(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	fake := clocktesting.NewFakeClock(start)
	c := open(t, Options{Dir: t.TempDir(), Clock: fake, FrontProxy: true})
	woken := make(listener, 1)
	c.FrontProxy().AddListener(woken)
	run(t, c)
	clients, authorities := map[string]bool{}, map[string]bool{}
	for year := range 12 {
		client, _ := c.FrontProxy().Client()
		authority := c.FrontProxy().CA()
		clients[string(client)], authorities[string(authority)] = true, true
		if year == 11 {
			break
		}
		fake.Step(365 * 24 * time.Hour)
		<-woken
		next, _ := c.FrontProxy().Client()
		for _, pair := range [][2][]byte{{next, c.FrontProxy().CA()}, {next, authority}} {
			if err := verifiedBy(pair[0], pair[1], fake.Now()); err != nil {
				t.Errorf("in year %d: %v", year, err)
			}
		}
	}
	if len(clients) != 12 || len(authorities) != 2 {
		t.Errorf("%d certificates and %d authorities in 12 years", len(clients), len(authorities))
	}
}

func TestFrontProxy_userFiles_areReloaded(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	open(t, Options{Dir: one, FrontProxy: true})
	second := open(t, Options{Dir: two, FrontProxy: true})
	own := t.TempDir()
	c := open(t, Options{Dir: own, FrontProxy: true, FrontProxyFiles: FrontProxyFiles{
		CertFile: one + "/front-proxy-client.crt", KeyFile: one + "/front-proxy-client.key", CAFile: one + "/front-proxy-ca.crt",
	}})
	if _, err := os.Stat(own + "/front-proxy-client.key"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an own one beside it: %v", err)
	}
	if names := c.FrontProxy().Names(); len(names) != 1 || names[0] != ProxyUser {
		t.Errorf("names %v", names)
	}
	woken := make(listener, 1)
	c.FrontProxy().AddListener(woken)
	run(t, c)
	client, key := second.FrontProxy().Client()
	write(t, one+"/front-proxy-ca.crt", second.FrontProxy().CA())
	write(t, one+"/front-proxy-client.key", key)
	write(t, one+"/front-proxy-client.crt", client)
	testwait.Until(t, "the new certificate", func() bool {
		now, _ := c.FrontProxy().Client()
		return string(now) == string(client) &&
			strings.TrimSpace(string(c.FrontProxy().CA())) == strings.TrimSpace(string(second.FrontProxy().CA()))
	})
	<-woken
}

func TestWriteKubeconfig(t *testing.T) {
	c := open(t, Options{})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.WriteKubeconfig(path, "wardle", "https://127.0.0.1:8443"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if config.CurrentContext != "wardle" || config.Contexts["wardle"].Cluster != "wardle" ||
		config.Contexts["wardle"].AuthInfo != "wardle-admin" {
		t.Errorf("context: %+v", config)
	}
	block, _ := pem.Decode(config.AuthInfos["wardle-admin"].ClientCertificateData)
	if cert, err := x509.ParseCertificate(block.Bytes); err != nil || cert.Subject.CommonName != AdminUser {
		t.Errorf("client certificate %v, %v", cert.Subject, err)
	}

	// Changes that a user makes with kubectl config.
	config.Contexts["wardle"].Namespace = "lab"
	config.Contexts["other"] = config.Contexts["wardle"].DeepCopy()
	config.Contexts["other"].Cluster = "elsewhere"
	config.CurrentContext = "other"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteKubeconfig(path, "wardle", "https://127.0.0.1:9443"); err != nil {
		t.Fatal(err)
	}
	config, err = clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Clusters["wardle"].Server; got != "https://127.0.0.1:9443" {
		t.Errorf("server is %s", got)
	}
	if config.Contexts["wardle"].Namespace != "lab" || config.Contexts["other"].Cluster != "elsewhere" || config.CurrentContext != "other" {
		t.Errorf("the user's changes were lost: %+v", config)
	}

	t.Run("that is none stays as it is", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, []byte("dear diary"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := c.WriteKubeconfig(path, "wardle", "https://127.0.0.1:8443")
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
		if data, _ := os.ReadFile(path); string(data) != "dear diary" {
			t.Errorf("overwritten: %s", data)
		}
	})
}

func TestServerURL(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1": "https://127.0.0.1:8443",
		"0.0.0.0":   "https://127.0.0.1:8443",
		"":          "https://127.0.0.1:8443",
		"::":        "https://[::1]:8443",
		"10.0.0.7":  "https://10.0.0.7:8443",
		"fd00::7":   "https://[fd00::7]:8443",
	} {
		if got := ServerURL(net.ParseIP(address), 8443); got != want {
			t.Errorf("ServerURL(%q) = %s, want %s", address, got, want)
		}
	}
}

func BenchmarkOpenInMemory(b *testing.B) {
	for b.Loop() {
		if _, err := Open(b.Context(), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenOnDisk(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, err := Open(b.Context(), Options{Dir: dir}); err != nil {
			b.Fatal(err)
		}
	}
}
