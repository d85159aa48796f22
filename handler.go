package annex

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/annexapi/annex/internal/model/define"
)

// Handler serves requests outside the API, such as a menu, a report or a form. They pass the same filters as API
// requests, in the same order: TLS, authentication, audit, impersonation, limits of requests in flight, and
// authorization. Caller returns the user of a request.
type Handler struct {
	// Path is a path such as /menu, or a prefix such as /menu/ that ends in a slash; the longest match wins. The
	// server's own paths cannot be used. Requests whose path has empty or dotted elements, or an escaped slash, are
	// rejected, so that the authorized path is the path that the handler sees.
	Path string
	// Handler is shared by all servers of the definition; New creates the handler of one server, and annex.New
	// calls it once. Exactly one of them must be set. Handlers are called concurrently.
	Handler http.Handler
	New     func(env *Env) (http.Handler, error)
	// Resource returns the attributes, such as getting a pizza, by which a request is authorized, audited, and
	// classified by priority and fairness. If it is nil or returns nil, these are the path and the method in lower
	// case as the verb, for which roles have nonResourceURLs. It is called for each request, before authentication,
	// and must not read the body.
	Resource func(r *http.Request) *authorizationv1.ResourceAttributes
	// LongRunning reports whether a request is long-running. Such requests have no deadline and are not counted as
	// requests in flight. Their context ends when the server stops, as that of watches, or within ten seconds after
	// the caller loses the credential or the permission. If it is nil, Options.RequestTimeout bounds all requests.
	// It must not read the body either.
	LongRunning func(r *http.Request) bool
	// OpenAPI returns the OpenAPI v3 document of the handler's paths; nil means that there is none. The document is
	// served like the API's documents, for example at /openapi/v3/menu for /menu or /menu/. OpenAPI is called once,
	// when the list of documents or this document is first requested. The server adds the title, the version and
	// the authentication schemes if the document lacks them.
	OpenAPI func() *spec3.OpenAPI
}

func (h Handler) define() define.Handler {
	compiled := define.Handler{Path: h.Path, Resource: h.Resource, LongRunning: h.LongRunning, OpenAPI: h.OpenAPI}
	switch {
	case h.Handler != nil && h.New == nil:
		compiled.New = func(any) (http.Handler, error) { return h.Handler, nil }
	case h.New != nil && h.Handler == nil:
		compiled.New = func(env any) (http.Handler, error) { return h.New(env.(*Env)) }
	}
	return compiled
}

// Caller returns the user of a context's request; nil if the context belongs to no request. In handlers and hooks,
// that is the authenticated user, or the user whom that user impersonates.
func Caller(ctx context.Context) user.Info {
	caller, _ := request.UserFrom(ctx)
	return caller
}

// CallerConfig returns a configuration for clients of this server that act as the caller of the request whose
// context they get: they have that caller's permissions, and the audit names the caller. One client can serve all
// callers. Calls with a context of no request fail, and so do informers. Each call returns a copy of the
// configuration.
func (e *Env) CallerConfig() *rest.Config {
	config := e.ClientConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return asCaller{next} })
	return config
}

// asCaller impersonates the caller of a request's context.
type asCaller struct{ next http.RoundTripper }

func (t asCaller) RoundTrip(r *http.Request) (*http.Response, error) {
	caller := Caller(r.Context())
	if caller == nil {
		return nil, fmt.Errorf("%s %s for a caller: %w", r.Method, r.URL.Path, errNoCaller)
	}
	return transport.NewImpersonatingRoundTripper(transport.ImpersonationConfig{
		UserName: caller.GetName(), UID: caller.GetUID(), Groups: caller.GetGroups(), Extra: caller.GetExtra(),
	}, t.next).RoundTrip(r)
}

var errNoCaller = errors.New("the context does not belong to a request")

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (t asCaller) WrappedRoundTripper() http.RoundTripper { return t.next }
