package authtest

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// Webhook answers TokenReviews or SubjectAccessReviews, in the version of the request.
type Webhook struct {
	// Kubeconfig is the path of a kubeconfig for the webhook.
	Kubeconfig string
	// Asked counts the requests.
	Asked atomic.Int64

	mu     sync.Mutex
	answer func(spec map[string]any) (status map[string]any)
	// hanging is closed when hanging requests may end.
	hanging chan struct{}
}

// NewWebhook starts a webhook that ends with the test. answer receives the spec of a review and returns its status;
// nil responds with 500.
func NewWebhook(t testing.TB, answer func(spec map[string]any) (status map[string]any)) *Webhook {
	t.Helper()
	w := &Webhook{answer: answer}
	server := httptest.NewTLSServer(w)
	t.Cleanup(func() { w.Hang(false); server.CloseClientConnections(); server.Close() })
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	w.Kubeconfig = filepath.Join(t.TempDir(), "webhook.kubeconfig")
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: webhook, cluster: {server: %q, certificate-authority-data: %s}}]
contexts: [{name: webhook, context: {cluster: webhook, user: server}}]
users: [{name: server, user: {}}]
current-context: webhook
`, server.URL+"/review", base64.StdEncoding.EncodeToString(ca))
	if err := os.WriteFile(w.Kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// Hang makes requests wait until Hang(false) is called.
func (w *Webhook) Hang(hang bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case hang && w.hanging == nil:
		w.hanging = make(chan struct{})
	case !hang && w.hanging != nil:
		close(w.hanging)
		w.hanging = nil
	}
}

// ServeHTTP implements http.Handler.
func (w *Webhook) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.Asked.Add(1)
	var review map[string]any
	err := json.NewDecoder(r.Body).Decode(&review)
	spec, ok := review["spec"].(map[string]any)
	if err != nil || !ok {
		http.Error(out, "no review", http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	hanging := w.hanging
	w.mu.Unlock()
	if hanging != nil {
		select {
		case <-hanging:
		case <-r.Context().Done():
			return
		}
	}
	status := w.answer(spec)
	if status == nil {
		http.Error(out, "no answer", http.StatusInternalServerError)
		return
	}
	answer(out, map[string]any{"apiVersion": review["apiVersion"], "kind": review["kind"], "status": status})
}
