package upstream

import (
	"context"
	"errors"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/identity/standing"
	"github.com/annexapi/annex/internal/server/query"
	"github.com/annexapi/annex/internal/wire/push"
)

// newStanding returns what checks requests that take long, by the authenticator and the authorizer of a server.
func newStanding(c Config) *standing.Checker {
	config := standing.Config{Period: c.CheckPeriod, Authenticator: c.Authenticator, Authorizer: c.Authorizer}
	if cluster := c.Cluster; cluster != nil {
		config.ProxiesVouch = true
		config.Unavailable = func(err error) bool { return cluster.AuthenticationUnavailable(err) != nil }
	}
	return standing.New(config)
}

// withStreamsBegun keeps the credentials of requests that take long, which authentication takes out of them.
func withStreamsBegun(handler http.Handler, checker *standing.Checker, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && longRunning(r, info) {
			r = checker.Begin(r)
		}
		handler.ServeHTTP(w, r)
	})
}

// streams has requests that take long checked until they are over. It is behind authorization, and in front of all that
// answers such requests.
type streams struct {
	next    http.Handler
	config  Config
	gate    *fastpath.Gate
	queries *query.API // nil without queries
	routes  connectRoutes
	server  *server.Config
}

func (s *streams) filter() http.Handler {
	beside := handlers(s.config.Handlers)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stream := standing.From(r.Context())
		if stream == nil {
			s.next.ServeHTTP(w, r)
			return
		}
		if h := beside.of(r); h != nil && h.Open { // which every caller may
			s.next.ServeHTTP(w, r)
			return
		}
		asked, err := s.asked(stream, r)
		if err != nil {
			answerError(w, r, apierrors.NewInternalError(err), s.server)
			return
		}
		cut := w
		if httpstream.IsUpgradeRequest(r) {
			cut = nil // its session ends it
		}
		ctx, end := r.Context(), context.CancelFunc(func() {})
		if s.queries != nil && s.queries.Answers(r) || s.gate.Decide(r).Route != fastpath.Watch {
			ctx, end = stream.Within(ctx)
			r = r.WithContext(ctx)
		} // else the watch ends itself, which takes less memory than a context
		stream.Join(asked, cut)
		defer push.After(ctx, func() {
			stream.Leave()
			end()
		})
		s.next.ServeHTTP(w, r)
	})
}

// asked are the questions by which a request was allowed.
func (s *streams) asked(stream *standing.Stream, r *http.Request) (standing.Asked, error) {
	ctx, asked := r.Context(), standing.Asked{}
	attributes, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return asked, err
	}
	asked.Attributes = []authorizer.Attributes{attributes}
	info, _ := request.RequestInfoFrom(ctx)
	upgrades := r.Method != http.MethodPost && httpstream.IsUpgradeRequest(r)
	if sub := s.routes.of(info); sub != nil && upgrades && slices.Contains(sub.Methods, http.MethodPost) {
		// As withUpgradePermission wants it.
		create := *info
		create.Verb = "create"
		more, err := filters.GetAuthorizerAttributes(request.WithRequestInfo(ctx, &create))
		if err != nil {
			return asked, err
		}
		asked.Attributes = append(asked.Attributes, more)
	}
	if presented := stream.Impersonating(); presented != nil {
		asked.Impersonates = true
		asked.More = append(asked.More, s.mayImpersonate(presented, info))
	}
	if s.queries == nil || !s.queries.Answers(r) {
		return asked, nil
	}
	if may, namespaces := s.queries.StillMay(r); may != nil {
		impersonates := asked.Impersonates
		asked.Attributes = nil // all of which not every namespace need allow
		query := []string{"query", info.Verb, info.APIGroup, info.APIVersion, info.Resource, attributes.GetUser().GetName()}
		asked.Scope = append(query, namespaces...)
		asked.More = append(asked.More, func(ctx context.Context, caller user.Info) error {
			if impersonates {
				return may(ctx, attributes)
			}
			return may(ctx, standing.As(caller, attributes))
		})
	}
	return asked, nil
}

// mayImpersonate asks whether a caller may act as the user whom a request names. It does not use what upstream remembers of that.
func (s *streams) mayImpersonate(presented *http.Request, info *request.RequestInfo) func(context.Context, user.Info) error {
	return func(ctx context.Context, caller user.Info) error {
		allowed := false
		handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { allowed = true })
		ctx = request.WithUser(request.WithRequestInfo(ctx, info), caller)
		w := &discarded{header: http.Header{}}
		impersonation.WithConstrainedImpersonation(handler, s.config.Authorizer, s.server.Serializer).ServeHTTP(w, presented.Clone(ctx))
		if allowed || w.code != http.StatusForbidden || ctx.Err() != nil {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("you may not impersonate this user any more"))
	}
}

// discarded is an answer of which nothing but the code is kept.
type discarded struct {
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (d *discarded) Header() http.Header { return d.header }

// Write implements http.ResponseWriter.
func (d *discarded) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (d *discarded) WriteHeader(code int) { d.code = code }

// withinStream ends the contexts of requests that have to end, if nothing else ends with them. It is right in front of upstream's
// handlers.
func withinStream(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stream := standing.From(r.Context())
		if stream == nil {
			handler.ServeHTTP(w, r)
			return
		}
		ctx, end := stream.Within(r.Context())
		defer end()
		handler.ServeHTTP(w, r.WithContext(ctx))
	})
}
