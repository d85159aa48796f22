package apitest_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/identity/auth/authtest"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
	"github.com/annexapi/annex/store/files"
	"github.com/annexapi/annex/store/memory"
)

// userFile has alice, whose password is wonderland, and the client ci, whose secret is the same, with cheap hashes.
func userFile(t *testing.T) string {
	t.Helper()
	const hash = "$2a$04$KlnGLEPDGu7WN7aKk7dAyeMMUMg.Hwo/eCg2pKRtAacqPD6G6rXiG"
	file := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(file, []byte(`users:
- {name: alice, uid: "7", groups: [staff], password: "`+hash+`"}
clients:
- {id: ci, groups: [robots], secret: "`+hash+`"}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// granted is the response to a grant.
type granted struct {
	Access  string `json:"access_token"`
	Refresh string `json:"refresh_token"`
}

// grant requests tokens: pairs are alternating names and values of parameters.
func (c *client) grant(pairs ...string) *answer {
	c.t.Helper()
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Add(pairs[i], pairs[i+1])
	}
	return c.do(http.MethodPost, "/oauth/token", values.Encode(), "Content-Type", "application/x-www-form-urlencoded")
}

func (a *answer) granted() granted {
	a.t.Helper()
	var i granted
	if err := json.Unmarshal(a.want(200).raw, &i); err != nil {
		a.t.Fatal(err)
	}
	return i
}

func (c *client) signIn() granted {
	c.t.Helper()
	return c.grant("grant_type", "password", "username", "alice", "password", "wonderland").granted()
}

func TestLogin_users(t *testing.T) {
	t.Parallel()
	log, access := newAuditLog(t), newAccessLog(t)
	file := userFile(t)
	c := startWith(t, shop(), annex.Options{
		Storage: memory.Storage(),
		Login:   annex.LoginOptions{UserFile: file},
		Audit: annex.AuditOptions{
			PolicyFile: policyFile(t, "rules: [{level: RequestResponse}]"),
			Log:        annex.AuditLogOptions{Path: log.path},
		},
		AccessLog: access.json(),
	})
	stranger := c.stranger("")
	token := stranger.signIn().Access
	alice := c.stranger(token)
	alice.get(widgetsPath).refused(403, metav1.StatusReasonForbidden, `User "alice" cannot list resource "widgets"`)
	var review authenticationv1.SelfSubjectReview
	reviewed := alice.post("/apis/authentication.k8s.io/v1/selfsubjectreviews",
		map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).
		want(201)
	if err := json.Unmarshal(reviewed.raw, &review); err != nil {
		t.Fatal(err)
	}
	if who := review.Status.UserInfo; who.Username != "alice" || who.UID != "7" ||
		strings.Join(who.Groups, ",") != "staff,system:authenticated" ||
		len(who.Extra["authentication.kubernetes.io/credential-id"]) != 1 {
		t.Errorf("alice is %+v", who)
	}
	c.post(clusterBindings, bind("ClusterRoleBinding", "alice", "ClusterRole/view", "alice")).want(201)
	c.until(200, func() *answer { return alice.get("/apis") })

	ok := stranger.grant("grant_type", "password", "username", "alice", "password", "wonderland")
	wrong := stranger.grant("grant_type", "password", "username", "alice", "password", "a wrong secret").want(400)
	typed := stranger.grant("grant_type", "password", "username", "a typed secret", "password", "x").want(400)
	for _, test := range []struct {
		a             *answer
		user, outcome string
	}{{ok, "alice", "ok"}, {wrong, "alice", "invalid_grant"}, {typed, "(unknown)", "invalid_grant"}} {
		e := log.of(test.a)
		if e.Annotations["login.annex/user"] != test.user || e.Annotations["login.annex/outcome"] != test.outcome ||
			e.Annotations["login.annex/grant"] != "password" ||
			e.RequestURI != "/oauth/token" ||
			e.User.Username != "system:anonymous" ||
			len(e.SourceIPs) == 0 ||
			int(e.ResponseStatus.Code) != test.a.code {
			t.Errorf("the audit: %+v", e)
		}
		access.of(test.a.header)
	}
	data, err := os.ReadFile(log.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"wonderland", "wrong secret", "wrong+secret", "typed secret", "typed+secret", token,
		ok.granted().Refresh} {
		if strings.Contains(string(data), secret) || strings.Contains(access.text(), secret) {
			t.Errorf("%q is in a log", secret)
		}
	}
	// A wrong token does not keep its owner from signing in again.
	c.stranger("old").signIn()
	c.stranger(token + "x").get("/apis").want(401)

	// The user file is watched: a disabled user is soon rejected.
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(old), `uid: "7"`, `uid: "7", disabled: true`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "alice is refused", func() bool { return alice.get("/apis").code == 401 })
	stranger.grant("grant_type", "password", "username", "alice", "password", "wonderland").want(400)
}

func TestLogin_sessionsOutliveServer(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]annex.Options{
		"embedded": {Storage: embedded.Dir("")},
		"files":    {Storage: files.Dir("")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options.DataDir, options.Login.UserFile = filepath.Join(t.TempDir(), "data"), userFile(t)
			instance, stop := run(t, shop(), options)
			first := clientOf(t, instance).stranger("").signIn()
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			instance, _ = run(t, shop(), options)
			c := clientOf(t, instance)
			c.stranger(first.Access).get("/apis").want(200)
			if document := string(c.get("/openapi/v3/oauth").want(200).raw); !strings.Contains(document, `"/oauth/token"`) {
				t.Errorf("the document is %s", document)
			}
			second := c.stranger("").grant("grant_type", "refresh_token", "refresh_token", first.Refresh).granted()
			c.stranger(second.Access).get("/apis").want(200)
			c.stranger("").grant("grant_type", "refresh_token", "refresh_token", first.Refresh).want(400)
			testwait.Until(t, "the session has ended", func() bool { return c.stranger(second.Access).get("/apis").code == 401 })
		})
	}
}

func TestLogin_noUserFile(t *testing.T) {
	t.Parallel()
	c := startWith(t, shop(), annex.Options{Storage: memory.Storage()})
	for _, path := range []string{"/oauth/token", "/oauth/session", "/oauth/authorize", "/oauth/jwks",
		"/.well-known/oauth-authorization-server"} {
		c.get(path).want(404)
		c.stranger("").get(path).want(401)
	}
}

// The first user needs no restart: until there is one, signing in is not possible.
func TestLogin_firstUserWhileRunning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	instance, stop := run(t, shop(), annex.Options{DataDir: dir, Storage: memory.Storage(), Console: new(true)})
	c := clientOf(t, instance)
	c.stranger("").get("/oauth/jwks").want(404)
	early := c.stranger("").do("POST", "/oauth/token", "grant_type=password&username=alice&password=wonderland", "Content-Type",
		"application/x-www-form-urlencoded").want(404)
	if !strings.Contains(early.str("error_description"), "with the verb user passwd of the program, such as shop user passwd alice") {
		t.Errorf("before there is a user: %s", early.raw)
	}
	if told := string(c.stranger("").get("/console/config.json").want(200).raw); strings.Contains(told, "login") {
		t.Errorf("the console is told %s", told)
	}
	content, err := os.ReadFile(userFile(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "users"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the file is read", func() bool { return c.stranger("").get("/oauth/jwks").code == 200 })
	first := c.stranger("").signIn()
	c.stranger(first.Access).get("/apis").want(200)
	if told := string(c.stranger("").get("/console/config.json").want(200).raw); !strings.Contains(told, `"login":{"password":true}`) {
		t.Errorf("the console is told %s", told)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	own := shop()
	own.Handlers = []annex.Handler{{Path: "/oauth/", Handler: http.NotFoundHandler()}}
	if err := os.Remove(filepath.Join(dir, "users")); err != nil {
		t.Fatal(err)
	}
	own.Console.Disabled = true
	instance, _ = run(t, own, annex.Options{DataDir: dir, Storage: memory.Storage()}) // the handler has the path
	clientOf(t, instance).stranger("").get("/oauth/jwks").want(401)
}

func TestLogin_invalidOptions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*annex.Options)
		want   string
	}{
		"no such file": {func(o *annex.Options) { o.Login.UserFile = "nowhere" }, "user file: open nowhere: no such file"},
		"no file":      {func(o *annex.Options) { o.Login = annex.LoginOptions{TokenLifetime: 1} }, "Options.Login.TokenLifetime has no effect"},
		"short tokens": {func(o *annex.Options) { o.Login.TokenLifetime = 1 }, "Options.Login.TokenLifetime 1ns is not between"},
		"negative":     {func(o *annex.Options) { o.Login.IdleTimeout = -1 }, "Options.Login.IdleTimeout -1ns is less than"},
		"a short session": {func(o *annex.Options) { o.Login.IdleTimeout, o.Login.SessionLifetime = 2e12, 1e12 },
			"Options.Login.SessionLifetime 16m40s is less than"},
		"plain HTTP": {func(o *annex.Options) { o.Login.PublicURL = "http://api.example.com" }, "not an https URL"},
		"a path": {func(o *annex.Options) { o.Login.PublicURL = "https://api.example.com/x" }, "must have a scheme and a host, such " +
			"as https://api.example.com"},
		"an issuer twice": {func(o *annex.Options) {
			o.ServiceAccounts.Issuers = []string{"https://api.example.com/oauth"}
			o.Login.PublicURL = "https://api.example.com"
		}, "choose another"},
		"a server in a cluster": {func(o *annex.Options) { o.Aggregated = true }, "Options.Login.UserFile has no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			options := annex.Options{Storage: memory.Storage(), Login: annex.LoginOptions{UserFile: userFile(t)}}
			test.change(&options)
			instance, err := annex.New(t.Context(), shop(), options)
			if err == nil {
				instance.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, want %q in it", err, test.want)
			}
		})
	}
}

func TestLogin_cookies_areNoCredentials(t *testing.T) {
	t.Parallel()
	server := withMenu()
	server.Handlers = append(
		server.Handlers,
		annex.Handler{Path: "/cookies", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%q", r.Header["Cookie"])
		})},
	)
	c := startWith(t, server, annex.Options{Storage: memory.Storage(), Login: annex.LoginOptions{UserFile: userFile(t)}})
	stranger := c.stranger("")
	host := strings.TrimPrefix(c.config.Host, "https://")
	signed := stranger.post("/oauth/session", map[string]string{"username": "alice", "password": "wonderland"}, "Origin", "https://"+host).
		want(200)
	cookie, _, _ := strings.Cut(signed.header.Get("Set-Cookie"), ";")
	page := []string{"Cookie", cookie, "X-Annex-Session", "1", "Origin", "https://" + host}
	var got granted
	if err := json.Unmarshal(stranger.do("POST", "/oauth/session/token", nil, page...).want(200).raw, &got); err != nil {
		t.Fatal(err)
	}
	c.stranger(got.Access).get("/apis").want(200)
	for _, path := range append([]string{"/menu", "/storage/stats", "/apis/shop.example.com/v1/namespaces/default/widgets/w/scale",
		"/.well-known/openid-configuration", "/api/v1/namespaces/default/serviceaccounts"}, closedPaths...) {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			if a := stranger.do(method, path, nil, page...); a.code != 401 {
				t.Errorf("%s %s with a cookie: %d %s", method, path, a.code, a.raw)
			}
		}
	}
	// Neither does a handler see it, because the handler may be a proxy.
	if a := c.do("GET", "/cookies", nil, "Cookie", "a=b; "+cookie); string(a.raw) != `["a=b"]` {
		t.Errorf("a handler sees %d %s", a.code, a.raw)
	}
	stranger.do("DELETE", "/oauth/session", nil, page...).want(204)
	c.stranger(got.Access).get("/apis").want(401)
}

// corp is a server whose users sign in at an issuer as well, and a browser that does not follow redirects.
type corp struct {
	*client
	issuer  *authtest.Issuer
	browser *client
	base    string
	// code returns a code of the issuer for a request.
	code func(request url.Values) string
}

func withCorp(t *testing.T, change func(claims map[string]any)) *corp {
	t.Helper()
	c := &corp{issuer: authtest.NewIssuer(t)}
	var asked sync.Map // the nonce by code
	c.issuer.Exchange = func(form url.Values, client, secret string) map[string]any {
		sum := sha256.Sum256([]byte(form.Get("code_verifier")))
		known, ok := asked.LoadAndDelete(form.Get("code"))
		if !ok || client != "annex" || secret != "s3cret" ||
			base64.RawURLEncoding.EncodeToString(sum[:]) != known.(url.Values).Get("code_challenge") ||
			form.Get("redirect_uri") != known.(url.Values).Get("redirect_uri") {
			return nil
		}
		claims := map[string]any{"sub": "jane", "groups": []string{"readers"}, "nonce": known.(url.Values).Get("nonce")}
		change(claims)
		return claims
	}
	t.Cleanup(func() { asked.Clear() })
	file := userFile(t)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte(c.issuer.CA), 0o600); err != nil {
		t.Fatal(err)
	}
	data = fmt.Appendf(data, "providers:\n- {name: corp, title: Corp, issuer: %q, clientID: annex, clientSecret: s3cret, "+
		"certificateAuthorityFile: %q}\n", c.issuer.URL, ca)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	configuration := newCallersFile(t, "AuthenticationConfiguration", issuerEntry(c.issuer, "corp:"))
	c.client = startWith(
		t,
		shop(),
		annex.Options{Storage: memory.Storage(), AuthenticationConfigFile: configuration.path, Login: annex.LoginOptions{UserFile: file}},
	)
	c.browser = c.stranger("")
	c.browser.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.base = c.config.Host
	c.code = func(request url.Values) string {
		code := fmt.Sprint("code of ", request.Get("state"))
		asked.Store(code, request)
		return code
	}
	// Its keys are known shortly after the start.
	c.stranger(c.issuer.Token(map[string]any{"sub": "x"})).until(200, func() *answer {
		return c.stranger(c.issuer.Token(map[string]any{"sub": "x"})).get("/apis")
	})
	return c
}

// leave begins to sign in, and returns the request to the issuer and the cookie.
func (c *corp) leave(path string) (url.Values, string) {
	c.t.Helper()
	a := c.browser.get(path).want(303)
	to, err := url.Parse(a.header.Get("Location"))
	if err != nil || !strings.HasPrefix(to.String(), c.issuer.URL+"/authorize?") {
		c.t.Fatalf("sent to %q: %v", to, err)
	}
	cookie, attributes, _ := strings.Cut(a.header.Get("Set-Cookie"), "; ")
	if !strings.Contains(attributes, "HttpOnly; Secure; SameSite=Lax") || !strings.Contains(attributes, "Max-Age=600") {
		c.t.Errorf("the cookie: %s", attributes)
	}
	return to.Query(), cookie
}

func (c *corp) back(cookie string, pairs ...string) *answer {
	c.t.Helper()
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	return c.browser.get("/oauth/callback?"+values.Encode(), "Cookie", cookie)
}

func TestLogin_issuer(t *testing.T) {
	t.Parallel()
	c := withCorp(t, func(map[string]any) {})
	request, cookie := c.leave("/oauth/login?provider=corp&return=/console/")
	if request.Get("scope") != "openid profile email" || request.Get("code_challenge_method") != "S256" ||
		request.Get("redirect_uri") != c.base+"/oauth/callback" {
		t.Errorf("asked %v", request)
	}
	a := c.back(cookie, "code", c.code(request), "state", request.Get("state"), "iss", c.issuer.URL).want(303)
	if a.header.Get("Location") != "/console/" {
		t.Errorf("sent to %q", a.header.Get("Location"))
	}
	var session string
	for _, set := range a.header.Values("Set-Cookie") {
		if strings.HasPrefix(set, "__Host-annex-session") {
			session, _, _ = strings.Cut(set, ";")
		}
	}
	var got granted
	decode(
		t,
		c.browser.do("POST", "/oauth/session/token", nil, "Cookie", session, "X-Annex-Session", "1", "Origin", c.base).want(200).raw,
		&got,
	)
	if who := c.stranger(got.Access).
		self(); who.Username != "corp:jane" ||
		!slices.Equal(who.Groups, []string{"corp:readers", "system:authenticated"}) {
		t.Errorf("jane is %+v", who)
	}
	// A used code is worthless.
	c.back(cookie, "code", "code of "+request.Get("state"), "state", request.Get("state")).want(403)
}

func TestLogin_issuer_rejections(t *testing.T) {
	t.Parallel()
	var change atomic.Pointer[func(map[string]any)]
	good := func(map[string]any) {}
	change.Store(&good)
	c := withCorp(t, func(claims map[string]any) { (*change.Load())(claims) })
	for name, path := range map[string]string{
		"a foreign page": "/oauth/login?provider=corp&return=https://evil.example.com/",
		"a foreign host": "/oauth/login?provider=corp&return=//evil.example.com/",
		"a backslash":    "/oauth/login?provider=corp&return=/%5Cevil.example.com/",
		"a line break":   "/oauth/login?provider=corp&return=/%0aLocation:x",
		"twice":          "/oauth/login?provider=corp&provider=corp", "a script": "/oauth/login?provider=corp&return=javascript:alert(1)",
	} {
		if a := c.browser.get(path); a.code != 400 || a.header.Get("Location") != "" {
			t.Errorf("%s: %d to %q", name, a.code, a.header.Get("Location"))
		}
	}
	for _, path := range []string{"/oauth/login", "/oauth/login?provider=other"} {
		c.browser.get(path).want(404)
	}
	for name, wrong := range map[string]func(map[string]any){
		"another nonce":    func(claims map[string]any) { claims["nonce"] = "x" },
		"no nonce":         func(claims map[string]any) { delete(claims, "nonce") },
		"another audience": func(claims map[string]any) { claims["aud"] = "others" },
		"another party":    func(claims map[string]any) { claims["azp"] = "others" },
		"two audiences":    func(claims map[string]any) { claims["aud"] = []string{"annex", "others"} },
		"expired":          func(claims map[string]any) { claims["exp"] = 1 },
		"another issuer":   func(claims map[string]any) { claims["iss"] = "https://elsewhere.example.com" },
		"no user":          func(claims map[string]any) { delete(claims, "sub") },
	} {
		change.Store(&wrong)
		request, cookie := c.leave("/oauth/login?provider=corp")
		a := c.back(cookie, "code", c.code(request), "state", request.Get("state"))
		if a.code != 403 || strings.Contains(strings.Join(a.header.Values("Set-Cookie"), ";"), "annex-session") {
			t.Errorf("%s: %d %s", name, a.code, a.raw)
		}
	}
	change.Store(&good)
	request, cookie := c.leave("/oauth/login?provider=corp")
	for name, test := range map[string]struct {
		code   int
		cookie string
		pairs  []string
	}{
		"no cookie":     {400, "", []string{"code", "x", "state", request.Get("state")}},
		"a broken one":  {400, "__Host-annex-provider=x", []string{"code", "x", "state", request.Get("state")}},
		"another state": {400, cookie, []string{"code", "x", "state", "y"}},
		"no state":      {400, cookie, []string{"code", "x"}},
		"no code":       {403, cookie, []string{"state", request.Get("state")}},
		"an error":      {403, cookie, []string{"state", request.Get("state"), "error", "<script>"}},
		"another code":  {403, cookie, []string{"state", request.Get("state"), "code", "x"}},
		"mixed up":      {403, cookie, []string{"state", request.Get("state"), "code", c.code(request), "iss", "https://elsewhere.example.com"}},
	} {
		if a := c.back(test.cookie, test.pairs...); a.code != test.code || strings.Contains(string(a.raw), "<script") {
			t.Errorf("%s: %d %s", name, a.code, a.raw)
		}
	}
}

func TestLogin_providerWithoutIssuer_isRejected(t *testing.T) {
	t.Parallel()
	file := userFile(t)
	if err := os.WriteFile(
		file,
		[]byte("providers: [{name: corp, issuer: 'https://corp.example.com', clientID: annex}]"),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	instance, err := annex.New(t.Context(), shop(), annex.Options{Storage: memory.Storage(), Login: annex.LoginOptions{UserFile: file}})
	if err == nil {
		instance.Close()
		t.Fatal("no error")
	}
	if want := `provider "corp": Options.AuthenticationConfigFile has no entry for its issuer`; !strings.Contains(
		err.Error(),
		want,
	) {
		t.Errorf("got %q, want %q in it", err, want)
	}
}
