package upstream

import "testing"

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
