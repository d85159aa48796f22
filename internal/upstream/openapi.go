package upstream

import (
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// installOpenAPIv2 serves the document of OpenAPI v2 of the routes that a server has, as upstream's
// PrepareRun would. But the document is made when it is first asked for, since few clients do: to
// make it is a fifth of the work of a start.
func installOpenAPIv2(generic *server.GenericAPIServer, config *common.Config) {
	document := &spec.Swagger{}
	routes := generic.Handler.GoRestfulContainer
	made := sync.OnceValue(func() error {
		built, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(routes.RegisteredWebServices()), config)
		if err != nil {
			return fmt.Errorf("OpenAPI v2: %w", err)
		}
		built.Definitions = handler.PruneDefaults(built.Definitions)
		*document = *built
		return nil
	})
	service := handler.NewOpenAPIServiceLazy(cached.Func(func() (*spec.Swagger, string, error) { return document, "static", made() }))
	service.RegisterOpenAPIVersionedService("/openapi/v2", madeFirst{generic.Handler.NonGoRestfulMux, made})
	generic.StaticOpenAPISpec, generic.OpenAPIVersionedService = document, service
}

// madeFirst are paths whose handlers work on what is made when the first of their requests comes.
type madeFirst struct {
	mux  common.PathHandler
	made func() error
}

// Handle implements common.PathHandler.
func (f madeFirst) Handle(path string, handler http.Handler) {
	f.mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := f.made(); err != nil {
			responsewriters.InternalError(w, r, err)
			return
		}
		handler.ServeHTTP(w, r)
	}))
}
