package upstream

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"

	"github.com/annexapi/annex/internal/model/define"
)

// Handler answers the paths of its definition, beside the API. A Handler whose http.Handler is nil reserves its paths
// for a handler further down the chain.
type Handler struct {
	http.Handler
	Definition *define.Handler
	// Takes reports whether the handler answers a request for its paths, even if another handler has a longer path.
	// If Takes is nil, the handler answers requests for which no handler has a longer path.
	Takes func(*http.Request) bool
	// Open lets all requests pass without authorization, as system:anonymous if the caller is unknown. It is for
	// pages that people see before they have signed in, and for the sign-in itself. Wrong or expired credentials do
	// not cause a refusal, and all headers are kept. Audit, limits and deadlines apply as to other requests.
	Open bool
}

// handlers are the handlers beside the API.
type handlers []Handler

// find returns the handler of a request: the first handler that takes it, otherwise the handler with the longest
// matching path. It returns nil if there is none.
func (all handlers) find(r *http.Request) *Handler {
	var found *Handler
	for i := range all {
		h := &all[i]
		switch {
		case !h.Definition.Answers(r.URL.Path):
		case h.Takes != nil:
			if h.Takes(r) {
				return h
			}
		case found == nil || len(h.Definition.Path) > len(found.Definition.Path):
			found = h
		}
	}
	return found
}

// longRunning reports whether a request is exempt from the request timeout and the limits of requests in flight.
func (all handlers) longRunning(r *http.Request) bool {
	h := all.find(r)
	return h != nil && h.Definition.LongRunning != nil && h.Definition.LongRunning(r)
}

// mappedResources is a resolver that gives requests to handlers the request info of the resources to which they are
// mapped. Audit, authorization and flow control use that info.
type mappedResources struct {
	request.RequestInfoResolver
	handlers handlers
}

func (m mappedResources) NewRequestInfo(r *http.Request) (*request.RequestInfo, error) {
	info, err := m.RequestInfoResolver.NewRequestInfo(r)
	if err != nil || info.IsResourceRequest {
		return info, err
	}
	h := m.handlers.find(r)
	if h == nil || h.Definition.Resource == nil {
		return info, nil
	}
	as := h.Definition.Resource(r)
	if as == nil {
		return info, nil
	}
	info.IsResourceRequest = true
	info.APIPrefix, info.APIGroup, info.APIVersion = strings.TrimPrefix(server.APIGroupPrefix, "/"), as.Group, as.Version
	if as.Group == "" {
		info.APIPrefix = strings.TrimPrefix(server.DefaultLegacyAPIPrefix, "/")
	}
	info.Verb, info.Namespace, info.Resource, info.Subresource, info.Name = as.Verb, as.Namespace, as.Resource, as.Subresource, as.Name
	info.Parts = []string{as.Resource}
	if as.Name != "" {
		info.Parts = append(info.Parts, as.Name)
	}
	if as.Subresource != "" {
		info.Parts = append(info.Parts, as.Subresource)
	}
	return info, nil
}

// withHandlers answers the paths of handlers. It comes directly behind authorization; filters for objects of the API
// come later.
func withHandlers(next http.Handler, all handlers, stopping <-chan struct{}, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := all.find(r)
		if h == nil || h.Handler == nil {
			next.ServeHTTP(w, r)
			return
		}
		if err := checkPath(r); err != nil {
			answerError(w, r, err, c)
			return
		}
		if all.longRunning(r) {
			ctx, end := endingWith(r.Context(), stopping)
			defer end()
			h.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		metrics.InstrumentHandlerFunc(r.Method, "", "", "", h.Definition.Path, "", metrics.APIServerComponent, false, "", h.ServeHTTP)(w, r)
	})
}

// checkPath refuses paths that programs interpret differently: authorization could see another path than the handler
// does.
func checkPath(r *http.Request) error {
	plain := path.Clean(r.URL.Path)
	if strings.HasSuffix(r.URL.Path, "/") && plain != "/" {
		plain += "/"
	}
	if plain != r.URL.Path || strings.Contains(strings.ToLower(r.URL.RawPath), "%2f") {
		return apierrors.NewBadRequest(fmt.Sprintf("the path %q has empty or dotted elements or escaped slashes", r.URL.EscapedPath()))
	}
	return nil
}

// endingWith returns a context that also ends when the server stops.
func endingWith(ctx context.Context, stopping <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	go func() {
		select {
		case <-stopping:
			end()
		case <-ctx.Done():
		}
	}()
	return ctx, end
}
