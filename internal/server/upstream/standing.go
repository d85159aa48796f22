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

// newStanding returns a checker of long-running requests that uses the authenticator and the authorizer of the
// server.
func newStanding(c Config) *standing.Checker {
	config := standing.Config{Period: c.CheckPeriod, Authenticator: c.Authenticator, Authorizer: c.Authorizer}
	if cluster := c.Cluster; cluster != nil {
		config.ProxiesVouch = true
		config.Unavailable = func(err error) bool { return cluster.AuthenticationUnavailable(err) != nil }
	}
	return standing.New(config)
}

// withStreamsBegun keeps the credentials of long-running requests, because authentication removes them from the
// headers.
func withStreamsBegun(handler http.Handler, checker *standing.Checker, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := request.RequestInfoFrom(r.Context()); ok && longRunning(r, info) {
			r = checker.Begin(r)
		}
		handler.ServeHTTP(w, r)
	})
}

// standingCheck checks long-running requests until they end. It is behind authorization, and in front of all handlers of
// such requests.
type standingCheck struct {
	next    http.Handler
	config  Config
	gate    *fastpath.Gate
	queries *query.API // nil without queries
	routes  connectRoutes
	server  *server.Config
}

func (s *standingCheck) filter() http.Handler {
	beside := handlers(s.config.Handlers)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stream := standing.From(r.Context())
		if stream == nil {
			s.next.ServeHTTP(w, r)
			return
		}
		if h := beside.find(r); h != nil && h.Open { // open to every caller
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
			cut = nil // the session of an upgrade ends itself
		}
		ctx, end := r.Context(), context.CancelFunc(func() {})
		if s.queries != nil && s.queries.Answers(r) || s.gate.Decide(r).Route != fastpath.Watch {
			ctx, end = stream.Within(ctx)
			r = r.WithContext(ctx)
		} // a watch of the fast path ends itself, which takes less memory than a context
		stream.Join(asked, cut)
		defer push.After(ctx, func() {
			stream.Leave()
			end()
		})
		s.next.ServeHTTP(w, r)
	})
}

// asked returns the authorization questions that allowed a request.
func (s *standingCheck) asked(stream *standing.Stream, r *http.Request) (standing.Authorization, error) {
	ctx, asked := r.Context(), standing.Authorization{}
	attributes, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return asked, err
	}
	asked.Attributes = []authorizer.Attributes{attributes}
	info, _ := request.RequestInfoFrom(ctx)
	upgrades := r.Method != http.MethodPost && httpstream.IsUpgradeRequest(r)
	if sub := s.routes.find(info); sub != nil && upgrades && slices.Contains(sub.Methods, http.MethodPost) {
		// withUpgradePermission requires the same.
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
		asked.Attributes = nil // not every namespace needs to allow all of them
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

// mayImpersonate returns a function that checks whether a caller may impersonate the user of a request. It does not
// use upstream's cache of such decisions.
func (s *standingCheck) mayImpersonate(presented *http.Request, info *request.RequestInfo) func(context.Context, user.Info) error {
	return func(ctx context.Context, caller user.Info) error {
		allowed := false
		handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { allowed = true })
		ctx = request.WithUser(request.WithRequestInfo(ctx, info), caller)
		w := &discardWriter{header: http.Header{}}
		impersonation.WithConstrainedImpersonation(handler, s.config.Authorizer, s.server.Serializer).ServeHTTP(w, presented.Clone(ctx))
		if allowed || w.code != http.StatusForbidden || ctx.Err() != nil {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("you are no longer allowed to impersonate this user"))
	}
}

// discardWriter is a response of which only the code is kept.
type discardWriter struct {
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (d *discardWriter) Header() http.Header { return d.header }

// Write implements http.ResponseWriter.
func (d *discardWriter) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (d *discardWriter) WriteHeader(code int) { d.code = code }

// withinStream cancels the context of requests whose stream has to end, for handlers that end in no other way. It is
// directly in front of upstream's handlers.
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
