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
	// Watched resources support tails.
	Watched bool
	// Indexed resources maintain the orders of sortable fields; other resources sort each list.
	Indexed bool
	// Fields are the fields in addition to those of the metadata, which every resource has.
	Fields []ordered.Field
	// Table prints the objects in columns; nil if lists of the resource have them, or nothing has.
	Table *Table
	// Edition identifies the definition of the fields and columns, if it can change while the resource is served.
	Edition string
	// Model is an object of the version, for OpenAPI; nil means none.
	Model runtime.Object
	// Schemas returns the OpenAPI v3 schemas of a resource without a Model, and the name of the schema of its objects
	// among them; nil means none.
	Schemas func() (schemas map[string]*spec.Schema, name string, err error)
	// Encode returns objects as JSON of the resource's version. The objects are shared and must not be modified. If
	// Encode is nil, lists of the resource do not come from a storage, and are read completely.
	Encode func(objects []runtime.Object) ([][]byte, error)
}

// Config is the interface of a server for the API.
type Config struct {
	// Prefix is the path before groups, such as /query.
	Prefix string
	// Resources returns the current resources, in the order of groups and versions. It is called for each request.
	Resources  func() []*Resource
	Authorizer authorizer.Authorizer
	// Namespaces returns the existing namespaces. A query spans a union of namespaces only if at most Union exist.
	Namespaces func(ctx context.Context) ([]string, error)
	Union      int
	// Beside reports whether the server has a handler of its own for a path below Prefix. That handler serves
	// requests that are not queries: those with methods other than GET, and those with paths of another form. Nil
	// means no such handler.
	Beside func(path string) bool
	// PastSecrets permits pages of the past of Secrets.
	PastSecrets bool
	// Heartbeat is the interval of heartbeats in a tail; 0 means 15 seconds.
	Heartbeat time.Duration
}

// API is the query API of one server.
type API struct {
	config Config
	bodies sync.Pool // of *bytes.Buffer, for assembling responses
}

// New returns the query API.
func New(c Config) *API {
	if c.Heartbeat == 0 {
		c.Heartbeat = 15 * time.Second
	}
	return &API{config: c}
}

// core is the name of the core group in paths.
const core = "core"

// place is the target of a path: all resources, those of a version, or one.
type place struct {
	group, version, namespace, resource string
	nowhere                             bool // the path does not exist
}

func (p place) isResource() bool { return p.resource != "" }

// placeOf returns the target of a request. It returns false if the API does not serve the request. The result depends
// only on the method and the path, so that it is the same for all filters.
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

// placeBelow parses a path behind the prefix.
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

// RequestInfo sets the attributes of a list or a watch of a resource, for audit, authorization and flow control.
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

// path returns the path of the resource in the API.
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

// find returns the resource at a place, or nil.
func (a *API) find(p place) *Resource {
	for _, r := range a.config.Resources() {
		if r.Group == p.group && r.Version == p.version && r.Resource == p.resource {
			return r
		}
	}
	return nil
}

// Prefix returns the path before groups.
func (a *API) Prefix() string { return a.config.Prefix }

// IsTail reports whether a request for a resource is a tail, which continues until the client ends it.
func IsTail(r *http.Request) bool { return isTail(r.URL.Query()) }

// Answers reports whether the API serves a request.
func (a *API) Answers(r *http.Request) bool {
	_, ours := a.placeOf(r)
	return ours
}

// Wrap returns a handler that serves the paths of the API and passes other requests to next. next also serves the
// API's own lists and watches. The request must have passed all filters.
func (a *API) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := a.placeOf(r)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if err := a.answer(w, r, p, next); err != nil {
			WriteError(w, err)
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
				"no resource %s of version %s in the group %q to query; %s lists the resources",
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

// metadata returns the fields that objects of every resource have.
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
			FromKey:     func(_, name string) any { return name },
		},
		{
			Name:        "namespace",
			Type:        ordered.String,
			Description: "metadata.namespace",
			Sortable:    true,
			Get:         of(func(m metaObject) any { return m.GetNamespace() }),
			FromKey:     func(namespace, _ string) any { return namespace },
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

// fields returns the fields of the metadata, and those that the resource declares.
func (r *Resource) fields() []ordered.Field { return append(metadata(), r.Fields...) }

// allFields returns also the columns without such a field, and what is computed of all objects.
func (r *Resource) allFields() []ordered.Field {
	return append(append(r.fields(), r.columnFields()...), failingField())
}
