package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/annexapi/annex/internal/server/query"
	"github.com/annexapi/annex/internal/storage/past"
)

// Prefix is the path before groups.
const Prefix = "/history"

// Config is the interface of a server for the API.
type Config struct {
	// Resources returns the current resources. It is called for each request.
	Resources  func() []*query.Resource
	Authorizer authorizer.Authorizer
	// Secrets permits the history of Secrets.
	Secrets bool
	// Beside reports whether the server has a handler of its own for a path below the prefix, which then answers it.
	Beside func(path string) bool
}

// API is the history API of one server.
type API struct{ config Config }

// New returns the history API.
func New(c Config) *API { return &API{c} }

// place is the target of a path: a resource, or one object.
type place struct{ group, version, namespace, resource, name string }

// placeOf returns the target of a request; found is false for paths of another form.
func (a *API) placeOf(r *http.Request) (p place, found, ours bool) {
	rest, ours := strings.CutPrefix(r.URL.Path, Prefix+"/")
	if !ours || a.config.Beside != nil && a.config.Beside(r.URL.Path) {
		return place{}, false, false
	}
	parts := strings.Split(rest, "/")
	if slices.Contains(parts, "") {
		return place{}, false, true
	}
	switch n := len(parts); {
	case n == 3:
		p = place{parts[0], parts[1], "", parts[2], ""}
	case n == 4:
		p = place{parts[0], parts[1], "", parts[2], parts[3]}
	case n == 5 && parts[2] == "namespaces":
		p = place{parts[0], parts[1], parts[3], parts[4], ""}
	case n == 6 && parts[2] == "namespaces":
		p = place{parts[0], parts[1], parts[3], parts[4], parts[5]}
	default:
		return place{}, false, true
	}
	if p.group == "core" {
		p.group = ""
	}
	return p, true, true
}

// RequestInfo sets the attributes of the reads and writes that a request stands for, for audit, authorization and flow
// control: a get of the object, a list for deleted objects, an update to undo or restore.
func (a *API) RequestInfo(r *http.Request, info *request.RequestInfo) {
	p, found, _ := a.placeOf(r)
	if !found {
		return
	}
	info.IsResourceRequest = true
	switch {
	case r.Method == http.MethodPost:
		info.Verb = "update"
	case p.name == "":
		info.Verb = "list"
	default:
		info.Verb = "get"
	}
	info.APIPrefix, info.APIGroup, info.APIVersion = "apis", p.group, p.version
	if p.group == "" {
		info.APIPrefix = "api"
	}
	info.Namespace, info.Resource, info.Name, info.Parts = p.namespace, p.resource, p.name, []string{p.resource}
	if p.name != "" {
		info.Parts = append(info.Parts, p.name)
	}
}

// Answers reports whether the API serves a request.
func (a *API) Answers(r *http.Request) bool {
	_, _, ours := a.placeOf(r)
	return ours
}

// Wrap returns a handler that serves the paths of the API and passes other requests to next. next also serves the API's
// own reads and writes. The request must have passed all filters.
func (a *API) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, found, ours := a.placeOf(r)
		if !ours {
			next.ServeHTTP(w, r)
			return
		}
		err := notFound("no history at %s: use %s/GROUP/VERSION/RESOURCE/NAME, with namespaces/NAMESPACE before a namespaced resource",
			r.URL.Path, Prefix)
		if found {
			err = a.answer(w, &call{api: a, place: p, request: r, next: next})
		}
		if err != nil {
			query.WriteError(w, err)
		}
	})
}

func (a *API) answer(w http.ResponseWriter, c *call) error {
	resource := a.find(c.place)
	switch {
	case resource == nil:
		return notFound("no resource %s of version %s in the group %q with a history", c.resource, c.version, c.group)
	case c.namespace != "" && !resource.Namespaced:
		return notFound("%s are in no namespace", c.resource)
	case c.name != "" && c.namespace == "" && resource.Namespaced:
		return notFound("%s are in a namespace: use %s/GROUP/VERSION/namespaces/NAMESPACE/%s/NAME", c.resource, Prefix, c.resource)
	case query.AreSecrets(resource) && !a.config.Secrets:
		return query.PastSecretsForbidden(c.name)
	}
	c.kind = resource
	switch {
	case c.request.Method == http.MethodPost && c.name != "":
		return c.change(w)
	case c.request.Method != http.MethodGet:
		w.Header().Set("Allow", "GET, POST")
		return apierrors.NewMethodNotSupported(resource.GroupVersionResource.GroupResource(), c.request.Method)
	}
	return c.read(w)
}

// find returns the resource at a place, or nil.
func (a *API) find(p place) *query.Resource {
	for _, r := range a.config.Resources() {
		if r.Group == p.group && r.Version == p.version && r.Resource == p.resource {
			return r
		}
	}
	return nil
}

// call is one request.
type call struct {
	place
	api     *API
	kind    *query.Resource
	request *http.Request
	next    http.Handler
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

// send sends a request of the API's own, and returns the response. A body is JSON.
func (c *call) send(ctx context.Context, method, verb, name string, parameters url.Values, body []byte) *query.Recorder {
	path := c.path()
	if name != "" {
		path += "/" + name
	}
	if info, ok := request.RequestInfoFrom(ctx); ok {
		of := *info
		of.Path, of.Verb, of.Name, of.Parts = path, verb, name, []string{c.resource}
		if name != "" {
			of.Parts = append(of.Parts, name)
		}
		ctx = request.WithRequestInfo(ctx, &of)
	}
	// The fast path reads the newest objects only, and it answers no request with this parameter.
	parameters.Set("pretty", "false")
	r := c.request.Clone(ctx)
	r.Method, r.URL = method, &url.URL{Path: path, RawQuery: parameters.Encode()}
	r.RequestURI = r.URL.RequestURI()
	r.Header = http.Header{"Accept": {runtime.ContentTypeJSON}, "User-Agent": {c.request.UserAgent()}}
	r.Body, r.ContentLength = http.NoBody, int64(len(body))
	if body != nil {
		r.Header.Set("Content-Type", runtime.ContentTypeJSON)
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	answer := query.NewRecorder()
	c.next.ServeHTTP(answer, r)
	return answer
}

// ask sends a get of the object, or a list if name is empty, as a question to the history.
func (c *call) ask(name string, question *past.Request) (*query.Recorder, error) {
	verb := "get"
	if name == "" {
		verb = "list"
	}
	answer := c.send(past.NewContext(c.request.Context(), question), http.MethodGet, verb, name, url.Values{}, nil)
	if !question.Answered {
		if answer.Code >= http.StatusBadRequest && answer.Code != http.StatusNotFound && answer.Code != http.StatusMethodNotAllowed {
			return nil, query.ErrorOf(answer.Code, answer.Body.Bytes())
		}
		return nil, query.Explain(question, c.groupResource())
	}
	return answer, c.explain(question.At, question.Err)
}

// explain converts an error of the storage into one for the client.
func (c *call) explain(at *past.Point, err error) error {
	var notKept *past.NotKeptError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &notKept):
		return apierrors.NewResourceExpired(fmt.Sprintf("%s %q at %v", c.resource, c.name, notKept))
	case storage.IsNotFound(err) && at != nil:
		return notFound("%s %q did not exist at %s", c.groupResource(), c.name, at)
	case storage.IsNotFound(err):
		return apierrors.NewNotFound(c.groupResource(), c.name)
	}
	return query.Explain(&past.Request{Answered: true, Err: err}, c.groupResource())
}

// at returns the object at a point, as JSON of the version of the path.
func (c *call) at(point past.Point) ([]byte, error) {
	answer, err := c.ask(c.name, &past.Request{At: &point})
	if err != nil {
		return nil, err
	}
	if answer.Code != http.StatusOK {
		return nil, query.ErrorOf(answer.Code, answer.Body.Bytes())
	}
	return answer.Body.Bytes(), nil
}

// now returns the object as it is.
func (c *call) now() ([]byte, error) {
	answer := c.send(c.request.Context(), http.MethodGet, "get", c.name, url.Values{}, nil)
	if answer.Code != http.StatusOK {
		return nil, query.ErrorOf(answer.Code, answer.Body.Bytes())
	}
	return answer.Body.Bytes(), nil
}

// parse is past.ParsePoint of a parameter.
func parse(name, text string) (past.Point, error) {
	point, err := past.ParsePoint(text, time.Now())
	if err != nil {
		return point, apierrors.NewBadRequest(fmt.Sprintf("%s: %v", name, err))
	}
	return point, nil
}

func notFound(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: fmt.Sprintf(format, args...),
	}}
}

// groupResource returns the resource for errors.
func (c *call) groupResource() schema.GroupResource {
	return c.kind.GroupVersionResource.GroupResource()
}
