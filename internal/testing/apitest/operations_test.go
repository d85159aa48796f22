package apitest_test

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"

	"github.com/annexapi/annex/annextest"
)

func TestMetrics_ownAndUpstream(t *testing.T) {
	t.Parallel()
	client := discovery.NewDiscoveryClientForConfigOrDie(annextest.Start(t, shop())).RESTClient()
	out, err := client.Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`annex_storage_revision{storage="memory"} `,
		`annex_storage_history_trimmed_early_total{storage="memory"} 0`, "apiserver_request_total{"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in /metrics", want)
		}
	}
}

func TestReadyz_namesChecks(t *testing.T) {
	t.Parallel()
	client := discovery.NewDiscoveryClientForConfigOrDie(annextest.Start(t, shop())).RESTClient()
	for path, want := range map[string]string{
		"/readyz?verbose":  "[+]storage ok",
		"/livez?verbose":   "livez check passed",
		"/healthz?verbose": "healthz check passed",
	} {
		var status int
		out, err := client.Get().RequestURI(path).Do(t.Context()).StatusCode(&status).Raw()
		if err != nil {
			t.Fatal(err)
		}
		if status != http.StatusOK || !strings.Contains(string(out), want) {
			t.Errorf("%s: %d\n%s", path, status, out)
		}
	}
}
