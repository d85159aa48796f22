package upstream

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/emicklei/go-restful/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// laterRoutes are the routes of group versions, which are made for the first request that needs them: those of a resource for
// a request for the resource, and all for a document. A control plane has thousands of routes, most of which no client ever
// uses. Versions are added before the first request.
type laterRoutes struct {
	errors   runtime.NegotiatedSerializer
	versions map[string]*laterVersion // by their root paths
}

// laterVersion is one group version.
type laterVersion struct {
	resources []metav1.APIResource
	parts     []*genericapi.APIGroupVersion
	// discovery answers requests for no resource, and for unknown ones.
	discovery func() *restful.Container
	// routes has the routes of each resource.
	routes map[string]func() (*restful.Container, error)
}

func newLaterRoutes(errors runtime.NegotiatedSerializer) *laterRoutes {
	return &laterRoutes{errors: errors, versions: map[string]*laterVersion{}}
}

// add adds the group version of parts, which are at least one, each with a scheme and resources of its own. It adds a service
// without routes to front, so that lists of paths and documents have the version.
func (l *laterRoutes) add(front *restful.Container, resources []metav1.APIResource, parts []*genericapi.APIGroupVersion) {
	first, root := parts[0], rootPath(parts[0])
	version := &laterVersion{resources: resources, parts: parts, routes: map[string]func() (*restful.Container, error){}}
	version.discovery = sync.OnceValue(func() *restful.Container {
		own, service := l.container(), &restful.WebService{}
		discovery.NewAPIVersionHandler(first.Serializer, first.GroupVersion, resourceList(resources)).AddToWebService(service.Path(root))
		return own.Add(service)
	})
	for _, part := range parts {
		for path := range part.Storage {
			resource, _, isSubresource := strings.Cut(path, "/")
			if isSubresource {
				continue
			}
			version.routes[resource] = sync.OnceValues(func() (*restful.Container, error) {
				own := l.container()
				_, _, err := resourceOf(part, resource).InstallREST(own)
				return own, err
			})
		}
	}
	l.versions[root] = version
	empty := &restful.WebService{}
	front.Add(empty.Path(root))
}

// resourceOf returns a group version with one resource and its subresources.
func resourceOf(v *genericapi.APIGroupVersion, resource string) *genericapi.APIGroupVersion {
	one := *v
	one.Storage = map[string]rest.Storage{}
	for path, storage := range v.Storage {
		if path == resource || strings.HasPrefix(path, resource+"/") {
			one.Storage[path] = storage
		}
	}
	return &one
}

// container returns an empty container with the settings of upstream's.
func (l *laterRoutes) container() *restful.Container {
	made := restful.NewContainer()
	made.Router(restful.CurlyRouter{})
	made.ServiceErrorHandler(l.refuse)
	return made
}

// services returns the services of a container, each with all its routes.
func (l *laterRoutes) services(front []*restful.WebService) ([]*restful.WebService, error) {
	var all []*restful.WebService
	for _, service := range front {
		version := l.versions[service.RootPath()]
		if version == nil {
			all = append(all, service)
			continue
		}
		container := restful.NewContainer()
		if err := installVersion(container, version.resources, version.parts...); err != nil {
			return nil, fmt.Errorf("routes of %s: %w", service.RootPath(), err)
		}
		all = append(all, container.RegisteredWebServices()...)
	}
	return all, nil
}

// wrap answers the requests for these versions, and passes all others on.
func (l *laterRoutes) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version := l.versions[rootOf(r.URL.Path)]
		if version == nil {
			next.ServeHTTP(w, r)
			return
		}
		routes := func() (*restful.Container, error) { return version.discovery(), nil }
		if info, ok := request.RequestInfoFrom(r.Context()); ok && version.routes[info.Resource] != nil {
			routes = version.routes[info.Resource]
		}
		container, err := routes()
		if err != nil {
			responsewriters.ErrorNegotiated(apierrors.NewInternalError(err), l.errors, schema.GroupVersion{}, w, r)
			return
		}
		container.Dispatch(w, r)
	})
}

// refuse answers a request that no route takes, as upstream's container does.
func (l *laterRoutes) refuse(err restful.ServiceError, r *restful.Request, w *restful.Response) {
	status := apierrors.NewGenericServerResponse(err.Code, "", schema.GroupResource{}, "", err.Message, 0, false)
	responsewriters.ErrorNegotiated(status, l.errors, schema.GroupVersion{}, w, r.Request)
}

// rootOf returns the root path of the group version that a path is in, empty if it is in none.
func rootOf(path string) string {
	segments := 3 // /apis/GROUP/VERSION
	if strings.HasPrefix(path, "/api/") {
		segments = 2
	}
	end := 0
	for range segments {
		if end >= len(path) || path[end] != '/' {
			return ""
		}
		next := strings.IndexByte(path[end+1:], '/')
		if next < 0 {
			next = len(path) - end - 1
		}
		end += 1 + next
	}
	return path[:end]
}
