package upstream

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/annexapi/annex/internal/identity/credential"
)

func TestSameOrigin_schemeHostAndPort(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		origin, host string
		plain, same  bool
	}{
		{origin: "https://api.example.com:8443", host: "api.example.com:8443", same: true},
		{origin: "https://API.example.com:8443", host: "api.example.com:8443", same: true},
		{origin: "https://api.example.com", host: "api.example.com", same: true},
		{origin: "https://api.example.com", host: "api.example.com:443", same: true},
		{origin: "https://api.example.com:443", host: "api.example.com", same: true},
		{origin: "https://[::1]:8443", host: "[::1]:8443", same: true},
		{origin: "http://localhost:8080", host: "localhost:8080", plain: true, same: true},
		{origin: "http://localhost", host: "localhost:80", plain: true, same: true},
		{origin: "https://api.example.com", host: "api.example.com:8443"},
		{origin: "https://api.example.com:9000", host: "api.example.com:8443"},
		{origin: "http://api.example.com", host: "api.example.com"},
		{origin: "http://api.example.com:8443", host: "api.example.com:8443"},
		{origin: "https://localhost:8080", host: "localhost:8080", plain: true},
		{origin: "https://localhost:8443", host: "127.0.0.1:8443"},
		{origin: "https://127.0.0.1:8443", host: "[::1]:8443"},
		{origin: "http://localhost:3000", host: "127.0.0.1:8443"},
		{origin: "https://elsewhere.example.com", host: "api.example.com"},
		{origin: "https://api.example.com.evil.example", host: "api.example.com"},
		{origin: "null", host: "127.0.0.1:8443"},
		{origin: "file://", host: "127.0.0.1:8443"},
		{origin: "://", host: "127.0.0.1:8443"},
		{origin: "https://", host: ""},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		if r.Host = test.host; !test.plain {
			r.TLS = &tls.ConnectionState{}
		}
		if got := sameOrigin(test.origin, r); got != test.same {
			t.Errorf("%q at %q, plain %t: %t", test.origin, test.host, test.plain, got)
		}
	}
}

func TestCheckOrigin_pagesOfOtherOrigins(t *testing.T) {
	t.Parallel()
	allowed := []*regexp.Regexp{regexp.MustCompile(`^https://console\.example\.com$`)}
	const here = "https://api.example.com:8443"
	socket := []string{"Connection", "keep-alive, Upgrade", "Upgrade", "websocket"}
	for name, test := range map[string]struct {
		method  string
		headers []string
		refused bool
	}{
		"a program":                      {"POST", nil, false},
		"the server's own page":          {"POST", []string{"Origin", here, "Sec-Fetch-Site", "same-origin"}, false},
		"its page in an older browser":   {"DELETE", []string{"Origin", here}, false},
		"its page through kubectl proxy": {"POST", []string{"Origin", "http://localhost:8001", "Sec-Fetch-Site", "same-origin"}, false},
		"typed into the address bar":     {"GET", []string{"Sec-Fetch-Site", "none"}, false},
		"a link elsewhere":               {"GET", []string{"Sec-Fetch-Site", "cross-site"}, false},
		"a question before a request":    {"OPTIONS", []string{"Origin", "https://evil.example.com", "Sec-Fetch-Site", "cross-site"}, false},
		"a form elsewhere": {"POST", []string{"Origin", "https://evil.example.com", "Sec-Fetch-Site", "cross-site",
			"Content-Type", "text/plain"}, true},
		"an untyped body":                 {"POST", []string{"Origin", "https://evil.example.com"}, true},
		"a page without an origin":        {"POST", []string{"Origin", "null"}, true},
		"a sandbox that hides its origin": {"POST", []string{"Sec-Fetch-Site", "cross-site"}, true},
		"the same site without an origin": {"POST", []string{"Sec-Fetch-Site", "same-site"}, true},
		"another port":                    {"POST", []string{"Origin", "https://api.example.com:9000", "Sec-Fetch-Site", "same-site"}, true},
		"another port, an older browser":  {"POST", []string{"Origin", "https://api.example.com:9000"}, true},
		"another scheme":                  {"POST", []string{"Origin", "http://api.example.com:8443"}, true},
		"its origin after a detour":       {"POST", []string{"Origin", here, "Sec-Fetch-Site", "cross-site"}, true},
		"a patch":                         {"PATCH", []string{"Origin", "https://evil.example.com"}, true},
		"an allowed origin":               {"POST", []string{"Origin", "https://console.example.com", "Sec-Fetch-Site", "same-site"}, false},
		"an origin that looks allowed":    {"POST", []string{"Origin", "https://console.example.com.evil.example"}, true},
		"a WebSocket of its own":          {"GET", append([]string{"Origin", here}, socket...), false},
		"a WebSocket of a program":        {"GET", socket, false},
		"a WebSocket of an allowed page":  {"GET", append([]string{"Origin", "https://console.example.com"}, socket...), false},
		"a WebSocket of another port":     {"GET", append([]string{"Origin", "https://api.example.com:9000"}, socket...), true},
		"a WebSocket of the same site":    {"GET", append([]string{"Sec-Fetch-Site", "same-site"}, socket...), true},
		"a WebSocket of another site":     {"GET", append([]string{"Origin", "https://evil.example.com"}, socket...), true},
	} {
		r := httptest.NewRequest(test.method, here+"/apis/shop.example.com/v1/widgets", strings.NewReader("{}"))
		for i := 0; i < len(test.headers); i += 2 {
			r.Header.Set(test.headers[i], test.headers[i+1])
		}
		if err := checkOrigin(r, allowed); (err != nil) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Only the credential that authenticated the request counts, not other credentials in it.
func TestRefuseForeign_credentialThatAuthenticated(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind    credential.Kind
		origin  string
		refused bool
	}{
		"a certificate, of its own page": {credential.Certificate, "https://api.example.com", false},
		"a certificate, of another page": {credential.Certificate, "https://evil.example.com", true},
		"a token, of another page":       {credential.Token, "https://evil.example.com", false},
		"a proxy, of another page":       {credential.Proxy, "https://evil.example.com", true},
		"nothing, of another page":       {credential.None, "https://evil.example.com", true},
	} {
		known := credential.Noting(test.kind, authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}, true, nil
		}))
		var err error
		handler := withOrigins(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if _, ok, failed := known.AuthenticateRequest(r); !ok || failed != nil {
				t.Errorf("%s: not authenticated", name)
			}
			_, err = refuseForeign(r, nil)
		}), nil)
		r := httptest.NewRequest(http.MethodPost, "https://api.example.com/", nil)
		r.Header.Set("Origin", test.origin)
		// The request presents both credentials, and neither counts by itself.
		r.Header.Set("Authorization", "Bearer wrong")
		r.Header.Set("Sec-Websocket-Protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.a25vd24")
		handler.ServeHTTP(httptest.NewRecorder(), r)
		if (err != nil) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoting_refusals(t *testing.T) {
	t.Parallel()
	accepted := &credential.Credential{}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r = r.WithContext(credential.With(r.Context(), accepted))
	for _, failed := range []error{nil, errors.New("wrong")} {
		refusing := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, failed != nil, failed })
		if _, _, err := credential.Noting(credential.Token, refusing).
			AuthenticateRequest(r); !errors.Is(err, failed) ||
			accepted.Kind != credential.None {
			t.Errorf("%v: noted %d, %v", failed, accepted.Kind, err)
		}
	}
}
