package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// ward is a cluster with an APIService whose Service does not exist. Its service accounts may only create reviews.
func ward(t *testing.T) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/version":
			_, _ = w.Write([]byte(`{"gitVersion":"v1.37.1"}`))
		case r.URL.Path == "/apis/apiregistration.k8s.io/v1/apiservices":
			_, _ = w.Write(
				[]byte(
					`{"items":[{"metadata":{"name":"v1alpha1.wardle.example.com"},"spec":{"group":"wardle.example.com",` +
						`"version":"v1alpha1","service":{"namespace":"wardle","name":"api"}}}]}`,
				),
			)
		case r.Method == http.MethodPost:
			var o map[string]any
			_ = json.NewDecoder(r.Body).Decode(&o)
			o["status"] = map[string]any{"allowed": false}
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(o)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"not found"}`))
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// aggregator is a kube-apiserver with discovery only.
func aggregator(t *testing.T) *httptest.Server {
	answers := map[string]string{
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apiregistration.k8s.io",` +
			`"versions":[{"groupVersion":"apiregistration.k8s.io/v1","version":"v1"}]}]}`,
		"/apis/apiregistration.k8s.io/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apiregistration.k8s.io/v1",` +
			`"resources":[{"name":"apiservices","singularName":"apiservice","namespaced":false,"kind":"APIService","verbs":["get"]}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	return server
}

// writeKubeconfig writes a kubeconfig for a server.
func writeKubeconfig(dir, name, server string) error {
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: '" + server + "'}}]\ncontexts: " +
		"[{name: c, context: {cluster: c}}]\n"
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)
}
