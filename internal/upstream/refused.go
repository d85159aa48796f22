package upstream

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// withNamespaces refuses requests in what can be no namespace, such as .., before storage
// takes it for a fault of its own.
func withNamespaces(handler http.Handler, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || info.Namespace == "" {
			handler.ServeHTTP(w, r)
			return
		}
		if problems := content.IsPathSegmentName(info.Namespace); len(problems) > 0 {
			err := apierrors.NewBadRequest(fmt.Sprintf("namespace %q: %s", info.Namespace, strings.Join(problems, ", ")))
			responsewriters.ErrorNegotiated(err, c.Serializer, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// withOrigins refuses WebSockets that a page of another site opens: browsers let every
// page do that, with the certificates and the network place of their user, and tell by the
// Origin whose page it is. It is for servers that browsers reach directly.
func withOrigins(handler http.Handler, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wsstream.IsWebSocketRequest(r) && !sameSite(r.Header.Get("Origin"), r.Host) {
			gv := schema.GroupVersion{}
			if info, ok := request.RequestInfoFrom(r.Context()); ok {
				gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
			}
			err := apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("a page of %q may not open a WebSocket to %s", r.Header.Get("Origin"), r.Host))
			responsewriters.ErrorNegotiated(err, c.Serializer, gv, w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// sameSite says whether an Origin is of a host. A client that is no browser may send none.
// The port may be another, and the names of the loopback stand for each other.
func sameSite(origin, host string) bool {
	if origin == "" {
		return true
	}
	page, err := url.Parse(origin)
	if err != nil || page.Hostname() == "" {
		return false
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	return strings.EqualFold(page.Hostname(), host) || isLoopback(page.Hostname()) && isLoopback(host)
}

func isLoopback(name string) bool {
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}
