package login

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

const here = "https://example.com" // httptest's host

// open signs alice in on a page, and returns the Cookie header.
func (f *fixture) open(headers ...string) string {
	f.t.Helper()
	a := f.send(
		"POST",
		here+"/oauth/session",
		`{"username":"alice","password":"wonderland"}`,
		append([]string{"Content-Type", "application/json", "Origin", here}, headers...)...)
	if a.code != 200 || a.text("user") != "alice" {
		f.t.Fatalf("no session: %d %s", a.code, a.raw)
	}
	value, attributes, _ := strings.Cut(a.header.Get("Set-Cookie"), "; ")
	if attributes != "Path=/; HttpOnly; Secure; SameSite=Strict" || !strings.HasPrefix(value, "__Host-annex-session=") {
		f.t.Errorf("the cookie is %s", a.header.Get("Set-Cookie"))
	}
	return value
}

func (f *fixture) pageToken(cookie string, headers ...string) reply {
	f.t.Helper()
	return f.send(
		"POST",
		here+"/oauth/session/token",
		"",
		append([]string{"Cookie", cookie, "X-Annex-Session", "1", "Origin", here}, headers...)...)
}

func TestSessionToken_pageCookie(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cookie := f.open()
	first := f.pageToken(cookie)
	second := f.pageToken(cookie) // a cookie may be used repeatedly
	for _, a := range []reply{first, second} {
		if got := f.caller(
			a.text("access_token"),
		); a.code != 200 || got != "alice [staff]" || a.text("user") != "alice" || a.body["expires_in"] != 900.0 ||
			a.text("refresh_token") != "" {
			t.Errorf("%d %s of %s", a.code, a.raw, got)
		}
	}
	if a := f.send(
		"DELETE",
		here+"/oauth/session",
		"",
		"Cookie",
		cookie,
		"X-Annex-Session",
		"1",
		"Origin",
		here,
	); a.code != 204 ||
		!strings.Contains(a.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("ended: %d %v", a.code, a.header)
	}
	f.want(f.pageToken(cookie), 401, "login_required")
	if got := f.caller(first.text("access_token")); got != "token of alice: the session has ended" {
		t.Errorf("the token of a session that has ended: %s", got)
	}
}

func TestSession_pageSessionEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(f *fixture){
		"idle":           func(f *fixture) { f.pass(DefaultIdleTimeout) },
		"disabled":       func(f *fixture) { f.file.Users[0].Disabled = true; f.write() },
		"other password": func(f *fixture) { f.file.Users[0].Password = cheap(f.t, "other"); f.write() },
		"at last": func(f *fixture) {
			f.pass(DefaultSessionLifetime)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			cookie := f.open()
			if name == "at last" {
				for passed := time.Duration(0); passed < DefaultSessionLifetime-DefaultIdleTimeout; passed += DefaultIdleTimeout / 2 {
					f.pass(DefaultIdleTimeout / 2)
					if a := f.pageToken(cookie); a.code != 200 {
						t.Fatalf("after %s: %d %s", passed, a.code, a.raw)
					}
				}
			}
			end(f)
			a := f.pageToken(cookie)
			f.want(a, 401, "login_required")
			if !strings.Contains(a.header.Get("Set-Cookie"), "Max-Age=0") {
				t.Errorf("the cookie stays: %v", a.header)
			}
		})
	}
}

func TestSession_otherOrigin_isRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cookie := f.open()
	for name, headers := range map[string][]string{
		"another origin":      {"Cookie", cookie, "X-Annex-Session", "1", "Origin", "https://evil.example.com"},
		"another scheme":      {"Cookie", cookie, "X-Annex-Session", "1", "Origin", "http://example.com"},
		"another port":        {"Cookie", cookie, "X-Annex-Session", "1", "Origin", "https://example.com:8443"},
		"an opaque origin":    {"Cookie", cookie, "X-Annex-Session", "1", "Origin", "null"},
		"no origin":           {"Cookie", cookie, "X-Annex-Session", "1"},
		"the browser says so": {"Cookie", cookie, "X-Annex-Session", "1", "Origin", here, "Sec-Fetch-Site", "cross-site"},
		"a page of a sibling": {"Cookie", cookie, "X-Annex-Session", "1", "Origin", here, "Sec-Fetch-Site", "same-site"},
		"without the header":  {"Cookie", cookie, "Origin", here},
		"with another value":  {"Cookie", cookie, "Origin", here, "X-Annex-Session", "2"},
	} {
		for _, to := range []struct{ method, path string }{{"POST", "/oauth/session/token"}, {"DELETE", "/oauth/session"}} {
			if a := f.send(
				to.method,
				here+to.path,
				"",
				headers...); a.code != 403 || a.header.Get("Set-Cookie") != "" ||
				a.text("access_token") != "" {
				t.Errorf("%s, %s %s: %d %s %v", name, to.method, to.path, a.code, a.raw, a.header)
			}
		}
	}
	for name, headers := range map[string][]string{
		"another origin": {"Content-Type", "application/json", "Origin", "https://evil.example.com"},
		"cross-site":     {"Content-Type", "application/json", "Sec-Fetch-Site", "cross-site"},
	} {
		if a := f.send(
			"POST",
			here+"/oauth/session",
			`{"username":"alice","password":"wonderland"}`,
			headers...); a.code != 403 ||
			a.header.Get("Set-Cookie") != "" {
			t.Errorf("signing in, %s: %d %v", name, a.code, a.header)
		}
	}
	if a := f.pageToken(cookie); a.code != 200 {
		t.Errorf("afterwards: %d %s", a.code, a.raw)
	}
}

func TestSession_invalidRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, test := range map[string]struct {
		body, media string
		code        int
		kind        string
	}{
		"a form":         {"username=alice&password=wonderland", formType, 415, invalidRequest},
		"plain text":     {`{"username":"alice","password":"wonderland"}`, "text/plain", 415, invalidRequest},
		"no type":        {`{"username":"alice","password":"wonderland"}`, "", 415, invalidRequest},
		"nothing":        {"", "application/json", 400, invalidRequest},
		"no object":      {`[]`, "application/json", 400, invalidRequest},
		"no password":    {`{"username":"alice"}`, "application/json", 400, invalidRequest},
		"another type":   {`{"username":"alice","password":1}`, "application/json", 400, invalidRequest},
		"too large":      {`{"username":"` + strings.Repeat("x", maxBody) + `"}`, "application/json", 413, invalidRequest},
		"wrong password": {`{"username":"alice","password":"x"}`, "application/json", 400, invalidGrant},
		"unknown user":   {`{"username":"bob","password":"x"}`, "application/json", 400, invalidGrant},
	} {
		a := f.send("POST", here+"/oauth/session", test.body, "Content-Type", test.media, "Origin", here)
		if a.code != test.code || a.text("error") != test.kind || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d %s", name, a.code, a.raw)
		}
	}
	for name, cookie := range map[string]string{
		"none": "", "broken": "__Host-annex-session=x", "foreign": "__Host-annex-session=" + newTicket().String(),
		"without prefix": strings.TrimPrefix(f.open(), "__Host-"), "a refresh token": "__Host-annex-session=" + f.signIn().text("refresh_token"),
	} {
		f.t.Log(name)
		f.want(f.pageToken(cookie), 401, "login_required")
	}
	twice := f.open()
	f.want(f.pageToken(twice+"; "+twice), 401, "login_required")
	// The OAuth endpoints do not accept the cookie.
	_, value, _ := strings.Cut(twice, "=")
	f.want(f.post("/oauth/token", "grant_type", "refresh_token", "refresh_token", value), 400, invalidGrant)
	if a := f.post("/oauth/revoke", "token", value); a.code != 200 || f.pageToken(twice).code != 200 {
		t.Errorf("revoked: %d %s", a.code, a.raw)
	}
	if got := f.caller(value); got != "no opinion" {
		t.Errorf("the cookie as a token: %s", got)
	}
}

func TestSession_secondSignIn_endsFirst(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first := f.open()
	second := f.open("Cookie", first)
	f.want(f.pageToken(first), 401, "login_required")
	if a := f.pageToken(second); a.code != 200 {
		t.Errorf("the second: %d %s", a.code, a.raw)
	}
}

func TestCookie_plainHTTP(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for base, want := range map[string]string{
		"http://127.0.0.1:8080":       "annex-session-8080=",
		"http://127.0.0.1":            "annex-session=",
		"http://localhost:8080":       "annex-session-8080=",
		"http://[::1]:8080":           "annex-session-8080=",
		"http://api.example.com:8080": "__Host-annex-session-8080=", // through a TLS-terminating proxy only
	} {
		a := f.send(http.MethodPost, base+"/oauth/session", `{"username":"alice","password":"wonderland"}`, "Content-Type", "application/json")
		if set := a.header.Get(
			"Set-Cookie",
		); a.code != 200 || !strings.HasPrefix(set, want) ||
			strings.Contains(set, "Secure") != strings.HasPrefix(want, "__Host-") {
			t.Errorf("%s: %d %s", base, a.code, set)
		}
	}
}
