package login

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/identity/credential"
)

// known authenticates tokens, certificates by their common name, and the tokens of a Login.
type known struct {
	login *Login

	mu     sync.Mutex
	tokens map[string]*user.DefaultInfo
	owners map[string]*user.DefaultInfo
}

// AuthenticateRequest implements authenticator.Request.
func (k *known) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if info := k.find(k.owners, r.TLS.PeerCertificates[0].Subject.CommonName); info != nil {
			credential.From(r.Context()).Kind = credential.Certificate
			return &authenticator.Response{User: info}, true, nil
		}
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		credential.From(r.Context()).Kind = credential.Token
		if info := k.find(k.tokens, token); info != nil {
			return &authenticator.Response{User: info}, true, nil
		}
		return k.login.AuthenticateToken(r.Context(), token)
	}
	return nil, false, nil
}

func (k *known) find(among map[string]*user.DefaultInfo, name string) *user.DefaultInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	return among[name]
}

func (k *known) forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tokens, name)
	delete(k.owners, name)
}

func newCertificate(t testing.TB, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// withLinks is a fixture that accepts links of the administrator's certificate and of bob's token.
func withLinks(t testing.TB) (*fixture, *known) {
	t.Helper()
	f := newFixture(t)
	k := &known{
		login:  f.Login,
		tokens: map[string]*user.DefaultInfo{"bobs": {Name: "bob", UID: "7", Groups: []string{"staff"}}},
		owners: map[string]*user.DefaultInfo{
			"admin": {Name: "admin", Groups: []string{"masters"}, Extra: map[string][]string{user.CredentialIDKey: {"X509SHA256=1"}}},
		},
	}
	f.AcceptLinks(k)
	return f, k
}

func (f *fixture) adminLink() string {
	f.t.Helper()
	secret, err := f.NewLink(f.t.Context(), newCertificate(f.t, "admin"))
	if err != nil {
		f.t.Fatal(err)
	}
	return secret
}

// use uses a link as the console does, with more headers.
func (f *fixture) use(secret string, headers ...string) reply {
	f.t.Helper()
	body, err := json.Marshal(map[string]string{"link": secret})
	if err != nil {
		f.t.Fatal(err)
	}
	return f.send("POST", here+"/oauth/session/link", string(body),
		append([]string{"Content-Type", "application/json", "Origin", here, "X-Annex-Session", "1"}, headers...)...)
}

func cookieIn(a reply) string {
	value, _, _ := strings.Cut(a.header.Get("Set-Cookie"), "; ")
	return value
}

// make requests a link as a caller with a token or a certificate.
func (f *fixture) make(k *known, token string, certificate *x509.Certificate, headers ...string) reply {
	f.t.Helper()
	r := httptest.NewRequestWithContext(context.Background(), "POST", here+LinksPath, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if certificate != nil {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	asked := r.WithContext(credential.With(r.Context(), &credential.Credential{}))
	if response, ok, err := k.AuthenticateRequest(asked); ok && err == nil {
		r = r.WithContext(genericrequest.WithUser(r.Context(), response.User))
	}
	w := httptest.NewRecorder()
	f.Handler().ServeHTTP(w, r)
	a := reply{w.Code, w.Header(), w.Body.String(), nil}
	_ = json.Unmarshal(w.Body.Bytes(), &a.body) // a refusal need not be JSON
	return a
}

func TestLink_signsInOnce(t *testing.T) {
	t.Parallel()
	f, _ := withLinks(t)
	secret := f.adminLink()
	a := f.use(secret)
	if a.code != 200 || a.text("user") != "admin" || !strings.Contains(a.header.Get("Set-Cookie"), "HttpOnly; Secure; SameSite=Strict") {
		t.Fatalf("answered %d %s, cookie %s", a.code, a.raw, a.header.Get("Set-Cookie"))
	}
	token := f.pageToken(cookieIn(a))
	if got := f.caller(token.text("access_token")); got != "admin [masters]" {
		t.Errorf("the token is of %s", got)
	}
	again := f.use(secret)
	f.want(again, 400, invalidGrant)
	if text := again.text("error_description"); !strings.Contains(text, "used before") || !strings.Contains(text, "shop console") {
		t.Errorf("the second use is refused with %q", text)
	}
	if got := f.caller(token.text("access_token")); got != "admin [masters]" {
		t.Errorf("after the second use, the session of the first is of %s", got)
	}
}

func TestLink_refusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		use  func(f *fixture, secret string) reply
		code int
		kind string
		text string
		// spent is set if the link cannot be used after the refusal
		spent bool
	}{
		"late": {func(f *fixture, secret string) reply { f.pass(LinkLifetime); return f.use(secret) },
			400, invalidGrant, "has expired, 5 minutes after", true},
		"much later": {func(f *fixture, secret string) reply { f.pass(time.Hour); f.adminLink(); return f.use(secret) },
			400, invalidGrant, "does not know this sign-in link", true},
		"a forged origin": {func(f *fixture, secret string) reply { return f.use(secret, "Origin", "https://evil.example.com") },
			403, invalidRequest, "other origins", false},
		"an opaque origin": {func(f *fixture, secret string) reply { return f.use(secret, "Origin", "null") },
			403, invalidRequest, "other origins", false},
		"no origin": {func(f *fixture, secret string) reply { return f.use(secret, "Origin", "") },
			403, invalidRequest, "no Origin", false},
		"another site by the browser": {func(f *fixture, secret string) reply { return f.use(secret, "Sec-Fetch-Site", "cross-site") },
			403, invalidRequest, "other origins", false},
		"no header": {func(f *fixture, secret string) reply { return f.use(secret, "X-Annex-Session", "") },
			403, invalidRequest, "X-Annex-Session", false},
		"a form": {func(f *fixture, secret string) reply { return f.use(secret, "Content-Type", "text/plain") },
			415, invalidRequest, "application/json", false},
		"half of it": {func(f *fixture, secret string) reply { return f.use(secret[:20]) },
			400, invalidGrant, "incomplete", false},
		"another secret": {func(f *fixture, secret string) reply {
			t, _ := parseTicket(secret)
			t.secret[0]++
			return f.use(t.String())
		}, 400, invalidGrant, "is wrong", true},
		"empty": {func(f *fixture, _ string) reply { return f.use("") }, 400, invalidRequest, "object with link", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := withLinks(t)
			secret := f.adminLink()
			a := test.use(f, secret)
			f.want(a, test.code, test.kind)
			if got := a.text("error_description"); !strings.Contains(got, test.text) {
				t.Errorf("refused with %q, want %q", got, test.text)
			}
			if a.header.Get("Set-Cookie") != "" || strings.Contains(a.raw, secret) {
				t.Errorf("the refusal has a cookie or the secret: %v %s", a.header, a.raw)
			}
			if after := f.use(secret); (after.code != 200) != test.spent {
				t.Errorf("afterwards the link answers %d %s", after.code, after.raw)
			}
		})
	}
}

func TestLink_concurrentUses_oneWins(t *testing.T) {
	t.Parallel()
	f, _ := withLinks(t)
	secret := f.adminLink()
	var all sync.WaitGroup
	var won, refused atomic.Int32
	for range 16 {
		all.Go(func() {
			switch a := f.use(secret); a.code {
			case 200:
				won.Add(1)
			case 400:
				refused.Add(1)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || refused.Load() != 15 {
		t.Errorf("%d uses won, %d were refused", won.Load(), refused.Load())
	}
}

func TestLink_isBounded(t *testing.T) {
	t.Parallel()
	f, _ := withLinks(t)
	first := f.adminLink()
	f.pass(time.Second)
	for range maxLinksOfUser {
		f.adminLink()
	}
	f.want(f.use(first), 400, invalidGrant) // the oldest one of the user has ended
	for i := range maxLinks {
		if _, err := f.links.add(owner{name: fmt.Sprint("user", i/maxLinksOfUser), token: "t"}); err != nil {
			f.want(f.use(f.mustFail(err)), 400, invalidRequest)
			break
		}
	}
	if _, err := f.links.add(owner{name: "one more", token: "t"}); err == nil || !strings.Contains(err.Error(), "too many unused") {
		t.Errorf("above the bound: %v", err)
	}
	f.pass(LinkLifetime)
	if _, err := f.links.add(owner{name: "one more", token: "t"}); err != nil || len(f.links.known) > maxLinks {
		t.Errorf("after the others have expired: %v, %d links", err, len(f.links.known))
	}
}

// mustFail fails the test for an error other than the bound.
func (f *fixture) mustFail(err error) string {
	f.t.Helper()
	if !strings.Contains(err.Error(), "too many unused") {
		f.t.Error(err)
	}
	return ""
}

func TestLinks_caller(t *testing.T) {
	t.Parallel()
	f, k := withLinks(t)
	admin := newCertificate(t, "admin")
	for name, test := range map[string]struct {
		token       string
		certificate *x509.Certificate
		headers     []string
		code        int
		text        string
	}{
		"by token":              {"bobs", nil, nil, 200, ""},
		"by certificate":        {"", admin, nil, 200, ""},
		"nobody":                {"", nil, nil, 401, "needs a valid token"},
		"a wrong token":         {"wrong", nil, nil, 401, "needs a valid token"},
		"an unknown owner":      {"", newCertificate(t, "mallory"), nil, 401, "needs a valid token"},
		"a page":                {"", admin, []string{"Origin", here}, 403, "not made by pages"},
		"a page without origin": {"", admin, []string{"Sec-Fetch-Site", "none"}, 403, "not made by pages"},
		"impersonating":         {"bobs", nil, []string{"Impersonate-User", "admin"}, 403, "cannot impersonate"},
	} {
		a := f.make(k, test.token, test.certificate, test.headers...)
		if a.code != test.code || !strings.Contains(a.text("error_description"), test.text) {
			t.Errorf("%s: %d %s", name, a.code, a.raw)
		}
		if test.code != 200 {
			continue
		}
		if used := f.use(a.text("link")); used.code != 200 || a.body["expires_in"] != 300.0 {
			t.Errorf("%s: made %s, used with %d %s", name, a.raw, used.code, used.raw)
		}
	}
}

// A proxy's certificate must not stand for the users whom the proxy names.
func TestLinks_certificateOfAnother_isRefused(t *testing.T) {
	t.Parallel()
	f, _ := withLinks(t)
	r := httptest.NewRequestWithContext(t.Context(), "POST", here+LinksPath, nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{newCertificate(t, "admin")}}
	r = r.WithContext(genericrequest.WithUser(r.Context(), &user.DefaultInfo{Name: "jane"}))
	w := httptest.NewRecorder()
	f.Handler().ServeHTTP(w, r)
	if w.Code != 403 || !strings.Contains(w.Body.String(), "identifies its user alone") {
		t.Errorf("answered %d %s", w.Code, w.Body)
	}
}

func TestLinkSession_endsWithItsCredential(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		token string
		owner string
	}{"token": {"bobs", "bobs"}, "certificate": {"", "admin"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, k := withLinks(t)
			certificate := newCertificate(t, "admin")
			if test.token != "" {
				certificate = nil
			}
			cookie := cookieIn(f.use(f.make(k, test.token, certificate).text("link")))
			a := f.pageToken(cookie)
			if a.code != 200 {
				t.Fatalf("no token: %d %s", a.code, a.raw)
			}
			k.forget(test.owner)
			if got := f.caller(a.text("access_token")); !strings.Contains(got, "no longer valid") {
				t.Errorf("the token of the page is of %s", got)
			}
			f.want(f.pageToken(cookie), 401, "login_required")
		})
	}
}

func TestLinkSession_restart(t *testing.T) {
	t.Parallel()
	f, k := withLinks(t)
	byCertificate := cookieIn(f.use(f.adminLink()))
	byToken := cookieIn(f.use(f.make(k, "bobs", nil).text("link")))
	unused := f.adminLink()
	restarted, err := Open(f.options)
	if err != nil {
		t.Fatal(err)
	}
	f.Login = restarted
	k.login = restarted
	f.AcceptLinks(k)
	if a := f.pageToken(byCertificate); a.code != 200 || f.caller(a.text("access_token")) != "admin [masters]" {
		t.Errorf("the session of a certificate: %d %s", a.code, a.raw)
	}
	f.want(f.pageToken(byToken), 401, "login_required") // tokens are not stored
	f.want(f.use(unused), 400, invalidGrant)
}

func TestLinks_chainOfSessions_isRefused(t *testing.T) {
	t.Parallel()
	f, k := withLinks(t)
	cookie := cookieIn(f.use(f.make(k, f.signIn().text("access_token"), nil).text("link")))
	page := f.pageToken(cookie)
	if got := f.caller(page.text("access_token")); got != "alice [staff]" {
		t.Fatalf("a link of a signed-in user is of %s", got)
	}
	if a := f.make(k, page.text("access_token"), nil); a.code != 403 || !strings.Contains(a.raw, "has opened") {
		t.Errorf("a link of a page: %d %s", a.code, a.raw)
	}
}

func TestHandler_withoutUsers_hasLinksOnly(t *testing.T) {
	t.Parallel()
	f, _ := withLinks(t)
	options := f.options
	options.UserFile, options.Awaited = options.UserFile+"-missing", true
	var err error
	if f.Login, err = Open(options); err != nil {
		t.Fatal(err)
	}
	if a := f.use("x"); a.code != 404 {
		t.Errorf("without links: %d %s", a.code, a.raw)
	}
	f.AcceptLinks(&known{})
	f.want(f.use("x"), 400, invalidGrant)
	for _, path := range []string{"/oauth/token", "/oauth/session", "/.well-known/oauth-authorization-server"} {
		if a := f.send("POST", here+path, ""); a.code != 404 && a.code != 405 {
			t.Errorf("%s: %d %s", path, a.code, a.raw)
		}
	}
}
