package upstream

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/annexapi/annex/internal/base/outcome"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
)

// connectRoutes are the subresources that connect clients with handlers.
type connectRoutes map[connectedKey]*define.Subresource

type connectedKey struct {
	schema.GroupResource
	subresource string
}

func connectRoutesOf(s *define.Server) connectRoutes {
	all := connectRoutes{}
	for _, k := range s.Kinds() {
		for _, sub := range k.CustomSubresources {
			if sub.Connects() {
				all[connectedKey{k.GroupResource(), sub.Name}] = sub
			}
		}
	}
	return all
}

// find returns the subresource that handles a request for a connection. It returns nil for any other request.
func (c connectRoutes) find(info *request.RequestInfo) *define.Subresource {
	if !info.IsResourceRequest || info.Subresource == "" {
		return nil
	}
	return c[connectedKey{schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Subresource}]
}

// longRunning reports whether a request is exempt from the request timeout and the limits of requests in flight. A
// connection is exempt unless the LongRunning function of its subresource returns false for its options. A connection
// whose options cannot be decoded is not exempt: it is refused at once.
func (c connectRoutes) longRunning(r *http.Request, info *request.RequestInfo) bool {
	sub := c.find(info)
	if sub == nil || sub.LongRunning == nil || !slices.Contains(sub.Methods, r.Method) {
		return sub != nil && slices.Contains(sub.Methods, r.Method)
	}
	options, err := convert.Options(sub, r.URL.Query())
	return err == nil && sub.LongRunning(options)
}

// withConnectionsEnding ends the context of connections when the server stops, as watches end then. The server waits
// a moment for them and cuts off the remaining ones.
func withConnectionsEnding(handler http.Handler, routes connectRoutes, stopping <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); !ok || routes.find(info) == nil {
			handler.ServeHTTP(w, r)
			return
		}
		ctx, end := endingWith(r.Context(), stopping)
		defer end()
		handler.ServeHTTP(w, r.WithContext(ctx))
	})
}

// connectionMetrics count connections by subresource.
type connectionMetrics struct {
	open  *prometheus.GaugeVec
	ended *prometheus.CounterVec
}

func newConnectionMetrics() *connectionMetrics {
	labels := []string{"group", "resource", "subresource"}
	return &connectionMetrics{
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "annex_connections",
			Help: "Clients that are connected to a subresource.",
		}, labels),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "annex_connections_ended_total",
			Help: "Ended connections to a subresource, by result.",
		}, append(labels, "result")),
	}
}

// withConnectionsCounted counts connections that have been authorized.
func withConnectionsCounted(handler http.Handler, routes connectRoutes, metrics *connectionMetrics) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || routes.find(info) == nil {
			handler.ServeHTTP(w, r)
			return
		}
		ctx, ending := outcome.With(r.Context())
		open := metrics.open.WithLabelValues(info.APIGroup, info.Resource, info.Subresource)
		open.Inc()
		defer func() {
			open.Dec()
			metrics.ended.WithLabelValues(info.APIGroup, info.Resource, info.Subresource, ending.Result()).Inc()
		}()
		handler.ServeHTTP(w, r.WithContext(ctx))
	})
}

// withUpgradePermission requires, for an upgrade, the permission that a POST needs, if the subresource accepts POST.
// A WebSocket begins with a GET, SPDY may begin with one, and backends may upgrade any method: otherwise a user with
// the verb get alone could connect although the connection needs create. Kubernetes requires the same for WebSockets
// of exec, attach and portforward. This permission is checked before that of the request itself, because the audit
// log keeps the annotations of the first decision.
func withUpgradePermission(handler http.Handler, routes connectRoutes, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || r.Method == http.MethodPost || !httpstream.IsUpgradeRequest(r) {
			handler.ServeHTTP(w, r)
			return
		}
		if sub := routes.find(info); sub == nil || !slices.Contains(sub.Methods, http.MethodPost) {
			handler.ServeHTTP(w, r)
			return
		}
		create := *info
		create.Verb = "create"
		ctx := request.WithRequestInfo(r.Context(), &create)
		if attributes, err := filters.GetAuthorizerAttributes(ctx); err == nil {
			if decision, _, _ := c.Authorization.Authorizer.Authorize(ctx, attributes); decision == authorizer.DecisionAllow {
				handler.ServeHTTP(w, r)
				return
			}
		}
		allowed := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { handler.ServeHTTP(w, r) })
		filters.WithAuthorization(allowed, c.Authorization.Authorizer, c.Serializer).ServeHTTP(w, r.WithContext(ctx))
	})
}
