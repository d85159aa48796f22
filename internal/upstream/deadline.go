package upstream

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// answerTime is the grace period after a request's deadline in which its answer may still
// be written: long enough for the 504 that says that the deadline has passed.
const answerTime = time.Second

// withConnectionDeadline extends a request's deadline to the connection, where the
// context does not reach: to a client that sends its body slowly, or does not read
// the answer. Either would keep its goroutine, and a shutdown, for ever.
//
// Inside, the context's deadline is enough: the API machinery answers a write with
// 504 when it passes, wherever the storage or a hook is then, and reads wait for
// nothing.
func withConnectionDeadline(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if deadline, ok := r.Context().Deadline(); ok {
			// Best effort: a ResponseWriter other than net/http's may not support deadlines.
			connection := http.NewResponseController(w)
			_ = connection.SetWriteDeadline(deadline.Add(answerTime))
			if r.ContentLength != 0 && connection.SetReadDeadline(deadline) == nil {
				r = r.WithContext(r.Context())
				r.Body = punctualBody{r.Body}
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// punctualBody is the body of a request whose connection has a read deadline. The
// server takes that off when the body has been read, so that it does not end the
// wait for the client to go away.
type punctualBody struct {
	io.ReadCloser
}

func (b punctualBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = apierrors.NewTimeoutError("the request's body did not arrive in time", 0)
	}
	return n, err
}
