package upstream

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/config"
)

func TestBrowsers_watches_areNotCompressed(t *testing.T) {
	tests := []struct {
		name, verb, header string
		want               string
	}{
		{"program", "watch", "", "gzip"},
		{"page", "watch", "Sec-Fetch-Site", ""},
		{"pageOfAnOlderBrowser", "watch", "Origin", ""},
		{"listOfAPage", "list", "Origin", "gzip"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := "not called"
			handler := withBrowsers(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				got = r.Header.Get("Accept-Encoding")
			}), config.ServingOptions{})
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Accept-Encoding", "gzip")
			if test.header != "" {
				r.Header.Set(test.header, "https://example.com")
			}
			handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(r.Context(), &request.RequestInfo{Verb: test.verb})))
			if got != test.want {
				t.Errorf("Accept-Encoding = %q, want %q", got, test.want)
			}
		})
	}
}
