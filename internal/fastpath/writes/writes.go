// Package writes answers requests that write one object, in the plain form of nearly all of them, without routing them:
// their bodies are decoded once, what they change is recorded by package managed, and the answer is what was stored.
// Whatever is more than that is upstream's, and the answer is the same either way, byte for byte.
package writes

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/fastpath/direct"
	"github.com/annexapi/annex/internal/wire/managed"
	"github.com/annexapi/annex/internal/wire/plainjson"
	"github.com/annexapi/annex/internal/wire/stacks"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// longest bounds a write, as upstream does.
const longest = 34 * time.Second

// Direct answers requests that write one object as JSON, without options but the field manager and how unknown fields are
// taken. Answers that are compressed, recorded or traced, and what is wrong with a body, are upstream's.
type Direct struct {
	// Recorded says that an audit may record answers, Traced that requests are traced.
	Recorded, Traced bool
	// Pretty says whether a client gets JSON to be read by people.
	Pretty func(*http.Request) bool
	// Answers counts what is answered directly; nil is for nothing.
	Answers *direct.Answers

	of     map[schema.GroupVersionResource]*resource
	stacks *stacks.Pool
	plans  *plainjson.Plans
}

// Resource is the main endpoint of a kind in a version.
type Resource struct {
	// Scope is what upstream's handlers get. It need not have a field manager.
	Scope      handlers.RequestScope
	Namespaced bool
	Storage    rest.Storage
	Admission  admission.Interface
	Manager    *managed.Manager
	// Form is how objects are answered that are stored as they are served; nil if they are not.
	Form *verbatim.Form
}

// resource is a Resource with what is found out once.
type resource struct {
	Resource
	path    direct.Path
	stacks  *stacks.Pool
	answers *direct.Answers

	creater rest.Creater
	updater rest.Updater
	patcher rest.Patcher
	deleter rest.GracefulDeleter

	mutating   admission.MutationInterface // nil if there is none
	media      runtime.SerializerInfo
	decoder    runtime.Decoder
	strict     runtime.Decoder
	encoder    runtime.Encoder
	deprecated bool
}

// Add takes an endpoint. It must not be called when the server answers.
func (d *Direct) Add(r Resource) {
	media, ok := runtime.SerializerInfoForMediaType(r.Scope.Serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok || media.StrictSerializer == nil {
		return
	}
	sample, err := r.Scope.Creater.New(r.Scope.Kind)
	if err != nil {
		return
	}
	gv := r.Scope.Kind.GroupVersion()
	a := &resource{Resource: r, path: direct.PathOf(gv, r.Namespaced), media: media, deprecated: deprecation.IsDeprecated(sample, 0, 0)}
	a.creater, _ = r.Storage.(rest.Creater)
	a.updater, _ = r.Storage.(rest.Updater)
	a.patcher, _ = r.Storage.(rest.Patcher)
	a.deleter, _ = r.Storage.(rest.GracefulDeleter)
	a.mutating, _ = r.Admission.(admission.MutationInterface)
	a.decoder = r.Scope.Serializer.DecoderToVersion(media.Serializer, r.Scope.HubGroupVersion)
	strict := json.NewSerializerWithOptions(front{}, r.Scope.Creater, r.Scope.Typer, json.SerializerOptions{Strict: true})
	if d.plans == nil {
		d.plans = plainjson.New()
	}
	a.strict = r.Scope.Serializer.DecoderToVersion(
		d.plans.Decoder(strict, frontKind, r.Scope.Typer, r.Scope.Creater),
		r.Scope.HubGroupVersion,
	)
	a.encoder = r.Scope.Serializer.EncoderForVersion(media.Serializer, gv)
	if d.of == nil {
		d.of, d.stacks = map[schema.GroupVersionResource]*resource{}, stacks.New()
	}
	a.stacks, a.answers = d.stacks, d.Answers
	d.of[r.Scope.Resource] = a
}

// Wrap answers what can be answered directly, and gives the rest to the next handler.
func (d *Direct) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := d.resource(r); a == nil || !a.answer(w, r) {
			next.ServeHTTP(w, r)
		}
	})
}

// resource returns the resource of a request that may be answered directly.
func (d *Direct) resource(r *http.Request) *resource {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return nil
	}
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Subresource != "" || r.URL.RawPath != "" {
		return nil
	}
	a := d.of[schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}]
	if a == nil || a.deprecated || !a.path.Of(info) || !acceptsJSON(r) || d.Traced || d.Pretty(r) ||
		d.Recorded && direct.RecordsAnswers(r.Context()) {
		return nil
	}
	return a
}

func acceptsJSON(r *http.Request) bool {
	switch r.Header.Get("Accept") {
	case "", "*/*", runtime.ContentTypeJSON, runtime.ContentTypeJSON + ", */*":
		return len(r.Header["Accept"]) < 2
	}
	return false
}

// call is a request that is answered directly.
type call struct {
	*resource
	w       http.ResponseWriter
	r       *http.Request
	info    *request.RequestInfo
	options options
	body    []byte
	written verbatim.Written
}

// options are those of the query that are served here.
type options struct {
	fieldManager    string
	fieldValidation string
	force           *bool
}

// optionsOf returns the options in a query; false if upstream has to read them.
func optionsOf(query string, patch bool) (options, bool) {
	var o options
	if query == "" {
		return o, true
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return o, false
	}
	for name, given := range values {
		if len(given) != 1 {
			return o, false
		}
		switch name {
		case "fieldManager":
			o.fieldManager = given[0]
		case "fieldValidation":
			if o.fieldValidation = given[0]; o.fieldValidation != "Strict" && o.fieldValidation != "Warn" && o.fieldValidation != "Ignore" {
				return o, false
			}
		case "force":
			force := given[0] == "true"
			if o.force = &force; !patch || !force && given[0] != "false" {
				return o, false
			}
		default:
			return o, false
		}
	}
	return o, managed.IsName(o.fieldManager)
}

// answer says whether it has answered. If not, nothing has been written or stored.
func (a *resource) answer(w http.ResponseWriter, r *http.Request) bool {
	info, _ := request.RequestInfoFrom(r.Context())
	c := &call{resource: a, w: w, r: r, info: info}
	var ok bool
	if c.options, ok = optionsOf(r.URL.RawQuery, r.Method == http.MethodPatch); !ok {
		return false
	}
	media := r.Header["Content-Type"]
	if len(media) > 1 {
		return false
	}
	kind := ""
	if len(media) == 1 {
		kind = media[0]
	}
	isJSON := kind == "" || kind == runtime.ContentTypeJSON
	switch {
	case r.Method == http.MethodPost && info.Verb == "create" && info.Name == "" && isJSON && a.creater != nil:
		return c.read() && c.create()
	case r.Method == http.MethodPut && info.Verb == "update" && info.Name != "" && isJSON && a.updater != nil:
		return c.read() && c.update()
	case r.Method == http.MethodPatch && info.Verb == "patch" && info.Name != "" && a.patcher != nil:
		return c.patch(kind)
	case r.Method == http.MethodDelete && info.Verb == "delete" && info.Name != "" && isJSON && a.deleter != nil && r.URL.RawQuery == "":
		return c.read() && c.delete()
	}
	return false
}

// read reads the body, and leaves it to be read once more.
func (c *call) read() bool {
	if c.r.Body == nil || c.r.Body == http.NoBody {
		return true
	}
	limit := c.Scope.MaxRequestBodyBytes
	if read, ok := c.r.Body.(direct.Body); ok {
		c.body = read.Whole()
		return limit <= 0 || int64(len(c.body)) <= limit
	}
	var from io.Reader = c.r.Body
	if limit > 0 {
		from = io.LimitReader(from, limit+1)
	}
	var body bytes.Buffer
	if c.r.ContentLength > 0 && (limit <= 0 || c.r.ContentLength <= limit) {
		body.Grow(int(c.r.ContentLength) + bytes.MinRead)
	}
	_, err := body.ReadFrom(from)
	c.body = body.Bytes()
	if err != nil || limit > 0 && int64(len(c.body)) > limit {
		c.r.Body = again{io.MultiReader(bytes.NewReader(c.body), c.r.Body), c.r.Body}
		return false
	}
	c.r.Body = again{bytes.NewReader(c.body), c.r.Body}
	return true
}

// again is a body that is read once more.
type again struct {
	io.Reader
	io.Closer
}

// finish answers with what an operation results in.
func (c *call) finish(method string, code int, result runtime.Object, err error) bool {
	c.answers.Count(c.info.Verb)
	n := 0
	if err != nil {
		code = responsewriters.ErrorNegotiated(err, c.Scope.Serializer, c.Scope.Kind.GroupVersion(), c.w, c.r)
	} else {
		n = c.write(code, result)
	}
	direct.Monitor(c.r, method, c.Scope.Resource, code, n)
	return true
}

// statusSize is as long as most statuses of deletions are.
const statusSize = 256

// write writes an object, if possible as it is stored.
func (c *call) write(code int, result runtime.Object) int {
	body := c.written.Of(result)
	if status, ok := result.(*metav1.Status); ok {
		if plain, ok := appendStatus(make([]byte, 0, statusSize), status); ok {
			body = plain
		}
	}
	if body == nil {
		var encoded bytes.Buffer
		if err := c.encoder.Encode(result, &encoded); err == nil {
			body = encoded.Bytes()
		}
	}
	if body == nil || len(body) > direct.CompressedSize {
		responsewriters.WriteObjectNegotiated(c.Scope.Serializer, &c.Scope, c.Scope.Kind.GroupVersion(), c.w, c.r, code, result, false)
		return 0
	}
	// A status that says what was deleted is in the audit even where answers are not.
	audit.LogResponseObject(c.r.Context(), result, c.Scope.Kind.GroupVersion(), c.Scope.Serializer)
	c.w.Header().Set("Content-Type", c.media.MediaType)
	c.w.WriteHeader(code)
	// A client that has gone is no error of the server's, and there is no way left to report one.
	n, _ := c.w.Write(body)
	return n
}
