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

// Handler answers requests beside the API: a menu, a report, a form, whatever is no object.
// Its requests pass what those of the API do, in the same order: TLS, authentication, audit,
// impersonation, limits of requests in flight, and authorization. Caller says who sends one.
type Handler struct {
	// Path is a path such as /menu, or one such as /menu/, which stands for all that begin
	// so; the longest that fits answers. The paths of the server itself cannot be had.
	// Requests whose path has empty or dotted elements, or an escaped slash, are refused, so
	// that what is authorized is what the handler sees.
	Path string
	// Handler answers, for all servers of the definition; New makes what answers for one
	// server and is called once, by annex.New. One of them is set. Handlers are called
	// concurrently.
	Handler http.Handler
	New     func(env *Env) (http.Handler, error)
	// Resource says what a request is authorized as, and how the audit and priority and
	// fairness see it: getting a pizza, say. If it is nil or returns nil, that is the path, with the
	// method in lower case as the verb, for which roles have nonResourceURLs. It is called
	// before the caller is known, for each request, and must not read the body.
	Resource func(r *http.Request) *authorizationv1.ResourceAttributes
	// LongRunning says which requests have no deadline, are not counted as requests in flight,
	// and have their context ended when the server stops, as watches do, or within ten seconds when the
	// caller loses the credential or the right to send them. Nil is none: then
	// Options.RequestTimeout holds. It must not read the body either.
	LongRunning func(r *http.Request) bool
	// OpenAPI returns the document of OpenAPI v3 of the handler's paths; nil is none. It is served as
	// those of the API are, at /openapi/v3/menu for /menu or /menu/ say, and called once, when the
	// list of documents or this one is first asked for. What the document does not say of its
	// title, its version and how callers are authenticated is said for it.
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

// Caller returns who sent the request that a context is of; nil if it is of none. In
// handlers and hooks, it is whom the server authenticated, or whom that caller impersonates.
func Caller(ctx context.Context) user.Info {
	caller, _ := request.UserFrom(ctx)
	return caller
}

// CallerConfig returns a configuration for clients of this very server that act for the
// caller of the request whose context they are called with: they may do what that caller
// may, and the audit names the caller. One client serves all callers. What is called with the
// context of no request fails, and so do informers. Each call returns a copy.
func (e *Env) CallerConfig() *rest.Config {
	config := e.ClientConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return asCaller{next} })
	return config
}

// asCaller impersonates the caller that a request's context names.
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
