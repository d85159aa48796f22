package apiexts

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex"
)

// The process behind the proxy gets the caller, and none of the caller's credentials.
func TestProxy_passesCallerWithoutCredentials(t *testing.T) {
	t.Parallel()
	var seen http.Header
	var caller user.Info
	behind := httptest.NewServer(behindProxy(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen, caller = r.Header, annex.Caller(r.Context())
	}), "secret"))
	defer behind.Close()
	u, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	alice := &user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"a", "b"}, Extra: map[string][]string{"example.com/key": {"x", "y"}}}
	r := httptest.NewRequestWithContext(request.WithUser(t.Context(), alice), "GET", "/wukong/menu", nil)
	for name, value := range map[string]string{
		"Authorization": "Bearer token-of-alice", "Cookie": "session=alice", "Impersonate-User": "eve", "Impersonate-Group": "eves",
		"X-Remote-User": "eve", "X-Remote-Group": "system:masters", "X-Remote-Extra-Other": "z", "X-Kept": "kept",
	} {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	newProxy(u, "secret").ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	if got, want := fmt.Sprint(caller), fmt.Sprint(alice); got != want {
		t.Errorf("the caller is %s, want %s", got, want)
	}
	text := fmt.Sprint(seen)
	for _, credential := range []string{"token-of-alice", "session", "eve", "masters"} {
		if strings.Contains(text, credential) {
			t.Errorf("%q is handed on: %s", credential, text)
		}
	}
	if seen.Get("X-Kept") != "kept" {
		t.Errorf("other headers are lost: %s", text)
	}
	// A wrong secret is not the caller's fault.
	w = httptest.NewRecorder()
	newProxy(u, "other").ServeHTTP(w, r)
	if w.Code != 503 {
		t.Errorf("another secret: %d", w.Code)
	}
}

func TestSecret_concurrent_isMadeOnce(t *testing.T) {
	t.Parallel()
	e := &Extensions{secretFile: filepath.Join(t.TempDir(), "secret")}
	first, err := e.secret()
	if err != nil || len(first) != 64 {
		t.Fatalf("%q, %v", first, err)
	}
	if again, err := e.secret(); again != first || err != nil {
		t.Errorf("%q, %v", again, err)
	}
	if err := os.Truncate(e.secretFile, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := e.secret(); err == nil {
		t.Error("a short one is accepted")
	}
}

func TestServe_onlyLoopback(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", ":0", "example.com:0", "127.0.0.1"} {
		if err := serve(t.Context(), address, http.NotFoundHandler()); err == nil {
			t.Errorf("%s is listened on", address)
		}
	}
}
