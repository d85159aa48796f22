package apitest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/aggregated/cluster/clustertest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// serving runs a server, and returns it and an administrator's client over the network.
func serving(t *testing.T, o annex.ServingOptions) (*annex.Instance, *client) {
	t.Helper()
	instance, _ := run(t, shop(), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokenFile(t), Serving: o})
	return instance, clientOf(t, instance)
}

// shake performs a TLS handshake with a server.
func shake(instance *annex.Instance, config *tls.Config) (tls.ConnectionState, error) {
	config.InsecureSkipVerify = true
	conn, err := tls.Dial("tcp", strings.TrimPrefix(instance.URL(), "https://"), config)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	return conn.ConnectionState(), nil
}

func TestServing_tlsVersionsAndCiphers(t *testing.T) {
	t.Parallel()
	old := &tls.Config{MaxVersion: tls.VersionTLS12}
	instance, _ := serving(t, annex.ServingOptions{MinTLSVersion: "VersionTLS13"})
	if _, err := shake(instance, old.Clone()); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
	if state, err := shake(instance, &tls.Config{}); err != nil || state.Version != tls.VersionTLS13 {
		t.Errorf("TLS 1.3: %x, %v", state.Version, err)
	}
	instance, _ = serving(
		t,
		annex.ServingOptions{
			CipherSuites:     []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
			CurvePreferences: []int32{int32(tls.CurveP384)},
			DisableHTTP2:     true,
		},
	)
	old.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
	if _, err := shake(instance, old.Clone()); err == nil || !strings.Contains(err.Error(), "handshake failure") {
		t.Errorf("another cipher suite: %v", err)
	}
	old.CipherSuites = append(old.CipherSuites, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384)
	if state, err := shake(
		instance,
		old.Clone(),
	); err != nil || state.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 ||
		state.CurveID != tls.CurveP384 {
		t.Errorf("its cipher suite: %x and %v, %v", state.CipherSuite, state.CurveID, err)
	}
	old.CurvePreferences = []tls.CurveID{tls.X25519}
	if _, err := shake(instance, old.Clone()); err == nil {
		t.Error("another key exchange is spoken")
	}
}

// writeCertificate writes a self-signed certificate, with its key.
func writeCertificate(t *testing.T, certFile, keyFile, commonName string, names ...string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: commonName},
		DNSNames:     names,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert},
		keyFile: {Type: "EC PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServing_sniCertificates_areReloaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	writeCertificate(t, file("one.crt"), file("one.key"), "one", "one.example.com")
	writeCertificate(t, file("other.crt"), file("other.key"), "other", "third.example.com")
	instance, _ := serving(t, annex.ServingOptions{SNICertificates: []annex.SNICertificate{
		{CertFile: file("one.crt"), KeyFile: file("one.key")},
		{CertFile: file("other.crt"), KeyFile: file("other.key"), Names: []string{"*.other.example.com"}},
	}})
	shown := func(name string) string {
		state, err := shake(instance, &tls.Config{ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		return state.PeerCertificates[0].Subject.CommonName
	}
	own := shown("localhost")
	for name, want := range map[string]string{"one.example.com": "one", "a.other.example.com": "other", "localhost": own,
		"elsewhere.example.com": own} {
		if got := shown(name); got != want {
			t.Errorf("%s: the certificate of %s, want %s", name, got, want)
		}
	}
	writeCertificate(t, file("one.crt"), file("one.key"), "renewed", "one.example.com")
	testwait.Until(t, "the certificate is read again", func() bool { return shown("one.example.com") == "renewed" })
	if err := os.WriteFile(file("one.crt"), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := shown("one.example.com"); got != "renewed" {
		t.Errorf("with a file that is wrong: %s", got)
	}
}

func TestServing_disableHTTP2(t *testing.T) {
	t.Parallel()
	for disabled, want := range map[bool]string{false: "h2", true: "http/1.1"} {
		instance, c := serving(t, annex.ServingOptions{DisableHTTP2: disabled})
		if state, err := shake(instance, &tls.Config{NextProtos: []string{"h2", "http/1.1"}}); err != nil || state.NegotiatedProtocol != want {
			t.Errorf("disabled %t: %s, %v", disabled, state.NegotiatedProtocol, err)
		}
		c.get("/apis").want(200)
	}
}

func TestServing_goawayChance(t *testing.T) {
	t.Parallel()
	_, c := serving(t, annex.ServingOptions{GoawayChance: 0.02})
	var connections int
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			connections++
		}
	}}
	ctx := httptrace.WithClientTrace(t.Context(), trace)
	const requests = 2000 // with 0.02, one in 10^17 runs has no other connection
	for range requests {
		response := c.send(ctx, http.MethodGet, "/readyz", nil)
		if response.Body.Close(); response.StatusCode != 200 {
			t.Fatal(response.Status)
		}
	}
	if connections < 2 || connections > requests/5 {
		t.Errorf("%d connections for %d requests", connections, requests)
	}
}

func TestServing_allowedOrigins(t *testing.T) {
	t.Parallel()
	const allowed, other = "https://console.example.com", "https://console.example.com.evil.example"
	_, c := serving(t, annex.ServingOptions{AllowedOrigins: []string{`//console\.example\.com(:|$)`}})
	anonymous := c.stranger("")
	asked := anonymous.do(http.MethodOptions, widgetsPath, nil, "Origin", allowed, "Access-Control-Request-Method", "POST")
	if asked.code != 204 || asked.header.Get("Access-Control-Allow-Origin") != allowed ||
		!strings.Contains(asked.header.Get("Access-Control-Allow-Methods"), "PATCH") ||
		!strings.Contains(asked.header.Get("Access-Control-Allow-Headers"), "If-None-Match") {
		t.Errorf("what a browser asks before: %d, %v", asked.code, asked.header)
	}
	anonymous.get(widgetsPath, "Origin", allowed).want(401)
	if a := c.stranger("root").
		get(widgetsPath, "Origin", allowed).
		want(200); a.header.Get("Access-Control-Allow-Origin") != allowed ||
		a.header.Get("Access-Control-Allow-Credentials") != "true" ||
		a.header.Get("Access-Control-Expose-Headers") != "Date, ETag, Retry-After, Warning" {
		t.Errorf("an allowed origin: %v", a.header)
	}
	for _, origin := range []string{other, "http://localhost.example"} {
		if a := c.stranger("root").get(widgetsPath, "Origin", origin).want(200); a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %v", origin, a.header)
		}
		if a := anonymous.do(http.MethodOptions, widgetsPath, nil, "Origin", origin, "Access-Control-Request-Method", "POST"); a.code != 401 {
			t.Errorf("%s: %d", origin, a.code)
		}
	}
	socket := []string{
		"Connection",
		"Upgrade",
		"Upgrade",
		"websocket",
		"Sec-Websocket-Version",
		"13",
		"Sec-Websocket-Key",
		"AAAAAAAAAAAAAAAAAAAAAA==",
		"Origin",
	}
	h1 := c.stranger("root").http1()
	h1.get(widgetsPath+"/missing", append(slices.Clone(socket), allowed)...).refused(404, metav1.StatusReasonNotFound)
	h1.get(widgetsPath+"/missing", append(slices.Clone(socket), other)...).
		refused(404, metav1.StatusReasonNotFound)
		// its token is no browser's
	c.http1().get(widgetsPath+"/missing", append(slices.Clone(socket), allowed)...).refused(404, metav1.StatusReasonNotFound)
	c.http1().
		get(widgetsPath+"/missing", append(slices.Clone(socket), other)...).
		refused(403, metav1.StatusReasonForbidden, "may not connect")
}

// A browser sends the certificate of its user along with any request that a page triggers: a form, or a body without
// a type, which is taken for JSON. The browser names the origin of the page.
func TestServing_otherOrigins_cannotUseCertificate(t *testing.T) {
	t.Parallel()
	log := newAuditLog(t)
	server := shop()
	server.Handlers = append(
		server.Handlers,
		annex.Handler{
			Path:    "/orders/",
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }),
		},
	)
	instance, _ := run(t, server, annex.Options{
		Storage: memory.Storage(), TokenAuthFile: tokenFile(t), Login: annex.LoginOptions{UserFile: userFile(t)},
		Audit: annex.AuditOptions{PolicyFile: policyFile(t, "rules: [{level: Metadata}]"), Log: annex.AuditLogOptions{Path: log.path}},
	})
	c := clientOf(t, instance)
	evil := []string{"Origin", "https://evil.example.com", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}
	own := []string{"Origin", instance.URL(), "Sec-Fetch-Site", "same-origin"}
	for i, mediaType := range []string{"", "text/plain", jsonType} {
		headers := append([]string{"Content-Type", mediaType}, evil...)
		a := c.post(widgetsPath, widget(fmt.Sprint("evil", i)), headers...)
		a.refused(403, metav1.StatusReasonForbidden, "a page of another origin")
		if e := log.of(a); e.User.Username == "" || e.ResponseStatus.Code != 403 {
			t.Errorf("the audit: %+v", e)
		}
	}
	c.post(widgetsPath, widget("untyped"), "Content-Type", "").want(201) // the attack relies on this
	c.post(widgetsPath, widget("own"), own...).want(201)
	c.stranger("root").post(widgetsPath, widget("by-token"), evil...).want(201)
	for _, path := range []string{"/orders/1", "/oauth/token", "/oauth/session", "/query/shop.example.com/v1/widgets",
		"/apis/authentication.k8s.io/v1/selfsubjectreviews"} {
		c.do(http.MethodPost, path, "{}", append([]string{"Content-Type", "text/plain"}, evil...)...).want(403)
	}
	c.post("/orders/1", "{}", own...).want(202)
	c.do(http.MethodDelete, widgetsPath+"/own", nil, evil...).want(403)
	c.get(widgetsPath+"/own", evil...).want(200) // a link; the page does not see the response
	socket := []string{
		"Connection",
		"Upgrade",
		"Upgrade",
		"websocket",
		"Sec-Websocket-Version",
		"13",
		"Sec-Websocket-Key",
		"AAAAAAAAAAAAAAAAAAAAAA==",
		"Origin",
	}
	for _, path := range []string{widgetsPath + "?watch=true", "/query/shop.example.com/v1/widgets?watch=true"} {
		for _, origin := range []string{"https://evil.example.com", "https://127.0.0.1:9", "null"} {
			c.http1().get(path, append(slices.Clone(socket), origin)...).want(403)
		}
	}
	if list := c.get(widgetsPath).want(200); strings.Contains(string(list.raw), "evil") {
		t.Errorf("there is %s", list.raw)
	}
}

func TestServing_strictTransportSecurity(t *testing.T) {
	t.Parallel()
	_, c := serving(t, annex.ServingOptions{StrictTransportSecurity: []string{"max-age=31536000", "includeSubDomains"}})
	for _, path := range []string{"/readyz", "/apis", "/nowhere"} {
		if got := c.get(path).header.Get("Strict-Transport-Security"); got != "max-age=31536000; includeSubDomains" {
			t.Errorf("%s: %q", path, got)
		}
	}
	_, without := serving(t, annex.ServingOptions{})
	if got := without.get("/readyz").header.Values("Strict-Transport-Security"); len(got) > 0 {
		t.Errorf("without: %q", got)
	}
}

func TestServing_externalHostname(t *testing.T) {
	t.Parallel()
	address := func(c *client) string {
		var versions metav1.APIVersions
		if err := json.Unmarshal(c.get("/api").want(200).raw, &versions); err != nil {
			t.Fatal(err)
		}
		return versions.ServerAddressByClientCIDRs[0].ServerAddress
	}
	instance, c := serving(t, annex.ServingOptions{ExternalHostname: "api.example.com"})
	_, port, _ := strings.Cut(strings.TrimPrefix(instance.URL(), "https://"), ":")
	if got := address(c); got != "api.example.com:"+port {
		t.Errorf("without a port: %s", got)
	}
	state, err := shake(instance, &tls.Config{ServerName: "api.example.com"})
	if err != nil || state.PeerCertificates[0].VerifyHostname("api.example.com") != nil {
		t.Errorf("the certificate is of %v, %v", state.PeerCertificates[0].DNSNames, err)
	}
	_, c = serving(t, annex.ServingOptions{ExternalHostname: "api.example.com:443"})
	if got := address(c); got != "api.example.com:443" {
		t.Errorf("with a port: %s", got)
	}
}

func TestServing_maxRequestsInFlight(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	kind := widgets().Admit(func(_ context.Context, r annex.Request[v1.Widget]) error {
		if r.Name == "slow" {
			close(entered)
			<-leave
		}
		return nil
	})
	for name, limit := range map[string]struct{ mutating, code int }{"one at a time": {1, 429}, "any number": {-1, 201}} {
		entered, leave = make(chan struct{}), make(chan struct{})
		instance, _ := run(
			t,
			only(kind),
			annex.Options{
				Storage:            memory.Storage(),
				TokenAuthFile:      operatorsFile(t),
				AuthorizationModes: []annex.AuthorizationMode{annex.AuthorizationAlwaysAllow},
				Serving:            annex.ServingOptions{MaxMutatingRequestsInFlight: limit.mutating},
			},
		)
		c := clientOf(t, instance).stranger("jim") // members of system:masters do not count
		answered := make(chan int, 1)
		go func() {
			answered <- c.post(widgetsPath, widget("slow")).code
		}()
		<-entered
		if a := c.post(widgetsPath, widget("w")); a.code != limit.code {
			t.Errorf("%s: %d", name, a.code)
		}
		c.get(widgetsPath).want(200)
		close(leave)
		if code := <-answered; code != 201 {
			t.Errorf("%s: the slow one is answered with %d", name, code)
		}
	}
}

func operatorsFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte("jim,jim,44,operators\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

var debugPaths = []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/heap?debug=1", "/debug/flags", "/debug/flags/v"}

func TestProfiling_authorization(t *testing.T) {
	t.Parallel()
	_, c := serving(t, annex.ServingOptions{})
	for _, path := range debugPaths {
		c.get(path).want(404)
	}
	_, c = serving(t, annex.ServingOptions{Profiling: true})
	for _, path := range debugPaths[:3] {
		c.get(path).want(200)
	}
	c.get("/debug/pprof/profile?seconds=1").want(200)
	for _, path := range debugPaths {
		c.stranger("").get(path).want(401)
		c.stranger("secret").get(path).want(403)
	}
	c.stranger("secret").do(http.MethodPut, "/debug/flags/v", "0").want(403)
	if a := c.do(http.MethodPut, "/debug/flags/v", "0").
		want(200); !strings.Contains(
		string(a.raw),
		"successfully set klog.logging.verbosity to 0",
	) {
		t.Errorf("%s", a.raw)
	}
	c.do(http.MethodPut, "/debug/flags/v", "much").want(400)
}

func TestProfiling_anonymousCallers(t *testing.T) {
	t.Parallel()
	j := join(t, clustertest.Start(t), shop(), annex.Options{
		Serving: annex.ServingOptions{Profiling: true},
		Cluster: annex.ClusterOptions{AlwaysAllowPaths: []string{"/readyz", "/debug/*", "/debug"}},
	}).ready()
	anonymous := connect(t, &rest.Config{Host: j.url, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	anonymous.get("/readyz").want(200)
	for _, path := range debugPaths {
		if a := anonymous.get(path); a.code != 403 && a.code != 401 {
			t.Errorf("%s: %d", path, a.code)
		}
	}
}

func TestHealthChecks_metrics(t *testing.T) {
	t.Parallel()
	_, c := serving(t, annex.ServingOptions{})
	c.get("/readyz").want(200)
	if a := c.get("/metrics/slis").want(200); !strings.Contains(string(a.raw), `kubernetes_healthcheck{name="storage",type="readyz"} 1`) {
		t.Errorf("%s", a.raw)
	}
	c.stranger("secret").get("/metrics/slis").want(403)
}
