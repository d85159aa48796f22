package structural

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// rawBody is the body of a request, as far as the handler has read it. It belongs to the object of that request only:
// a hook may write other objects in the same context.
type rawBody struct {
	info  *request.RequestInfo
	media string
	body  bytes.Buffer
	query url.Values // the query, for options that are read from it; else nil
	unfit bool       // set by Document if the body has values that the Go type cannot hold
}

// applies reports whether the request is an apply.
func (b *rawBody) applies() bool {
	return b.info.Verb == "patch" && types.PatchType(b.media) == types.ApplyYAMLPatchType
}

type rawBodyKey struct{}

// CaptureBody returns a request whose body is captured in its context while it is read. The context must hold the
// request info.
func CaptureBody(r *http.Request) *http.Request {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Body == nil {
		return r
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		media = ""
	}
	raw := &rawBody{info: info, media: media}
	r = r.WithContext(context.WithValue(r.Context(), rawBodyKey{}, raw))
	r.Body = teeBody{Reader: io.TeeReader(r.Body, &raw.body), Closer: r.Body}
	return r
}

// CaptureQuery returns a request whose query is captured in its context, so that options can be validated as the
// client sent them. The context must hold the request info.
func CaptureQuery(r *http.Request) *http.Request {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), rawBodyKey{}, &rawBody{info: info, query: r.URL.Query()}))
}

type teeBody struct {
	io.Reader
	io.Closer
}

func rawBodyIn(ctx context.Context) *rawBody {
	raw, _ := ctx.Value(rawBodyKey{}).(*rawBody)
	if info, ok := request.RequestInfoFrom(ctx); raw == nil || !ok || info != raw.info {
		return nil
	}
	return raw
}

var errUnread = errors.New("the body says nothing about presence")
