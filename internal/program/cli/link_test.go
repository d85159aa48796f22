package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConsole_refusals_nameCauseAndRemedy(t *testing.T) {
	tests := []struct {
		name   string
		code   int
		answer string
		want   string // in the error; with code 200, in the link
	}{
		{"link", http.StatusOK, `{"link":"secret"}`, "#/sign-in/secret"},
		{"credentialEnded", http.StatusUnauthorized, `{"kind":"Status","message":"Unauthorized"}`, "does not accept the credential of the kubeconfig"},
		{"noConsole", http.StatusNotFound, `{"kind":"Status"}`, "start it with --console"},
		{"noRight", http.StatusForbidden, `{"kind":"Status"}`, "start it with --console"},
		{"described", http.StatusTooManyRequests, `{"error_description":"16 links wait"}`, "makes no sign-in link: 16 links wait"},
		{"anotherServer", http.StatusOK, `<html>`, "makes no sign-in link: 200 OK"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.code)
				fmt.Fprint(w, test.answer)
			}))
			defer server.Close()
			file := filepath.Join(t.TempDir(), "kubeconfig")
			config := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\n"+
				"users: [{name: a, user: {token: t}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n", server.URL)
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			link, err := (&consoleVerb{kubeconfig: file}).link(t.Context())
			got := link
			if err != nil {
				got = err.Error()
			}
			if (err == nil) != (test.name == "link") || !strings.Contains(got, test.want) {
				t.Errorf("link = %q, %v; want %q", link, err, test.want)
			}
		})
	}
}
