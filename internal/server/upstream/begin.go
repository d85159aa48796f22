package upstream

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/warning"
)

// requestSetup gives every request an audit ID, the time of its receipt, the request info, a deadline and a recorder of
// warnings, before any other filter runs. It replaces upstream's WithAuditInit, WithRequestReceivedTimestamp,
// WithRequestInfo, WithRequestDeadline and WithWarningRecorder, each of which copies the request.
type requestSetup struct {
	next        http.Handler
	audited     bool // if false, no audit event is collected
	resolver    request.RequestInfoResolver
	longRunning request.LongRunningRequestCheck
	timeout     time.Duration
	resets      resetCounter
}

func withRequestSetup(handler http.Handler, audited bool, c *server.Config) http.Handler {
	return &requestSetup{
		handler,
		audited,
		c.RequestInfoResolver,
		c.LongRunningFunc,
		c.RequestTimeout,
		newResetCounter(c.Authentication.RequestHeaderConfig),
	}
}

// ServeHTTP implements http.Handler.
func (b *requestSetup) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer b.resets.count(r)
	if r.Context().Err() != nil {
		return // the client reset the request before it began, which a client can do any number of times without waiting
	}
	received := time.Now()
	ctx := b.identified(w, r)
	ctx = request.WithReceivedTimestamp(ctx, received)
	info, err := b.resolver.NewRequestInfo(r)
	if err != nil {
		responsewriters.InternalError(w, r.WithContext(ctx), fmt.Errorf("failed to create RequestInfo: %w", err))
		return
	}
	ctx = request.WithRequestInfo(ctx, info)
	recorder := &warnings{writer: w}
	ends := newDeadline(ctx, received.Add(b.timeout))
	defer ends.end()
	begun := r.WithContext(warning.WithWarningRecorder(ends, recorder))
	// longRunning may need the values of the new context.
	if mayNameTimeout(begun) || b.longRunning(begun, info) {
		begun = begun.WithContext(warning.WithWarningRecorder(ctx, recorder))
	}
	b.next.ServeHTTP(w, begun)
}

// auditIDHeader is auditinternal.HeaderAuditID in canonical form.
const auditIDHeader = "Audit-Id"

// identified returns the context of the request with its audit ID, which is the client's or a new one, and sets the
// ID in the response header.
func (b *requestSetup) identified(w http.ResponseWriter, r *http.Request) context.Context {
	ctx := r.Context()
	outer := audit.AuditContextFrom(ctx) // set if the handler of another server calls this one
	switch {
	case outer == nil:
		ctx = audit.WithAuditContext(ctx)
		if !b.audited {
			// Init fails only if it has been called before.
			_ = audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: auditinternal.LevelNone}, nil)
		}
	case b.audited:
		ctx = ownAudit{ctx, audit.WithAuditContext(context.Background())}
	}
	var id string
	if given := r.Header[auditIDHeader]; len(given) > 0 {
		id = given[0]
	}
	if id == "" && outer != nil {
		id = string(outer.AuditID()) // the response header has this ID already
	}
	if id == "" {
		id = newAuditID()
	}
	audit.WithAuditID(ctx, types.UID(id))
	if header := w.Header(); header.Get(auditIDHeader) == "" {
		header[auditIDHeader] = []string{id}
	}
	return ctx
}

// ownAudit is a context with an audit context other than that of its parent: each server that a request passes audits
// it once.
type ownAudit struct {
	context.Context
	audit context.Context // holds no other value
}

// Value implements context.Context.
func (o ownAudit) Value(key any) any {
	if v := o.audit.Value(key); v != nil {
		return v
	}
	return o.Context.Value(key)
}

// newAuditID returns a random UUID. It must be unique, but may be predictable. uuid.New asks the operating system for
// random bytes each time, which takes longer than everything else about the ID.
func newAuditID() string {
	var id uuid.UUID
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	id[6] = id[6]&0x0f | 4<<4    // version 4
	id[8] = id[8]&0x3f | 0b10<<6 // variant of RFC 9562
	return id.String()
}

// mayNameTimeout reports whether the query may contain the parameter timeout, in any spelling.
func mayNameTimeout(r *http.Request) bool {
	return r.URL.RawQuery != "" && (strings.Contains(r.URL.RawQuery, "timeout") || strings.Contains(r.URL.RawQuery, "%"))
}

// withTimeoutOfClient passes requests with a timeout of the client to bounded, which applies it. All other requests
// have their deadline already.
func withTimeoutOfClient(handler, bounded http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if mayNameTimeout(r) {
			bounded.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// warnings creates upstream's recorder of warnings when the first warning is added.
type warnings struct {
	writer http.ResponseWriter
	once   sync.Once
	ctx    context.Context // holds upstream's recorder
}

var _ warning.Recorder = (*warnings)(nil)

// AddWarning implements warning.Recorder.
func (a *warnings) AddWarning(agent, text string) {
	a.once.Do(func() {
		taken := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { a.ctx = r.Context() })
		filters.WithWarningRecorder(taken).ServeHTTP(a.writer, &http.Request{})
	})
	warning.AddWarning(a.ctx, agent, text)
}
