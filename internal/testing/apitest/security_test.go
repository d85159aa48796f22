package apitest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/identity/auth/authtest"
	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// besieged is a server on which callers without rights try all paths.
type besieged struct {
	t *testing.T
	// admin has all rights, jane only a token, which is secret.
	admin, jane *client
	// data is the server's data directory, and issuer an issuer whose tokens it accepts.
	data   string
	issuer *authtest.Issuer
}

// TestSecurity_noPathAnswersCallersWithoutRights requests every path that the server names, in its index, its OpenAPI
// documents and its discovery, with every method, as many kinds of callers without rights. New paths are covered
// without a change here.
func TestSecurity_noPathAnswersCallersWithoutRights(t *testing.T) {
	t.Parallel()
	for name, embedded := range map[string]bool{"listening": false, "embedded": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := besiege(t, embedded)
			paths := b.paths()
			if len(paths) < 60 || !slices.Contains(paths, "/storage/backup") || !slices.Contains(paths, "/menu/") ||
				!slices.Contains(paths, widgetsPath+"/w/attach") ||
				!slices.Contains(paths, "/metrics") {
				t.Fatalf("these are not all paths: %q", paths)
			}
			for name, intruder := range b.intruders() {
				t.Run(name, func(t *testing.T) {
					n := 0
					for _, path := range paths {
						methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "FOO"}
						if !intruder.known && name != "anonymous" {
							// Each 401 ends its connection. Authentication does not depend on the method, as
							// anonymous callers show.
							methods = methods[:1]
						}
						for _, method := range methods {
							intruder.try(t, method, path)
							n++
						}
					}
					for _, path := range []string{"/apis", widgetsPath, "/storage/backup", "/metrics", "/menu"} {
						for _, spelt := range []string{"/healthz/.." + path, "/version/.." + path, "/livez/%2e%2e" + path, "/" + path, "/." + path, path +
							"/", path + "%00", path + ";a=b", strings.ToUpper(path), path + "?watch=1"} {
							intruder.try(t, "GET", spelt)
							n++
						}
					}
					t.Logf("%d requests", n)
				})
			}
		})
	}
}

// intruder is a caller without the right to its requests.
type intruder struct {
	client  *client
	headers []string
	query   string
	// known callers get 403 and may discover, others get 401; both may read the open paths, unless their credentials
	// are rejected.
	known, refused bool
}

func (i intruder) try(t *testing.T, method, path string) {
	t.Helper()
	plain, _, _ := strings.Cut(path, "?")
	if i.query != "" {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		path += separator + i.query
	}
	request, err := http.NewRequestWithContext(t.Context(), method, i.client.config.Host, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if request.URL, err = url.Parse(i.client.config.Host + path); err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", jsonType)
	for n := 0; n+1 < len(i.headers); n += 2 {
		request.Header.Set(i.headers[n], i.headers[n+1])
	}
	response, err := i.client.http.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	want := http.StatusUnauthorized
	if i.known {
		want = http.StatusForbidden
	}
	if response.StatusCode == want {
		return
	}
	if isPage(plain) &&
		(response.StatusCode == http.StatusOK && (method == "GET" || method == "HEAD") || response.StatusCode == http.StatusMethodNotAllowed) {
		return
	}
	if isLogin(plain) && response.StatusCode == http.StatusNotFound {
		return
	}
	if !i.refused && isOpenPath(method, plain) || i.known && !i.refused && isForAllKnown(method, plain) {
		return
	}
	t.Errorf("%s %s: %d, want %d: %.300s", method, path, response.StatusCode, want, body)
}

// isOpenPath reports whether a request is for health or the version.
func isOpenPath(method, path string) bool {
	return (method == "GET" || method == "HEAD") &&
		regexp.MustCompile(`^/(version/?|(healthz|livez|readyz)(/[a-zA-Z0-9-]+)*/?)$`).MatchString(path)
}

// isPage reports whether a path belongs to a page on which people sign in.
func isPage(path string) bool {
	return path == "/console/" || path == "/swagger-ui/"
}

// isLogin reports whether a path is one of the sign-in endpoints. Without a user file, as here, they are not found.
func isLogin(path string) bool {
	return path == "/oauth/" || strings.TrimSuffix(path, "/") == "/.well-known/oauth-authorization-server"
}

// isForAllKnown reports whether a request is discovery, or a review of the caller itself.
func isForAllKnown(method, path string) bool {
	if method == "POST" {
		return slices.ContainsFunc(
			[]string{selfAccessPath, selfRulesPath, selfReviewPath},
			func(open string) bool { return path == open || path == open+"/w" },
		)
	}
	return (method == "GET" || method == "HEAD") &&
		regexp.MustCompile(`^/(api|api/v1|apis|apis/[^/]+|apis/[^/]+/[^/]+|openapi(/.*)?)/?$`).MatchString(path)
}

// besiege starts a server with everything that has a path.
func besiege(t *testing.T, embedded bool) *besieged {
	b := &besieged{t: t, data: t.TempDir(), issuer: authtest.NewIssuer(t)}
	server := workshop()
	server.Handlers = withMenu().Handlers
	options := annex.Options{
		DataDir: b.data, Storage: memory.Storage(), TokenAuthFile: tokenFile(t), RequestTimeout: 10 * time.Second,
		AuthenticationConfigFile: newCallersFile(t, "AuthenticationConfiguration", issuerEntry(b.issuer, "jwt:")).path,
		PriorityAndFairness:      new(true),
	}
	if !embedded {
		b.admin = startWith(t, server, options)
		b.jane = b.admin.stranger("secret")
		b.admin.create("w")
		return b
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	options.Serving.ExternalHostname = listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	instance, err := annex.New(ctx, server, options)
	if err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-ready
	config, err := instance.TLSConfig()
	if err != nil {
		t.Fatal(err)
	}
	host := &http.Server{Handler: instance.Handler(), TLSConfig: config, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = host.ServeTLS(listener, "", "") // it was closed
	}()
	t.Cleanup(func() { host.Close(); <-ended })
	if want := "https://" + listener.Addr().String(); instance.URL() != want {
		t.Errorf("the URL is %q, want %q", instance.URL(), want)
	}
	b.admin = clientFrom(t, instance.Kubeconfig())
	b.jane = b.admin.stranger("secret")
	b.admin.create("w")
	return b
}

// paths returns all paths that the server names, with names of objects in the place of parameters.
func (b *besieged) paths() []string {
	b.t.Helper()
	all := map[string]bool{}
	var index struct{ Paths []string }
	decode(b.t, b.admin.get("/").want(200).raw, &index)
	for _, path := range index.Paths {
		all[path] = true
	}
	parameter := strings.NewReplacer("{namespace}", "default", "{name}", "w", "{path}", "x")
	var document struct {
		Paths map[string]any
	}
	decode(b.t, b.admin.get("/openapi/v2").want(200).raw, &document)
	for path := range document.Paths {
		all[parameter.Replace(path)] = true
	}
	for _, path := range index.Paths {
		var version struct {
			GroupVersion string
			Resources    []struct {
				Name       string
				Namespaced bool
			}
		}
		if !regexp.MustCompile(`^/(api/v1|apis/[^/]+/[^/]+)$`).MatchString(path) {
			continue
		}
		decode(b.t, b.admin.get(path).want(200).raw, &version)
		for _, r := range version.Resources {
			resource, subresource, _ := strings.Cut(r.Name, "/")
			at := path
			if r.Namespaced {
				at += "/namespaces/default"
			}
			at += "/" + resource
			if subresource != "" {
				at += "/w/" + subresource
			}
			all[at], all[at+"/w"] = true, true
		}
	}
	var paths []string
	for path := range all {
		paths = append(paths, path)
	}
	for _, what := range []string{"priority_levels", "queues", "requests"} { // no index names them
		paths = append(paths, "/debug/api_priority_and_fairness/dump_"+what)
	}
	slices.Sort(paths)
	return paths
}

// intruders returns callers of many kinds.
func (b *besieged) intruders() map[string]intruder {
	t := b.t
	anonymous := b.jane.stranger("")
	masters := []string{
		"X-Remote-User", "admin", "X-Remote-Group", "system:masters", "X-Remote-Uid", "1", "X-Remote-Extra-Scopes", "all",
		"X-Forwarded-User", "admin", "X-Forwarded-For", "127.0.0.1", "X-Real-Ip", "127.0.0.1",
	}
	own := authorityIn(t, filepath.Join(b.data, "cert"))
	now := time.Now()
	hour := map[string]any{"sub": "joe", "groups": []string{"system:masters"}}
	expired := map[string]any{"sub": "joe", "exp": now.Add(-time.Hour).Unix(), "iat": now.Add(-2 * time.Hour).Unix()}
	return map[string]intruder{
		"anonymous":                     {client: anonymous},
		"anonymous with forged headers": {client: anonymous, headers: masters},
		"anonymous that impersonates": {
			client:  anonymous,
			headers: []string{"Impersonate-User", "annex-admin", "Impersonate-Group", "system:masters"},
		},
		"known, without rights":      {client: b.jane, known: true},
		"known, with forged headers": {client: b.jane, headers: masters, known: true},
		"known, that impersonates": {
			client:  b.jane,
			headers: []string{"Impersonate-User", "annex-admin"},
			known:   true,
			refused: true,
		},
		"known, that impersonates administrators": {
			client:  b.jane,
			headers: []string{"Impersonate-User", "jane", "Impersonate-Group", "system:masters"},
			known:   true,
			refused: true,
		},
		"known by certificate, without rights": {client: b.with(own.issue(t, "jim", now.Add(time.Hour))), known: true},
		"known by a JWT, without rights":       {client: b.jane.stranger(b.issuer.Token(hour)), known: true},
		"an expired certificate":               {client: b.with(own.issue(t, "annex-admin", now.Add(-time.Minute), "system:masters"))},
		"a certificate of another authority": {
			client: b.with(newAuthority(t).issue(t, "annex-admin", now.Add(time.Hour), "system:masters")),
		},
		"a revoked certificate":   {client: b.revoked(), refused: true},
		"a token that is none":    {client: b.jane.stranger("secre"), refused: true},
		"an expired JWT":          {client: b.jane.stranger(b.issuer.Token(expired)), refused: true},
		"a JWT of another key":    {client: b.jane.stranger(b.issuer.Forge("1", hour)), refused: true},
		"a JWT of another issuer": {client: b.jane.stranger(authtest.NewIssuer(t).Token(hour)), refused: true},
		"a JWT for another audience": {
			client:  b.jane.stranger(b.issuer.Token(map[string]any{"sub": "joe", "aud": "other"})),
			refused: true,
		},
		"a token in the query": {client: anonymous, query: "access_token=root&token=root&authorization=Bearer%20root"},
		"a token in a cookie": {
			client:  anonymous,
			headers: []string{"Cookie", "token=root; access_token=root; Authorization=Bearer root"},
		},
		"a password": {client: anonymous, headers: []string{"Authorization", "Basic cm9vdDpyb290"}},
		"a token of a WebSocket that is none": {client: anonymous, refused: true, headers: []string{
			"Connection", "", "Authorization", "Bearer cm9vdA", "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io.cm9vdA, v1"}},
	}
}

// issued is a certificate with its key, both in PEM.
type issued struct{ cert, key []byte }

// with returns the client of a certificate.
func (b *besieged) with(i issued) *client {
	c := b.jane.stranger("")
	c.config.CertData, c.config.KeyData = i.cert, i.key
	return connect(b.t, c.config)
}

// revoked returns a client whose certificate has been revoked, and is rejected.
func (b *besieged) revoked() *client {
	b.t.Helper()
	users := certs.OpenUsers(filepath.Join(b.data, "cert"), nil)
	credentials, err := users.Create(certs.NewUser{Name: "joe", Groups: []string{"system:masters"}})
	if err != nil {
		b.t.Fatal(err)
	}
	c := b.with(issued{credentials.PEM(), credentials.PEM()})
	c.get(widgetsPath).want(200)
	if _, err := users.Revoke(b.t.Context(), certs.Revocation{Name: "joe"}); err != nil {
		b.t.Fatal(err)
	}
	testwait.NoError(b.t, "the certificate is refused", func(context.Context) error {
		if a := c.get(widgetsPath); a.code != http.StatusUnauthorized {
			return fmt.Errorf("%d", a.code)
		}
		return nil
	})
	return c
}

// authorityIn returns a server's own authority.
func authorityIn(t *testing.T, dir string) authority {
	t.Helper()
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(data)
		return block.Bytes
	}
	cert, err := x509.ParseCertificate(read("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(read("ca.key"))
	if err != nil {
		if key, err = x509.ParseECPrivateKey(read("ca.key")); err != nil {
			t.Fatal(err)
		}
	}
	return authority{cert: cert, key: key.(*ecdsa.PrivateKey)}
}

// issue creates a client certificate that has been valid for an hour.
func (a authority) issue(t *testing.T, name string, until time.Time, groups ...string) issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return issued{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
}
