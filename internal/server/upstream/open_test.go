package upstream

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/model/define"
)

// events collects audit events.
type events struct {
	mu  sync.Mutex
	all []*auditinternal.Event
}

func (e *events) ProcessEvents(all ...*auditinternal.Event) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range all {
		e.all = append(e.all, event.DeepCopy())
	}
	return true
}

type everything struct{}

func (everything) EvaluatePolicyRule(authorizer.Attributes) audit.RequestAuditConfig {
	return audit.RequestAuditConfig{Level: auditinternal.LevelRequestResponse}
}

// unavailable is a cluster that does not respond.
type unavailable struct{}

func (unavailable) AuthenticationUnavailable(err error) error { return err }
func (unavailable) AuthorizationUnavailable() error           { return errors.New("no cluster") }
func (unavailable) Open() authorizer.Authorizer               { return authorizerfactory.NewAlwaysDenyAuthorizer() }

// openChain returns a chain in which the user jane has no permissions and /page/ is open.
func openChain(t *testing.T, page http.HandlerFunc, cluster Cluster, limit int) (http.Handler, *events) {
	t.Helper()
	codecs := serializer.NewCodecFactory(runtime.NewScheme())
	c := server.NewConfig(codecs)
	c.MaxRequestsInFlight = limit
	c.RequestInfoResolver = server.NewRequestInfoResolver(c)
	c.Authorization.Authorizer = authorizerfactory.NewAlwaysDenyAuthorizer()
	audited := &events{}
	guarded := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("guarded")) })
	config := Config{
		Definition: &define.Server{},
		Authenticator: authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			switch r.Header.Get("Authorization") {
			case "Bearer jane":
				return &authenticator.Response{User: &user.DefaultInfo{Name: "jane"}}, true, nil
			case "":
				return nil, false, nil
			}
			return nil, false, errors.New("the token has expired")
		}),
		AuditSink: audited, AuditPolicy: everything{}, Cluster: cluster, RequestTimeout: time.Minute,
		Handlers: []Handler{
			{Handler: page, Definition: &define.Handler{Path: "/page/"}, Open: true},
			{Handler: guarded, Definition: &define.Handler{Path: "/page/closed"}},
			{Handler: guarded, Definition: &define.Handler{Path: "/menu"}},
		},
	}
	filters := &chain{
		config: config, gate: fastpath.New(fastpath.Config{}), connections: newConnectionMetrics(), standing: newStanding(config),
	}
	return filters.build(guarded, c), audited
}

func ask(handler http.Handler, method, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), method, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

func nameOf(w http.ResponseWriter, r *http.Request) {
	caller, _ := request.UserFrom(r.Context())
	_, _ = w.Write([]byte(caller.GetName() + r.Header.Get("Authorization")))
}

func TestOpenHandler_anyCredentials_answers(t *testing.T) {
	t.Parallel()
	for name, cluster := range map[string]Cluster{"standalone": nil, "without its cluster": unavailable{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler, audited := openChain(t, nameOf, cluster, 10)
			for _, test := range []struct {
				about, path string
				headers     []string
				code        int
				body        string
			}{
				{"no credentials", "/page/x", nil, 200, "system:anonymous"},
				{"good ones", "/page/x", []string{"Authorization", "Bearer jane"}, 200, "janeBearer jane"},
				{"an expired token", "/page/x", []string{"Authorization", "Bearer old"}, 200, "system:anonymousBearer old"},
				{"credentials for the handler", "/page/x", []string{"Authorization", "Basic eDp5"}, 200, "system:anonymousBasic eDp5"},
				{"an expired cookie", "/page/x", []string{"Cookie", "session=old"}, 200, "system:anonymous"},
				{"impersonation is not looked at", "/page/x", []string{"Impersonate-User", "root"}, 200, "system:anonymous"},
			} {
				w := ask(handler, http.MethodGet, test.path, test.headers...)
				if w.Code != test.code || w.Body.String() != test.body {
					t.Errorf("%s: %d %s, want %d %s", test.about, w.Code, w.Body, test.code, test.body)
				}
			}
			if len(audited.all) == 0 || audited.all[len(audited.all)-1].RequestURI != "/page/x" ||
				audited.all[len(audited.all)-1].User.Username != user.Anonymous {
				t.Errorf("audited: %v", audited.all)
			}
		})
	}
}

func TestOpenHandler_otherPaths_areNotOpen(t *testing.T) {
	t.Parallel()
	handler, _ := openChain(t, nameOf, nil, 10)
	for _, path := range []string{"/page/closed", "/page", "/pages/x", "/menu", "/", "/api", "/apis", "/apis/shop.example.com/v1/widgets",
		"/metrics", "/openapi/v3", "//page/x"} {
		if w := ask(handler, http.MethodGet, path); w.Code != http.StatusUnauthorized {
			t.Errorf("%s without credentials: %d %s", path, w.Code, w.Body)
		}
		if w := ask(handler, http.MethodGet, path, "Authorization", "Bearer jane"); w.Code != http.StatusForbidden {
			t.Errorf("%s without rights: %d %s", path, w.Code, w.Body)
		}
	}
	for _, path := range []string{"/page/../menu", "/page/../apis", "/page//menu", "/page/..%2fmenu", "/page/%2e%2e/menu"} {
		if w := ask(handler, http.MethodGet, path); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestOpenHandler_limitsAndDeadlinesApply(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // whose clock drives the wait for a place
		end := make(chan struct{})
		handler, _ := openChain(t, func(_ http.ResponseWriter, r *http.Request) {
			if _, bounded := r.Context().Deadline(); !bounded {
				t.Error("no deadline")
			}
			<-end
		}, nil, 1)
		var first sync.WaitGroup
		first.Go(func() { ask(handler, http.MethodGet, "/page/x") })
		synctest.Wait()
		if w := ask(handler, http.MethodGet, "/page/x"); w.Code != http.StatusTooManyRequests {
			t.Errorf("one more than is allowed: %d %s", w.Code, w.Body)
		}
		close(end)
		first.Wait()
	})
}
