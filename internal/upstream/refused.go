package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// step is one thing that is looked at before a request is handled. It returns the request
// as it goes on, or the error that it is answered with. The info is empty, not nil, of what
// is no request of the API.
type step func(r *http.Request, info *request.RequestInfo) (*http.Request, error)

// withSteps takes the steps one after the other. As filters they would each be on the stack
// of all that comes after, which every request grows, and so copies, anew.
func withSteps(handler http.Handler, c *server.Config, steps ...step) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, err := takeSteps(r, steps)
		if err != nil {
			answerError(w, r, err, c)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

func takeSteps(r *http.Request, steps []step) (*http.Request, error) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok {
		info = &request.RequestInfo{}
	}
	for _, step := range steps {
		next, err := step(r, info)
		if err != nil {
			return r, err
		}
		r = next
	}
	return r, nil
}

// answerError answers with an error, in the request's version.
func answerError(w http.ResponseWriter, r *http.Request, err error, c *server.Config) {
	gv := schema.GroupVersion{}
	if info, ok := request.RequestInfoFrom(r.Context()); ok {
		gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	responsewriters.ErrorNegotiated(err, c.Serializer, gv, w, r)
}

// checkNamespace refuses requests in what can be no namespace, such as .., before storage
// takes it for a fault of its own.
func checkNamespace(r *http.Request, info *request.RequestInfo) (*http.Request, error) {
	if !info.IsResourceRequest || info.Namespace == "" {
		return r, nil
	}
	if problems := content.IsPathSegmentName(info.Namespace); len(problems) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("namespace %q: %s", info.Namespace, strings.Join(problems, ", ")))
	}
	return r, nil
}

// withUserAgentsRefused refuses requests of programs that call themselves so, but those for health. What is no
// request for a resource is answered in plain text: kubectl begins with discovery, and reads no Status there.
func withUserAgentsRefused(next http.Handler, names []string, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := strings.Cut(r.UserAgent(), "/")
		name, _, _ = strings.Cut(name, " ")
		refused := slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
		info, ok := request.RequestInfoFrom(r.Context())
		isResource := ok && info.IsResourceRequest
		switch reason := "this server does not answer " + name; {
		case !refused || !isResource && slices.Contains(alwaysOpen, r.URL.Path):
			next.ServeHTTP(w, r)
		case isResource:
			answerError(w, r, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(reason)), c)
		default:
			http.Error(w, reason, http.StatusForbidden)
		}
	})
}

// alwaysOpen tell load balancers and process managers how the server is.
var alwaysOpen = []string{"/healthz", "/livez", "/readyz"}

type foreignKey struct{}

// withOrigins finds out whether a page of another origin has a browser send a request, which refuseForeign
// refuses: browsers let every page open WebSockets and send forms and untyped bodies, with the
// certificates and the network place of their user, and tell whose page it is. A page that knows a token
// may come from another port of the host, and may send what browsers ask about before. It is for servers
// that browsers reach directly, and before authentication, which takes tokens out of requests.
func withOrigins(handler http.Handler, allowed []*regexp.Regexp) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
			if err := checkOrigin(r, allowed, protection); err != nil {
				r = r.WithContext(context.WithValue(r.Context(), foreignKey{}, err))
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// refuseForeign refuses what withOrigins has found. It is behind authentication and audit, so that
// both tell of it.
func refuseForeign(r *http.Request, _ *request.RequestInfo) (*http.Request, error) {
	err, _ := r.Context().Value(foreignKey{}).(error)
	return r, err
}

func checkOrigin(r *http.Request, allowed []*regexp.Regexp, protection *http.CrossOriginProtection) error {
	origin, socket := r.Header.Get("Origin"), wsstream.IsWebSocketRequest(r)
	if slices.ContainsFunc(allowed, func(pattern *regexp.Regexp) bool { return pattern.MatchString(origin) }) {
		return nil
	}
	if socket && !sameSite(origin, r.Host) {
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("a page of %q may not open a WebSocket to %s", origin, r.Host))
	}
	asked := r
	if socket { // which browsers do not ask about, either
		writing := *r
		writing.Method, asked = http.MethodPost, &writing
	}
	if !hasToken(r) && protection.Check(asked) != nil {
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("a page of another origin, %q, may not have a browser send this to %s", origin, r.Host))
	}
	return nil
}

// hasToken says whether a request has a credential that pages have to know, be it right or not.
func hasToken(r *http.Request) bool {
	if r.Header.Get("Authorization") != "" {
		return true
	}
	for protocol := range strings.SplitSeq(strings.Join(r.Header.Values("Sec-Websocket-Protocol"), ","), ",") {
		if strings.HasPrefix(strings.TrimSpace(protocol), "base64url.bearer.authorization.k8s.io.") {
			return true
		}
	}
	return false
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
