package upstream

import (
	"path"
	"strings"

	"github.com/emicklei/go-restful/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
)

// installVersion installs the endpoints of a group version into a container. parts are at least one, and all of the same
// group version, each with a scheme and resources of its own. discovered has returned the resources.
func installVersion(container *restful.Container, resources []metav1.APIResource, parts ...*genericapi.APIGroupVersion) error {
	first := parts[0]
	if len(parts) == 1 {
		_, _, err := first.InstallREST(container)
		return err
	}
	root := rootPath(first)
	joined := new(restful.WebService)
	joined.Path(root).Doc("API at " + root)
	for _, part := range parts {
		// A container has one service for a path, so each part is built in a container of its own.
		alone := restful.NewContainer()
		if _, _, err := part.InstallREST(alone); err != nil {
			return err
		}
		for _, service := range alone.RegisteredWebServices() {
			for _, route := range service.Routes() {
				if strings.TrimSuffix(route.Path, "/") != root { // discovery
					copyRoute(joined, root, route)
				}
			}
		}
	}
	discovery.NewAPIVersionHandler(first.Serializer, first.GroupVersion, resourceList(resources)).AddToWebService(joined)
	container.Add(joined)
	return nil
}

// rootPath returns the path below which a group version has its endpoints.
func rootPath(v *genericapi.APIGroupVersion) string {
	return path.Join(v.Root, v.GroupVersion.Group, v.GroupVersion.Version)
}

type resourceList []metav1.APIResource

// ListAPIResources implements discovery.APIResourceLister.
func (l resourceList) ListAPIResources() []metav1.APIResource { return l }

// copyRoute adds a route of another service to a service with the same root.
func copyRoute(to *restful.WebService, root string, r restful.Route) {
	b := to.Method(r.Method).Path(strings.TrimPrefix(r.Path, root)).To(r.Function).
		Produces(r.Produces...).Consumes(r.Consumes...).
		Doc(r.Doc).Notes(r.Notes).Operation(r.Operation)
	for _, f := range r.Filters {
		b.Filter(f)
	}
	for _, condition := range r.If {
		b.If(condition)
	}
	for _, p := range r.ParameterDocs {
		if p.Kind() != restful.BodyParameterKind || r.ReadSample == nil {
			b.Param(p)
			continue
		}
		b.Reads(r.ReadSample, p.Data().Description)
		b.ParameterNamed(p.Data().Name).Required(p.Data().Required) // a deletion needs no body
	}
	for _, e := range r.ResponseErrors {
		b.ReturnsWithHeaders(e.Code, e.Message, e.Model, e.Headers)
	}
	if len(r.WriteSamples) > 0 {
		b.Writes(r.WriteSamples...)
	}
	for key, value := range r.Metadata {
		b.Metadata(key, value)
	}
	for key, value := range r.Extensions {
		b.AddExtension(key, value)
	}
	if r.Deprecated {
		b.Deprecate()
	}
	to.Route(b)
}
