// Package upstream builds a k8s.io/apiserver server from a definition.
//
// It is the only package that names that library's options, configurations and handler chain, so that most of the
// work for a new Kubernetes release is here. It holds the filters of the chain (authentication, limits, memory,
// origins, recovery), the installation of API groups, discovery and OpenAPI documents, and the listeners. It does not
// hold authenticators, storages or hooks: Config passes them in.
package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilwaitgroup "k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/fastpath/reads"
	"github.com/annexapi/annex/internal/fastpath/writes"
	"github.com/annexapi/annex/internal/identity/standing"
	"github.com/annexapi/annex/internal/model/convert"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/history"
	"github.com/annexapi/annex/internal/server/query"
	"github.com/annexapi/annex/internal/server/requestlog"
	"github.com/annexapi/annex/internal/storage/registry"
	"github.com/annexapi/annex/internal/wire/push"
)

// Config is everything that a server is built from.
type Config struct {
	Definition *define.Server
	Machinery  *convert.Machinery
	// Stores opens the storage of every resource.
	Stores *registry.Stores
	Kinds  []*registry.Kind
	// BuiltIn holds the storages of versions outside the definition, by resource. Storages of the core group are
	// served together with the definition's kinds in that group.
	BuiltIn map[schema.GroupVersion]map[string]rest.Storage
	OpenAPI convert.OpenAPI
	// Foreign are groups of another project. Nil means none.
	Foreign *Foreign

	Authenticator authenticator.Request
	// RequestHeaders are removed from requests once their callers are known. Nil means the usual headers.
	RequestHeaders *authenticatorfactory.RequestHeaderConfig
	Authorizer     authorizer.Authorizer
	Admission      admission.Interface
	// Loopback is the client configuration of the privileged in-process client.
	Loopback *restclient.Config
	// Address is the host:port in discovery documents.
	Address string
	// AuditSink receives an event for each stage of the requests that AuditPolicy selects. Both are nil without an
	// audit.
	AuditSink   audit.Sink
	AuditPolicy audit.PolicyRuleEvaluator
	// AccessLog receives a record for each request when it has ended. Nil means no access log.
	AccessLog slog.Handler
	// Requests receives the same, for people who watch them in the console. Nil keeps none.
	Requests *requestlog.Ring
	// Ready are the checks of /readyz in addition to upstream's. Their errors are shown to anonymous callers.
	Ready []healthz.HealthChecker
	// Metrics are the server's own metrics.
	Metrics []prometheus.Collector
	// Gathered are metrics of the server in registries of their own.
	Gathered []prometheus.Gatherer
	// LongRunning are handlers beside the API, by path. Like watches, they have no deadline and do not count as
	// requests in flight, but a shutdown does not wait for them. They are authorized like all other requests.
	LongRunning map[string]http.Handler
	// Handlers answer paths beside the API. No two may have the same path.
	Handlers []Handler
	// NewQueries builds the query API. delegated returns the delegate's resources. Nil means no queries.
	NewQueries func(delegated func() []*query.Resource) *query.API
	// NewHistory builds the history API. delegated returns the delegate's resources. Nil means no history.
	NewHistory func(delegated func() []*query.Resource) *history.API
	// Tracing records spans of requests. Nil records none.
	Tracing *Tracing
	// FlowControl queues requests instead of counting them, while FlowControlled returns true. A nil FlowControl
	// never queues; a nil FlowControlled means always.
	FlowControl    utilflowcontrol.Interface
	FlowControlled func() bool
	// Serving must be complete.
	Serving config.ServingOptions
	// Discovery are documents beside the API, by path.
	Discovery map[string]http.Handler
	// RequestTimeout limits every request except watches.
	RequestTimeout time.Duration
	// Memory is the budget for requests. Nil means no limit.
	Memory *budget.Budget
	// Stopping is closed when the server drains and watches have to end.
	Stopping <-chan struct{}
	// NoFastPath leaves all requests to upstream's handlers.
	NoFastPath bool
	// CheckPeriod is the interval at which long-running requests are checked: their callers must still have the
	// credential and the rights. 0 means standing.DefaultPeriod.
	CheckPeriod time.Duration
	// Cluster is the cluster that authenticates callers and authorizes their requests. Nil means that the server
	// stands alone.
	Cluster Cluster
	// Delegation answers requests for other groups. Nil means 404.
	Delegation *Delegation
	// Aggregation answers requests for the groups of other servers. Nil means none.
	Aggregation Aggregation
}

// Cluster is the handler chain's view of the cluster into which the server is aggregated.
type Cluster interface {
	// AuthenticationUnavailable returns nil if an error of the Authenticator is about the caller. Otherwise it
	// returns the reason why the cluster could not identify the caller.
	AuthenticationUnavailable(err error) error
	// AuthorizationUnavailable returns nil if the cluster can authorize requests. Otherwise only requests pass that
	// Open allows.
	AuthorizationUnavailable() error
	Open() authorizer.Authorizer
}

// Server is a built server that does not listen yet.
type Server struct {
	// Handler is the whole chain: authentication, authorization, API.
	Handler http.Handler

	generic  *server.GenericAPIServer
	delegate *Delegate
	standing *standing.Checker
}

// Embedded returns Handler for callers other than the server's own listeners. Its ServeHTTP returns only when a watch has
// ended: the caller may be the handler of another server, which cancels the request's context when it returns.
func (s *Server) Embedded() http.Handler { return push.Within(s.Handler) }

// New builds the server. All API groups are installed when it returns.
func New(c Config) (*Server, error) {
	var delegate *Delegate
	var queries *query.API
	var documents *queryDocuments
	var err error
	if c.NewQueries != nil {
		queries = c.NewQueries(func() []*query.Resource { return delegate.queried() })
		documents = &queryDocuments{queries: queries, history: c.NewHistory != nil}
		c.Handlers = append(slices.Clone(c.Handlers), queryPaths(queries)...)
	}
	var past *history.API
	if c.NewHistory != nil {
		past = c.NewHistory(func() []*query.Resource { return delegate.queried() })
	}
	config := server.NewConfig(c.Machinery.Codecs)
	config.EffectiveVersion = EffectiveVersion(c.Definition)
	config.MaxRequestsInFlight, config.MaxMutatingRequestsInFlight = max(
		0,
		c.Serving.MaxRequestsInFlight,
	), max(
		0,
		c.Serving.MaxMutatingRequestsInFlight,
	)
	config.ExternalAddress = c.Address
	config.LoopbackClientConfig = c.Loopback
	config.Authentication.Authenticator = c.Authenticator
	config.Authentication.RequestHeaderConfig = c.RequestHeaders
	config.Authorization.Authorizer = c.Authorizer
	config.AdmissionControl = c.Admission
	config.RESTOptionsGetter = c.Stores
	config.EnableProfiling, config.EnableContentionProfiling = c.Serving.Profiling, c.Serving.ContentionProfiling
	config.EnableMetrics = false // installMetrics serves them
	config.RequestTimeout = c.RequestTimeout
	config.FlowControl = c.FlowControl
	config.ReadyzChecks = append(config.ReadyzChecks, c.Ready...)
	text := newNoProtobuf(c.Definition.Groups, c.Kinds)
	var connections *connectionMetrics
	if len(connectRoutesOf(c.Definition)) > 0 {
		connections = newConnectionMetrics()
		c.Metrics = append(slices.Clone(c.Metrics), connections.open, connections.ended)
	}
	gate := fastpath.New(fastpath.Config{
		Off: c.NoFastPath, Audited: c.AuditSink != nil, Traced: c.Tracing != nil, Pretty: isPretty,
	})
	c.Metrics = append(slices.Clone(c.Metrics), gate.Collectors()...)
	config.LongRunningFunc = longRunning(config.LongRunningFunc, c)
	if len(c.Handlers) > 0 {
		config.RequestInfoResolver = mappedResources{resolver(config), c.Handlers}
	}

	namer := c.Machinery.Namer(slices.Concat(c.Delegation.schemes(), c.Foreign.schemes())...)
	config.OpenAPIConfig = server.DefaultOpenAPIConfig(c.OpenAPI.V2, namer.DefinitionNamer)
	config.OpenAPIV3Config = server.DefaultOpenAPIV3Config(c.OpenAPI.V3, namer.DefinitionNamer)
	config.OpenAPIConfig.GetDefinitionName, config.OpenAPIV3Config.GetDefinitionName = namer.GetDefinitionName, namer.GetDefinitionName
	title, version := About(c.Definition)
	for _, info := range []*spec.Info{config.OpenAPIConfig.Info, config.OpenAPIV3Config.Info} {
		info.Title, info.Version = title, version
	}
	config.OpenAPIConfig.SecurityDefinitions, config.OpenAPIV3Config.SecuritySchemes = bearerTokens()
	long := longActionsOf(c.Definition)
	config.OpenAPIConfig.PostProcessSpec = inTurn(text.correctV2, long.describeV2)
	config.OpenAPIV3Config.PostProcessSpec = inTurn(text.correctV3, long.describeV3)

	if delegate, err = c.Delegation.build(config, c.Ready); err != nil {
		return nil, err
	}
	if queries != nil {
		config.RequestInfoResolver = resolverWith{resolver(config), queries.RequestInfo}
	}
	if past != nil {
		config.RequestInfoResolver = resolverWith{resolver(config), past.RequestInfo}
	}
	standing := newStanding(c)
	later := newLaterRoutes(config.Serializer)
	handlers := &chain{
		config: c, gate: gate, text: text, connections: connections, queries: queries, documents: documents, standing: standing,
		later: later, history: past,
	}
	config.BuildHandlerChainFunc = handlers.build
	completed := config.Complete(nil)
	completed.SkipOpenAPIInstallation = true // join installs the documents
	generic, err := completed.New(c.Definition.Name, delegate.target())
	if err != nil {
		return nil, fmt.Errorf("build API server: %w", err)
	}
	builder := newOpenAPIv3Builder(completed.OpenAPIV3Config, c.Foreign)
	if err := install(generic, completed, c, gate, later); err != nil {
		return nil, err
	}
	releaseDefinitions(completed.OpenAPIV3Config)
	if err := installMetrics(generic.Handler.NonGoRestfulMux, c.Metrics, c.Gathered, c.Definition.Metrics); err != nil {
		return nil, err
	}
	for _, handlers := range []map[string]http.Handler{c.LongRunning, c.Discovery} {
		for path, handler := range handlers {
			generic.Handler.NonGoRestfulMux.Handle(path, handler)
		}
	}
	for _, h := range c.Handlers {
		if h.Handler == nil || h.Definition.Path == "/" && h.Takes != nil {
			continue // a prefix of all paths would answer what no handler answers
		}
		// withHandlers answers these paths. They are registered here so that the list of all paths includes them.
		handle := generic.Handler.NonGoRestfulMux.Handle
		if strings.HasSuffix(h.Definition.Path, "/") {
			handle = generic.Handler.NonGoRestfulMux.HandlePrefix
		}
		handle(h.Definition.Path, h)
	}
	// Upstream's handler would answer with a list of all paths, even to unknown callers if the path begins like an
	// open path.
	generic.Handler.NonGoRestfulMux.NotFoundHandler(http.HandlerFunc(http.NotFound))
	completed.OpenAPIConfig.GetDefinitions = c.Foreign.with(completed.OpenAPIConfig.GetDefinitions)
	if err := delegate.join(generic, completed.OpenAPIConfig, builder, later); err != nil {
		return nil, err
	}
	described := documentsOf(generic.OpenAPIV3VersionedService, c.Handlers, completed.OpenAPIV3Config)
	if queries != nil {
		describeOwn(described, builder, queries.Described(), queries.PathOf, queries.Document)
		documents.serve(described, completed.OpenAPIV3Config)
	}
	if past != nil {
		describeOwn(described, builder, past.Described(), history.PathOf, history.Document)
	}
	if c.Aggregation != nil {
		c.Aggregation.Join(generic.DiscoveryGroupManager, generic.AggregatedDiscoveryGroupManager, generic.Serializer)
	}
	return &Server{Handler: generic.Handler, generic: generic, delegate: delegate, standing: standing}, nil
}

// bearerTokens returns the security schemes of OpenAPI v2 and v3, in the words of kube-apiserver. They do not include
// client certificates, in either format.
func bearerTokens() (*spec.SecurityDefinitions, spec3.SecuritySchemes) {
	const name, in, description = "authorization", "header", "Bearer Token authentication"
	v2 := spec.SecuritySchemeProps{Type: "apiKey", Name: name, In: in, Description: description}
	v3 := spec3.SecuritySchemeProps{Type: "apiKey", Name: name, In: in, Description: description}
	return &spec.SecurityDefinitions{"BearerToken": {SecuritySchemeProps: v2}},
		spec3.SecuritySchemes{"BearerToken": {SecuritySchemeProps: v3}}
}

func install(
	generic *server.GenericAPIServer,
	config server.CompletedConfig,
	c Config,
	gate *fastpath.Gate,
	later *laterRoutes,
) error {
	if err := installBuiltIn(generic, c); err != nil {
		return err
	}
	var groups []apiGroup
	definitions := slices.Clone(c.Definition.Groups)
	core := func(g define.Group) bool { return g.Name == "" }
	if c.BuiltIn[corev1.SchemeGroupVersion] != nil && !slices.ContainsFunc(definitions, core) {
		definitions = append(definitions, define.Group{})
	}
	for i := range definitions {
		group := &definitions[i]
		machinery := c.Machinery.Of(group.Name)
		info := server.NewDefaultAPIGroupInfo(group.Name, machinery.Scheme, machinery.ParameterCodec, machinery.Codecs)
		info.PrioritizedVersions = group.ServedVersions()
		info.NegotiatedSerializer = machinery.Serializer()
		if core(*group) {
			info.PrioritizedVersions = []schema.GroupVersion{corev1.SchemeGroupVersion}
			add(info.VersionedResourcesStorageMap, corev1.SchemeGroupVersion, c.BuiltIn[corev1.SchemeGroupVersion])
		}
		if !offersProtobuf(group) {
			info.NegotiatedSerializer = withoutProtobuf{info.NegotiatedSerializer}
		}
		var kinds []*registry.Kind
		for _, k := range c.Kinds {
			if k.Definition.Group != group.Name {
				continue
			}
			kinds = append(kinds, k)
			for _, v := range k.Definition.Versions {
				if v.Unserved {
					continue
				}
				add(info.VersionedResourcesStorageMap, v.GroupVersion, k.StorageIn(v))
			}
		}
		if len(info.PrioritizedVersions) > 0 {
			groups = append(groups, apiGroup{info, machinery, kinds, c.Foreign.group(group.Name)})
		}
	}
	for _, foreign := range c.Foreign.groups() {
		if !slices.ContainsFunc(groups, func(g apiGroup) bool { return groupName(&g.info) == groupName(foreign) }) {
			groups = append(groups, apiGroup{info: *foreign})
		}
	}
	to := fastPath{
		gate:   gate,
		reader: reads.New(time.Duration(config.MinRequestTimeout) * time.Second),
		writer: writes.New(),
		later:  later,
	}
	return installGroups(generic, config, groups, c.Admission, to, c.Foreign.models())
}

// installBuiltIn installs the versions outside the definition. Their groups must have no other versions.
func installBuiltIn(generic *server.GenericAPIServer, c Config) error {
	var infos []*server.APIGroupInfo
	for _, gv := range slices.SortedFunc(maps.Keys(c.BuiltIn),
		func(a, b schema.GroupVersion) int { return strings.Compare(a.Group, b.Group) }) {
		if gv.Group == "" {
			continue // may have kinds of the definition; install adds it
		}
		info := server.NewDefaultAPIGroupInfo(gv.Group, c.Machinery.Scheme, c.Machinery.ParameterCodec, c.Machinery.Codecs)
		add(info.VersionedResourcesStorageMap, gv, c.BuiltIn[gv])
		infos = append(infos, &info)
	}
	if len(infos) == 0 {
		return nil // InstallAPIGroups would build models even for no groups, at each start
	}
	if err := generic.InstallAPIGroups(infos...); err != nil {
		return fmt.Errorf("install built-in groups: %w", err)
	}
	return nil
}

func add(to map[string]map[string]rest.Storage, gv schema.GroupVersion, storage map[string]rest.Storage) {
	if to[gv.Version] == nil {
		to[gv.Version] = map[string]rest.Storage{}
	}
	for path, s := range storage {
		to[gv.Version][path] = s
	}
}

// Start starts the server's background work, which runs until the context ends. It returns when the work has begun,
// which may take until requests are answered.
func (s *Server) Start(ctx context.Context) {
	s.delegate.readFirst(ctx)
	if ctx.Err() != nil {
		return // a hook that fails, even because its context has ended, ends the process
	}
	hooks, end := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		s.delegate.waitForHooks()
		end()
	})
	s.generic.RunPostStartHooks(hooks)
}

// CheckStreams ends long-running requests whose callers lose the credential or the rights with which they began. It
// returns when the context ends. The context must not end before the last of these requests.
func (s *Server) CheckStreams(ctx context.Context) { s.standing.Run(ctx) }

// Drain refuses new requests from now on, except for health and metrics, and waits until the requests in progress
// have ended. It returns an error if the context ends first.
func (s *Server) Drain(ctx context.Context) error {
	watches, requests := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watches)
		// The error only means that the context has ended.
		_, _, _ = s.generic.WatchRequestWaitGroup.Wait(func(int) (utilwaitgroup.RateLimiter, context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			return noRateLimit{}, ctx, cancel
		})
	}()
	go func() {
		defer close(requests)
		s.generic.NonLongRunningRequestWaitGroup.Wait()
	}()
	<-watches
	select {
	case <-requests:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// noRateLimit lets all watches end at once: there is no other replica that reconnecting clients could overload.
type noRateLimit struct{}

func (noRateLimit) Wait(context.Context) error { return nil }

// Destroy releases the resources of the server's storages.
func (s *Server) Destroy() {
	s.generic.Destroy()
}
