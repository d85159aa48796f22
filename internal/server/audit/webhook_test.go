package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/testing/testwait"
)

// receiver starts a webhook and returns the path of a kubeconfig for it.
func receiver(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	text := fmt.Sprintf(
		`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c"}}],
		"clusters": [{"name": "c", "cluster": {"server": %q}}]}`,
		server.URL+"/events",
	)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// opened opens an audit after completing the options.
func opened(t *testing.T, o config.AuditOptions) *Audit {
	t.Helper()
	if err := Complete(&o); err != nil {
		t.Fatal(err)
	}
	a, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// run runs an audit until the returned function is called.
func run(t *testing.T, a *Audit, flush time.Duration) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx, flush) }()
	return func() { cancel(); <-done }
}

func TestWebhook_sendsEventLists(t *testing.T) {
	t.Parallel()
	type eventList struct {
		metav1.TypeMeta
		Items []json.RawMessage
	}
	lists := make(chan eventList, 10)
	var requests atomic.Int64
	file := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 1 { // is retried, whatever the response
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		var list eventList
		if err := json.NewDecoder(r.Body).
			Decode(&list); err != nil || r.URL.Path != "/events" ||
			r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s, %s: %v", r.URL, r.Header, err)
		}
		lists <- list
	})
	a := opened(t, config.AuditOptions{Webhook: config.AuditWebhookOptions{ConfigFile: file, InitialBackoff: time.Millisecond}})
	end := run(t, a, testwait.Patience)
	for range 2 {
		if !a.Sink().ProcessEvents(event()) {
			t.Error("refused")
		}
	}
	end() // flushes the incomplete batch
	list := <-lists
	want, err := encode(event())
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		if string(item) != string(want) {
			t.Errorf("got  %s\nwant %s", item, want)
		}
	}
	if len(list.Items) != 2 || list.Kind != "EventList" || list.APIVersion != "audit.k8s.io/v1" {
		t.Errorf("got %d items of %s %s", len(list.Items), list.APIVersion, list.Kind)
	}
	if n := a.outputs[0].losses.Total(); n != 0 {
		t.Errorf("%d lost", n)
	}
}

func TestWebhook_hanging_blocksNothing(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	defer close(hang)
	asked := make(chan struct{}, 10)
	file := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	a := opened(
		t,
		config.AuditOptions{
			Webhook: config.AuditWebhookOptions{ConfigFile: file, Batch: config.AuditBatchOptions{BufferSize: 5, MaxSize: 1, ThrottleQPS: -1}},
		},
	)
	end := run(t, a, 50*time.Millisecond)
	sent := 0
	for range webhookSenders {
		a.Sink().ProcessEvents(event())
		sent++
		<-asked
	}
	for range 100 {
		if !a.Sink().ProcessEvents(event()) {
			t.Error("refused")
		}
		sent++
	}
	end()
	if !a.Sink().ProcessEvents(event()) {
		t.Error("refused after the end")
	}
	if n := a.outputs[0].losses.Total(); n != int64(sent+1) {
		t.Errorf("%d of %d are counted as lost", n, sent+1)
	}
}
