package upstream

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/annexapi/annex/internal/base/apierr"
	"github.com/annexapi/annex/internal/base/budget"
	"github.com/annexapi/annex/internal/wire/push"
)

const (
	// pieceSize is the number of bytes that a client must read within pieceTime. A client that reads less than 6.4
	// KiB/s loses its response.
	pieceSize = 64 << 10
	pieceTime = 10 * time.Second
	// answerTime is the grace period after the deadline of a request in which its response may still be written. It
	// leaves time for the 504 that an exceeded deadline causes.
	answerTime = time.Second
	// mostOfList and mostOfObject limit the bytes of a response that are kept until the handlers have returned.
	// Longer responses are written while they are made.
	mostOfList   = 64 << 10
	mostOfObject = 4 << 20
	// maxUnaccounted is the size up to which a kept response is not accounted: connections buffer as much anyway.
	maxUnaccounted = 4 << 10
	// maxReused is the capacity of the largest buffer that is reused for other responses.
	maxReused = 32 << 10
)

// withDeparture keeps responses until their handlers have returned, and then writes them. By then the handlers have
// released their memory, their place among the requests in flight, and the decoded objects. A client that reads
// slowly, or not at all, occupies only the bytes of its response, until it has read them or its time is over. Long
// lists, and responses that a handler flushes, are written while they are made.
//
// withDeparture also applies the deadline of a request to the connection, which the context does not reach: otherwise
// a client that sends its body slowly would keep its goroutine, and delay a shutdown, for ever.
func withDeparture(handler http.Handler) http.Handler {
	buffers := &sync.Pool{New: func() any { return new([]byte) }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deadline, ok := r.Context().Deadline()
		if !ok { // the request is long-running
			handler.ServeHTTP(w, r)
			return
		}
		d := &bufferedResponse{ResponseWriter: w, r: r, deadline: deadline.Add(answerTime), limit: mostOfObject}
		switch info, ok := request.RequestInfoFrom(r.Context()); {
		case !ok || !info.IsResourceRequest:
			d.pass()
		case info.Verb == "list" || info.Verb == "deletecollection":
			d.limit = mostOfList
		}
		r = r.WithContext(context.WithValue(r.Context(), bufferedResponseKey{}, d))
		// Best effort: a ResponseWriter other than net/http's may not support deadlines.
		if r.ContentLength != 0 && http.NewResponseController(w).SetReadDeadline(deadline) == nil {
			r.Body = punctualBody{r.Body}
		}
		buffer := buffers.Get().(*[]byte)
		d.body = (*buffer)[:0]
		handler.ServeHTTP(responsewriter.WrapForHTTP1Or2(d), r)
		d.leave()
		if d.failed == nil && cap(d.body) <= maxReused { // after a failed write HTTP/2 may still read the buffer
			*buffer = d.body
			buffers.Put(buffer)
		}
	})
}

type bufferedResponseKey struct{}

// bufferedResponseFrom returns the kept response of a request. It returns nil if the request is long-running.
func bufferedResponseFrom(ctx context.Context) *bufferedResponse {
	d, _ := ctx.Value(bufferedResponseKey{}).(*bufferedResponse)
	return d
}

// bufferedResponse is a response that is kept until its handlers have returned.
type bufferedResponse struct {
	http.ResponseWriter
	r        *http.Request
	deadline time.Time // when the client must have read the response
	limit    int       // limit of the bytes that are kept
	account  *budget.Account
	body     []byte
	code     int         // 0 until the handler has set one
	passes   bool        // bytes are written while the response is made
	stalled  *time.Timer // ends a blocked write of a response that passes; nil before the first write
	failed   error       // the first write error

	begun chan struct{} // closed when the response begins to pass; nil if nothing waits for that
	ended chan any      // receives the reason of a panic, or nil, when handlers on a goroutine of their own have returned
}

var _ responsewriter.UserProvidedDecorator = (*bufferedResponse)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (d *bufferedResponse) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (d *bufferedResponse) WriteHeader(code int) {
	if d.passes || code < http.StatusOK { // informational responses precede the final one
		d.ResponseWriter.WriteHeader(code)
		return
	}
	if d.code == 0 {
		d.code = code
	}
}

// Write implements http.ResponseWriter.
func (d *bufferedResponse) Write(p []byte) (int, error) {
	if !d.passes && len(d.body)+len(p) <= d.limit {
		d.body = append(d.body, p...)
		return len(p), nil
	}
	if !d.passes {
		if d.failed == nil {
			d.failed = d.account.Send(d.r.Context())
		}
		if d.failed != nil {
			return 0, d.failed
		}
		d.begin()
	}
	return d.write(p)
}

// Flush implements http.Flusher.
func (d *bufferedResponse) Flush() {
	if !d.passes {
		d.begin()
	}
	_ = http.NewResponseController(d.ResponseWriter).Flush()
}

// pass lets the response be written while it is made.
func (d *bufferedResponse) pass() {
	d.passes = true
	if d.begun != nil {
		close(d.begun)
	}
	d.mustBeTaken(d.deadline)
}

// begin writes the kept part of the response and lets the rest pass.
func (d *bufferedResponse) begin() {
	d.pass()
	if d.code != 0 {
		d.ResponseWriter.WriteHeader(d.code)
	}
	if len(d.body) > 0 {
		_, _ = d.write(d.body) // the next write returns its error
	}
}

// mustBeTaken sets the write deadline, if the ResponseWriter supports one.
func (d *bufferedResponse) mustBeTaken(until time.Time) {
	_ = http.NewResponseController(d.ResponseWriter).SetWriteDeadline(until)
}

// write writes bytes to the client while the response is made. It ends a blocked write with a timer, because a write
// deadline of HTTP/2 would also end a stream between two writes.
func (d *bufferedResponse) write(p []byte) (n int, err error) {
	for d.failed == nil && len(p) > 0 {
		if d.stalled == nil {
			d.stalled = time.AfterFunc(pieceTime, func() { d.mustBeTaken(time.Now()) })
		} else {
			d.stalled.Reset(pieceTime)
		}
		var written int
		written, d.failed = d.ResponseWriter.Write(p[:min(len(p), pieceSize)])
		d.stalled.Stop()
		n, p = n+written, p[written:]
	}
	return n, d.failed
}

// leave writes a kept response once its handlers have returned.
func (d *bufferedResponse) leave() {
	if d.passes {
		return
	}
	if d.failed != nil {
		d.refuse()
		return
	}
	if len(d.body) > maxUnaccounted {
		if d.failed = d.account.Wire(d.r.Context(), int64(len(d.body))); d.failed != nil {
			// The response to a write that has been stored is lost, as if the connection had failed.
			panic(http.ErrAbortHandler)
		}
		defer d.account.Close()
	}
	d.mustBeTaken(d.soon())
	if d.code != 0 {
		d.ResponseWriter.WriteHeader(d.code)
	}
	push.Whole(d.r, d.body)
	for p := d.body; len(p) > 0 && d.failed == nil; {
		if len(p) < len(d.body) {
			d.mustBeTaken(d.soon())
		}
		var n int
		n, d.failed = d.ResponseWriter.Write(p[:min(len(p), pieceSize)])
		p = p[n:]
	}
}

// soon returns the deadline for a piece that is written now.
func (d *bufferedResponse) soon() time.Time {
	if soon := time.Now().Add(pieceTime); soon.Before(d.deadline) {
		return soon
	}
	return d.deadline
}

// refuse answers a list for which the budget has no room on the wire. Nothing of the list has been written.
func (d *bufferedResponse) refuse() {
	var status *apierrors.StatusError
	if !errors.As(apierr.NoMemory(d.failed), &status) {
		panic(http.ErrAbortHandler)
	}
	d.Header().Del("Content-Encoding")
	d.Header().Del("Content-Length")
	d.mustBeTaken(d.soon())
	writeStatus(d.ResponseWriter, status)
}
