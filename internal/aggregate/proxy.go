package aggregate

import (
	"net/http"
	"net/url"

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
)

// remote is the server of an APIService. It never changes. It answers as that of kube-apiserver
// does, to the text of its errors.
type remote struct {
	service   *apiregistrationv1.APIService
	available bool
	resolver  apiserver.ServiceResolver
	transport http.RoundTripper
	err       error // of transport
}

func newRemote(s *apiregistrationv1.APIService, resolver apiserver.ServiceResolver, cert, key []byte) *remote {
	r := &remote{service: s, available: helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available), resolver: resolver}
	r.transport, r.err = transport.New(remotestatus.BuildTransportConfig(nil, cert, key, s))
	return r
}

// anyway is the same server, asked even if it is not known to be available.
func (r *remote) anyway() *remote {
	copied := *r
	copied.available = true
	return &copied
}

var _ http.Handler = (*remote)(nil)

// ServeHTTP sends the request on, in the name of its caller.
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
		klog.FromContext(req.Context()).Error(err, "The service of an APIService was not resolved", "name", r.service.Name)
		fail(w, req, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	location := &url.URL{Scheme: "https", Host: host.Host, Path: req.URL.Path, RawQuery: req.URL.Query().Encode()}
	sent, cancel := apiserverproxy.NewRequestForProxy(location, req)
	defer cancel()
	upgrade := httpstream.IsUpgradeRequest(req)
	if upgrade { // its connection is made beside the transport
		transport.SetAuthProxyHeaders(sent, caller.GetName(), caller.GetUID(), caller.GetGroups(), caller.GetExtra())
	}
	through := transport.NewAuthProxyRoundTripper(caller.GetName(), caller.GetUID(), caller.GetGroups(), caller.GetExtra(), r.transport)
	handler := proxy.NewUpgradeAwareHandler(location, through, true, upgrade, answers{w})
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

// answers says what has gone wrong on the way to another server.
type answers struct{ w http.ResponseWriter }

var _ proxy.ErrorResponder = answers{}

func (a answers) Object(code int, obj runtime.Object) { responsewriters.WriteRawJSON(code, obj, a.w) }

func (a answers) Error(_ http.ResponseWriter, _ *http.Request, err error) {
	http.Error(a.w, err.Error(), http.StatusServiceUnavailable)
}
