package upstream

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/util"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/server/history"
	"github.com/annexapi/annex/internal/server/query"
	"github.com/annexapi/annex/internal/wire/push"
)

// resolver returns the resolver of a configuration, or upstream's if it has none.
func resolver(c *server.Config) request.RequestInfoResolver {
	if c.RequestInfoResolver != nil {
		return c.RequestInfoResolver
	}
	return server.NewRequestInfoResolver(c)
}

// queryPaths returns the handlers that reserve the paths of queries.
func queryPaths(queries *query.API) []Handler {
	var all []Handler
	for _, path := range []string{queries.Prefix(), queries.Prefix() + "/"} {
		all = append(all, Handler{Definition: &define.Handler{Path: path, LongRunning: query.IsTail}, Takes: queries.Answers})
	}
	return all
}

// resolverWith is a resolver that has request infos completed which are not of a resource: a query, or a request of the
// history, gets the request info of the lists, watches, reads and writes that it stands for.
type resolverWith struct {
	request.RequestInfoResolver
	complete func(*http.Request, *request.RequestInfo)
}

// NewRequestInfo implements request.RequestInfoResolver.
func (w resolverWith) NewRequestInfo(r *http.Request) (*request.RequestInfo, error) {
	info, err := w.RequestInfoResolver.NewRequestInfo(r)
	if err == nil && !info.IsResourceRequest {
		w.complete(r, info)
	}
	return info, err
}

// answeredBy passes the requests that answers takes to answered, which asks the handler that it wraps, and others to next.
func answeredBy(answered http.Handler, answers func(*http.Request) bool, next http.Handler, c *server.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answers(r) {
			next.ServeHTTP(w, r)
			return
		}
		if err := checkPath(r); err != nil {
			answerError(w, r, err, c)
			return
		}
		// The response of the wrapped handler is read while it is written: none of it may be left to run afterwards.
		answered.ServeHTTP(w, r.WithContext(push.WithoutRest(r.Context())))
	})
}

// withQueries answers queries by means of the lists and watches that next answers. The filters in front have treated
// the query like such a list or watch.
func withQueries(next http.Handler, queries *query.API, documents *queryDocuments, c *server.Config) http.Handler {
	answered := answeredBy(queries.Wrap(next), queries.Answers, next, c)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/openapi/v3") {
			documents.update()
		}
		answered.ServeHTTP(w, r)
	})
}

// queryDocuments are the OpenAPI v3 documents for queries of custom resources, which come and go.
type queryDocuments struct {
	queries *query.API
	history bool // documents of the history as well

	mu      sync.Mutex
	set     documentSet // empty until serve is called
	info    *common.OpenAPIV3Config
	known   map[schema.GroupVersion][]*query.Resource
	changes int
}

func (q *queryDocuments) serve(set documentSet, config *common.OpenAPIV3Config) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.set, q.info = set, config
}

// update registers the documents of the current definitions. Each document is built when it is requested.
func (q *queryDocuments) update() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.set.service == nil {
		return
	}
	now := q.queries.Defined()
	for gv := range q.known {
		if now[gv] == nil {
			q.set.remove(q.pathOf(gv))
			if q.history {
				q.set.remove(strings.Trim(history.PathOf(gv), "/"))
			}
		}
	}
	for gv, resources := range now {
		if slices.Equal(q.known[gv], resources) {
			continue
		}
		q.changes++
		change := q.changes
		of := func(what string, build func([]*query.Resource) (*spec3.OpenAPI, error)) cached.Value[*spec3.OpenAPI] {
			return cached.Once(cached.Func(func() (*spec3.OpenAPI, string, error) {
				document, err := build(resources)
				if err != nil {
					return nil, "", fmt.Errorf("OpenAPI v3 of %s of %s: %w", what, gv, err)
				}
				document.Info, document.Components.SecuritySchemes = q.info.Info, q.info.SecuritySchemes
				return document, fmt.Sprint(change), nil
			}))
		}
		q.set.set(q.pathOf(gv), of("queries", q.queries.DocumentOfDefined))
		if q.history {
			q.set.set(strings.Trim(history.PathOf(gv), "/"), of("the history", history.DocumentOfDefined))
		}
	}
	q.known = now
}

func (q *queryDocuments) pathOf(gv schema.GroupVersion) string {
	return strings.Trim(q.queries.PathOf(gv), "/")
}

// describeOwn adds, for each of the server's own versions, the OpenAPI v3 document that document makes, with the schemas that
// the documents of its objects have.
func describeOwn(
	set documentSet, builder *openAPIv3Builder, versions map[schema.GroupVersion][]*query.Resource, pathOf func(schema.GroupVersion) string,
	document func(resources []*query.Resource, nameOf func(runtime.Object) string) *spec3.OpenAPI,
) {
	for gv, resources := range versions {
		var models []runtime.Object
		for _, r := range resources {
			models = append(models, r.Model)
		}
		set.set(strings.Trim(pathOf(gv), "/"), builder.documentWith(models, func(nameOf func(runtime.Object) string) *spec3.OpenAPI {
			return document(resources, nameOf)
		}))
	}
}

// documentWith returns the document that describe makes, with the schemas of models.
func (b *openAPIv3Builder) documentWith(
	models []runtime.Object, describe func(nameOf func(runtime.Object) string) *spec3.OpenAPI,
) cached.Value[*spec3.OpenAPI] {
	return cached.Once(cached.Func(func() (*spec3.OpenAPI, string, error) {
		var types []string
		for _, model := range models {
			types = append(types, util.GetCanonicalTypeName(model))
		}
		schemas, err := b.schemas(types...)
		if err != nil {
			return nil, "", fmt.Errorf("OpenAPI v3 of %v: %w", types, err)
		}
		document := describe(func(model runtime.Object) string {
			name, _ := b.config.GetDefinitionName(util.GetCanonicalTypeName(model))
			return name
		})
		document.Info = b.config.Info
		document.Components = &spec3.Components{Schemas: schemas, SecuritySchemes: b.config.SecuritySchemes}
		return document, "static", nil
	}))
}
