package login

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/kube-openapi/pkg/spec3"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/annexapi/annex/internal/identity/jws"
	"github.com/annexapi/annex/internal/storage/mvcc"
	"github.com/annexapi/annex/store/memory"
)

// keyRing signs with its first key.
type keyRing []*jws.Signer

func (k keyRing) Signer() *jws.Signer { return k[0] }

func (k keyRing) Key(id string) *jws.Key {
	for _, s := range k {
		if s.ID == id {
			return s.Key
		}
	}
	return nil
}

func (k keyRing) Verifying() (all []*jws.Key) {
	for _, s := range k {
		all = append(all, s.Key)
	}
	return all
}

func newSigner(t testing.TB) *jws.Signer {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jws.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// cheap returns a bcrypt hash of the minimum cost.
func cheap(t testing.TB, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(hash)
}

// fixture is a Login with alice, the disabled user mallory, the confidential client ci, the public client app, and
// shop, a client without groups that cannot be a caller.
type fixture struct {
	*Login
	t     testing.TB
	clock *clocktesting.FakePassiveClock
	path  string
	file  *File
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, clock: clocktesting.NewFakePassiveClock(time.Now()), path: filepath.Join(t.TempDir(), "users")}
	f.file = &File{
		Users: []User{
			{Name: "alice", UID: "1", Groups: []string{"staff"}, Password: cheap(t, "wonderland")},
			{Name: "mallory", UID: "2", Password: cheap(t, "disabled one"), Disabled: true},
		},
		Clients: []Client{
			{ID: "ci", Secret: cheap(t, "ci's secret"), Groups: []string{"robots"}},
			{ID: "shop", Secret: cheap(t, "shop's secret"), RedirectURIs: []string{"https://shop.example.com/back"}},
			{ID: "app", RedirectURIs: []string{"http://127.0.0.1:7777/back"}},
		},
	}
	f.write()
	core, err := mvcc.Open(t.Context(), memory.New(), mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := core.Close(); err != nil {
			t.Error(err)
		}
	})
	sessions, err := core.Open(Stored())
	if err != nil {
		t.Fatal(err)
	}
	f.Login, err = Open(Options{
		UserFile: f.path, Issuer: "https://shop/oauth", Audiences: []string{"https://shop"}, Title: "shop",
		Keys: keyRing{newSigner(t)}, Sessions: sessions, Clock: f.clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// write writes and reloads the user file, which the tests do not watch.
func (f *fixture) write() {
	f.t.Helper()
	data, err := yaml.Marshal(f.file)
	if err == nil {
		err = os.WriteFile(f.path, data, 0o600)
	}
	if err == nil && f.Login != nil {
		err = f.users.load()
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) pass(d time.Duration) { f.clock.SetTime(f.clock.Now().Add(d)) }

type reply struct {
	code   int
	header http.Header
	raw    string
	body   map[string]any
}

func (r reply) text(name string) string { s, _ := r.body[name].(string); return s }

func (f *fixture) send(method, path, body string, headers ...string) reply {
	f.t.Helper()
	r := httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	f.Handler().ServeHTTP(w, r)
	a := reply{w.Code, w.Header(), w.Body.String(), nil}
	_ = json.Unmarshal(w.Body.Bytes(), &a.body) // not every body is JSON
	return a
}

const formType = "application/x-www-form-urlencoded"

// post sends a form of alternating names and values.
func (f *fixture) post(path string, pairs ...string) reply {
	f.t.Helper()
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Add(pairs[i], pairs[i+1])
	}
	return f.send(http.MethodPost, path, values.Encode(), "Content-Type", formType)
}

func (f *fixture) signIn() reply {
	f.t.Helper()
	a := f.post("/oauth/token", "grant_type", "password", "username", "alice", "password", "wonderland")
	if a.code != http.StatusOK {
		f.t.Fatalf("alice cannot sign in: %d %s", a.code, a.raw)
	}
	return a
}

// caller returns the user and groups of a token, or the error text.
func (f *fixture) caller(token string) string {
	response, ok, err := f.AuthenticateToken(f.t.Context(), token)
	switch {
	case err != nil:
		return err.Error()
	case !ok:
		return "no opinion"
	}
	return fmt.Sprintf("%s %v", response.User.GetName(), response.User.GetGroups())
}

func (f *fixture) want(a reply, code int, kind string) {
	f.t.Helper()
	if a.code != code || a.text("error") != kind {
		f.t.Errorf("got %d %s, want %d %s", a.code, a.raw, code, kind)
	}
}

func TestToken_password(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.signIn()
	if a.text("token_type") != "Bearer" || a.body["expires_in"] != 900.0 || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("answered %s with %v", a.raw, a.header)
	}
	if got := f.caller(a.text("access_token")); got != "alice [staff]" {
		t.Errorf("the token is of %s", got)
	}
	parsed, err := jws.Parse(a.text("access_token"))
	if err != nil || parsed.Algorithm != "ES256" {
		t.Errorf("the token: %+v, %v", parsed, err)
	}
	f.pass(DefaultTokenLifetime)
	if got := f.caller(a.text("access_token")); got != "the token of alice has expired" {
		t.Errorf("after its life: %s", got)
	}
}

func TestAuthenticateToken_changedUserFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*File)
		want   string
	}{
		"other groups":   {func(f *File) { f.Users[0].Groups = []string{"guests"} }, "alice [guests]"},
		"disabled":       {func(f *File) { f.Users[0].Disabled = true }, ""},
		"deleted":        {func(f *File) { f.Users = f.Users[1:] }, ""},
		"made again":     {func(f *File) { f.Users[0].UID = "3" }, ""},
		"other password": {func(f *File) { f.Users[0].Password = cheap(t, "wonderland") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			a := f.signIn()
			test.change(f.file)
			f.write()
			want, code := "token of alice: "+errRefused.Error(), http.StatusBadRequest
			if test.want != "" {
				want, code = test.want, http.StatusOK
			}
			if got := f.caller(a.text("access_token")); got != want {
				t.Errorf("the token is of %s, want %s", got, want)
			}
			if again := f.post("/oauth/token", "grant_type", "refresh_token", "refresh_token", a.text("refresh_token")); again.code != code {
				t.Errorf("refreshed: %d %s", again.code, again.raw)
			}
		})
	}
}

func TestRefresh_reuse_endsSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := f.signIn()
	refresh := func(token string) reply {
		return f.post("/oauth/token", "grant_type", "refresh_token", "refresh_token", token)
	}
	second := refresh(first.text("refresh_token"))
	if second.code != http.StatusOK || second.text("refresh_token") == first.text("refresh_token") {
		t.Fatalf("refreshed: %d %s", second.code, second.raw)
	}
	for _, a := range []reply{first, second} {
		if got := f.caller(a.text("access_token")); got != "alice [staff]" {
			t.Errorf("before the reuse: %s", got)
		}
	}
	f.want(refresh(first.text("refresh_token")), 400, invalidGrant)
	f.want(refresh(second.text("refresh_token")), 400, invalidGrant)
	for _, a := range []reply{first, second} {
		if got := f.caller(a.text("access_token")); got != "token of alice: the session has ended" {
			t.Errorf("after the reuse: %s", got)
		}
	}
}

func TestRefresh_concurrent_oneSucceeds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.signIn().text("refresh_token")
	var all sync.WaitGroup
	codes := make(chan int, 8)
	for range cap(codes) {
		all.Go(func() {
			codes <- f.post("/oauth/token", "grant_type", "refresh_token", "refresh_token", token).code
		})
	}
	all.Wait()
	close(codes)
	won := 0
	for code := range codes {
		if code == http.StatusOK {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d refreshes won", won)
	}
}

func TestSessions_expire(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.signIn()
	for begun := time.Duration(0); begun < DefaultSessionLifetime; begun += DefaultIdleTimeout / 2 {
		if a = f.post("/oauth/token", "grant_type", "refresh_token", "refresh_token", a.text("refresh_token")); a.code != http.StatusOK {
			t.Fatalf("after %s: %d %s", begun, a.code, a.raw)
		}
		f.pass(DefaultIdleTimeout / 2)
	}
	f.want(f.post("/oauth/token", "grant_type", "refresh_token", "refresh_token", a.text("refresh_token")), 400, invalidGrant)
}

func TestToken_clientCredentials(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, a := range map[string]reply{
		"in the body": f.post("/oauth/token", "grant_type", "client_credentials", "client_id", "ci", "client_secret", "ci's secret"),
		"basic": f.send("POST", "/oauth/token", "grant_type=client_credentials", "Content-Type", formType, "Authorization",
			basic("ci", "ci's secret")),
	} {
		if got := f.caller(a.text("access_token")); a.code != 200 || got != "client:ci [robots]" || a.text("refresh_token") != "" {
			t.Errorf("%s: %d %s of %s", name, a.code, a.raw, got)
		}
	}
}

func basic(id, secret string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(id)+":"+url.QueryEscape(secret)))
}

func TestRevoke_endsAllTokens(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"access_token", "refresh_token"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			a, other := f.signIn(), f.signIn()
			if revoked := f.post("/oauth/revoke", "token", a.text(which), "token_type_hint", "whatever"); revoked.code != 200 {
				t.Fatalf("revoked: %d %s", revoked.code, revoked.raw)
			}
			if got := f.caller(a.text("access_token")); got != "token of alice: the session has ended" {
				t.Errorf("the access token: %s", got)
			}
			f.want(f.post("/oauth/token", "grant_type", "refresh_token", "refresh_token", a.text("refresh_token")), 400, invalidGrant)
			if got := f.caller(other.text("access_token")); got != "alice [staff]" {
				t.Errorf("the other session: %s", got)
			}
			for _, unknown := range []string{"x", a.text(which), "a.b.c"} {
				if again := f.post("/oauth/revoke", "token", unknown); again.code != 200 {
					t.Errorf("an unknown token: %d %s", again.code, again.raw)
				}
			}
		})
	}
}

func TestToken_invalidRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ofShop := f.post(
		"/oauth/token",
		"grant_type",
		"password",
		"username",
		"alice",
		"password",
		"wonderland",
		"client_id",
		"shop",
		"client_secret",
		"shop's secret",
	)
	tooLarge := "grant_type=password&username=" + strings.Repeat("x", maxBody)
	type headers = []string
	for name, test := range map[string]struct {
		body    string
		headers headers
		code    int
		kind    string
	}{
		"nothing":            {"", nil, 400, invalidRequest},
		"no grant":           {"username=alice&password=wonderland", nil, 400, invalidRequest},
		"unknown grant":      {"grant_type=magic", nil, 400, unsupportedGrant},
		"a scope":            {"grant_type=password&username=alice&password=wonderland&scope=all", nil, 400, invalidScope},
		"no user":            {"grant_type=password&password=wonderland", nil, 400, invalidRequest},
		"no password":        {"grant_type=password&username=alice", nil, 400, invalidRequest},
		"wrong password":     {"grant_type=password&username=alice&password=x", nil, 400, invalidGrant},
		"a long password":    {"grant_type=password&username=alice&password=" + strings.Repeat("x", 1000), nil, 400, invalidGrant},
		"unknown user":       {"grant_type=password&username=bob&password=wonderland", nil, 400, invalidGrant},
		"a long name":        {"grant_type=password&username=" + strings.Repeat("x", 10000) + "&password=y", nil, 400, invalidGrant},
		"disabled user":      {"grant_type=password&username=mallory&password=disabled+one", nil, 400, invalidGrant},
		"twice":              {"grant_type=password&username=alice&username=bob&password=x", nil, 400, invalidRequest},
		"no form":            {"%zz", nil, 400, invalidRequest},
		"JSON":               {`{"grant_type":"password"}`, headers{"Content-Type", "application/json"}, 415, invalidRequest},
		"no type":            {"grant_type=password", headers{"Content-Type", ""}, 415, invalidRequest},
		"too large":          {tooLarge, nil, 413, invalidRequest},
		"unknown client":     {"grant_type=client_credentials&client_id=x&client_secret=y", nil, 401, invalidClient},
		"wrong secret":       {"grant_type=client_credentials&client_id=ci&client_secret=y", nil, 401, invalidClient},
		"no secret":          {"grant_type=client_credentials&client_id=ci", nil, 401, invalidClient},
		"no client":          {"grant_type=client_credentials", nil, 401, invalidClient},
		"a bearer as client": {"grant_type=client_credentials", headers{"Authorization", "Bearer x"}, 401, invalidClient},
		"wrong basic":        {"grant_type=client_credentials", headers{"Authorization", basic("ci", "x")}, 401, invalidClient},
		"basic and body": {"grant_type=client_credentials&client_secret=x", headers{"Authorization", basic("ci", "x")}, 400,
			invalidRequest},
		"basic of another": {"grant_type=client_credentials&client_id=app", headers{"Authorization", basic("ci", "x")}, 400,
			invalidRequest},
		"no encoding": {"grant_type=client_credentials",
			headers{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("%zz:x"))}, 400, invalidRequest},
		"a client without groups": {"grant_type=client_credentials&client_id=shop&client_secret=shop%27s+secret", nil, 400, unauthorized},
		"a public client":         {"grant_type=client_credentials&client_id=app", nil, 400, unauthorized},
		"a public one's secret":   {"grant_type=client_credentials&client_id=app&client_secret=x", nil, 401, invalidClient},
		"no refresh token":        {"grant_type=refresh_token", nil, 400, invalidRequest},
		"a foreign one":           {"grant_type=refresh_token&refresh_token=" + ticket{}.String(), nil, 400, invalidGrant},
		"a broken one":            {"grant_type=refresh_token&refresh_token=%2b", nil, 400, invalidGrant},
		"another client":          {"grant_type=refresh_token&refresh_token=" + ofShop.text("refresh_token"), nil, 400, invalidGrant},
	} {
		t.Run(name, func(t *testing.T) {
			a := f.send(http.MethodPost, "/oauth/token", test.body, append(headers{"Content-Type", formType}, test.headers...)...)
			if a.code != test.code || a.text("error") != test.kind || a.text("error_description") == "" {
				t.Errorf("got %d %s, want %d %s", a.code, a.raw, test.code, test.kind)
			}
			if a.header.Get("Cache-Control") != "no-store" || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("headers %v", a.header)
			}
			if asks := a.header.Get("WWW-Authenticate") != ""; asks && a.code != 401 {
				t.Errorf("it asks for credentials with %d", a.code)
			}
			f.pass(time.Hour) // separates the test cases, so that attempts of one do not count for another
		})
	}
	if a := f.post("/oauth/token?grant_type=password", "username", "alice", "password", "wonderland"); a.code != 400 {
		t.Errorf("parameters in the URL: %d %s", a.code, a.raw)
	}
	for _, method := range []string{"GET", "PUT", "DELETE", "HEAD", "PATCH"} {
		if a := f.send(method, "/oauth/token", ""); a.code != 405 || a.header.Get("Allow") != "POST" {
			t.Errorf("%s: %d, Allow %q", method, a.code, a.header.Get("Allow"))
		}
	}
	for _, path := range []string{"/oauth/", "/oauth/x", "/oauth/token/", "/oauth/token/x"} {
		if a := f.send("POST", path, ""); a.code != 404 {
			t.Errorf("%s: %d", path, a.code)
		}
	}
	if a := f.post(
		"/oauth/token",
		"grant_type",
		"refresh_token",
		"refresh_token",
		ofShop.text("refresh_token"),
		"client_id",
		"shop",
		"client_secret",
		"shop's secret",
	); a.code != 400 {
		t.Errorf("it has been idle for more than a day: %d %s", a.code, a.raw)
	}
}

func TestAuthenticateToken_foreignToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	good := f.signIn().text("access_token")
	parts := strings.Split(good, ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var have map[string]any
	if err := json.Unmarshal(payload, &have); err != nil {
		t.Fatal(err)
	}
	with := func(name string, value any) string {
		changed := map[string]any{}
		for k, v := range have {
			changed[k] = v
		}
		changed[name] = value
		data, err := json.Marshal(changed)
		if err != nil {
			t.Fatal(err)
		}
		token, err := f.options.Keys.Signer().Sign(data)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"`+f.options.Keys.Signer().ID+`"}`)) + "." + parts[1] + "."
	hmac := base64.RawURLEncoding.EncodeToString(
		[]byte(`{"alg":"HS256","kid":"`+f.options.Keys.Signer().ID+`"}`),
	) + "." + parts[1] + "." + parts[2]
	foreign, err := newSigner(t).Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	now := f.clock.Now()
	for name, test := range map[string]struct{ token, want string }{
		"nothing":             {"", "no opinion"},
		"no token":            {"a.b.c", "no opinion"},
		"alg none":            {none, "algorithm"},
		"alg HS256":           {hmac, "algorithm"},
		"a foreign key":       {foreign, "is unknown or retired"},
		"a changed signature": {parts[0] + "." + parts[1] + "." + strings.Repeat("A", len(parts[2])), "signature is wrong"},
		"another issuer":      {with("iss", "https://shop"), "no opinion"},
		"another audience":    {with("aud", []string{"other"}), "is for the audiences"},
		"another session":     {with("sid", "../x"), "the session has ended"},
		"no session":          {with("sid", ""), "the session has ended"},
		"from the future":     {with("nbf", now.Add(2*time.Minute).Unix()), "is not valid yet"},
		"issued later":        {with("iat", now.Add(2*time.Minute).Unix()), "is not valid yet"},
		"a clock behind":      {with("nbf", now.Add(30*time.Second).Unix()), "alice [staff]"},
		"expired":             {with("exp", now.Unix()), "has expired"},
		"without expiry":      {with("exp", 0), "has expired"},
		"a subject of choice": {with("sub", "root"), "alice [staff]"}, // the session determines the user
	} {
		if got := f.caller(test.token); !strings.Contains(got, test.want) || got == "" {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"elsewhere"})
	if _, ok, err := f.AuthenticateToken(ctx, good); ok || err == nil {
		t.Errorf("for other audiences: %v, %v", ok, err)
	}
}

func TestGuard_wrongPasswords_limited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tried := 0
	for i := range 10_000 {
		a := f.post("/oauth/token", "grant_type", "password", "username", "alice", "password", fmt.Sprint("wrong", i))
		switch a.code {
		case http.StatusBadRequest:
			tried++
		case http.StatusTooManyRequests:
			if a.header.Get("Retry-After") == "" || a.text("error") != unavailable {
				t.Fatalf("attempt %d: %s with %v", i, a.raw, a.header)
			}
		default:
			t.Fatalf("attempt %d: %d %s", i, a.code, a.raw)
		}
	}
	if tried != int(perNameAndAddress.burst) {
		t.Errorf("%d passwords were tried, want %v", tried, perNameAndAddress.burst)
	}
	// Alice can still sign in from another address, and other users can from this one.
	r := httptest.NewRequest(http.MethodPost, "/oauth/token", strings.NewReader("grant_type=password&username=alice&password=wonderland"))
	r.RemoteAddr = "203.0.113.9:1"
	r.Header.Set("Content-Type", formType)
	w := httptest.NewRecorder()
	f.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Errorf("from elsewhere: %d %s", w.Code, w.Body)
	}
	if a := f.post("/oauth/token", "grant_type", "client_credentials", "client_id", "ci", "client_secret", "ci's secret"); a.code != 200 {
		t.Errorf("another from here: %d %s", a.code, a.raw)
	}
	f.pass(perNameAndAddress.every)
	f.signIn()
}

// Correct passwords use as much processor time as wrong ones. An attempt with the correct secret of a disabled user
// must count against the limits as well, else the limits would reveal that the secret is correct.
func TestLogin_disabledUserCountsAsWrong(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		disable func(file *File)
		request []string
	}{
		"a user": {func(*File) {}, []string{"grant_type", "password", "username", "mallory", "password", "disabled one"}},
		"a client": {func(file *File) { file.Clients[0].Disabled = true },
			[]string{"grant_type", "client_credentials", "client_id", "ci", "client_secret", "ci's secret"}},
	} {
		f := newFixture(t)
		test.disable(f.file)
		f.write()
		tried := 0
		for range 5 * int(perNameAndAddress.burst) {
			if a := f.post("/oauth/token", test.request...); a.code != http.StatusTooManyRequests {
				tried++
			}
		}
		if tried != int(perNameAndAddress.burst) {
			t.Errorf("%s: %d tries, want %v", name, tried, perNameAndAddress.burst)
		}
	}
}

func TestGuard_correctPasswords_limited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ask := func() int {
		return f.post("/oauth/token", "grant_type", "password", "username", "alice", "password", "wonderland").code
	}
	for i := range int(perRight.burst) {
		if code := ask(); code != http.StatusOK {
			t.Fatalf("sign-in %d: %d", i, code)
		}
	}
	if code := ask(); code != http.StatusTooManyRequests {
		t.Errorf("one more: %d", code)
	}
	if a := f.post("/oauth/token", "grant_type", "client_credentials", "client_id", "ci", "client_secret", "ci's secret"); a.code != 200 {
		t.Errorf("another: %d %s", a.code, a.raw)
	}
	f.pass(perRight.every)
	if code := ask(); code != http.StatusOK {
		t.Errorf("a second later: %d", code)
	}
}

func TestGuard_manyNamesFromAddress_limited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tried := 0
	for i := range 10_000 {
		if a := f.post(
			"/oauth/token",
			"grant_type",
			"password",
			"username",
			fmt.Sprint("user", i),
			"password",
			"x",
		); a.code == http.StatusBadRequest {
			tried++
		}
	}
	if tried != int(perAddress.burst) {
		t.Errorf("%d names were tried, want %v", tried, perAddress.burst)
	}
}

// from tries a password from an address and returns the status.
func (f *fixture) from(address, name, password string) int {
	f.t.Helper()
	r := httptest.NewRequest(
		http.MethodPost,
		"/oauth/token",
		strings.NewReader(url.Values{"grant_type": {"password"}, "username": {name}, "password": {password}}.Encode()),
	)
	r.RemoteAddr = address + ":1"
	r.Header.Set("Content-Type", formType)
	r.Header.Set("X-Forwarded-For", fmt.Sprint("198.51.100.", len(password)%250)) // spoofed by the client
	w := httptest.NewRecorder()
	f.Handler().ServeHTTP(w, r)
	return w.Code
}

func TestGuard_familiarAddress_notLockedOut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if code := f.from("192.0.2.1", "alice", "wonderland"); code != http.StatusOK {
		t.Fatal(code)
	}
	tried := 0
	for i := range 1000 {
		if f.from(fmt.Sprintf("203.0.%d.%d", i/250, i%250), "alice", "wrong") == http.StatusBadRequest {
			tried++
		}
	}
	if tried != int(perName.burst) {
		t.Errorf("%d passwords were tried from everywhere, want %v", tried, perName.burst)
	}
	if code := f.from("192.0.2.1", "alice", "wonderland"); code != http.StatusOK {
		t.Errorf("where she has signed in: %d", code)
	}
	if code := f.from("192.0.2.2", "alice", "wonderland"); code != http.StatusTooManyRequests {
		t.Errorf("elsewhere: %d", code)
	}
	// The limit also holds for addresses from which alice has signed in.
	tried = 0
	for range 50 {
		if f.from("192.0.2.1", "alice", "wrong") == http.StatusBadRequest {
			tried++
		}
	}
	if tried != int(perNameAndAddress.burst) {
		t.Errorf("%d passwords were tried from her address", tried)
	}
	f.pass(familiarTime)
	if code := f.from("192.0.2.1", "alice", "wonderland"); code != http.StatusOK {
		t.Errorf("later: %d", code)
	}
}

// A client controls a whole IPv6 network. Trying many names must not make the server forget a limit.
func TestGuard_manyNames_keepLimits(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("tries hundreds of passwords")
	}
	f := newFixture(t)
	tried := 0
	for i := range 200 {
		if f.from(fmt.Sprintf("[2001:db8:0:1::%x]", i), "alice", "wrong") == http.StatusBadRequest {
			tried++
		}
	}
	if tried != int(perNameAndAddress.burst) {
		t.Errorf("%d passwords were tried from one network", tried)
	}
	names := 0
	for i := range 2 * remembered {
		if f.from("[2001:db8:0:1::1]", fmt.Sprint("user", i), "wrong") == http.StatusBadRequest {
			names++
		}
	}
	if names != int(perAddress.burst)-tried {
		t.Errorf("%d names were tried", names)
	}
	if f.guard.buckets.Len() > 3*int(perAddress.burst) {
		t.Errorf("%d names and addresses are remembered", f.guard.buckets.Len())
	}
	f.pass(perAddress.every)
	if code := f.from("[2001:db8:0:1::1]", "alice", "wrong"); code != http.StatusTooManyRequests {
		t.Errorf("alice, after that: %d", code)
	}
}

// The duration of a refusal matches the highest cost in the user file, regardless of the name.
func TestGuard_cheapHash_sameDuration(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	dear, err := bcrypt.GenerateFromPassword([]byte("expensive"), bcrypt.MinCost+5)
	if err != nil {
		t.Fatal(err)
	}
	f.file.Users = append(f.file.Users, User{Name: "bob", UID: "3", Password: string(dear)})
	f.write()
	took := 0 // in units of the least cost
	matches := f.guard.matches
	f.guard.matches = func(hash, secret []byte) error {
		took += 1 << (costOf(string(hash)) - bcrypt.MinCost)
		return matches(hash, secret)
	}
	for _, name := range []string{"alice", "mallory", "bob", "no user", strings.Repeat("n", 300)} {
		for _, password := range []string{"wrong", strings.Repeat("x", MaxPassword+1)} {
			took = 0
			if f.from("192.0.2.1", name, password); took != 1<<5 {
				t.Errorf("%.10s: a wrong password of %d bytes takes %d units, want %d", name, len(password), took, 1<<5)
			}
		}
	}
}

// Every operation in the document exists with its method, and every endpoint is in the document.
func TestDocument_matchesHandler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	document := Document()
	for path, at := range document.Paths.Paths {
		for method, o := range map[string]*spec3.Operation{"GET": at.Get, "POST": at.Post, "DELETE": at.Delete} {
			a := f.send(method, path, "")
			if answers := a.code != http.StatusMethodNotAllowed && a.code != http.StatusNotFound; answers != (o != nil) {
				t.Errorf("%s %s: %d, and in the document %v", method, path, a.code, o != nil)
			}
		}
	}
	grants := document.Paths.Paths[tokenPath].Post.RequestBody.Content[formType].Schema
	answered := document.Paths.Paths[tokenPath].Post.Responses.StatusCodeResponses[200].Content["application/json"].Schema
	tokens := f.post(tokenPath, "grant_type", "password", "username", "alice", "password", "wonderland")
	var members map[string]any
	if err := json.Unmarshal(
		[]byte(tokens.raw),
		&members,
	); err != nil || len(members) != len(answered.Properties) ||
		!slices.Contains(grants.Required, "grant_type") {
		t.Errorf("%s is answered, %v described, %v", tokens.raw, answered.Properties, err)
	}
}

func TestMetadataAndKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.send("GET", "https://api.example.com/.well-known/oauth-authorization-server", "")
	if a.code != 200 || a.text("token_endpoint") != "https://api.example.com/oauth/token" ||
		a.text("issuer") != "https://api.example.com/oauth" {
		t.Errorf("metadata: %d %s", a.code, a.raw)
	}
	if a := f.send("GET", "/oauth/jwks", ""); a.code != 200 || !strings.Contains(a.raw, `"alg":"ES256"`) || strings.Contains(a.raw, `"d"`) {
		t.Errorf("keys: %d %s", a.code, a.raw)
	}
}
