package upstream

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/spec3"

	"github.com/annexapi/annex/internal/server/history"
	"github.com/annexapi/annex/internal/wire/push"
)

// pastResources is a resolver that gives requests of the history the request info of the reads and writes that they stand
// for.
type pastResources struct {
	request.RequestInfoResolver
	history *history.API
}

// NewRequestInfo implements request.RequestInfoResolver.
func (p pastResources) NewRequestInfo(r *http.Request) (*request.RequestInfo, error) {
	info, err := p.RequestInfoResolver.NewRequestInfo(r)
	if err == nil && !info.IsResourceRequest {
		p.history.RequestInfo(r, info)
	}
	return info, err
}

// describeHistory adds an OpenAPI v3 document for the history of each of the server's own versions.
func describeHistory(set documentSet, past *history.API, builder *openAPIv3Builder) {
	for gv, resources := range past.Described() {
		var models []runtime.Object
		for _, r := range resources {
			models = append(models, r.Model)
		}
		set.set(strings.Trim(history.PathOf(gv), "/"), builder.documentWith(models, func(nameOf func(runtime.Object) string) *spec3.OpenAPI {
			return history.Document(resources, nameOf)
		}))
	}
}

// withHistory answers requests of the history by means of the reads and writes that next answers. The filters in front have
// treated the request like one of these.
func withHistory(next http.Handler, past *history.API, c *server.Config) http.Handler {
	if past == nil {
		return next
	}
	answered := past.Wrap(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !past.Answers(r) {
			next.ServeHTTP(w, r)
			return
		}
		if err := checkPath(r); err != nil {
			answerError(w, r, err, c)
			return
		}
		answered.ServeHTTP(w, r.WithContext(push.WithoutRest(r.Context())))
	})
}
