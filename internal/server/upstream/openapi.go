package upstream

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"weak"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/model/define"
)

// installOpenAPIv2 serves the OpenAPI v2 document of a server's routes, as upstream's PrepareRun would. But it builds
// the document on the first request, because few clients ask for it and building it takes a fifth of the work of a
// start.
func installOpenAPIv2(generic *server.GenericAPIServer, config *common.Config, later *laterRoutes) {
	document := &spec.Swagger{}
	own := *config // upstream's builder makes it keep everything that it was built from
	routes := generic.Handler.GoRestfulContainer
	made := sync.OnceValue(func() error {
		services, err := later.services(routes.RegisteredWebServices())
		if err != nil {
			return fmt.Errorf("OpenAPI v2: %w", err)
		}
		built, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(services), &own)
		if err != nil {
			return fmt.Errorf("OpenAPI v2: %w", err)
		}
		built.Definitions = handler.PruneDefaults(built.Definitions)
		*document = *built
		return nil
	})
	service := handler.NewOpenAPIServiceLazy(cached.Func(func() (*spec.Swagger, string, error) { return document, "static", made() }))
	service.RegisterOpenAPIVersionedService("/openapi/v2", buildBeforeServe{generic.Handler.NonGoRestfulMux, made})
	generic.StaticOpenAPISpec, generic.OpenAPIVersionedService = document, service
}

// installOpenAPIv3 serves an OpenAPI v3 document for each root path of a server's routes, as upstream's PrepareRun
// would. But it builds each document when the document, or the list of documents, is first requested. Upstream builds
// and keeps all of them, which takes a tenth of the time of a start.
func installOpenAPIv3(generic *server.GenericAPIServer, builder *openAPIv3Builder, later *laterRoutes) error {
	service := handler3.NewOpenAPIService()
	if err := service.RegisterOpenAPIV3VersionedService("/openapi/v3", generic.Handler.NonGoRestfulMux); err != nil {
		return fmt.Errorf("OpenAPI v3: %w", err)
	}
	services := generic.Handler.GoRestfulContainer.RegisteredWebServices()
	for i, root := range services {
		path := strings.TrimPrefix(root.RootPath(), "/")
		service.UpdateGroupVersionLazy(path, cached.Once(cached.Func(func() (*spec3.OpenAPI, string, error) {
			made, err := later.services(services[i : i+1])
			if err != nil {
				return nil, "", fmt.Errorf("OpenAPI v3 of %s: %w", path, err)
			}
			document, err := builder.buildRoutes(restfuladapter.AdaptWebServices(made))
			if err != nil {
				return nil, "", fmt.Errorf("OpenAPI v3 of %s: %w", path, err)
			}
			if version, ok := versionOf(path); ok {
				removeOtherVersions(document, version)
			}
			return document, "static", nil
		})))
	}
	generic.OpenAPIV3VersionedService = service
	return nil
}

// openAPIv3Builder builds all documents of one configuration, one at a time: upstream's builder changes the
// definitions of the configuration.
type openAPIv3Builder struct {
	config *common.OpenAPIV3Config
	mu     sync.Mutex
	cached weak.Pointer[definitions]
}

// definitions maps Go names of types to their definitions.
type definitions map[string]common.OpenAPIDefinition

// newOpenAPIv3Builder returns a builder of documents for all types of a configuration, and the foreign types.
func newOpenAPIv3Builder(config *common.OpenAPIV3Config, foreign *Foreign) *openAPIv3Builder {
	own := *config
	own.Definitions, own.GetOperationIDAndTagsFromRoute, own.GetDefinitions = nil, nil, foreign.with(config.GetDefinitions)
	return &openAPIv3Builder{config: &own}
}

// releaseDefinitions removes the definitions from a configuration from which no further server is built. They take a tenth of the
// memory of a server without objects, and are needed once or never.
func releaseDefinitions(config *common.OpenAPIV3Config) {
	config.Definitions = nil
	// Upstream's builder has set this function, which keeps all that the first configuration held.
	config.GetOperationIDAndTagsFromRoute = nil
}

// definitions returns the configuration with its definitions. It reuses the definitions of the previous document if they
// have not been collected, because documents are mostly built one after the other. The caller must hold making.
func (b *openAPIv3Builder) definitions() *common.OpenAPIV3Config {
	made := b.cached.Value()
	if made == nil {
		all := definitions(b.config.GetDefinitions(func(name string) spec.Ref {
			defined, _ := b.config.GetDefinitionName(name)
			return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(defined))
		}))
		made = &all
		b.cached = weak.Make(made)
	}
	config := *b.config
	config.Definitions = *made
	return &config
}

func (b *openAPIv3Builder) buildRoutes(routes []common.RouteContainer) (*spec3.OpenAPI, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	document, err := builder3.BuildOpenAPISpecFromRoutes(routes, b.definitions())
	if err == nil && document.Components != nil {
		detach(document.Components.Schemas)
	}
	return document, err
}

// schemas returns the schemas of types, given by their Go names, and of all types that they refer to.
func (b *openAPIv3Builder) schemas(types ...string) (map[string]*spec.Schema, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	schemas, err := builder3.BuildOpenAPIDefinitionsForResources(b.definitions(), types...)
	detach(schemas)
	return schemas, err
}

// detach gives schemas extension maps of their own. The definitions' maps change while other documents are built,
// possibly while these schemas are read.
func detach(schemas map[string]*spec.Schema) {
	for _, s := range schemas {
		s.Extensions = maps.Clone(s.Extensions)
	}
}

// documentOf returns the document of a handler, completed with the fields that all documents have.
func documentOf(h *define.Handler, config *common.OpenAPIV3Config) cached.Value[*spec3.OpenAPI] {
	return cached.Once(cached.Func(func() (*spec3.OpenAPI, string, error) {
		document := spec3.OpenAPI{}
		if said := h.OpenAPI(); said != nil {
			document = *said // a copy, because several servers may share the document
		}
		if document.Version == "" {
			document.Version = "3.0.0"
		}
		if document.Info == nil {
			document.Info = config.Info
		}
		components := spec3.Components{}
		if document.Components != nil {
			components = *document.Components
		}
		if components.SecuritySchemes == nil {
			components.SecuritySchemes = config.SecuritySchemes
		}
		document.Components = &components
		return &document, "static", nil
	}))
}

// documentSet holds the documents of handlers by path. A document of queries at the same path is joined with the
// handler's.
type documentSet struct {
	service  *handler3.OpenAPIService
	handlers map[string]cached.Value[*spec3.OpenAPI]
}

func documentsOf(service *handler3.OpenAPIService, handlers []Handler, config *common.OpenAPIV3Config) documentSet {
	d := documentSet{service, map[string]cached.Value[*spec3.OpenAPI]{}}
	for _, h := range handlers {
		if h.Definition.OpenAPI != nil {
			path := h.Definition.Document()
			d.handlers[path] = documentOf(h.Definition, config)
			service.UpdateGroupVersionLazy(path, d.handlers[path])
		}
	}
	return d
}

// set serves a document of queries at a path.
func (d documentSet) set(path string, queries cached.Value[*spec3.OpenAPI]) {
	if handler, ok := d.handlers[path]; ok {
		queries = joined(handler, queries)
	}
	d.service.UpdateGroupVersionLazy(path, queries)
}

// remove removes the document of queries from a path.
func (d documentSet) remove(path string) {
	if handler, ok := d.handlers[path]; ok {
		d.service.UpdateGroupVersionLazy(path, handler)
		return
	}
	d.service.DeleteGroupVersion(path)
}

// joined adds the paths and schemas of the second document to the first. Where both define the same, the first wins.
func joined(first, second cached.Value[*spec3.OpenAPI]) cached.Value[*spec3.OpenAPI] {
	return cached.Once(cached.Func(func() (*spec3.OpenAPI, string, error) {
		own, tag, err := first.Get()
		if err != nil {
			return nil, "", err
		}
		other, otherTag, err := second.Get()
		if err != nil {
			return nil, "", err
		}
		all := *own
		all.Paths = joinedPaths(own.Paths, other.Paths)
		components := *own.Components
		components.Schemas = maps.Clone(other.Components.Schemas)
		if components.Schemas == nil {
			components.Schemas = map[string]*spec.Schema{}
		}
		maps.Copy(components.Schemas, own.Components.Schemas)
		all.Components = &components
		return &all, tag + "-" + otherTag, nil
	}))
}

func joinedPaths(own, other *spec3.Paths) *spec3.Paths {
	if own == nil {
		return other
	}
	all := &spec3.Paths{VendorExtensible: own.VendorExtensible, Paths: maps.Clone(other.Paths)}
	for path, item := range own.Paths {
		if there := all.Paths[path]; there != nil {
			item = joinedPath(item, there)
		}
		all.Paths[path] = item
	}
	return all
}

// joinedPath returns a path with the methods of both. Each method keeps the parameters of its original path.
func joinedPath(own, other *spec3.Path) *spec3.Path {
	all := &spec3.Path{
		Refable:          own.Refable,
		VendorExtensible: own.VendorExtensible,
		PathProps:        spec3.PathProps{Summary: own.Summary, Description: own.Description, Servers: own.Servers},
	}
	methods := func(p *spec3.Path) []**spec3.Operation {
		return []**spec3.Operation{&p.Get, &p.Put, &p.Post, &p.Delete, &p.Options, &p.Head, &p.Patch, &p.Trace}
	}
	for _, of := range []*spec3.Path{other, own} {
		for i, operation := range methods(of) {
			if *operation == nil {
				continue
			}
			whole := **operation
			whole.Parameters = slices.Concat(of.Parameters, whole.Parameters)
			*methods(all)[i] = &whole
		}
	}
	return all
}

// versionOf returns the group version of the resources below a path. It returns false if there is none.
func versionOf(path string) (schema.GroupVersion, bool) {
	switch parts := strings.Split(path, "/"); {
	case len(parts) == 2 && parts[0] == "api":
		return schema.GroupVersion{Version: parts[1]}, true
	case len(parts) == 3 && parts[0] == "apis":
		return schema.GroupVersion{Group: parts[1], Version: parts[2]}, true
	}
	return schema.GroupVersion{}, false
}

// removeOtherVersions removes the group versions of other documents from types that belong to a kind in every group: the document
// of a version then names only this version and v1 for them.
func removeOtherVersions(document *spec3.OpenAPI, version schema.GroupVersion) {
	if document.Components == nil {
		return
	}
	const extension = "x-kubernetes-group-version-kind"
	for _, s := range document.Components.Schemas {
		kinds, _ := s.Extensions[extension].([]any)
		if len(kinds) < 2 {
			continue
		}
		if first, _ := kinds[0].(map[string]any); first["kind"] != "WatchEvent" && first["kind"] != "DeleteOptions" {
			continue
		}
		s.Extensions[extension] = slices.DeleteFunc(slices.Clone(kinds), func(kind any) bool {
			k, _ := kind.(map[string]any)
			return (k["group"] != version.Group || k["version"] != version.Version) && (k["group"] != "" || k["version"] != "v1")
		})
	}
}

// buildBeforeServe wraps path handlers so that the first request builds their document.
type buildBeforeServe struct {
	mux   common.PathHandler
	build func() error
}

// Handle implements common.PathHandler.
func (f buildBeforeServe) Handle(path string, handler http.Handler) {
	f.mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := f.build(); err != nil {
			responsewriters.InternalError(w, r, err)
			return
		}
		handler.ServeHTTP(w, r)
	}))
}
