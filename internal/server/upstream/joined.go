package upstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
)

// installVersion installs the endpoints of a group version into a container. parts are at least one, and all of the same
// group version, each with a scheme and resources of its own.
func installVersion(container *restful.Container, parts ...*genericapi.APIGroupVersion) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	if len(parts) == 1 {
		resources, _, err := parts[0].InstallREST(container)
		return resources, err
	}
	first := parts[0]
	root := path.Join(first.Root, first.GroupVersion.Group, first.GroupVersion.Version)
	joined := new(restful.WebService)
	joined.Path(root).Doc("API at " + root)
	var all []apidiscoveryv2.APIResourceDiscovery
	var listed resourceList
	for _, part := range parts {
		// A container has one service for a path, so each part is built in a container of its own.
		alone := restful.NewContainer()
		resources, _, err := part.InstallREST(alone)
		if err != nil {
			return nil, err
		}
		all = append(all, resources...)
		more, err := listResources(alone, root)
		if err != nil {
			return nil, err
		}
		listed = append(listed, more...)
		for _, service := range alone.RegisteredWebServices() {
			for _, route := range service.Routes() {
				if strings.TrimSuffix(route.Path, "/") != root { // discovery
					copyRoute(joined, root, route)
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b apidiscoveryv2.APIResourceDiscovery) int { return strings.Compare(a.Resource, b.Resource) })
	slices.SortStableFunc(listed, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })
	discovery.NewAPIVersionHandler(first.Serializer, first.GroupVersion, listed).AddToWebService(joined)
	container.Add(joined)
	return all, nil
}

type resourceList []metav1.APIResource

// ListAPIResources implements discovery.APIResourceLister.
func (l resourceList) ListAPIResources() []metav1.APIResource { return l }

// listResources asks a container for the resources of a group version: upstream hands them out nowhere else.
func listResources(container *restful.Container, root string) ([]metav1.APIResource, error) {
	r, err := http.NewRequest(http.MethodGet, root, nil)
	if err != nil {
		return nil, fmt.Errorf("resources of %s: %w", root, err)
	}
	r.Header.Set("Accept", runtime.ContentTypeJSON)
	w := &recorder{header: http.Header{}}
	container.ServeHTTP(w, r)
	if w.code != http.StatusOK {
		return nil, fmt.Errorf("resources of %s: status %d", root, w.code)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(w.body.Bytes(), &list); err != nil {
		return nil, fmt.Errorf("resources of %s: %w", root, err)
	}
	return list.APIResources, nil
}

// recorder keeps one response.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) { r.code = code }

// Write implements http.ResponseWriter.
func (r *recorder) Write(data []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return r.body.Write(data)
}

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
