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

// Handler answers requests beside the API, such as a menu, a report or a form: data that is not an object. Its
// requests pass the same steps as requests for the API, in the same order: TLS, authentication, audit, impersonation,
// limits of requests in flight, and authorization. Caller returns the caller of a request.
type Handler struct {
	// Path is a path such as /menu, or a prefix such as /menu/, which matches all paths that begin with it. The
	// longest match answers. The paths of the server itself cannot be used. Paths with empty or dotted elements, or
	// with an escaped slash, are rejected, so that the authorized path is the path that the handler sees.
	Path string
	// Set exactly one of Handler and New. Handler serves all servers of the definition. New makes the handler of one
	// server; annex.New calls it once. Handlers are called concurrently.
	Handler http.Handler
	New     func(env *Env) (http.Handler, error)
	// Resource returns the attributes by which a request is authorized, audited, and classified by priority and
	// fairness, such as the verb get on a pizza. If Resource is nil or returns nil, the path is authorized, with the
	// method in lower case as the verb; roles grant it by nonResourceURLs. Resource is called for each request, before
	// authentication, and must not read the body.
	Resource func(r *http.Request) *authorizationv1.ResourceAttributes
	// LongRunning reports whether a request has no deadline and does not count as a request in flight. The context of
	// such a request ends when the server stops, as with a watch, or within ten seconds after the caller loses the
	// credential or the right to send it. Nil means none; Options.RequestTimeout then applies to all. LongRunning must
	// not read the body.
	LongRunning func(r *http.Request) bool
	// OpenAPI returns the OpenAPI v3 document of the handler's paths; nil means no document. It is served like those
	// of the API, for example at /openapi/v3/menu for /menu or /menu/. OpenAPI is called once, by the first request
	// for this document or for the list of documents. The server adds the title, the version and the authentication
	// schemes that the document lacks.
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

// Caller returns the caller of the request to which a context belongs, or nil if it belongs to none. In handlers and
// hooks, this is the authenticated user, or the user that the authenticated user impersonates.
func Caller(ctx context.Context) user.Info {
	caller, _ := request.UserFrom(ctx)
	return caller
}

// CallerConfig returns a configuration for clients of this server that act with the rights of the caller of the
// request whose context they get; the audit names that caller. One client serves all callers. Calls with a context
// that belongs to no request fail, and so do informers. Each call returns a copy.
func (e *Env) CallerConfig() *rest.Config {
	config := e.ClientConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return asCaller{next} })
	return config
}

// asCaller is a RoundTripper that impersonates the caller in the context of a request.
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

var errNoCaller = errors.New("the context is not that of a request")

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (t asCaller) WrappedRoundTripper() http.RoundTripper { return t.next }
