package structural

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// sent is the body of a request, as far as the handler has read it. It applies to that
// request's object only: a hook may write other objects in the same context.
type sent struct {
	info  *request.RequestInfo
	media string
	body  bytes.Buffer
}

type sentKey struct{}

// Keep returns a request whose body is captured in its context while it is read. The
// context must hold the request info.
func Keep(r *http.Request) *http.Request {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || r.Body == nil {
		return r
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		media = ""
	}
	kept := &sent{info: info, media: media}
	r = r.WithContext(context.WithValue(r.Context(), sentKey{}, kept))
	r.Body = keptBody{Reader: io.TeeReader(r.Body, &kept.body), Closer: r.Body}
	return r
}

type keptBody struct {
	io.Reader
	io.Closer
}

func sentIn(ctx context.Context) *sent {
	kept, _ := ctx.Value(sentKey{}).(*sent)
	if info, ok := request.RequestInfoFrom(ctx); kept == nil || !ok || info != kept.info {
		return nil
	}
	return kept
}

var errUnread = errors.New("the body says nothing about presence")
