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

// foreign is what withOrigins has found out about a request of another origin's page.
type foreign struct {
	err      error
	accepted *credential.Accepted
}

// withOrigins finds out whether a page of another origin causes a browser to send a request, which refuseForeign
// then refuses: browsers let every page open WebSockets and send forms and untyped bodies, with the certificates and the
// network place of their user, and name the page's origin. It is for servers that browsers reach directly, and has to come
// before authentication, by which the request is exempt if a token authenticates it.
func withOrigins(handler http.Handler, allowed []*regexp.Regexp) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
			if err := checkOrigin(r, allowed); err != nil {
				ctx, found := r.Context(), &foreign{err, credential.From(r.Context())}
				if found.accepted == nil {
					found.accepted = &credential.Accepted{}
					ctx = credential.With(ctx, found.accepted)
				}
				r = r.WithContext(context.WithValue(ctx, foreignKey{}, found))
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// refuseForeign refuses the requests that withOrigins has found, unless a token authenticated them: a page has to know
// that, while browsers add certificates by themselves. A token that did not decide exempts from nothing. It is behind
// authentication and audit, so that the audit has the caller and the refusal.
func refuseForeign(r *http.Request, _ *request.RequestInfo) (*http.Request, error) {
	if found, ok := r.Context().Value(foreignKey{}).(*foreign); ok && found.accepted.Kind != credential.Token {
		return r, found.err
	}
	return r, nil
}

// checkOrigin returns an error if a request writes or connects, and comes from a page whose origin is neither the server's
// own, as the browser has reached it, nor allowed. Browsers do not let pages choose either header.
func checkOrigin(r *http.Request, allowed []*regexp.Regexp) error {
	connects := httpstream.IsUpgradeRequest(r)
	if !connects && (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) {
		return nil // a browser keeps the answer from the page
	}
	origin := r.Header.Get("Origin")
	if slices.ContainsFunc(allowed, func(pattern *regexp.Regexp) bool { return pattern.MatchString(origin) }) {
		return nil
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		// The browser compares with the URL that it has asked for, which proxies may change on the way.
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

// sameOrigin reports whether an Origin is that of the server, as the request names it: scheme, host and port.
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

// portOf returns the port of a URL, which is that of the scheme if none is given.
func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}
