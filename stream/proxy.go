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

// ProxyOptions are the options of a proxy request.
type ProxyOptions struct {
	metav1.TypeMeta `json:",inline"`
	// Path is the path of the request behind the subresource.
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

// ProxyRequest is a request to forward to a backend.
type ProxyRequest[T any] struct {
	Request[T]
	// Path is the path of the request behind the subresource. It is empty or begins with a slash.
	Path string
}

// ProxyBuilder describes a subresource of a T that forwards requests to an HTTP server.
type ProxyBuilder[T any] struct {
	annex.SubresourceOf[T]
	check  func(ctx context.Context, r *ProxyRequest[T]) error
	limits limits
}

// Proxy describes a subresource that forwards requests to an HTTP server, as a pod's proxy does: requests to
// NAME/name and below, with any method, and with their query, bodies and upgrades. backend returns the server for a
// request; its error is the answer to the request. It is called concurrently. The path of the backend's URL is put in
// front of the request's path, and the request cannot leave it.
//
// Callers need the verb of the method on the resource with the subresource, and the verb create as well for an
// upgrade.
//
// The backend gets X-Forwarded-For, -Host, -Proto and -Uri. It gets no header that identifies the caller
// (Authorization, headers of impersonation and of authenticating proxies) or that is about a connection. Cookies pass
// in both directions, so backends of one server share cookies in a browser. Redirects within the backend and links in
// its HTML are rewritten to paths below the subresource, and its CORS headers are removed. A backend that cannot be
// reached is answered with 503. No connection to a backend is reused for another request.
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

// Check sets a function that runs before backend is called. Its error is the answer to the request, as an error of
// Connect's function is.
func (b *ProxyBuilder[T]) Check(check func(ctx context.Context, r *ProxyRequest[T]) error) *ProxyBuilder[T] {
	b.check = check
	return b
}

// Idle ends an upgraded connection after d without traffic. Zero is the default, four hours; a negative d sets no
// limit. Requests that are not upgraded have no such limit.
func (b *ProxyBuilder[T]) Idle(d time.Duration) *ProxyBuilder[T] {
	b.limits.idle = d
	return b
}

// Total bounds the duration of requests and connections. The default, zero, and a negative d set no limit.
func (b *ProxyBuilder[T]) Total(d time.Duration) *ProxyBuilder[T] {
	b.limits.total = d
	return b
}
