package stream

import (
	"context"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/server/streams"
)

// ProxyOptions say what of a backend is asked for.
type ProxyOptions struct {
	metav1.TypeMeta `json:",inline"`
	// Path is what follows the subresource in the path of the request.
	Path string `json:"path,omitempty"`
}

// DeepCopyObject returns a copy.
func (o *ProxyOptions) DeepCopyObject() runtime.Object {
	copied := *o
	return &copied
}

// SwaggerDoc describes the options in OpenAPI.
func (ProxyOptions) SwaggerDoc() map[string]string {
	return map[string]string{"path": "The path of the request at the backend."}
}

// ProxyRequest is a request that is to be handed on.
type ProxyRequest[T any] struct {
	Request[T]
	// Path is what follows the subresource in the path of the request: empty, or something that
	// begins with a slash.
	Path string
}

// ProxyBuilder describes a subresource of a T that hands requests on.
type ProxyBuilder[T any] struct {
	annex.SubresourceOf[T]
	check  func(ctx context.Context, r *ProxyRequest[T]) error
	limits limits
}

// Proxy describes a subresource that hands requests on to an HTTP server, as proxy of a pod does:
// those to NAME/name and below it, by all methods, and with their query, bodies and upgrades.
// backend says which server that is for a request; its error is the answer to the request. It is
// called concurrently. Of its URL the path goes before that of the request, which cannot leave it.
//
// Callers need the verb of the method on the resource with the subresource, and for an upgrade
// create as well.
//
// The backend gets no header that says who the caller is (Authorization, those of impersonation and of
// authenticating proxies) or that is about a connection, and X-Forwarded-For, -Host, -Proto and -Uri.
// Cookies pass in both directions, so that backends of one server share them in a browser. Redirects within the backend and links
// in its HTML are
// rewritten to what is below the subresource, and its CORS headers are taken away. A backend that cannot be reached is
// answered with 503. No connection with a backend is kept for another request.
func Proxy[T any, PT object[T]](name string, backend func(ctx context.Context, r *ProxyRequest[T]) (*Backend, error)) *ProxyBuilder[T] {
	b := new(ProxyBuilder[T])
	methods := []string{
		http.MethodGet,
		http.MethodPost,
		http.MethodPut,
		http.MethodPatch,
		http.MethodDelete,
		http.MethodHead,
		http.MethodOptions,
	}
	if backend == nil {
		b.SubresourceOf = annex.Connect[T, ProxyOptions, PT](name, nil).Methods(methods...)
		return b
	}
	b.SubresourceOf = annex.Connect[T, ProxyOptions, PT](
		name,
		func(ctx context.Context, c *annex.ConnectRequest[T, ProxyOptions]) (http.Handler, error) {
			r := &ProxyRequest[T]{requestOf(c), c.Options.Path}
			if b.check != nil {
				if err := b.check(ctx, r); err != nil {
					return nil, checked(ctx, err)
				}
			}
			to, err := backend(ctx, r)
			if err != nil {
				return nil, checked(ctx, err)
			}
			server, err := to.checked()
			if err != nil {
				return nil, checked(ctx, err)
			}
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				streams.ServeProxy(w, req, c.Responder.Error, b.limits.effective(), server, r.Path)
			}), nil
		},
	).Methods(methods...).
		Subpaths()
	return b
}

// Check looks at a request before the backend is asked for. Its error is the answer, as that of
// Connect's function is.
func (b *ProxyBuilder[T]) Check(check func(ctx context.Context, r *ProxyRequest[T]) error) *ProxyBuilder[T] {
	b.check = check
	return b
}

// Idle ends upgraded connections over which nothing is sent for so long. The default, and zero, is
// four hours; negative is no limit. Other requests have no such limit.
func (b *ProxyBuilder[T]) Idle(d time.Duration) *ProxyBuilder[T] {
	b.limits.idle = d
	return b
}

// Total ends requests and connections that take so long. The default is no limit, and so is what is
// not positive.
func (b *ProxyBuilder[T]) Total(d time.Duration) *ProxyBuilder[T] {
	b.limits.total = d
	return b
}
