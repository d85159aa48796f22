package apidocument

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestReader_answers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/forbidden" || r.Header.Get("Accept") != "application/json" {
			http.Error(w, strings.Repeat("no ", 1000), http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte("document of " + r.URL.Path))
	}))
	read := Reader(t.Context(), server.Client(), server.URL)
	if body, err := read("/openapi/v3"); err != nil || string(body) != "document of /openapi/v3" {
		t.Errorf("read %q, %v", body, err)
	}

	_, err := read("/forbidden")
	var refused *StatusError
	if !errors.As(err, &refused) || refused.Code != http.StatusForbidden || len(refused.Body) != 200 {
		t.Errorf("error %v, want a StatusError with 403 and 200 bytes", err)
	}
	if want := server.URL + "/forbidden: 403 Forbidden: no no"; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %q, want %q", err, want)
	}

	server.Close()
	if _, err := read("/openapi/v3"); err == nil {
		t.Errorf("error %v of a server that is gone", err)
	}
}
