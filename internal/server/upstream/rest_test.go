package upstream

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	utilwaitgroup "k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	serverfilters "k8s.io/apiserver/pkg/server/filters"

	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/server/requestlog"
	"github.com/annexapi/annex/internal/wire/push"
)

// countedGroup records when a request is done.
type countedGroup struct {
	serverfilters.RequestWaitGroup
	did func(string)
}

func (g countedGroup) Done() { g.did("done"); g.RequestWaitGroup.Done() }

// Filters finish a watch once, when the watch has ended instead of when the handlers have returned. They also do so
// if the rest panics.
func TestFilters_watch_endWithRest(t *testing.T) {
	t.Parallel()
	for _, panics := range []string{"", "left", "behind"} {
		t.Run(panics, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var did []string
			note := func(what string) {
				mu.Lock()
				defer mu.Unlock()
				did = append(did, what)
			}
			var log bytes.Buffer
			c := &server.Config{MaxRequestBodyBytes: 1 << 20}
			var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				w.(http.Flusher).Flush()
				push.RestFrom(r.Context()).Leave(func() {
					_, _ = w.Write([]byte("left"))
					note("left")
					if panics == "left" {
						panic("a mistake")
					}
				})
				if panics == "behind" {
					panic("a mistake")
				}
				note("returned")
			})
			handler = accounted(handler, budget.New(1<<20), c)
			group := &utilwaitgroup.RateLimitedSafeWaitGroup{}
			handler = withWatchesEnding(handler, watchGroup{countedGroup{group, note}, make(chan struct{})})
			direct := func(*http.Request, *request.RequestInfo) bool { return true }
			handler = withAccessLog(handler, recorders{slog.NewTextHandler(&log, nil), requestlog.NewRing(0)}, direct)
			handler = withRecovery(handler)
			info := &request.RequestInfo{IsResourceRequest: true, Verb: "watch", Resource: "widgets"}
			inner := handler
			handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inner.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
				note("unwound")
			})
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := httptest.NewUnstartedServer(newConnections(l, 0).counting(handler))
			s.EnableHTTP2 = true
			s.StartTLS()
			defer s.Close()
			response, err := s.Client().Get(s.URL + "/?watch=1")
			if err != nil {
				t.Fatal(err)
			}
			var body bytes.Buffer
			_, err = body.ReadFrom(response.Body)
			response.Body.Close()
			if (err != nil) != (panics != "") {
				t.Errorf("the answer ends with %v", err)
			}
			s.Close() // waits for requests
			mu.Lock()
			defer mu.Unlock()
			want := map[string][]string{"": {"returned", "unwound", "left", "done"}, "left": {"returned", "unwound", "left", "done"},
				"behind": {"done"}}[panics]
			if !slices.Equal(did, want) {
				t.Errorf("%v, want %v", did, want)
			}
			if strings.Count(log.String(), "\n") != 1 {
				t.Errorf("the access log has\n%s", log.String())
			}
			if (panics != "") != strings.Contains(log.String(), "panic=true") || panics != "behind" && !strings.Contains(log.String(), "bytes=4") {
				t.Errorf("the access log has\n%s", log.String())
			}
		})
	}
}

// The audit completes a request when its handlers return, so they must not leave a rest.
func TestWithAuditedInside_auditedRequest_hasNoRest(t *testing.T) {
	t.Parallel()
	for name, audited := range map[string]bool{"audited": true, "not audited": false} {
		var rest *push.Rest
		var handler http.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { rest = push.RestFrom(r.Context()) })
		handler = withAuditedInside(handler)
		if audited {
			handler = filters.WithAudit(handler, &events{}, everything{}, nil)
		}
		ctx, given := push.WithRest(t.Context())
		ctx = request.WithRequestInfo(ctx, &request.RequestInfo{Verb: "watch"})
		if audited {
			ctx = audit.WithAuditContext(ctx)
		}
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/?watch=1", nil))
		if audited && rest != nil || !audited && rest != given {
			t.Errorf("%s: left to %p, want %p", name, rest, given)
		}
	}
}
