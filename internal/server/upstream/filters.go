package upstream

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/server"
	serverfilters "k8s.io/apiserver/pkg/server/filters"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/identity/standing"
	"github.com/annexapi/annex/internal/server/history"
	"github.com/annexapi/annex/internal/server/query"
)

// A filter is one step of the handler chain.
type filter struct {
	// name is unique. describe prints it.
	name string
	// upstream names the filters of upstream's chain that the filter uses or replaces, the outermost first. It is empty
	// if upstream has no such filter.
	upstream []string
	// when is the condition for which a server needs the filter; nil is for every server.
	when *condition
	// closed is true for a filter that requests for open handlers skip.
	closed bool
	wrap   func(next http.Handler, c *chain) http.Handler
}

// Traits are the parts of a server that decide which filters it has.
type Traits struct {
	AccessLog, Aggregation, Audit, Cluster, Connections, Handlers, Queries, RefusedUserAgents, Tracing bool
	// ProtobufTakenBack is true if some kinds have no protobuf while others of their group do.
	ProtobufTakenBack bool
}

// condition is a condition on the traits of a server.
type condition struct {
	text  string // as describe prints it
	holds func(Traits) bool
}

var (
	accessLogged = condition{"with an access log or a console", func(t Traits) bool { return t.AccessLog }}
	aggregating  = condition{"with servers behind", func(t Traits) bool { return t.Aggregation }}
	audited      = condition{"with an audit", func(t Traits) bool { return t.Audit }}
	inCluster    = condition{"aggregated", func(t Traits) bool { return t.Cluster }}
	connected    = condition{"with subresources that connect", func(t Traits) bool { return t.Connections }}
	besides      = condition{"with handlers beside the API", func(t Traits) bool { return t.Handlers }}
	mixed        = condition{"with kinds with and without protobuf in a group", func(t Traits) bool { return t.ProtobufTakenBack }}
	queried      = condition{"with queries", func(t Traits) bool { return t.Queries }}
	refusing     = condition{"with refused user agents", func(t Traits) bool { return t.RefusedUserAgents }}
	traced       = condition{"with tracing", func(t Traits) bool { return t.Tracing }}
	alone        = condition{"unless aggregated", func(t Traits) bool { return !t.Cluster }}
)

// chain has the parts of a server that its filters need.
type chain struct {
	config      Config
	server      *server.Config
	gate        *fastpath.Gate
	text        noProtobuf
	routes      connectRoutes
	connections *connectionMetrics
	queries     *query.API
	documents   *queryDocuments
	history     *history.API
	standing    *standing.Checker
	later       *laterRoutes
	// authorized is the chain behind the filter authorization.
	authorized http.Handler
}

// filterTable has all filters in the order in which a request passes them. The order is upstream's (TestFilters_followUpstream), with
// filters of our own in between.
var filterTable = []filter{
	{name: "recovery", upstream: []string{"WithPanicRecovery"},
		wrap: func(next http.Handler, _ *chain) http.Handler { return withRecovery(next) }},
	{name: "beginning", upstream: []string{"WithAuditInit", "WithRequestReceivedTimestamp", "WithRequestInfo", "WithWarningRecorder"},
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withRequestSetup(next, c.config.AuditSink != nil, c.server)
		}},
	{name: "access log", upstream: []string{"WithHTTPLogging"}, when: &accessLogged,
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withAccessLog(next, recorders{c.config.AccessLog, c.config.Requests}, c.server.LongRunningFunc)
		}},
	{name: "connection advice", upstream: []string{"WithHSTS", "WithProbabilisticGoaway"},
		wrap: func(next http.Handler, c *chain) http.Handler { return withConnectionAdvice(next, c.config.Serving) }},
	{name: "cache control", upstream: []string{"WithCacheControl"},
		wrap: func(next http.Handler, _ *chain) http.Handler { return filters.WithCacheControl(next) }},
	{name: "watches ending", upstream: []string{"WithWatchTerminationDuringShutdown"},
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withWatchesEnding(next, watchGroup{c.server.WatchRequestWaitGroup, c.config.Stopping})
		}},
	{name: "requests in progress", upstream: []string{"WithWaitGroup"},
		wrap: func(next http.Handler, c *chain) http.Handler {
			return serverfilters.WithWaitGroup(next, c.server.LongRunningFunc, c.server.NonLongRunningRequestWaitGroup)
		}},
	{name: "deadline", upstream: []string{"WithRequestDeadline"},
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withTimeoutOfClient(next, filters.WithRequestDeadline(next, c.config.AuditSink, c.config.AuditPolicy,
				c.server.LongRunningFunc, c.server.Serializer, c.server.RequestTimeout))
		}},
	{name: "departure", upstream: []string{"WithTimeoutForNonLongRunningRequests"},
		wrap: func(next http.Handler, _ *chain) http.Handler { return withDeparture(next) }},
	{name: "browsers", upstream: []string{"WithCORS"},
		wrap: func(next http.Handler, c *chain) http.Handler { return withBrowsers(next, c.config.Serving) }},
	{name: "stream credentials",
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withStreamsBegun(next, c.standing, c.server.LongRunningFunc)
		}},
	{name: "origins", when: &alone,
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withOrigins(next, originPatterns(c.config.Serving))
		}},
	{name: "authentication", upstream: []string{"WithAuthentication"},
		wrap: func(next http.Handler, c *chain) http.Handler {
			open := withUnknownCallers(next, c.config.Authenticator)
			return handlers(c.config.Handlers).ifOpen(open, withAuthentication(next, c.config, c.server))
		}},
	{name: "page cookies", closed: true,
		wrap: func(next http.Handler, _ *chain) http.Handler { return withPageCookiesHidden(next) }},
	// Behind authentication, so that only known callers ask for spans.
	{name: "tracing", upstream: []string{"WithTracing"}, when: &traced,
		wrap: func(next http.Handler, c *chain) http.Handler {
			return filters.WithTracing(next, c.config.Tracing.provider)
		}},
	{name: "caller of the access log", when: &accessLogged,
		wrap: func(next http.Handler, _ *chain) http.Handler { return notingCaller(next) }},
	{name: "audit", upstream: []string{"WithAudit"},
		wrap: func(next http.Handler, c *chain) http.Handler {
			return filters.WithAudit(next, c.config.AuditSink, c.config.AuditPolicy, c.server.LongRunningFunc)
		}},
	{name: "audit of watches", when: &audited,
		wrap: func(next http.Handler, _ *chain) http.Handler { return withAuditedInside(next) }},
	{name: "impersonation", upstream: []string{"WithConstrainedImpersonation"}, closed: true,
		wrap: func(next http.Handler, c *chain) http.Handler { return withImpersonation(next, c.config, c.server) }},
	{name: "body",
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withBody(next, c.config.Memory, c.routes, c.config.Handlers, c.config.Aggregation, c.server)
		}},
	{name: "limits", upstream: []string{"WithPriorityAndFairness", "WithMaxInFlightLimit"},
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withLimits(next, c.config.FlowControlled, c.server)
		}},
	{name: "open handlers",
		wrap: func(next http.Handler, c *chain) http.Handler {
			return handlers(c.config.Handlers).ifOpen(c.authorized, next)
		}},
	{name: "cluster unavailable", when: &inCluster,
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withClusterUnavailable(next, c.config.Cluster, c.server)
		}},
	{name: "authorization of queries", when: &queried,
		wrap: func(next http.Handler, c *chain) http.Handler { return c.queries.Authorize(next, c.authorized) }},
	{name: "permission to upgrade", when: &connected,
		wrap: func(next http.Handler, c *chain) http.Handler { return withUpgradePermission(next, c.routes, c.server) }},
	{name: authorization, upstream: []string{"WithAuthorization"},
		wrap: func(next http.Handler, c *chain) http.Handler {
			return filters.WithAuthorization(next, c.server.Authorization.Authorizer, c.server.Serializer)
		}},
	{name: "pages of other origins", when: &alone,
		wrap: func(next http.Handler, c *chain) http.Handler { return withSteps(next, c.server, refuseForeign) }},
	{name: "streams",
		wrap: func(next http.Handler, c *chain) http.Handler {
			return (&standingCheck{next, c.config, c.gate, c.queries, c.routes, c.server}).filter()
		}},
	{name: "refused user agents", when: &refusing,
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withUserAgentsRefused(next, c.config.Serving.RefusedUserAgents, c.server)
		}},
	{name: "aggregated servers", when: &aggregating,
		wrap: func(next http.Handler, c *chain) http.Handler { return c.config.Aggregation.Wrap(next) }},
	{name: "handlers", when: &besides,
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withHandlers(next, c.config.Handlers, c.config.Stopping, c.server)
		}},
	{name: "connections ending", when: &connected,
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withConnectionsEnding(next, c.routes, c.config.Stopping)
		}},
	{name: "connections counted", when: &connected,
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withConnectionsCounted(next, c.routes, c.connections)
		}},
	{name: "memory of requests",
		wrap: func(next http.Handler, c *chain) http.Handler { return withMemory(next, newTurns(), c.server) }},
	{name: "reasons of readyz",
		wrap: func(next http.Handler, c *chain) http.Handler { return withReasons(next, c.config.Ready) }},
	{name: "checks of the request",
		wrap: func(next http.Handler, c *chain) http.Handler { return withSteps(next, c.server, steps(c.config)...) }},
	{name: "queries", when: &queried,
		wrap: func(next http.Handler, c *chain) http.Handler {
			return withQueries(next, c.queries, c.documents, c.server)
		}},
	{name: "history",
		wrap: func(next http.Handler, c *chain) http.Handler { return withHistory(next, c.history, c.server) }},
	{name: "media types", when: &mixed,
		wrap: func(next http.Handler, c *chain) http.Handler { return c.text.filter(next, c.server) }},
	{name: "fast path",
		wrap: func(next http.Handler, c *chain) http.Handler { return c.gate.Wrap(next) }},
	{name: "contexts of streams",
		wrap: func(next http.Handler, _ *chain) http.Handler { return withinStream(next) }},
	{name: "routes made later",
		wrap: func(next http.Handler, c *chain) http.Handler { return c.later.wrap(next) }},
}

// authorization is the filter that requests for open handlers skip, and also queries, which have a filter of their own.
const authorization = "authorization"

// traits returns the traits of the chain's server.
func (c *chain) traits() Traits {
	return Traits{
		AccessLog:         c.config.AccessLog != nil || c.config.Requests != nil,
		Aggregation:       c.config.Aggregation != nil,
		Audit:             c.config.AuditSink != nil,
		Cluster:           c.config.Cluster != nil,
		Connections:       len(c.routes) > 0,
		Handlers:          len(c.config.Handlers) > 0,
		Queries:           c.queries != nil,
		RefusedUserAgents: len(c.config.Serving.RefusedUserAgents) > 0,
		Tracing:           c.config.Tracing != nil,
		ProtobufTakenBack: len(c.text) > 0,
	}
}

// Filters returns the names of all filters in the order in which a request passes them, with the conditions under which
// a server has them.
func Filters() []string {
	names := make([]string, 0, len(filterTable))
	for _, f := range filterTable {
		if f.when != nil {
			f.name += " (" + f.when.text + ")"
		}
		names = append(names, f.name)
	}
	return names
}

// build wraps upstream's handlers in the filters, as a BuildHandlerChainFunc of upstream. Like upstream's chain, it starts
// with the innermost filter.
func (c *chain) build(handler http.Handler, server *server.Config) http.Handler {
	c.server, c.routes = server, connectRoutesOf(c.config.Definition)
	traits := c.traits()
	for i := len(filterTable) - 1; i >= 0; i-- {
		f := &filterTable[i]
		if f.when != nil && !f.when.holds(traits) {
			continue
		}
		if f.name == authorization {
			c.authorized = handler
		}
		wrapped := f.wrap(handler, c)
		if f.closed {
			wrapped = handlers(c.config.Handlers).ifOpen(handler, wrapped)
		}
		handler = wrapped
	}
	return handler
}
