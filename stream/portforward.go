package stream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/server/streams"
)

// PortForwardOptions are the options of a port-forward request. Their name in the query is that of a pod's
// portforward.
type PortForwardOptions struct {
	metav1.TypeMeta `json:",inline"`
	// Ports lists the ports that the client may connect to; empty allows all. kubectl sends none.
	Ports []int32 `json:"ports,omitempty"`
}

// DeepCopyObject returns a copy.
func (o *PortForwardOptions) DeepCopyObject() runtime.Object {
	copied := *o
	copied.Ports = slices.Clone(o.Ports)
	return &copied
}

func (o *PortForwardOptions) query() url.Values {
	query := url.Values{}
	for _, port := range o.Ports {
		query.Add("ports", strconv.Itoa(int(port)))
	}
	return query
}

// SwaggerDoc describes the options in OpenAPI.
func (PortForwardOptions) SwaggerDoc() map[string]string {
	return map[string]string{"ports": "The ports to forward. Defaults to all."}
}

// PortForwardRequest is a request to forward ports.
type PortForwardRequest[T any] struct {
	Request[T]
	Options PortForwardOptions
}

// PortForwardBuilder describes a subresource of a T that forwards ports.
type PortForwardBuilder[T any] struct {
	annex.SubresourceOf[T]
	check  func(ctx context.Context, r *PortForwardRequest[T]) error
	limits limits
}

// PortForward describes a subresource that forwards ports, as a pod's portforward does. dial connects to a port, from
// 1 to 65535. It is called for each connection, also concurrently for one request, and must not change the request.
// The connection may be in process, for example one end of a net.Pipe. The caller closes it, and calls its method
// CloseWrite, if it has one, when the client sends no more. An error of dial ends that connection and is reported to
// the client; other connections stay open. A client may have at most 1024 open connections.
//
// A connection that does not read blocks the other connections of its client: SPDY has no flow control here.
func PortForward[T any, PT object[T]](
	name string,
	dial func(ctx context.Context, r *PortForwardRequest[T], port int32) (net.Conn, error),
) *PortForwardBuilder[T] {
	if dial == nil {
		return forwardBuilder[T, PT](name, nil)
	}
	return forwardBuilder[T, PT](name, func(_ context.Context, r *PortForwardRequest[T]) (serveForward, error) {
		return func(w http.ResponseWriter, req *http.Request, refuse streams.Refuse, limits streams.Limits) {
			streams.ServeForward(w, req, refuse, limits, func(ctx context.Context, port int32) (net.Conn, error) {
				if len(r.Options.Ports) > 0 && !slices.Contains(r.Options.Ports, port) {
					return nil, fmt.Errorf("the request is for the ports %v", r.Options.Ports)
				}
				return dial(ctx, r, port)
			})
		}, nil
	})
}

// PortForwardAt is PortForward served by a remote agent that speaks SPDY as a kubelet does. locate returns the agent
// of a request; an error of locate is the answer to the request. A URL without a query gets the options as its query.
func PortForwardAt[T any, PT object[T]](
	name string,
	locate func(ctx context.Context, r *PortForwardRequest[T]) (*Backend, error),
) *PortForwardBuilder[T] {
	if locate == nil {
		return forwardBuilder[T, PT](name, nil)
	}
	return forwardBuilder[T, PT](name, func(ctx context.Context, r *PortForwardRequest[T]) (serveForward, error) {
		backend, err := locate(ctx, r)
		if err != nil {
			return nil, err
		}
		agent, err := backend.agent(r.Options.query())
		if err != nil {
			return nil, err
		}
		return func(w http.ResponseWriter, req *http.Request, refuse streams.Refuse, limits streams.Limits) {
			streams.ServeRemoteForward(w, req, refuse, limits, agent)
		}, nil
	})
}

type serveForward func(w http.ResponseWriter, r *http.Request, refuse streams.Refuse, limits streams.Limits)

func forwardBuilder[T any, PT object[T]](
	name string,
	forward func(ctx context.Context, r *PortForwardRequest[T]) (serveForward, error),
) *PortForwardBuilder[T] {
	b := new(PortForwardBuilder[T])
	if forward == nil {
		b.SubresourceOf = annex.Connect[T, PortForwardOptions, PT](name, nil).Methods(upgradeable...)
		return b
	}
	b.SubresourceOf = annex.Connect[T, PortForwardOptions, PT](
		name,
		func(ctx context.Context, c *annex.ConnectRequest[T, PortForwardOptions]) (http.Handler, error) {
			r := &PortForwardRequest[T]{requestOf(c), *c.Options}
			if b.check != nil {
				if err := b.check(ctx, r); err != nil {
					return nil, checked(ctx, err)
				}
			}
			serve, err := forward(ctx, r)
			if err != nil {
				return nil, checked(ctx, err)
			}
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				serve(w, req, c.Responder.Error, b.limits.effective())
			}), nil
		},
	).Methods(upgradeable...)
	return b
}

// Check sets a function that runs before a request is upgraded. Its error is the answer to the request, as an error
// of Connect's function is.
func (b *PortForwardBuilder[T]) Check(check func(ctx context.Context, r *PortForwardRequest[T]) error) *PortForwardBuilder[T] {
	b.check = check
	return b
}

// Idle ends a session after d without traffic. Zero is the default, four hours; a negative d sets no limit. With
// PortForwardAt, pings of the client and of the agent count as traffic.
func (b *PortForwardBuilder[T]) Idle(d time.Duration) *PortForwardBuilder[T] {
	b.limits.idle = d
	return b
}

// Total bounds the duration of a session. The default, zero, and a negative d set no limit.
func (b *PortForwardBuilder[T]) Total(d time.Duration) *PortForwardBuilder[T] {
	b.limits.total = d
	return b
}
