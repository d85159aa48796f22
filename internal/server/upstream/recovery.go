package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"runtime/debug"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/klog/v2"

	"github.com/annexapi/annex/internal/wire/push"
)

// withRecovery answers 500 to a request whose handler panics, for example in a user's hook. A response that has begun
// is cut off instead, so that no client takes it for a complete one. The server continues either way. Upstream's
// filter lets the panic continue, and the client sees a broken connection.
func withRecovery(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recovery := &recovery{answer: answer{ResponseWriter: w}, ctx: r.Context(), method: r.Method, path: r.URL.Path}
		defer recovery.end()
		handler.ServeHTTP(responsewriter.WrapForHTTP1Or2(&recovery.answer), r)
		push.RestFrom(r.Context()).Around(recovery.around)
	})
}

// recovery is the state of a request and of its rest (push.Rest). The rest may run for long, without the request
// itself.
type recovery struct {
	answer       answer
	ctx          context.Context
	method, path string
}

func (r *recovery) around(serve func()) {
	defer r.end()
	serve()
}

// end recovers from a panic. It must be called by a defer statement.
func (r *recovery) end() {
	reason := recover()
	if reason == nil {
		return
	}
	push.RestFrom(r.ctx).Drop()
	if reason == http.ErrAbortHandler {
		panic(reason)
	}
	klog.FromContext(r.ctx).Error(nil, "A request panicked",
		"method", r.method, "path", r.path, "panic", reason, "stack", string(debug.Stack()))
	if r.answer.begun {
		panic(http.ErrAbortHandler)
	}
	writeStatus(r.answer.ResponseWriter, apierrors.NewInternalError(errors.New("the request caused a panic in the server; see the "+
		"server's log")))
}

// writeStatus writes a status outside the API machinery, before a media type has been negotiated: in JSON, which
// every client reads.
func writeStatus(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(int(status.Code))
	// Best effort: the status code has been sent, and there is no way left to report an error.
	_ = json.NewEncoder(w).Encode(status)
}

// answer is a ResponseWriter that records the code and size of the response.
type answer struct {
	http.ResponseWriter
	begun bool
	code  int // 0 means the default
	bytes int64
}

var _ responsewriter.UserProvidedDecorator = (*answer)(nil)

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	if a.begun = true; a.code < http.StatusOK { // informational responses may precede the final one
		a.code = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	a.begun = true
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	return n, err
}

func (a *answer) Flush() {
	a.begun = true
	_ = http.NewResponseController(a.ResponseWriter).Flush()
}

func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if a.begun = true; a.code == 0 {
		a.code = http.StatusSwitchingProtocols
	}
	return http.NewResponseController(a.ResponseWriter).Hijack()
}
