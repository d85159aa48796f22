package fastpath

import (
	"context"
	"net/http"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// CompressedSize is the size in bytes from which upstream compresses an answer for clients that accept gzip.
const CompressedSize = 128 << 10

// Body is the body of a request that has been read before and can be read once more by upstream's handlers. The caller of
// Whole must not change the bytes.
type Body interface{ Whole() []byte }

// RecordsAnswers reports whether the audit event of a request records the body of the answer.
func RecordsAnswers(ctx context.Context) bool {
	return !audit.AuditContextFrom(ctx).GetEventLevel().Less(auditinternal.LevelRequestResponse)
}

// Monitor adds an answered request to the request metrics, as upstream's routes do.
func (d *Decision) Monitor(r *http.Request, code, bytes int) {
	verb, scope := r.Method, "resource"
	if d.verb&(List|Watch) != 0 {
		verb, scope = "LIST", d.Scope
	}
	received, ok := request.ReceivedTimestampFrom(r.Context())
	if !ok {
		received = time.Now()
	}
	of := d.Kind.Resource
	metrics.MonitorRequest(r, verb, of.Group, of.Version, of.Resource, "", scope,
		metrics.APIServerComponent, false, "", code, bytes, time.Since(received))
}

// Deadline is the context of a request with a deadline that can be brought forward. That costs less than another context with
// a timer of its own.
type Deadline interface {
	// Shorten brings the deadline forward to a time, unless it is earlier already. It returns false, and changes nothing, if
	// a part of the request has begun to wait for the deadline, or if the request has ended.
	Shorten(at time.Time) bool
}

// DeadlineKey is the key of the value of a context that is its Deadline.
type DeadlineKey struct{}

// ShortenDeadline shortens the Deadline of a context; false if there is none, or if it cannot be shortened.
func ShortenDeadline(ctx context.Context, at time.Time) bool {
	deadline, ok := ctx.Value(DeadlineKey{}).(Deadline)
	return ok && deadline.Shorten(at)
}
