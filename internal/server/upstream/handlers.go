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

// Handler answers the paths of its definition, beside the API. One without a handler keeps them from
// others, for what comes behind.
type Handler struct {
	http.Handler
	Definition *define.Handler
	// Takes says which requests for its paths it answers, before all others with longer ones; nil is
	// those for which there is no handler with a longer path.
	Takes func(*http.Request) bool
	// Open lets all requests through, as system:anonymous if the caller is not
	// known, and authorizes none. Pages are open that people see before they have signed in, and
	// where they do so. Credentials that are wrong or have expired do not refuse a request, and all
	// headers stay. Audit, limits and deadlines are as of all others.
	Open bool
}

// handlers are those beside the API.
type handlers []Handler

// of returns the handler of a request: one that takes it, or the one with the longest path of its own; nil
// if there is none.
func (all handlers) of(r *http.Request) *Handler {
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

// longRunning says whether a request is exempt from the request timeout and the limits of
// requests in flight.
func (all handlers) longRunning(r *http.Request) bool {
	h := all.of(r)
	return h != nil && h.Definition.LongRunning != nil && h.Definition.LongRunning(r)
}

// mappedResources is a resolver that sees requests to handlers as those of the resources that
// they are mapped to. Audit, authorization and flow control all go by it.
type mappedResources struct {
	request.RequestInfoResolver
	handlers handlers
}

func (m mappedResources) NewRequestInfo(r *http.Request) (*request.RequestInfo, error) {
	info, err := m.RequestInfoResolver.NewRequestInfo(r)
	if err != nil || info.IsResourceRequest {
		return info, err
	}
	h := m.handlers.of(r)
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

// withHandlers answers the paths of handlers. It comes after authorization, and nothing that
// is for objects of the API comes in between.
func withHandlers(next http.Handler, all handlers, stopping <-chan struct{}, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := all.of(r)
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

// checkPath refuses paths that programs read differently: authorization would see another one
// than the handler does.
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

// endingWith returns a context that ends when the server stops, too.
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
