package upstream

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/warning"
)

// begins returns our beginning of a request and the filters of upstream that it replaces.
func begins(
	t *testing.T,
	audited bool,
	resolve func(*http.Request) (*request.RequestInfo, error),
) map[string]func(http.Handler) http.Handler {
	t.Helper()
	c := server.NewConfig(serializer.NewCodecFactory(runtime.NewScheme()))
	c.RequestTimeout = time.Minute
	c.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
		if known, ok := request.RequestInfoFrom(r.Context()); !ok || known != info {
			t.Errorf("%s is asked about, and does not know what it is", r.URL)
		}
		return info.Verb == "watch"
	}
	c.RequestInfoResolver = resolver(c)
	if resolve != nil {
		c.RequestInfoResolver = resolving(resolve)
	}
	bounded := func(h http.Handler) http.Handler {
		return filters.WithRequestDeadline(h, nil, nil, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	}
	return map[string]func(http.Handler) http.Handler{
		"ours": func(h http.Handler) http.Handler {
			return withRequestSetup(withTimeoutOfClient(h, bounded(h)), audited, c)
		},
		"upstream's": func(h http.Handler) http.Handler {
			h = bounded(filters.WithWarningRecorder(h))
			h = filters.WithRequestReceivedTimestamp(filters.WithRequestInfo(h, c.RequestInfoResolver))
			return filters.WithAuditInit(h)
		},
	}
}

type resolving func(*http.Request) (*request.RequestInfo, error)

func (f resolving) NewRequestInfo(r *http.Request) (*request.RequestInfo, error) { return f(r) }

func TestBeginning_equalsUpstream(t *testing.T) {
	t.Parallel()
	const path = "/apis/shop.example.com/v1/namespaces/default/widgets"
	for target, bound := range map[string]time.Duration{
		path + "/w": time.Minute, path: time.Minute, "/healthz": time.Minute,
		path + "?watch=true": 0, path + "?watch=true&timeout=3s": 0,
		path + "/w?timeout=3s": 3 * time.Second, path + "/w?%74imeout=3s": 3 * time.Second, path + "/w?timeout=0s": time.Minute, path +
			"/w?timeout=9h": time.Minute,
		path + "?timeoutSeconds=3": time.Minute, path + "?limit=5": time.Minute, path + "?labelSelector=a%3Db": time.Minute,
	} {
		var infos []*request.RequestInfo
		for name, begin := range begins(t, true, nil) {
			var got *http.Request
			w := httptest.NewRecorder()
			begin(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got = r
				for _, text := range []string{"first", "second", "first", ""} {
					warning.AddWarning(r.Context(), "", text)
				}
				if err := r.Context().Err(); err != nil {
					t.Errorf("%s, %s: %v", name, target, err)
				}
			})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
			ctx := got.Context()
			received, ok := request.ReceivedTimestampFrom(ctx)
			if !ok || time.Since(received) > time.Minute {
				t.Errorf("%s, %s: received at %s", name, target, received)
			}
			deadline, bounded := ctx.Deadline()
			if bounded != (bound > 0) || bounded && !deadline.Equal(received.Add(bound)) {
				t.Errorf("%s, %s: received at %s, until %s, %t; want %s", name, target, received, deadline, bounded, bound)
			}
			if bounded && ctx.Err() != context.Canceled || !bounded && ctx.Err() != nil {
				t.Errorf("%s, %s: answered, and the context says %v", name, target, ctx.Err())
			}
			if id := w.Header()["Audit-Id"]; len(id) != 1 || uuid.Validate(id[0]) != nil || string(audit.AuditContextFrom(ctx).AuditID()) != id[0] {
				t.Errorf("%s, %s: audit ID %q, %q", name, target, id, audit.AuditContextFrom(ctx).AuditID())
			}
			if warnings := w.Header()["Warning"]; !slices.Equal(warnings, []string{`299 - "first"`, `299 - "second"`}) {
				t.Errorf("%s, %s: warnings %q", name, target, warnings)
			}
			info, _ := request.RequestInfoFrom(ctx)
			infos = append(infos, info)
		}
		if a, b := infos[0], infos[1]; a.Verb != b.Verb || a.Path != b.Path || a.Name != b.Name || a.Resource != b.Resource ||
			a.IsResourceRequest != b.IsResourceRequest {
			t.Errorf("%s: %+v and %+v", target, a, b)
		}
	}
}

func TestBeginning_errors_equalUpstream(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		target  string
		resolve func(*http.Request) (*request.RequestInfo, error)
		code    int
	}{
		"a timeout that is none": {target: "/apis/a/v1/b?timeout=soon", code: http.StatusBadRequest},
		"spelled otherwise":      {target: "/apis/a/v1/b?time%6fut=soon", code: http.StatusBadRequest},
		"no request of the API's": {target: "/apis/a/v1/b", resolve: func(*http.Request) (*request.RequestInfo, error) {
			return nil,
				errors.New("no")
		}, code: http.StatusInternalServerError},
	} {
		answers := map[string]*httptest.ResponseRecorder{}
		for of, begin := range begins(t, false, test.resolve) {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, test.target, nil)
			r.Header.Set("Audit-ID", "mine")
			begin(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Errorf("%s: it was handled", name) })).ServeHTTP(w, r)
			answers[of] = w
		}
		ours, theirs := answers["ours"], answers["upstream's"]
		if ours.Code != test.code || theirs.Code != test.code || ours.Body.String() != theirs.Body.String() ||
			ours.Header().Get("Audit-Id") != "mine" {
			t.Errorf("%s: %d %s, audit ID %q; upstream: %d %s", name, ours.Code, ours.Body, ours.Header().Get("Audit-Id"), theirs.Code, theirs.Body)
		}
	}
}

func TestBeginning_notAudited_disablesAudit(t *testing.T) {
	t.Parallel()
	for _, audited := range []bool{false, true} {
		begin := begins(t, audited, nil)["ours"]
		begin(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if ac := audit.AuditContextFrom(r.Context()); ac.Enabled() != audited {
				t.Errorf("audited %t: enabled %t", audited, ac.Enabled())
			}
			// A second server in the same process, called by the first, keeps the audit context of the first.
			begins(t, false, nil)["ours"](http.HandlerFunc(func(_ http.ResponseWriter, again *http.Request) {
				if audit.AuditContextFrom(again.Context()) != audit.AuditContextFrom(r.Context()) ||
					audit.AuditContextFrom(again.Context()).Enabled() != audited {
					t.Errorf("audited %t: a server behind changes that", audited)
				}
			})).ServeHTTP(httptest.NewRecorder(), r)
			if audited {
				if err := audit.AuditContextFrom(r.Context()).Init(audit.RequestAuditConfig{Level: auditinternal.LevelMetadata}, nil); err != nil {
					t.Error(err)
				}
			}
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/apis/a/v1/b", nil))
	}
}

// kept collects the events of an audit.
type kept struct{ events []*auditinternal.Event }

func (k *kept) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, e := range events {
		k.events = append(k.events, e.DeepCopy())
	}
	return true
}

func (k *kept) EvaluatePolicyRule(authorizer.Attributes) audit.RequestAuditConfig {
	return audit.RequestAuditConfig{Level: auditinternal.LevelMetadata}
}

// A second server in the same process, called by the first, has an audit of its own, whether or not the first has
// one.
func TestBeginning_secondServer_hasItsOwnAudit(t *testing.T) {
	t.Parallel()
	for _, audited := range []bool{false, true} {
		var first, second kept
		w := httptest.NewRecorder()
		behind := begins(t, true, nil)["ours"](filters.WithAudit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			audit.AddAuditAnnotation(r.Context(), "second", "yes")
			w.WriteHeader(http.StatusTeapot)
		}), &second, &second, nil))
		handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			audit.AddAuditAnnotation(r.Context(), "first", "yes")
			behind.ServeHTTP(w, r)
		}))
		if audited {
			handler = filters.WithAudit(handler, &first, &first, nil)
		}
		begins(t, audited, nil)["ours"](handler).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/apis/a/v1/b", nil))
		if w.Code != http.StatusTeapot {
			t.Errorf("audited %t: %d %s", audited, w.Code, w.Body)
			continue
		}
		for name, k := range map[string]kept{"first": first, "second": second} {
			if name == "first" && !audited {
				continue
			}
			if len(k.events) == 0 {
				t.Errorf("audited %t: the %s server has kept nothing", audited, name)
				continue
			}
			last := k.events[len(k.events)-1]
			if last.Annotations[name] != "yes" || len(last.Annotations) != 1 || last.ResponseStatus.Code != http.StatusTeapot ||
				string(last.AuditID) != w.Header().Get("Audit-Id") {
				t.Errorf("audited %t: the %s server has kept %+v, the client was told %s", audited, name, last, w.Header().Get("Audit-Id"))
			}
		}
	}
}

func TestNewAuditID_isRandomUUID(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		id, err := uuid.Parse(newAuditID())
		if err != nil || id.Version() != 4 || id.Variant() != uuid.RFC4122 || seen[id.String()] || strings.ToLower(id.String()) != id.String() {
			t.Fatalf("%s: %v, version %s, variant %s, seen %t", id, err, id.Version(), id.Variant(), seen[id.String()])
		}
		seen[id.String()] = true
	}
}

// A client may reset any number of requests before they begin.
func TestBeginning_resetRequest_isNotHandled(t *testing.T) {
	t.Parallel()
	c := &server.Config{
		RequestInfoResolver: &request.RequestInfoFactory{},
		LongRunningFunc:     func(*http.Request, *request.RequestInfo) bool { return false },
	}
	handler := withRequestSetup(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was handled") }), false, c)
	reset, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/apis", nil).WithContext(reset))
	if len(w.Header()) > 0 {
		t.Errorf("it was answered: %v", w.Header())
	}
}
