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

// sent is what the client of a request sent, as far as the handler has read it. It is for
// that request alone: a hook may make others in its context.
type sent struct {
	info  *request.RequestInfo
	media string
	body  bytes.Buffer
}

type sentKey struct{}

// Keep returns a request that keeps its body in its context while it is read. Its
// request info must be there.
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
