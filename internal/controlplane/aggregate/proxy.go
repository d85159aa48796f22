package aggregate

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	apiserverproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/apiserver"
	remotestatus "k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/annexapi/annex/internal/base/pagecookie"
)

// remote forwards requests to the server of an APIService. It is immutable. Its responses equal those of
// kube-apiserver, including the text of errors.
type remote struct {
	service   *apiregistrationv1.APIService
	available bool
	resolver  apiserver.ServiceResolver
	stopped   <-chan struct{}
	transport http.RoundTripper
	err       error // of creating the transport
}

func newRemote(s *apiregistrationv1.APIService, c *Config) *remote {
	r := &remote{
		service:   s,
		available: helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available),
		resolver:  c.Resolver,
		stopped:   c.Stopped,
	}
	cert, key := c.Client()
	r.transport, r.err = transport.New(remotestatus.BuildTransportConfig(nil, cert, key, s))
	return r
}

// anyway returns a copy that forwards requests even if the server is not known to be available.
func (r *remote) anyway() *remote {
	copied := *r
	copied.available = true
	return &copied
}

var _ http.Handler = (*remote)(nil)

// ServeHTTP forwards the request on behalf of its caller.
func (r *remote) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	caller, known := request.UserFrom(req.Context())
	switch {
	case !r.available:
		fail(w, req, "service unavailable", http.StatusServiceUnavailable)
		return
	case r.err != nil:
		fail(w, req, r.err.Error(), http.StatusInternalServerError)
		return
	case !known:
		fail(w, req, "missing user", http.StatusInternalServerError)
		return
	}
	service := r.service.Spec.Service
	host, err := r.resolver.ResolveEndpoint(service.Namespace, service.Name, *service.Port)
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "Failed to resolve the service of an APIService", "name", r.service.Name)
		fail(w, req, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	asked := req.Context()
	if _, bounded := asked.Deadline(); !bounded {
		ctx, end := endingWith(asked, r.stopped)
		defer end()
		req = req.WithContext(ctx)
		w = stoppableWriter{w, ctx}
	}
	location := &url.URL{Scheme: "https", Host: host.Host, Path: req.URL.Path, RawQuery: req.URL.Query().Encode()}
	sent, cancel := apiserverproxy.NewRequestForProxy(location, req)
	defer cancel()
	upgrade := httpstream.IsUpgradeRequest(req)
	if upgrade { // its connection bypasses the transport
		transport.SetAuthProxyHeaders(sent, caller.GetName(), caller.GetUID(), caller.GetGroups(), caller.GetExtra())
	}
	through := transport.NewAuthProxyRoundTripper(caller.GetName(), caller.GetUID(), caller.GetGroups(), caller.GetExtra(), r.transport)
	if !upgrade {
		through = watches{cookieFilter{through}, r.stopped}
	}
	handler := proxy.NewUpgradeAwareHandler(location, through, true, upgrade, answers{w, asked})
	handler.RejectForwardingRedirects = true
	utilflowcontrol.RequestDelegated(req.Context())
	handler.ServeHTTP(w, sent)
}

func fail(w http.ResponseWriter, req *http.Request, text string, code int) {
	http.Error(w, text, code)
	if info, ok := request.RequestInfoFrom(req.Context()); ok {
		metrics.RecordRequestTermination(req, info, "aggregator", code)
	}
}

// answers responds to errors on the way to another server.
type answers struct {
	w     http.ResponseWriter
	asked context.Context // of the request, before it was forwarded
}

var _ proxy.ErrorResponder = answers{}

func (a answers) Object(code int, obj runtime.Object) { responsewriters.WriteRawJSON(code, obj, a.w) }

// Error answers a request that timed out like kube-apiserver does for any request.
func (a answers) Error(_ http.ResponseWriter, _ *http.Request, err error) {
	if errors.Is(a.asked.Err(), context.DeadlineExceeded) {
		late := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
		responsewriters.WriteRawJSON(http.StatusGatewayTimeout, responsewriters.ErrorToAPIStatus(late), a.w)
		return
	}
	http.Error(a.w, err.Error(), http.StatusServiceUnavailable)
}

// endingWith returns a context that also ends when the server stops.
func endingWith(ctx context.Context, stopped <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	go func() {
		select {
		case <-stopped:
			end()
		case <-ctx.Done():
		}
	}()
	return ctx, end
}

// stoppableWriter closes a hijacked connection when the context ends, because the proxy then no longer uses the context.
type stoppableWriter struct {
	http.ResponseWriter
	ctx context.Context
}

var _ http.Hijacker = stoppableWriter{}

func (u stoppableWriter) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u stoppableWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err == nil {
		context.AfterFunc(u.ctx, func() { conn.Close() })
	}
	return conn, buffered, err
}

// cookieFilter prevents responses of other servers from setting the cookies of this server's own pages.
type cookieFilter struct{ http.RoundTripper }

func (o cookieFilter) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := o.RoundTripper.RoundTrip(req)
	if err == nil {
		pagecookie.Refuse(resp.Header)
	}
	return resp, err
}

// watches ends watches in order when the server stops. Clients would treat a broken connection as a failure.
type watches struct {
	http.RoundTripper
	stopped <-chan struct{}
}

func (t watches) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if info, ok := request.RequestInfoFrom(req.Context()); err == nil && ok && info.Verb == "watch" {
		resp.Body = endedBody{resp.Body, t.stopped}
	}
	return resp, err
}

type endedBody struct {
	io.ReadCloser
	stopped <-chan struct{}
}

func (b endedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		select {
		case <-b.stopped:
			err = io.EOF
		default:
		}
	}
	return n, err
}
