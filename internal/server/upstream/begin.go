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

// beginning is what a request is given before anything looks at it: an ID, the time when it came, what it is about, a
// deadline, and a place for warnings. It is upstream's WithAuditInit, WithRequestReceivedTimestamp, WithRequestInfo,
// WithRequestDeadline and WithWarningRecorder in one, since each of them copies the request.
type beginning struct {
	next        http.Handler
	audited     bool // else nothing is collected for an audit
	resolver    request.RequestInfoResolver
	longRunning request.LongRunningRequestCheck
	timeout     time.Duration
	resets      resetCounter
}

func withBeginning(handler http.Handler, audited bool, c *server.Config) http.Handler {
	return &beginning{
		handler,
		audited,
		c.RequestInfoResolver,
		c.LongRunningFunc,
		c.RequestTimeout,
		newResetCounter(c.Authentication.RequestHeaderConfig),
	}
}

// ServeHTTP implements http.Handler.
func (b *beginning) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer b.resets.count(r)
	if r.Context().Err() != nil {
		return // its client has reset it before it began: a client may do that any number of times without waiting
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
	// What is long-running may be found out by what the request has been given.
	if mayNameTimeout(begun) || b.longRunning(begun, info) {
		begun = begun.WithContext(warning.WithWarningRecorder(ctx, recorder))
	}
	b.next.ServeHTTP(w, begun)
}

// auditIDHeader is auditinternal.HeaderAuditID as headers are kept.
const auditIDHeader = "Audit-Id"

// identified returns the request's context with its audit ID, which is the client's or a new one. The client is told.
func (b *beginning) identified(w http.ResponseWriter, r *http.Request) context.Context {
	ctx := r.Context()
	outer := audit.AuditContextFrom(ctx) // of a server whose handler calls this one's
	switch {
	case outer == nil:
		ctx = audit.WithAuditContext(ctx)
		if !b.audited {
			// It cannot have been initialized before.
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
		id = string(outer.AuditID()) // which the client is told
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

// ownAudit is a context with another audit than its parent: a request is audited once by each server that it passes.
type ownAudit struct {
	context.Context
	audit context.Context // which has nothing else
}

// Value implements context.Context.
func (o ownAudit) Value(key any) any {
	if v := o.audit.Value(key); v != nil {
		return v
	}
	return o.Context.Value(key)
}

// newAuditID returns a random UUID. It has to be no other's, but may be guessed: asking the operating system for each, as
// uuid.New does, takes longer than all else about it.
func newAuditID() string {
	var id uuid.UUID
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	id[6] = id[6]&0x0f | 4<<4    // version 4
	id[8] = id[8]&0x3f | 0b10<<6 // of the variant of RFC 9562
	return id.String()
}

// mayNameTimeout says whether a request may have the parameter by which its client says how long it waits, however that is spelled.
func mayNameTimeout(r *http.Request) bool {
	return r.URL.RawQuery != "" && (strings.Contains(r.URL.RawQuery, "timeout") || strings.Contains(r.URL.RawQuery, "%"))
}

// withTimeoutOfClient has requests end when their client says. All others have their deadline already.
func withTimeoutOfClient(handler, bounded http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if mayNameTimeout(r) {
			bounded.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// warnings are the recorder that upstream gives a request, made when there is the first.
type warnings struct {
	writer http.ResponseWriter
	once   sync.Once
	ctx    context.Context // of a request with the recorder
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
