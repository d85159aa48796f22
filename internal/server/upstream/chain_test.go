package upstream

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	utilwaitgroup "k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/annexapi/annex/internal/model/define"
	serverfilters "k8s.io/apiserver/pkg/server/filters"
)

func TestWatchesEnding_newWatch_isRefused(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	began := 0
	handler := serverfilters.WithWatchTerminationDuringShutdown(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { began++ }),
		shutdownSignal(stop), watchGroup{&utilwaitgroup.RateLimitedSafeWaitGroup{}, stop})
	watch := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/apis/shop.example.com/v1/widgets?watch=true", nil)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), &request.RequestInfo{Verb: "watch"})))
		return w
	}
	if w := watch(); w.Code != http.StatusOK || began != 1 {
		t.Errorf("before: %d, %d watches began", w.Code, began)
	}
	close(stop)
	if w := watch(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || began != 1 {
		t.Errorf("after: %d, retry after %q, %d watches began", w.Code, w.Header().Get("Retry-After"), began)
	}
}

func TestDeadline_longRunningRequest_hasNone(t *testing.T) {
	watches := func(_ *http.Request, info *request.RequestInfo) bool { return info.Verb == "watch" }
	check := longRunning(watches, Config{
		Definition:  &define.Server{},
		LongRunning: map[string]http.Handler{"/storage/backup": http.NotFoundHandler()},
		Handlers: []Handler{
			{Definition: &define.Handler{Path: "/events/", LongRunning: func(*http.Request) bool { return true }}},
			{Definition: &define.Handler{Path: "/menu/"}},
		},
	})
	for _, test := range []struct {
		info request.RequestInfo
		want bool
	}{
		{request.RequestInfo{Path: "/storage/backup", Verb: "get"}, true},
		{request.RequestInfo{Path: "/storage/other", Verb: "get"}, false},
		{request.RequestInfo{Path: "/storage/backup/", Verb: "get"}, false},
		{request.RequestInfo{Path: "/events/x", Verb: "get"}, true},
		{request.RequestInfo{Path: "/menu/x", Verb: "watch", IsResourceRequest: true}, false},
		{request.RequestInfo{Path: "/apis/a/v1/b", Verb: "watch", IsResourceRequest: true}, true},
		{request.RequestInfo{Path: "/apis/a/v1/b", Verb: "list", IsResourceRequest: true}, false},
	} {
		if got := check(&http.Request{URL: &url.URL{Path: test.info.Path}}, &test.info); got != test.want {
			t.Errorf("%s %s: %v, want %v", test.info.Verb, test.info.Path, got, test.want)
		}
	}
}
