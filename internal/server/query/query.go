package query

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/annexapi/annex/internal/base/ordered"
)

// Resource is a resource that can be queried.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Namespaced bool
	// Watched resources have tails.
	Watched bool
	// Indexed resources keep the orders of sortable fields, others sort each list.
	Indexed bool
	// Fields are those beside the metadata's, which every resource has.
	Fields []ordered.Field
	// Model is an object of the version, for OpenAPI; nil is none.
	Model runtime.Object
	// Schemas returns those that a resource without a Model refers to in OpenAPI v3, and the name of
	// that of its objects among them; nil is none.
	Schemas func() (schemas map[string]*spec.Schema, name string, err error)
	// Encode returns objects, which are shared and must not be changed, as JSON of the resource's
	// version. Nil says that lists of the resource come from elsewhere than a storage: then they
	// are read as a whole.
	Encode func(objects []runtime.Object) ([][]byte, error)
}

// Config is what the API needs of its server.
type Config struct {
	// Prefix is the path before groups, such as /query.
	Prefix string
	// Resources returns what there is, in the order of groups and versions. It is called for each
	// request.
	Resources  func() []*Resource
	Authorizer authorizer.Authorizer
	// Namespaces returns those that there are; there is a union of at most Union of them.
	Namespaces func(ctx context.Context) ([]string, error)
	Union      int
	// Beside tells whether the server has a handler of its own for a path below Prefix. It answers
	// what is no query: requests of other methods than GET, and paths of another form. Nil has none.
	Beside func(path string) bool
	// Heartbeat is after how long a tail says that it is still there; 0 is 15 seconds.
	Heartbeat time.Duration
}

// API is the query API of one server.
type API struct {
	config Config
	bodies sync.Pool // of *bytes.Buffer, in which answers are put together
}

// New makes the API.
func New(c Config) *API {
	if c.Heartbeat == 0 {
		c.Heartbeat = 15 * time.Second
	}
	return &API{config: c}
}

// core is how the core group is written in paths.
const core = "core"

// place is what a path asks for: all resources, those of a version, or one.
type place struct {
	group, version, namespace, resource string
	nowhere                             bool // there is nothing at the path
}

func (p place) isResource() bool { return p.resource != "" }

// placeOf returns what a request is about; false if it is not for the API to answer. What a request is depends on
// its method and its path alone, so that all who ask are told the same.
func (a *API) placeOf(r *http.Request) (p place, ok bool) {
	rest, ours := strings.CutPrefix(r.URL.Path, a.config.Prefix)
	if !ours || rest != "" && rest[0] != '/' {
		return place{}, false
	}
	p = placeBelow(rest)
	if isQuery := r.Method == http.MethodGet && !p.nowhere; !isQuery && a.config.Beside != nil && a.config.Beside(r.URL.Path) {
		return place{}, false
	}
	return p, true
}

// placeBelow reads a path behind the prefix.
func placeBelow(rest string) (p place) {
	switch parts := strings.Split(strings.TrimPrefix(rest, "/"), "/"); {
	case rest == "" || rest == "/":
	case slices.Contains(parts, ""):
		p.nowhere = true
	case len(parts) == 2:
		p = place{group: parts[0], version: parts[1]}
	case len(parts) == 3:
		p = place{group: parts[0], version: parts[1], resource: parts[2]}
	case len(parts) == 5 && parts[2] == "namespaces":
		p = place{group: parts[0], version: parts[1], namespace: parts[3], resource: parts[4]}
	default:
		p.nowhere = true
	}
	if p.group == core {
		p.group = ""
	}
	return p
}

// RequestInfo tells audit, authorization and flow control that a request is a list or a watch of a
// resource.
func (a *API) RequestInfo(r *http.Request, info *request.RequestInfo) {
	p, ok := a.placeOf(r)
	if !ok || !p.isResource() || r.Method != http.MethodGet {
		return
	}
	query := r.URL.Query()
	info.IsResourceRequest = true
	info.Verb = "list"
	if isTail(query) {
		info.Verb = "watch"
	}
	info.APIPrefix, info.APIGroup, info.APIVersion = "apis", p.group, p.version
	if p.group == "" {
		info.APIPrefix = "api"
	}
	info.Namespace, info.Resource, info.Parts = p.namespace, p.resource, []string{p.resource}
	info.LabelSelector, info.FieldSelector = query.Get("labelSelector"), query.Get("fieldSelector")
}

func isTail(query url.Values) bool {
	return slices.Contains(query["watch"], "true") || slices.Contains(query["watch"], "1")
}

// path is where the resource is in the API.
func (p place) path() string {
	path := "/apis/" + p.group
	if p.group == "" {
		path = "/api"
	}
	path += "/" + p.version
	if p.namespace != "" {
		path += "/namespaces/" + p.namespace
	}
	return path + "/" + p.resource
}

// find returns the resource at a place, nil if there is none.
func (a *API) find(p place) *Resource {
	for _, r := range a.config.Resources() {
		if r.Group == p.group && r.Version == p.version && r.Resource == p.resource {
			return r
		}
	}
	return nil
}

// Prefix is the path before groups.
func (a *API) Prefix() string { return a.config.Prefix }

// IsTail tells whether a request, if it is for a resource, goes on as long as its client likes.
func IsTail(r *http.Request) bool { return isTail(r.URL.Query()) }

// Answers tells whether a request is for the API to answer.
func (a *API) Answers(r *http.Request) bool {
	_, ours := a.placeOf(r)
	return ours
}

// Wrap returns next with the paths of the API answered. next answers the API's own lists and
// watches, and all that has to be said about a request has been.
func (a *API) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := a.placeOf(r)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if err := a.answer(w, r, p, next); err != nil {
			writeError(w, err)
		}
	})
}

func (a *API) answer(w http.ResponseWriter, r *http.Request, p place, next http.Handler) error {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		return apierrors.NewMethodNotSupported(schema.GroupResource{Group: p.group, Resource: p.resource}, r.Method)
	}
	if !p.isResource() {
		return a.describe(w, r, p)
	}
	resource := a.find(p)
	switch {
	case resource == nil:
		return notFound(
			fmt.Sprintf(
				"there is no resource %s of version %s in the group %q to query; %s lists those that there are",
				p.resource,
				p.version,
				p.group,
				a.config.Prefix,
			),
		)
	case p.namespace != "" && !resource.Namespaced:
		return notFound(p.resource + " are in no namespace")
	}
	asked, err := parse(r, p, resource)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	asked.request.Namespaces = namespacesOf(r.Context())
	if asked.tail {
		return a.tail(w, r, asked, next)
	}
	return a.page(w, r, asked, next)
}

func notFound(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: message,
	}}
}

// metadata are the fields that objects of every resource have.
func metadata() []ordered.Field {
	of := func(get func(m metaObject) any) func(runtime.Object) any {
		return func(o runtime.Object) any {
			m, err := meta.Accessor(o)
			if err != nil {
				return nil
			}
			return get(m)
		}
	}
	return []ordered.Field{
		{
			Name:        "name",
			Type:        ordered.String,
			Description: "metadata.name",
			Sortable:    true,
			Text:        true,
			Get:         of(func(m metaObject) any { return m.GetName() }),
		},
		{
			Name:        "namespace",
			Type:        ordered.String,
			Description: "metadata.namespace",
			Sortable:    true,
			Get:         of(func(m metaObject) any { return m.GetNamespace() }),
		},
		{
			Name:        "creationTimestamp",
			Type:        ordered.Time,
			Description: "metadata.creationTimestamp",
			Sortable:    true,
			Get:         of(func(m metaObject) any { return m.GetCreationTimestamp().Time }),
		},
	}
}

// fields are all fields of the resource.
func (r *Resource) fields() []ordered.Field { return append(metadata(), r.Fields...) }
