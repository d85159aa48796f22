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
	// pieceSize is how much of an answer a client has to take within pieceTime, so that a client that reads less than
	// 6.4 KiB/s loses its answer.
	pieceSize = 64 << 10
	pieceTime = 10 * time.Second
	// answerTime is the grace period after a request's deadline in which its answer may still
	// be written: long enough for the 504 that a passed deadline is answered with.
	answerTime = time.Second
	// mostOfList and mostOfObject bound how much of an answer is kept until the handlers have returned. Longer answers are
	// written while they are made.
	mostOfList   = 64 << 10
	mostOfObject = 4 << 20
	// unheeded is how much of an answer is not counted: connections keep as much by themselves.
	unheeded = 4 << 10
	// mostKept is the largest buffer that is kept for other answers.
	mostKept = 32 << 10
)

// withDeparture has answers leave when their handlers have returned. Whatever the handlers held, memory, a place among the
// requests in flight, the objects that they decoded, is free again by then; a client that reads slowly, or not at all,
// keeps the bytes of its answer until it has taken them or its time is over. Answers of lists leave while they are made
// if they are long, and so do those of which a handler flushes something.
//
// It is also where a request's deadline is extended to the connection, which the context does not reach: a client that
// sends its body slowly would else keep its goroutine, and a shutdown, for ever.
func withDeparture(handler http.Handler) http.Handler {
	buffers := &sync.Pool{New: func() any { return new([]byte) }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deadline, ok := r.Context().Deadline()
		if !ok { // it is long-running
			handler.ServeHTTP(w, r)
			return
		}
		d := &departing{ResponseWriter: w, r: r, until: deadline.Add(answerTime), most: mostOfObject}
		switch info, ok := request.RequestInfoFrom(r.Context()); {
		case !ok || !info.IsResourceRequest:
			d.pass()
		case info.Verb == "list" || info.Verb == "deletecollection":
			d.most = mostOfList
		}
		r = r.WithContext(context.WithValue(r.Context(), departingKey{}, d))
		// Best effort: a ResponseWriter other than net/http's may not support deadlines.
		if r.ContentLength != 0 && http.NewResponseController(w).SetReadDeadline(deadline) == nil {
			r.Body = punctualBody{r.Body}
		}
		buffer := buffers.Get().(*[]byte)
		d.body = (*buffer)[:0]
		handler.ServeHTTP(responsewriter.WrapForHTTP1Or2(d), r)
		d.leave()
		if d.failed == nil && cap(d.body) <= mostKept { // else HTTP/2 may still be reading it
			*buffer = d.body
			buffers.Put(buffer)
		}
	})
}

type departingKey struct{}

// departingFrom returns the answer of a request that leaves when its handlers have returned; nil if it is none.
func departingFrom(ctx context.Context) *departing {
	d, _ := ctx.Value(departingKey{}).(*departing)
	return d
}

// departing is an answer that is kept until its handlers have returned.
type departing struct {
	http.ResponseWriter
	r       *http.Request
	until   time.Time // when the client must have read the answer
	most    int       // bytes that are kept
	account *budget.Account
	body    []byte
	code    int         // 0 until there is one
	passes  bool        // bytes are written while the answer is made
	stalled *time.Timer // ends a write of an answer that passes; nil before the first
	failed  error       // the first error of writing it

	begun chan struct{} // closed when the answer begins to pass; nil if nothing waits for that
	ended chan any      // has the reason of a panic, or nil, when handlers on a goroutine of their own have returned
}

var _ responsewriter.UserProvidedDecorator = (*departing)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (d *departing) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (d *departing) WriteHeader(code int) {
	if d.passes || code < http.StatusOK { // informational ones come before
		d.ResponseWriter.WriteHeader(code)
		return
	}
	if d.code == 0 {
		d.code = code
	}
}

// Write implements http.ResponseWriter.
func (d *departing) Write(p []byte) (int, error) {
	if !d.passes && len(d.body)+len(p) <= d.most {
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
func (d *departing) Flush() {
	if !d.passes {
		d.begin()
	}
	_ = http.NewResponseController(d.ResponseWriter).Flush()
}

// pass has the answer written while it is made.
func (d *departing) pass() {
	d.passes = true
	if d.begun != nil {
		close(d.begun)
	}
	d.mustBeTaken(d.until)
}

// begin writes the kept part of the answer.
func (d *departing) begin() {
	d.pass()
	if d.code != 0 {
		d.ResponseWriter.WriteHeader(d.code)
	}
	if len(d.body) > 0 {
		_, _ = d.write(d.body) // the next write returns its error
	}
}

// mustBeTaken sets the time until which the client has to take bytes. A ResponseWriter other than net/http's may not support it.
func (d *departing) mustBeTaken(until time.Time) {
	_ = http.NewResponseController(d.ResponseWriter).SetWriteDeadline(until)
}

// write writes bytes to the client while the answer is made. A deadline of HTTP/2 would end a stream between two writes, too.
func (d *departing) write(p []byte) (n int, err error) {
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

// leave writes an answer that has been kept. Its handlers have returned.
func (d *departing) leave() {
	if d.passes {
		return
	}
	if d.failed != nil {
		d.refuse()
		return
	}
	if len(d.body) > unheeded {
		if d.failed = d.account.Wire(d.r.Context(), int64(len(d.body))); d.failed != nil {
			// The answer to a write that has been stored is lost, as by a connection that breaks.
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

// soon is when the client must have taken a piece that is written now.
func (d *departing) soon() time.Time {
	if soon := time.Now().Add(pieceTime); soon.Before(d.until) {
		return soon
	}
	return d.until
}

// refuse answers a list that found no room on the wire. Nothing of it has been written.
func (d *departing) refuse() {
	var status *apierrors.StatusError
	if !errors.As(apierr.NoMemory(d.failed), &status) {
		panic(http.ErrAbortHandler)
	}
	d.Header().Del("Content-Encoding")
	d.Header().Del("Content-Length")
	d.mustBeTaken(d.soon())
	writeStatus(d.ResponseWriter, status)
}
