package upstream

import (
	"context"
	"errors"
	"fmt"
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
	"k8s.io/streaming/pkg/httpstream"

	"github.com/annexapi/annex/internal/identity/credential"
)

// step is a check before a request is handled. It returns the request with which to continue, or an error to answer
// with. info is empty, not nil, for a request outside the API.
type step func(r *http.Request, info *request.RequestInfo) (*http.Request, error)

// withSteps runs the steps one after the other. As filters, each would be on the stack below all later filters, and
// every request grows that stack, copying all frames.
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

// answerError answers with an error, encoded in the version of the request.
func answerError(w http.ResponseWriter, r *http.Request, err error, c *server.Config) {
	gv := schema.GroupVersion{}
	if info, ok := request.RequestInfoFrom(r.Context()); ok {
		gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	responsewriters.ErrorNegotiated(err, c.Serializer, gv, w, r)
}

// checkNamespace refuses namespaces that cannot exist, such as "..", which the storage would report as an internal
// error.
func checkNamespace(r *http.Request, info *request.RequestInfo) (*http.Request, error) {
	if !info.IsResourceRequest || info.Namespace == "" {
		return r, nil
	}
	if problems := content.IsPathSegmentName(info.Namespace); len(problems) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("namespace %q: %s", info.Namespace, strings.Join(problems, ", ")))
	}
	return r, nil
}

// withUserAgentsRefused refuses requests of the named programs, except for health checks. Requests that are not for
// resources get the refusal as plain text: kubectl begins with discovery, and does not read a Status there.
func withUserAgentsRefused(next http.Handler, names []string, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := strings.Cut(r.UserAgent(), "/")
		name, _, _ = strings.Cut(name, " ")
		refused := slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
		info, ok := request.RequestInfoFrom(r.Context())
		isResource := ok && info.IsResourceRequest
		switch reason := "this server rejects requests of " + name; {
		case !refused || !isResource && slices.Contains(alwaysOpen, r.URL.Path):
			next.ServeHTTP(w, r)
		case isResource:
			answerError(w, r, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(reason)), c)
		default:
			http.Error(w, reason, http.StatusForbidden)
		}
	})
}

// alwaysOpen are the health checks of load balancers and process managers.
var alwaysOpen = []string{"/healthz", "/livez", "/readyz"}

type crossOriginKey struct{}

// crossOrigin is the finding of withOrigins about a request that a page of another origin has caused.
type crossOrigin struct {
	err      error
	accepted *credential.Credential
}

// withOrigins finds requests that a browser sends for a page of another origin; refuseForeign refuses them. Browsers
// let every page open WebSockets and send forms and untyped bodies, with the certificates and the network location of
// their user, and name the origin of the page. withOrigins is for servers that browsers reach directly. It has to
// come before authentication, because a request is exempt if a token authenticates it.
func withOrigins(handler http.Handler, allowed []*regexp.Regexp) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
			if err := checkOrigin(r, allowed); err != nil {
				ctx, found := r.Context(), &crossOrigin{err, credential.From(r.Context())}
				if found.accepted == nil {
					found.accepted = &credential.Credential{}
					ctx = credential.With(ctx, found.accepted)
				}
				r = r.WithContext(context.WithValue(ctx, crossOriginKey{}, found))
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// refuseForeign refuses the requests that withOrigins has found, unless a token authenticated them: a page has to
// know the token, while browsers add certificates by themselves. A token that was not decisive for authentication
// exempts nothing. refuseForeign is behind authentication and audit, so that the audit records the caller and the
// refusal.
func refuseForeign(r *http.Request, _ *request.RequestInfo) (*http.Request, error) {
	if found, ok := r.Context().Value(crossOriginKey{}).(*crossOrigin); ok && found.accepted.Kind != credential.Token {
		return r, found.err
	}
	return r, nil
}

// checkOrigin returns an error if a request writes or connects, and comes from a page whose origin is neither allowed
// nor the server's own, as the browser has reached it. Browsers do not let pages choose either header.
func checkOrigin(r *http.Request, allowed []*regexp.Regexp) error {
	connects := httpstream.IsUpgradeRequest(r)
	if !connects && (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) {
		return nil // the browser keeps the response from the page
	}
	origin := r.Header.Get("Origin")
	if slices.ContainsFunc(allowed, func(pattern *regexp.Regexp) bool { return pattern.MatchString(origin) }) {
		return nil
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		// The browser compares with the URL that it has requested, which proxies may change on the way.
		return nil
	case "":
		if origin == "" || sameOrigin(origin, r) {
			return nil
		}
	}
	if connects {
		return apierrors.NewForbidden(
			schema.GroupResource{},
			"",
			fmt.Errorf("a page of another origin, %q, may not connect to %s", origin, r.Host),
		)
	}
	return apierrors.NewForbidden(
		schema.GroupResource{},
		"",
		fmt.Errorf("a page of another origin, %q, may not have a browser send this to %s", origin, r.Host),
	)
}

// sameOrigin reports whether scheme, host and port of an Origin equal those of the server, as the request names it.
func sameOrigin(origin string, r *http.Request) bool {
	page, err := url.Parse(origin)
	if err != nil || page.Hostname() == "" {
		return false
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	own, err := url.Parse(scheme + "://" + r.Host)
	return err == nil && page.Scheme == own.Scheme && strings.EqualFold(page.Hostname(), own.Hostname()) && portOf(page) == portOf(own)
}

// portOf returns the port of a URL, by default the port of its scheme.
func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}
