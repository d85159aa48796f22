package login

import (
	"context"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

const (
	verifier  = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk" // from RFC 7636, appendix B
	challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
	appURI    = "http://127.0.0.1:7777/back"
)

// request returns a valid request for a code of the public client, modified by pairs of names and values.
func request(pairs ...string) url.Values {
	values := url.Values{
		"response_type": {"code"}, "client_id": {"app"}, "redirect_uri": {appURI}, "state": {"the state"},
		"code_challenge": {challenge}, "code_challenge_method": {"S256"},
	}
	for i := 0; i < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	return values
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]*)"`)

// authorize opens the page, submits the form and returns the response to the form.
func (f *fixture) authorize(password string, values url.Values) reply {
	f.t.Helper()
	page := f.send("GET", here+"/oauth/authorize?"+values.Encode(), "")
	found := csrfField.FindStringSubmatch(page.raw)
	if page.code != 200 || found == nil {
		f.t.Fatalf("the page: %d %s", page.code, page.raw)
	}
	cookie, _, _ := strings.Cut(page.header.Get("Set-Cookie"), ";")
	values.Set("csrf", html.UnescapeString(found[1]))
	values.Set("username", "alice")
	values.Set("password", password)
	return f.send(
		"POST",
		here+"/oauth/authorize",
		values.Encode(),
		"Content-Type",
		formType,
		"Cookie",
		cookie,
		"Origin",
		here,
		"Sec-Fetch-Site",
		"same-origin",
	)
}

// code signs in and returns the code.
func (f *fixture) code() string {
	f.t.Helper()
	a := f.authorize("wonderland", request())
	to, err := url.Parse(a.header.Get("Location"))
	if err != nil || a.code != http.StatusSeeOther || !strings.HasPrefix(to.String(), appURI+"?") || to.Query().Get("state") != "the state" ||
		to.Query().Get("iss") != here+"/oauth" {
		f.t.Fatalf("%d to %s: %s", a.code, to, a.raw)
	}
	return to.Query().Get("code")
}

func (f *fixture) exchange(code string, pairs ...string) reply {
	f.t.Helper()
	all := map[string]string{
		"grant_type":    "authorization_code",
		"client_id":     "app",
		"redirect_uri":  appURI,
		"code_verifier": verifier,
		"code":          code,
	}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	var flat []string
	for name, value := range all {
		flat = append(flat, name, value)
	}
	return f.post("/oauth/token", flat...)
}

func TestExchange_code_onlyOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	code := f.code()
	a := f.exchange(code)
	if got := f.caller(a.text("access_token")); a.code != 200 || got != "alice [staff]" {
		t.Fatalf("%d %s of %s", a.code, a.raw, got)
	}
	refreshed := f.post("/oauth/token", "grant_type", "refresh_token", "refresh_token", a.text("refresh_token"), "client_id", "app")
	if refreshed.code != 200 {
		t.Errorf("refreshed: %d %s", refreshed.code, refreshed.raw)
	}
	// A code that is used twice may have been stolen, so the session ends.
	f.want(f.exchange(code), 400, invalidGrant)
	if got := f.caller(a.text("access_token")); got != "token of alice: the session has ended" {
		t.Errorf("after the reuse: %s", got)
	}
}

// meanwhile calls do before the next create, or read after the next get.
type meanwhile struct {
	storage.Interface
	do, read func()
}

func (m *meanwhile) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	err := m.Interface.Get(ctx, key, opts, out)
	if do := m.read; do != nil {
		m.read = nil
		do()
	}
	return err
}

func (m *meanwhile) Create(ctx context.Context, key string, object, out runtime.Object, ttl uint64) error {
	if do := m.do; do != nil {
		m.do = nil
		do()
	}
	return m.Interface.Create(ctx, key, object, out, ttl)
}

func TestExchange_concurrentReuse_endsSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	code := f.code()
	stored := &meanwhile{Interface: f.sessions.storage}
	stored.do = func() { f.want(f.exchange(code), 400, invalidGrant) }
	f.sessions.storage = stored
	f.want(f.exchange(code), 400, invalidGrant)
	stored.do = func() { t.Error("there was a session again") }
	f.want(f.exchange(code), 400, invalidGrant)
}

func TestSessions_endDuringGet_isNotCached(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.signIn().text("access_token")
	f.sessions.storage = &meanwhile{Interface: f.sessions.storage, read: func() { f.post("/oauth/revoke", "token", token) }}
	f.caller(token) // may succeed: the session ends during this lookup
	if got := f.caller(token); got != "token of alice: the session has ended" {
		t.Errorf("after the end: %s", got)
	}
}

func TestExchange_otherRequest_isRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	code := f.code()
	for name, pairs := range map[string][]string{
		"another verifier":     {"code_verifier", strings.Repeat("x", 43)},
		"another redirect URI": {"redirect_uri", "http://127.0.0.1:7777/other"},
		"no redirect URI":      {"redirect_uri", ""},
		"another client":       {"client_id", "shop", "client_secret", "shop's secret"},
		"another code":         {"code", newTicket().String()},
		"a broken code":        {"code", "x"},
	} {
		if a := f.exchange(code, pairs...); a.code != 400 || a.text("error") != invalidGrant {
			t.Errorf("%s: %d %s", name, a.code, a.raw)
		}
	}
	for name, pairs := range map[string][]string{"no verifier": {"code_verifier", ""}, "no code": {"code", ""},
		"no client": {"client_id", ""}} {
		if a := f.exchange(code, pairs...); a.code != 400 || a.text("error") != invalidRequest {
			t.Errorf("%s: %d %s", name, a.code, a.raw)
		}
	}
	if a := f.post("/oauth/token", "grant_type", "refresh_token", "refresh_token", code, "client_id", "app"); a.code != 400 {
		t.Errorf("a code as a refresh token: %d %s", a.code, a.raw)
	}
	f.pass(codeLifetime - time.Second)
	if a := f.exchange(code); a.code != 200 {
		t.Errorf("the right one: %d %s", a.code, a.raw)
	}
	late := f.code()
	f.pass(codeLifetime)
	f.want(f.exchange(late), 400, invalidGrant)
}

func TestAuthorize_invalidRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, pairs := range map[string][]string{
		"no client":             {"client_id", ""},
		"an unknown client":     {"client_id", "x"},
		"no redirect URI":       {"redirect_uri", ""},
		"another redirect URI":  {"redirect_uri", "https://evil.example.com/"},
		"a longer redirect URI": {"redirect_uri", appURI + "/x"},
		"with a query":          {"redirect_uri", appURI + "?x=y"},
		"another client":        {"redirect_uri", "https://shop.example.com/back"},
		"another port":          {"redirect_uri", "http://127.0.0.1:7778/back"},
	} {
		a := f.send("GET", here+"/oauth/authorize?"+request(pairs...).Encode(), "")
		if a.code != 400 || a.header.Get("Location") != "" || strings.Contains(a.raw, "<form") {
			t.Errorf("%s: %d to %q: %s", name, a.code, a.header.Get("Location"), a.raw)
		}
	}
	for name, test := range map[string]struct {
		pairs []string
		kind  string
	}{
		"no type":           {[]string{"response_type", ""}, "unsupported_response_type"},
		"the implicit one":  {[]string{"response_type", "token"}, "unsupported_response_type"},
		"a scope":           {[]string{"scope", "openid"}, invalidScope},
		"no method":         {[]string{"code_challenge_method", ""}, invalidRequest},
		"plain":             {[]string{"code_challenge_method", "plain"}, invalidRequest},
		"no challenge":      {[]string{"code_challenge", ""}, invalidRequest},
		"a short challenge": {[]string{"code_challenge", "abc"}, invalidRequest},
		"a long state":      {[]string{"state", strings.Repeat("x", maxState+1)}, invalidRequest},
	} {
		a := f.send("GET", here+"/oauth/authorize?"+request(test.pairs...).Encode(), "")
		to, err := url.Parse(a.header.Get("Location"))
		if err != nil || a.code != http.StatusSeeOther || to.Query().Get("error") != test.kind || to.Query().Get("code") != "" ||
			!strings.HasPrefix(to.String(), appURI) {
			t.Errorf("%s: %d to %s", name, a.code, to)
		}
	}
	if a := f.send(
		"GET",
		here+"/oauth/authorize?"+request().Encode()+"&state=again",
		"",
	); !strings.Contains(
		a.header.Get("Location"),
		"error=invalid_request",
	) {
		t.Errorf("twice: %d %v", a.code, a.header)
	}
	if a := f.send(
		"GET",
		here+"/oauth/authorize?"+request().Encode()+"&redirect_uri=https://evil.example.com",
		"",
	); a.code != 400 ||
		a.header.Get("Location") != "" {
		t.Errorf("another redirect URI as well: %d %v", a.code, a.header)
	}
}

func TestShow_securityHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const script = `"><script>alert(1)</script>`
	a := f.send("GET", here+"/oauth/authorize?"+request("state", script).Encode(), "")
	policy := a.header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self' " +
		"http://127.0.0.1:7777;"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q lacks %s", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "script-src") || a.header.Get("X-Frame-Options") != "DENY" ||
		a.header.Get("Referrer-Policy") != "no-referrer" {
		t.Errorf("headers: %v", a.header)
	}
	if strings.Contains(a.raw, "<script") {
		t.Errorf("the page: %s", a.raw)
	}
	wrong := f.authorize("wrong", request("state", script))
	if wrong.code != 400 || strings.Contains(wrong.raw, "<script") || !strings.Contains(wrong.raw, `value="alice"`) ||
		strings.Contains(wrong.raw, `value="wrong"`) {
		t.Errorf("a wrong password: %d %s", wrong.code, wrong.raw)
	}
}

func TestAuthorized_otherOrigin_isRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	values := request("username", "alice", "password", "wonderland", "csrf", "chosen")
	for name, headers := range map[string][]string{
		"no cookie":        {"Origin", here},
		"another cookie":   {"Origin", here, "Cookie", "__Host-annex-authorize=other"},
		"a cookie of HTTP": {"Origin", here, "Cookie", "annex-authorize=chosen"},
		"another origin":   {"Origin", "https://evil.example.com", "Cookie", "__Host-annex-authorize=chosen"},
		"cross-site":       {"Sec-Fetch-Site", "cross-site", "Cookie", "__Host-annex-authorize=chosen"},
	} {
		a := f.send("POST", here+"/oauth/authorize", values.Encode(), append([]string{"Content-Type", formType}, headers...)...)
		if a.code != 403 || a.header.Get("Location") != "" {
			t.Errorf("%s: %d %s", name, a.code, a.raw)
		}
	}
}

func FuzzAuthorize(f *testing.F) {
	f.Add(request().Encode())
	f.Add("client_id=app&redirect_uri=%00")
	f.Add("client_id=app&redirect_uri=" + url.QueryEscape(appURI) + "&state=%zz")
	l := newFixture(f)
	f.Fuzz(func(t *testing.T, query string) {
		if strings.ContainsAny(query, " \r\n#") || strings.ContainsFunc(query, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
			return // such bytes cannot occur in a request
		}
		of := *l
		of.t = t
		a := of.send("GET", here+"/oauth/authorize?"+query, "")
		if to := a.header.Get(
			"Location",
		); to != "" && !strings.HasPrefix(to, appURI+"?") &&
			!strings.HasPrefix(to, "https://shop.example.com/back?") {
			t.Errorf("%q leads to %q", query, to)
		}
		if strings.Contains(a.raw, "<script") {
			t.Errorf("%q: %s", query, a.raw)
		}
	})
}

func FuzzTokens(f *testing.F) {
	l := newFixture(f)
	good := l.signIn().text("access_token")
	f.Add(good)
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, token string) {
		if _, ok, _ := l.AuthenticateToken(t.Context(), token); ok && token != good {
			t.Errorf("%q is a token", token)
		}
		parseTicket(token)
	})
}
