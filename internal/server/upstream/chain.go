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

// withAuditedInside ends audited requests with their handlers, because upstream's audit filter records the stage ResponseComplete when they
// return.
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

// withPageCookiesHidden removes the cookies of the server's own pages from requests: handlers further in may send a request on to
// another server.
func withPageCookiesHidden(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, pagecookie.Hidden(r))
	})
}

// steps returns the checks of a server in their order.
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

// longRunning extends check to connections, the server's own handlers and the handlers beside the API.
func longRunning(check request.LongRunningRequestCheck, config Config) request.LongRunningRequestCheck {
	routes, beside := connectRoutesOf(config.Definition), handlers(config.Handlers)
	return func(r *http.Request, info *request.RequestInfo) bool {
		if beside.find(r) != nil {
			return beside.longRunning(r)
		}
		if config.Aggregation != nil && config.Aggregation.LongRunning(r, info) {
			return true
		}
		_, ours := config.LongRunning[info.Path]
		return ours && !info.IsResourceRequest || routes.longRunning(r, info) || check(r, info)
	}
}

// shutdownSignal is closed when the server drains, which ends watches.
type shutdownSignal <-chan struct{}

func (s shutdownSignal) ShuttingDown() <-chan struct{} { return s }

// withWatchesEnding ends watches when the server stops, as upstream's filter does, and makes the server wait for them. It waits for
// the rest of a watch whose handlers have returned, too.
func withWatchesEnding(handler http.Handler, group watchGroup) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && info.Verb != "watch" {
			handler.ServeHTTP(w, r)
			return
		}
		one := watchOf{group, r.Context()}
		serverfilters.WithWatchTerminationDuringShutdown(handler, shutdownSignal(group.stopping), one).ServeHTTP(w, r)
	})
}

// watchOf is one watch in the group.
type watchOf struct {
	watchGroup
	ctx context.Context
}

func (w watchOf) Done() { push.After(w.ctx, w.watchGroup.Done) }

// watchGroup refuses watches as soon as the server ends the watches in progress. Upstream's group refuses watches only after
// Wait was called: a watch that begins before ends at once and without events, which clients take for a fault and
// list all objects again.
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

// markedRequests returns the endpoints whose bodies have kubebuilder markers, and the endpoints whose options have markers.
func markedRequests(s *define.Server) (bodies, queries map[markedRequest]bool) {
	bodies, queries = map[markedRequest]bool{}, map[markedRequest]bool{}
	for _, k := range s.Kinds() {
		for _, v := range k.Versions {
			resource := v.GroupVersion.WithResource(k.Resource)
			if v.Structural != nil {
				bodies[markedRequest{resource, ""}], bodies[markedRequest{resource, "status"}] = true, true
			}
			for _, sub := range k.CustomSubresources {
				switch {
				case sub.Structural == nil:
				case sub.ReadsQuery():
					queries[markedRequest{resource, sub.Name}] = true
				default:
					bodies[markedRequest{resource, sub.Name}] = true
				}
			}
		}
	}
	return bodies, queries
}

// markedRequest is an endpoint whose requests are validated as clients sent them. The subresource is empty for the main endpoint.
type markedRequest struct {
	resource    schema.GroupVersionResource
	subresource string
}

// captureMarked keeps the bodies and the queries of requests for endpoints with kubebuilder markers: the markers validate the request as
// the client sent it, without defaults.
func captureMarked(bodies, queries map[markedRequest]bool) step {
	return func(r *http.Request, info *request.RequestInfo) (*http.Request, error) {
		if !info.IsResourceRequest {
			return r, nil
		}
		resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
		endpoint := markedRequest{resource, info.Subresource}
		switch writes := info.Verb == "create" || info.Verb == "update" || info.Verb == "patch"; {
		case writes && bodies[endpoint]:
			r = structural.CaptureBody(r)
		case queries[endpoint]:
			r = structural.CaptureQuery(r)
		}
		return r, nil
	}
}

// addUserAgent passes the user agent of a request, and the time for which its client waits, to custom subresources.
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

// withImpersonation lets requests without headers of impersonation bypass upstream's filter.
func withImpersonation(handler http.Handler, config Config, c *server.Config) http.Handler {
	impersonated := handler
	if config.AccessLog != nil || config.Requests != nil {
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

// warnOfDeprecation adds a warning to responses for deprecated versions.
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
