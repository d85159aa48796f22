package controlplane

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/internal/base/atomicfile"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/memory"
)

// frontProxy creates an authority and a client certificate in a folder of the test.
func frontProxy(t *testing.T) *certs.FrontProxy {
	t.Helper()
	c, err := certs.Open(t.Context(), certs.Options{FrontProxy: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.FrontProxy()
}

func toldBehind(t *testing.T, front *rest.Config, key, want string) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(front).CoreV1().ConfigMaps(metav1.NamespaceSystem)
	testwait.NoError(t, key+" is published", func(ctx context.Context) error {
		m, err := client.Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		if err == nil && !strings.Contains(m.Data[key], strings.TrimSpace(want)) {
			err = fmt.Errorf("it is %s", m.Data[key])
		}
		return err
	})
}

// A replica that has lost its files, or a new replica, has a different authority. The test is not parallel, because
// it listens again on a port that it has released, which another test could get meanwhile.
func TestProxyCertificate_newAuthority_isTrusted(t *testing.T) {
	dir := t.TempDir()
	front, stop := startFront(t, annex.Options{Storage: embedded.Dir(filepath.Join(dir, "objects")), DataDir: dir})
	at := strings.TrimPrefix(front.Host, "https://")
	b := serveBehind(t, front, crateServer(), 0)
	register(t, front, b.port, crateVersion)
	available(t, front)
	crates := func() dynamic.ResourceInterface {
		return dynamic.NewForConfigOrDie(front).Resource(crateResource).Namespace("default")
	}
	createCrate(t, crates(), "one")
	stop()
	old, err := os.ReadFile(filepath.Join(dir, "cert", "front-proxy-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"front-proxy-ca", "front-proxy-client"} {
		for _, kind := range []string{".crt", ".key"} {
			if err := os.Remove(filepath.Join(dir, "cert", name+kind)); err != nil {
				t.Fatal(err)
			}
		}
	}
	front, _ = startFront(t, annex.Options{Storage: embedded.Dir(filepath.Join(dir, "objects")), DataDir: dir, Listen: at})
	createCrate(t, crates(), "two")
	made, err := os.ReadFile(filepath.Join(dir, "cert", "front-proxy-ca.crt"))
	if err != nil || bytes.Equal(made, old) {
		t.Fatalf("the authority is the old one: %v", err)
	}
	// Another replica may still use the old certificate.
	toldBehind(t, front, "requestheader-client-ca-file", string(old))
	toldBehind(t, front, "requestheader-client-ca-file", string(made))
}

func TestProxyCertificate_configured(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	first, second := frontProxy(t), frontProxy(t)
	write := func(name string, data []byte) {
		t.Helper()
		if err := atomicfile.Write(file(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	show := func(p *certs.FrontProxy) {
		t.Helper()
		cert, key := p.Client()
		write("client.key", key)
		write("client.crt", cert)
	}
	write("ca.crt", first.CA())
	show(first)
	options := annex.Options{Storage: memory.Storage(), DataDir: filepath.Join(dir, "data")}
	options.ControlPlane.ProxyClientCertFile, options.ControlPlane.ProxyClientKeyFile = file("client.crt"), file("client.key")
	options.RequestHeader.ClientCAFile = file("ca.crt")
	front := annextest.StartWith(t, cluster(), options)

	// A real aggregated server accepts it.
	register(t, front, serveBehind(t, front, crateServer(), 0).port, crateVersion)
	available(t, front)
	crates := dynamic.NewForConfigOrDie(front).Resource(crateResource).Namespace("default")
	createCrate(t, crates, "one")

	// Another one gets the caller's name.
	v := schema.GroupVersion{Group: "seen.example.com", Version: "v1"}
	var mu sync.Mutex
	var seen []byte
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if len(r.TLS.PeerCertificates) > 0 {
			seen = r.TLS.PeerCertificates[0].Raw
		}
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"seen.example.com/v1","resources":[]}`)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	registerAt(t, front, server.Listener.Addr().(*net.TCPAddr).Port, v)
	condition(t, front, "v1.seen.example.com", apiregistrationv1.ConditionTrue, "Passed", "")
	shown := func(p *certs.FrontProxy) {
		t.Helper()
		certPEM, keyPEM := p.Client()
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		testwait.NoError(t, "the certificate that it is shown", func(ctx context.Context) error {
			client := kubernetes.NewForConfigOrDie(front).Discovery().RESTClient()
			if err := client.Get().AbsPath("/apis", v.Group, v.Version, "things").Do(ctx).Error(); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if !bytes.Equal(seen, pair.Certificate[0]) {
				return fmt.Errorf("it is another one")
			}
			return nil
		})
	}
	shown(first)

	// A certificate of another authority replaces it, after that authority has been published.
	write("ca.crt", append(bytes.Clone(first.CA()), second.CA()...))
	toldBehind(t, front, "requestheader-client-ca-file", string(second.CA()))
	show(second)
	shown(second)
	createCrate(t, crates, "two")
}

func TestProxyCertificate_mistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	proxy := frontProxy(t)
	cert, key := proxy.Client()
	for name, data := range map[string][]byte{"client.crt": cert, "client.key": key, "ca.crt": proxy.CA(), "other.crt": frontProxy(t).CA()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	for want, c := range map[string]struct{ cert, key, ca, name string }{
		"ProxyClientCertFile requires Options.ControlPlane.ProxyClientKeyFile": {cert: "client.crt", ca: "ca.crt"},
		"ProxyClientKeyFile requires Options.ControlPlane.ProxyClientCertFile": {key: "client.key", ca: "ca.crt"},
		"ProxyClientCertFile requires Options.RequestHeader.ClientCAFile, the certificate authorities with which " +
			"aggregated servers verify the certificate": {cert: "client.crt", key: "client.key"},
		"use a client certificate issued by an authority in Options.RequestHeader.ClientCAFile ": {cert: "client.crt", key: "client.key",
			ca: "other.crt"},
		"missing.crt: no such file": {cert: "missing.crt", key: "client.key", ca: "ca.crt"},
		`has the common name "front-proxy-client", which aggregated servers would`: {cert: "client.crt", key: "client.key", ca: "ca.crt", name: "gateway"},
	} {
		options := annex.Options{Storage: memory.Storage(), DataDir: filepath.Join(dir, "data")}
		for to, name := range map[*string]string{
			&options.ControlPlane.ProxyClientCertFile: c.cert, &options.ControlPlane.ProxyClientKeyFile: c.key,
			&options.RequestHeader.ClientCAFile: c.ca,
		} {
			if name != "" {
				*to = file(name)
			}
		}
		if c.name != "" {
			options.RequestHeader.AllowedNames = []string{c.name}
		}
		if _, err := annex.New(t.Context(), cluster(), options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
	options := annex.Options{Storage: memory.Storage(), DataDir: filepath.Join(dir, "data")}
	options.ControlPlane.ProxyClientCertFile, options.ControlPlane.ProxyClientKeyFile = file("client.crt"), file("client.key")
	options.RequestHeader.ClientCAFile = file("ca.crt")
	if _, err := annex.New(
		t.Context(),
		crateServer(),
		options,
	); err == nil ||
		!strings.Contains(err.Error(), "requires a server with a control plane") {
		t.Errorf("of a server without: %v", err)
	}
}
