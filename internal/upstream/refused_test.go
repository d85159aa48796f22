package upstream

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func TestOriginsOfTheSameSite(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		origin, host string
		same         bool
	}{
		{"", "api.example.com:8443", true},
		{"https://api.example.com:8443", "api.example.com:8443", true},
		{"https://API.example.com", "api.example.com:8443", true},
		{"http://localhost:3000", "127.0.0.1:8443", true},
		{"http://127.0.0.1", "[::1]:8443", true},
		{"http://[::1]:1", "localhost", true},
		{"https://elsewhere.example.com", "api.example.com:8443", false},
		{"https://elsewhere.example.com", "127.0.0.1:8443", false},
		{"http://localhost", "api.example.com", false},
		{"http://localhost.example.com", "localhost:8443", false},
		{"null", "127.0.0.1:8443", false},
		{"file://", "127.0.0.1:8443", false},
		{"://", "127.0.0.1:8443", false},
	} {
		if got := sameSite(test.origin, test.host); got != test.same {
			t.Errorf("%q at %q: %v", test.origin, test.host, got)
		}
	}
}

// A browser sends certificates along with whatever any page has it send, and says whose page it is.
func TestWhatPagesOfOtherOriginsHaveBrowsersSendIsRefused(t *testing.T) {
	t.Parallel()
	allowed, protection := []*regexp.Regexp{regexp.MustCompile(`^https://console\.example\.com$`)}, http.NewCrossOriginProtection()
	const here = "https://api.example.com:8443"
	socket := []string{"Connection", "Upgrade", "Upgrade", "websocket"}
	for name, test := range map[string]struct {
		method  string
		headers []string
		refused bool
	}{
		"a program":                       {"POST", nil, false},
		"the server's own page":           {"POST", []string{"Origin", here, "Sec-Fetch-Site", "same-origin"}, false},
		"its page in an older browser":    {"DELETE", []string{"Origin", here}, false},
		"its page through kubectl proxy":  {"POST", []string{"Origin", "http://localhost:8001", "Sec-Fetch-Site", "same-origin"}, false},
		"typed into the address bar":      {"GET", []string{"Sec-Fetch-Site", "none"}, false},
		"a link elsewhere":                {"GET", []string{"Sec-Fetch-Site", "cross-site"}, false},
		"a form elsewhere":                {"POST", []string{"Origin", "https://evil.example.com", "Sec-Fetch-Site", "cross-site", "Content-Type", "text/plain"}, true},
		"an untyped body":                 {"POST", []string{"Origin", "https://evil.example.com"}, true},
		"a page without an origin":        {"POST", []string{"Origin", "null"}, true},
		"a sandbox that hides its origin": {"POST", []string{"Sec-Fetch-Site", "cross-site"}, true},
		"another port of the host":        {"POST", []string{"Origin", "https://api.example.com:9000", "Sec-Fetch-Site", "same-site"}, true},
		"a patch":                         {"PATCH", []string{"Origin", "https://evil.example.com"}, true},
		"an allowed origin":               {"POST", []string{"Origin", "https://console.example.com", "Sec-Fetch-Site", "same-site"}, false},
		"one that only looks allowed":     {"POST", []string{"Origin", "https://console.example.com.evil.example"}, true},
		"a page that knows a token":       {"POST", []string{"Origin", "https://evil.example.com", "Authorization", "Bearer known"}, false},
		"a WebSocket of its own":          {"GET", append([]string{"Origin", here}, socket...), false},
		"a WebSocket of a program":        {"GET", socket, false},
		"a WebSocket of another port":     {"GET", append([]string{"Origin", "https://api.example.com:9000"}, socket...), true},
		"that knows a token":              {"GET", append([]string{"Origin", "https://api.example.com:9000", "Sec-Websocket-Protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.a25vd24"}, socket...), false},
		"a WebSocket of another site":     {"GET", append([]string{"Origin", "https://evil.example.com", "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io.a25vd24"}, socket...), true},
	} {
		r := httptest.NewRequest(test.method, here+"/apis/shop.example.com/v1/widgets", strings.NewReader("{}"))
		for i := 0; i < len(test.headers); i += 2 {
			r.Header.Set(test.headers[i], test.headers[i+1])
		}
		if err := checkOrigin(r, allowed, protection); (err != nil) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
