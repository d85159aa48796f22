package upstream

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	serverfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/warning"

	"github.com/annexapi/annex/internal/base/pagecookie"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/structural"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/internal/wire/push"
)

// withAuditedInside has requests that are audited end with their handlers: that they are complete is recorded then.
func withAuditedInside(handler http.Handler) http.Handler {
	within := push.Within(handler)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if audit.AuditContextFrom(r.Context()).Enabled() {
			within.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// withPageCookiesHidden keeps what signs people in at the server's own pages from all that is behind: it may
// be sent on to another server.
func withPageCookiesHidden(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, pagecookie.Hidden(r))
	})
}

// steps are those that a server needs, in their order.
func steps(config Config) []step {
	var all []step
	if config.Serving.Profiling || config.FlowControl != nil {
		all = append(all, refuseAnonymousDebugging)
	}
	all = append(all, checkNamespace, refuseCostlyPatches, addUserAgent)
	if bodies, queries := markedRequests(config.Definition); len(bodies)+len(queries) > 0 {
		all = append(all, captureMarked(bodies, queries))
	}
	if warnings := deprecations(config.Definition); len(warnings) > 0 {
		all = append(all, warnOfDeprecation(warnings))
	}
	return all
}

// longRunning adds connections, the server's own handlers and those beside the API to the
// requests that take their time.
func longRunning(check request.LongRunningRequestCheck, config Config) request.LongRunningRequestCheck {
	routes, beside := connectRoutesOf(config.Definition), handlers(config.Handlers)
	return func(r *http.Request, info *request.RequestInfo) bool {
		if beside.of(r) != nil {
			return beside.longRunning(r)
		}
		if config.Aggregation != nil && config.Aggregation.LongRunning(r, info) {
			return true
		}
		_, ours := config.LongRunning[info.Path]
		return ours && !info.IsResourceRequest || routes.longRunning(r, info) || check(r, info)
	}
}

// stopping is closed when the server drains: watches end then.
type stopping <-chan struct{}

func (s stopping) ShuttingDown() <-chan struct{} { return s }

// withWatchesEnding is upstream's filter that ends watches when the server stops, and has the server wait for them. What is
// left of a watch when its handlers have returned is waited for, too.
func withWatchesEnding(handler http.Handler, group watchGroup) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && info.Verb != "watch" {
			handler.ServeHTTP(w, r)
			return
		}
		one := watchOf{group, r.Context()}
		serverfilters.WithWatchTerminationDuringShutdown(handler, stopping(group.stopping), one).ServeHTTP(w, r)
	})
}

// watchOf is a watch's part of the group.
type watchOf struct {
	watchGroup
	ctx context.Context
}

func (w watchOf) Done() { push.After(w.ctx, w.watchGroup.Done) }

// watchGroup refuses watches from the moment on that those in progress are told to
// end. Upstream's group refuses them only once Wait has been called; a watch that
// begins in between ends at once and empty, which clients take for a fault and
// list everything anew.
type watchGroup struct {
	serverfilters.RequestWaitGroup
	stopping <-chan struct{}
}

func (g watchGroup) Add(delta int) error {
	select {
	case <-g.stopping:
		return errors.New("the server is shutting down")
	default:
		return g.RequestWaitGroup.Add(delta)
	}
}

// markedRequests are those whose bodies have kubebuilder markers, and those whose options have.
func markedRequests(s *define.Server) (bodies, queries map[captured]bool) {
	bodies, queries = map[captured]bool{}, map[captured]bool{}
	for _, k := range s.Kinds() {
		for _, v := range k.Versions {
			resource := v.GroupVersion.WithResource(k.Resource)
			if v.Structural != nil {
				bodies[captured{resource, ""}], bodies[captured{resource, "status"}] = true, true
			}
			for _, sub := range k.CustomSubresources {
				switch {
				case sub.Structural == nil:
				case sub.ReadsQuery():
					queries[captured{resource, sub.Name}] = true
				default:
					bodies[captured{resource, sub.Name}] = true
				}
			}
		}
	}
	return bodies, queries
}

// captured is a subresource, or a resource's main endpoint, whose requests are validated as clients sent them.
type captured struct {
	resource    schema.GroupVersionResource
	subresource string
}

// captureMarked captures the bodies and the queries of requests with kubebuilder markers, which are
// validated as the client sent them.
func captureMarked(bodies, queries map[captured]bool) step {
	return func(r *http.Request, info *request.RequestInfo) (*http.Request, error) {
		if !info.IsResourceRequest {
			return r, nil
		}
		resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
		endpoint := captured{resource, info.Subresource}
		switch writes := info.Verb == "create" || info.Verb == "update" || info.Verb == "patch"; {
		case writes && bodies[endpoint]:
			r = structural.CaptureBody(r)
		case queries[endpoint]:
			r = structural.CaptureQuery(r)
		}
		return r, nil
	}
}

// addUserAgent tells custom subresources which program sends a request, and how long it waits
// for what takes longer.
func addUserAgent(r *http.Request, info *request.RequestInfo) (*http.Request, error) {
	if info.Subresource != "" && (info.Verb == "create" || info.Verb == "update") {
		ctx := registry.WithUserAgent(r.Context(), r.UserAgent())
		if strings.Contains(r.URL.RawQuery, "wait=") {
			ctx = registry.WithWait(ctx, r.URL.Query().Get("wait"))
		}
		r = r.WithContext(ctx)
	}
	return r, nil
}

// withImpersonation bypasses the impersonation filter for requests without its headers.
func withImpersonation(handler http.Handler, config Config, c *server.Config) http.Handler {
	impersonated := handler
	if config.AccessLog != nil {
		impersonated = notingImpersonated(handler)
	}
	impersonating := impersonation.WithConstrainedImpersonation(impersonated, c.Authorization.Authorizer, c.Serializer)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				impersonating.ServeHTTP(w, r)
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}

func deprecations(s *define.Server) map[schema.GroupVersionResource]string {
	warnings := map[schema.GroupVersionResource]string{}
	for _, k := range s.Kinds() {
		for _, v := range k.Versions {
			if v.Deprecated != "" {
				warnings[v.GroupVersion.WithResource(k.Resource)] = v.Deprecated
			}
		}
	}
	return warnings
}

// warnOfDeprecation warns callers that use a deprecated version.
func warnOfDeprecation(warnings map[schema.GroupVersionResource]string) step {
	return func(r *http.Request, info *request.RequestInfo) (*http.Request, error) {
		if info.IsResourceRequest {
			resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
			if text, ok := warnings[resource]; ok {
				warning.AddWarning(r.Context(), "", text)
			}
		}
		return r, nil
	}
}
