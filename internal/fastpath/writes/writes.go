// Package writes answers requests that create, update, patch or delete one object without routing them through
// upstream's handlers.
//
// A body is decoded once, package managed records the changed fields, and the response is made of the stored bytes
// where possible. The package handles the plain form of nearly all writes. It declines every other request before
// anything is stored; upstream's handlers then answer it, and the response is the same byte for byte either way.
// Package fastpath selects the requests by their headers and query.
package writes

import (
	"bytes"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/annexapi/annex/internal/fastpath"
	"github.com/annexapi/annex/internal/wire/managed"
	"github.com/annexapi/annex/internal/wire/plainjson"
	"github.com/annexapi/annex/internal/wire/stacks"
	"github.com/annexapi/annex/internal/wire/verbatim"
)

// maxWriteTime is upstream's time limit of a write.
const maxWriteTime = 34 * time.Second

// Writer holds the state that all kinds of a server share for answering writes.
type Writer struct {
	stacks *stacks.Pool
	plans  *plainjson.Plans
}

// New returns a writer for the kinds of a server.
func New() *Writer { return &Writer{stacks: stacks.New(), plans: plainjson.New()} }

// Resource is the main endpoint of a kind in a version.
type Resource struct {
	// Scope is the scope of upstream's handlers. Its field manager is not used and may be nil.
	Scope     handlers.RequestScope
	Storage   rest.Storage
	Admission admission.Interface
	Manager   *managed.Manager
	// Encoding is the encoding in which stored objects are served without being encoded again. Nil means that they never are.
	Encoding *verbatim.Encoding
}

// Kind answers writes of single objects of a kind in a version. It implements fastpath.Answerer.
type Kind struct {
	Resource
	stacks *stacks.Pool

	creater rest.Creater
	updater rest.Updater
	patcher rest.Patcher
	deleter rest.GracefulDeleter

	media   runtime.SerializerInfo
	decoder runtime.Decoder
	strict  runtime.Decoder
	encoder runtime.Encoder
}

var _ fastpath.Answerer = (*Kind)(nil)

// Kind returns the answerer for an endpoint. It returns nil if the endpoint has no strict decoder for JSON.
func (w *Writer) Kind(r Resource) *Kind {
	media, ok := runtime.SerializerInfoForMediaType(r.Scope.Serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok || media.StrictSerializer == nil {
		return nil
	}
	strict := json.NewSerializerWithOptions(prefixInterpreter{}, r.Scope.Creater, r.Scope.Typer, json.SerializerOptions{Strict: true})
	k := &Kind{
		Resource: r,
		stacks:   w.stacks,
		media:    media,
		decoder:  r.Scope.Serializer.DecoderToVersion(media.Serializer, r.Scope.HubGroupVersion),
		strict: r.Scope.Serializer.DecoderToVersion(
			w.plans.Decoder(strict, prefixKind, r.Scope.Typer, r.Scope.Creater),
			r.Scope.HubGroupVersion,
		),
		encoder: r.Scope.Serializer.EncoderForVersion(media.Serializer, r.Scope.Kind.GroupVersion()),
	}
	k.creater, _ = r.Storage.(rest.Creater)
	k.updater, _ = r.Storage.(rest.Updater)
	k.patcher, _ = r.Storage.(rest.Patcher)
	k.deleter, _ = r.Storage.(rest.GracefulDeleter)
	return k
}

// call is the state of one request.
type call struct {
	*Kind
	w        http.ResponseWriter
	r        *http.Request
	decision *fastpath.Decision
	info     *request.RequestInfo
	options  fastpath.Options
	body     []byte
	result   verbatim.WriteResult
}

// Answer implements fastpath.Answerer. It finds every error of a body and every reason for a warning before anything
// is stored, and declines the request.
func (k *Kind) Answer(w http.ResponseWriter, r *http.Request, d *fastpath.Decision, _ http.Handler) fastpath.Reason {
	c := &call{Kind: k, w: w, r: r, decision: d, info: d.Info, options: d.Options}
	if !c.read() {
		return fastpath.OddBody
	}
	answered := false
	switch d.Route {
	case fastpath.Create:
		answered = c.create()
	case fastpath.Update:
		answered = c.update()
	case fastpath.Patch:
		answered = c.patch(types.PatchType(d.ContentType))
	case fastpath.Delete:
		answered = c.delete()
	}
	if !answered {
		return fastpath.OddBody
	}
	return ""
}

// read reads the body and restores it for upstream's handlers. It returns false if the body is too large or cannot be
// read.
func (c *call) read() bool {
	if c.r.Body == nil || c.r.Body == http.NoBody {
		return true
	}
	limit := c.Scope.MaxRequestBodyBytes
	if read, ok := c.r.Body.(fastpath.Body); ok {
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
		c.r.Body = restoredBody{io.MultiReader(bytes.NewReader(c.body), c.r.Body), c.r.Body}
		return false
	}
	c.r.Body = restoredBody{bytes.NewReader(c.body), c.r.Body}
	return true
}

// restoredBody is a body that has been restored after reading.
type restoredBody struct {
	io.Reader
	io.Closer
}

// finish writes the response for the result of an operation. It always returns true.
func (c *call) finish(code int, result runtime.Object, err error) bool {
	c.decision.CountAnswer()
	n := 0
	if err != nil {
		code = responsewriters.ErrorNegotiated(err, c.Scope.Serializer, c.Scope.Kind.GroupVersion(), c.w, c.r)
	} else {
		n = c.write(code, result)
	}
	c.decision.Monitor(c.r, code, n)
	return true
}

// statusSize is the initial capacity for the encoded status of a deletion; most are shorter.
const statusSize = 256

// write writes the response, of the stored bytes if possible, and returns its size. It returns 0 if upstream's writer
// has written the response.
func (c *call) write(code int, result runtime.Object) int {
	body := c.result.JSON(result)
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
	if body == nil || len(body) > fastpath.CompressedSize {
		responsewriters.WriteObjectNegotiated(c.Scope.Serializer, &c.Scope, c.Scope.Kind.GroupVersion(), c.w, c.r, code, result, false)
		return 0
	}
	// The audit records the status of a deletion even if its policy records no response bodies.
	audit.LogResponseObject(c.r.Context(), result, c.Scope.Kind.GroupVersion(), c.Scope.Serializer)
	c.w.Header().Set("Content-Type", c.media.MediaType)
	c.w.WriteHeader(code)
	// A failed write means that the client has gone: that is no error of the server, and there is no way left to
	// report one.
	n, _ := c.w.Write(body)
	return n
}
