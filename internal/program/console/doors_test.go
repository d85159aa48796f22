package console

import (
	"net/http/httptest"
	"testing"
)

func TestIsBrowser(t *testing.T) {
	t.Parallel()
	const chromium = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
	for name, test := range map[string]struct {
		method, accept, authorization string
		want                          bool
	}{
		"a browser":            {"GET", chromium, "", true},
		"its HEAD":             {"HEAD", chromium, "", true},
		"curl":                 {"GET", "*/*", "", false},
		"kubectl":              {"GET", "application/json, */*", "", false},
		"no header":            {"GET", "", "", false},
		"text of any kind":     {"GET", "text/*", "", false},
		"refuses HTML":         {"GET", "text/html;q=0, */*", "", false},
		"not a weight":         {"GET", "text/html;q=much", "", false},
		"a form":               {"POST", chromium, "", false},
		"a client with tokens": {"GET", chromium, "Bearer x", false},
	} {
		r := httptest.NewRequestWithContext(t.Context(), test.method, "/", nil)
		if test.accept != "" {
			r.Header.Set("Accept", test.accept)
		}
		if test.authorization != "" {
			r.Header.Set("Authorization", test.authorization)
		}
		if got := IsBrowser(r); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestDoors_redirect(t *testing.T) {
	t.Parallel()
	doors := Doors(map[string]string{"/": Path})
	for path, want := range map[string]string{"/": Path, "/x": ""} {
		w := httptest.NewRecorder()
		doors.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		if got := w.Header().Get("Location"); got != want || (w.Code == 302) != (want != "") {
			t.Errorf("%s leads to %q with %d", path, got, w.Code)
		}
		if want != "" && w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: a cache may keep the redirect", path)
		}
	}
}
