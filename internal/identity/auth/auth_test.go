package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/union"

	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/identity/certs"
	"github.com/annexapi/annex/internal/testing/testwait"
)

func clientCertificate(t *testing.T, c *certs.Certs) *x509.Certificate {
	t.Helper()
	config, err := c.ClientConfig("https://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(config.CertData)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func openCerts(t *testing.T) *certs.Certs {
	t.Helper()
	c, err := certs.Open(t.Context(), certs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tokenFile(t *testing.T, content string) *TokenFile {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenTokenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Other credentials, open paths and cached results must not let a revoked certificate in.
func TestNewAuthenticator_revokedCertificate(t *testing.T) {
	ours := openCerts(t)
	admin := clientCertificate(t, ours)
	revoked := false
	subject := NewAuthenticator(Credentials{
		ClientCA: ours.ClientCA(),
		Revoked:  func(cert *x509.Certificate) bool { return revoked && cert.Equal(admin) },
		Tokens:   []authenticator.Token{LoopbackTokens("inner")},
	})
	for _, revoked = range []bool{false, true} {
		for _, path := range []string{"/apis", "/healthz"} {
			for _, token := range []string{"", "inner"} {
				req := httptest.NewRequest("GET", "https://annex"+path, nil)
				req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{admin}}
				if token != "" {
					req.Header.Set("Authorization", "Bearer "+token)
				}
				_, ok, err := subject.AuthenticateRequest(req)
				if ok == revoked || (err != nil) != revoked {
					t.Errorf("revoked %t, %s with token %q: let in %t, %v", revoked, path, token, ok, err)
				}
			}
		}
	}
}

func TestNewAuthenticator(t *testing.T) {
	ours, strangers := openCerts(t), openCerts(t)
	admin, stranger := clientCertificate(t, ours), clientCertificate(t, strangers)
	subject := NewAuthenticator(Credentials{
		ClientCA: ours.ClientCA(),
		Tokens: []authenticator.Token{
			LoopbackTokens("inner"),
			tokenFile(t, "tok-bob,bob,17,\"dev,ops\"\ntok-eve,eve,18\n"),
		},
	})
	tests := []struct {
		name, method, path, token string
		cert                      *x509.Certificate
		wantUser                  string // empty means 401
		wantGroups                []string
	}{
		{name: "client certificate", cert: admin, wantUser: certs.AdminUser, wantGroups: []string{certs.AdminGroup, user.AllAuthenticated}},
		{name: "client certificate of another authority", cert: stranger},
		{
			name:       "client certificate of another authority with a good token",
			cert:       stranger,
			token:      "tok-bob",
			wantUser:   "bob",
			wantGroups: []string{"dev", "ops", user.AllAuthenticated},
		},
		{name: "token with groups", token: "tok-bob", wantUser: "bob", wantGroups: []string{"dev", "ops", user.AllAuthenticated}},
		{name: "token without groups", token: "tok-eve", wantUser: "eve", wantGroups: []string{user.AllAuthenticated}},
		{
			name:       "loopback token",
			token:      "inner",
			wantUser:   user.APIServerUser,
			wantGroups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
		},
		{name: "wrong token", token: "tok-bo"},
		{name: "wrong token on an open path", token: "tok-bo", path: "/healthz"},
		{name: "nothing"},
		{name: "nothing for discovery", path: "/apis"},
		{name: "nothing for metrics", path: "/metrics"},
		{name: "nothing for health", path: "/healthz", wantUser: user.Anonymous, wantGroups: []string{user.AllUnauthenticated}},
		{
			name:       "nothing for a single check",
			path:       "/readyz/poststarthook/storage",
			wantUser:   user.Anonymous,
			wantGroups: []string{user.AllUnauthenticated},
		},
		{name: "nothing for the version", path: "/version/", wantUser: user.Anonymous, wantGroups: []string{user.AllUnauthenticated}},
		{name: "nothing for a post to health", method: "POST", path: "/healthz"},
		{name: "nothing for a path that climbs out of health", path: "/healthz/../apis"},
		{name: "nothing for a path like health", path: "/healthzz"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.path == "" {
				test.path = "/api/v1/namespaces"
			}
			req := httptest.NewRequest(test.method, "https://annex"+test.path, nil)
			req.URL.Path = test.path
			if test.cert != nil {
				req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{test.cert}}
			} else {
				req.TLS = &tls.ConnectionState{}
			}
			if test.token != "" {
				req.Header.Set("Authorization", "Bearer "+test.token)
			}
			response, ok, err := subject.AuthenticateRequest(req)
			if test.wantUser == "" {
				if ok {
					t.Fatalf("let in as %+v", response.User)
				}
				return
			}
			if err != nil || !ok {
				t.Fatalf("refused: %v", err)
			}
			if response.User.GetName() != test.wantUser || !slices.Equal(response.User.GetGroups(), test.wantGroups) {
				t.Errorf("got %s in %v, want %s in %v", response.User.GetName(), response.User.GetGroups(), test.wantUser, test.wantGroups)
			}
		})
	}
}

func TestNewAuthorizer(t *testing.T) {
	standalone, _, err := NewAuthorizer()
	if err != nil {
		t.Fatal(err)
	}
	withPolicy, _, err := NewAuthorizer(union.NamedAuthorizer{AuthorizerName: "rbac", Authorizer: authorizer.AuthorizerFunc(
		func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetUser().GetName() == "bob" && a.IsResourceRequest() {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "no role says so", nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	admin := &user.DefaultInfo{Name: "anybody", Groups: []string{user.SystemPrivilegedGroup}}
	bob := &user.DefaultInfo{Name: "bob", Groups: []string{user.AllAuthenticated}}
	anonymous := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	list := authorizer.AttributesRecord{Verb: "list", APIGroup: "wardle.example.com", Resource: "flunders", ResourceRequest: true}
	path := func(verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: path}
	}
	tests := []struct {
		name       string
		authorizer authorizer.Authorizer
		user       user.Info
		request    authorizer.AttributesRecord
		want       authorizer.Decision
		reason     string
	}{
		{"masters may use resources", standalone, admin, list, authorizer.DecisionAllow, ""},
		{"masters may use paths", standalone, admin, path("post", "/anything"), authorizer.DecisionAllow, ""},
		{"others may not use resources", standalone, bob, list, authorizer.DecisionNoOpinion, ""},
		{"others may not discover", standalone, bob, path("get", "/apis"), authorizer.DecisionNoOpinion, ""},
		{"others may not read metrics", standalone, bob, path("get", "/metrics"), authorizer.DecisionNoOpinion, ""},
		{"anonymous requests may read health", standalone, anonymous, path("get", "/livez/ping"), authorizer.DecisionAllow, ""},
		{"other users may read the version", standalone, bob, path("get", "/version"), authorizer.DecisionAllow, ""},
		{"anonymous requests may not write to health", standalone, anonymous, path("post", "/livez"), authorizer.DecisionNoOpinion, ""},
		{
			"a resource called like an open path is not one",
			standalone,
			anonymous,
			authorizer.AttributesRecord{
				Verb:            "get",
				Path:            "/healthz",
				Resource:        "healthz",
				ResourceRequest: true,
			},
			authorizer.DecisionNoOpinion,
			"",
		},
		{"a policy may allow more", withPolicy, bob, list, authorizer.DecisionAllow, ""},
		{"a policy gives its own reason", withPolicy, bob, path("get", "/apis"), authorizer.DecisionNoOpinion, "rbac: no role says so"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.request.User = test.user
			got, reason, err := test.authorizer.Authorize(t.Context(), test.request)
			if err != nil || got != test.want || !strings.Contains(reason, test.reason) {
				t.Errorf("got %v, %q, %v; want %v with %q", got, reason, err, test.want, test.reason)
			}
			aware := test.authorizer.ConditionsAwareAuthorize(t.Context(), test.request)
			if aware.IsAllow() != (test.want == authorizer.DecisionAllow) {
				t.Errorf("the conditions-aware answer differs: %v", aware)
			}
		})
	}

	if _, _, err := NewAuthorizer(union.NamedAuthorizer{AuthorizerName: "open-paths", Authorizer: standalone}); err == nil {
		t.Error("a policy with a name that is taken was accepted")
	}
}

func TestTokenFile_openToOthers_isRefusedOrWarnedOf(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no modes")
	}
	path := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(path, []byte("secret,alice,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Git checks files out with 0644 or 0664, by the umask.
	for _, test := range []struct {
		mode     os.FileMode
		log, err string
	}{
		{0o600, "", ""},
		{0o640, "", ""},
		{0o400, "", ""},
		{0o644, "readable by every user of this machine (mode 0644): chmod it to 600", ""},
		{0o664, "readable by every user of this machine (mode 0664): chmod it to 600", ""},
		{0o604, "(mode 0604)", ""},
		{0o602, "", "writable by every user of this machine (mode 0602): chmod it to 600"},
		{0o666, "", "(mode 0666)"},
	} {
		if err := os.Chmod(path, test.mode); err != nil {
			t.Fatal(err)
		}
		logged := captureLog(t)
		f, err := OpenTokenFile(path)
		if (err == nil) != (test.err == "") || err != nil && (!strings.Contains(err.Error(), test.err) || !strings.Contains(err.Error(),
			path)) {
			t.Errorf("mode %04o: got %v, want %q", test.mode, err, test.err)
		}
		if err == nil {
			// It is the same warning, until the mode changes.
			if err := f.reload(); err != nil {
				t.Error(err)
			}
		}
		text := logged()
		if want := min(1, len(test.log)); strings.Count(text, path) != want || !strings.Contains(text, test.log) || strings.Contains(text,
			"secret") {
			t.Errorf("mode %04o: logged %q, want %q", test.mode, text, test.log)
		}
	}
}

// captureLog returns a function that returns the log until then.
func captureLog(t *testing.T) func() string {
	t.Helper()
	var lines []string
	state := klog.CaptureState()
	klog.SetLogger(funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{}))
	return func() string {
		state.Restore()
		return strings.Join(lines, "\n")
	}
}

func TestTokenFile_becomesWritableByOthers_keepsTheTokens(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no modes")
	}
	f := tokenFile(t, "one,alice,1\n")
	if err := os.WriteFile(f.path, []byte("two,mallory,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(f.path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := f.reload(); err == nil || !strings.Contains(err.Error(), "writable by every user") {
		t.Errorf("got %v", err)
	}
	for token, want := range map[string]bool{"one": true, "two": false} {
		if _, ok, err := f.AuthenticateToken(t.Context(), token); ok != want || err != nil {
			t.Errorf("token %s: %v, %v", token, ok, err)
		}
	}
}

func TestTokenFile_mistakes(t *testing.T) {
	tests := []struct{ name, content, expect string }{
		{"too few columns", "a,alice,1\nsecret,bob\n", "line 2: 2 columns"},
		{"groups without quotes", "a,alice,1,dev,ops\n", "line 1: 5 columns"},
		{"empty token", "a,alice,1\n,bob,2\n", "line 2: the token is empty"},
		{"empty user", "secret,,1\n", "line 1: the user name is empty"},
		{"token given twice", "secret,alice,1\nsecret,bob,2\n", `line 2: the token of user "bob"`},
		{"quote in the wrong place", "secret,al\"ice,1\n", "line 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.csv")
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := OpenTokenFile(path)
			if err == nil || !strings.Contains(err.Error(), test.expect) || !strings.Contains(err.Error(), path) {
				t.Fatalf("got %v, want %s and %q", err, path, test.expect)
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error shows a token or more than a line: %v", err)
			}
		})
	}
	if _, err := OpenTokenFile(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func TestTokenFile_reload(t *testing.T) {
	f := tokenFile(t, "one,alice,1\n")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	defer func() { cancel(); <-done }()

	known := func(token string) bool {
		_, ok, err := f.AuthenticateToken(ctx, token)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	replace := func(content string) {
		temp := f.path + ".new"
		if err := os.WriteFile(temp, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temp, f.path); err != nil {
			t.Fatal(err)
		}
	}

	replace("two,bob,2\n")
	testwait.Until(t, "token two is known", func() bool { return known("two") })
	if known("one") {
		t.Error("the token that was removed still works")
	}
	replace("broken")
	if err := f.reload(); err == nil || !known("two") {
		t.Errorf("a broken file: %v, the token read before works: %v", err, known("two"))
	}
	if err := os.WriteFile(f.path, []byte("three,carol,3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "token three is known", func() bool { return known("three") })
}

func BenchmarkAuthenticateToken(b *testing.B) {
	tokens := LoopbackTokens("0123456789abcdef0123456789abcdef")
	ctx := b.Context()
	for b.Loop() {
		if _, ok, _ := tokens.AuthenticateToken(ctx, "0123456789abcdef0123456789abcdef"); !ok {
			b.Fatal("refused")
		}
	}
}
