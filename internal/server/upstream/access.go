package upstream

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/annexapi/annex/internal/server/requestlog"
	"github.com/annexapi/annex/internal/wire/push"
)

// access holds the users of a request for the access log. The filters inside withAccessLog write it.
type access struct{ user, impersonated string }

type accessKey struct{}

// recorders take note of each request when it has ended.
type recorders struct {
	log  slog.Handler     // nil without an access log
	ring *requestlog.Ring // nil without a console
}

// withAccessLog records each request when it has ended, including requests that are refused before their caller is
// known. It does not record the requests that the server sends to itself in order to read. It needs the request info.
func withAccessLog(handler http.Handler, to recorders, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o := &observed{Context: r.Context(), request: r, began: time.Now()}
		o.answer.ResponseWriter, o.answer.keeps = w, to.ring != nil
		defer o.end(to, longRunning)
		handler.ServeHTTP(responsewriter.WrapForHTTP1Or2(&o.answer), r.WithContext(o))
		if o.answer.code == 0 {
			o.answer.code = http.StatusOK
		}
		o.returned = true
		o.left = push.RestFrom(o.Context).Around(func(serve func()) {
			o.left, o.returned = false, false
			defer o.end(to, longRunning)
			serve()
			o.returned = true
		})
	})
}

// observed is a request until it has ended. It is the context of the request, too, which saves allocations.
type observed struct {
	context.Context
	access
	answer         notedAnswer
	request        *http.Request
	began          time.Time
	returned, left bool
}

// notedAnswer is an answer that keeps the beginning of a refusal.
type notedAnswer struct {
	answer
	keeps   bool
	refusal []byte
}

// Write implements http.ResponseWriter.
func (a *notedAnswer) Write(p []byte) (int, error) {
	if a.keeps && a.code >= http.StatusBadRequest && len(a.refusal) < requestlog.MaxRefusal {
		a.refusal = append(a.refusal, p[:min(len(p), requestlog.MaxRefusal-len(a.refusal))]...)
	}
	return a.answer.Write(p)
}

// Value implements context.Context.
func (o *observed) Value(key any) any {
	if _, ok := key.(accessKey); ok {
		return &o.access
	}
	return o.Context.Value(key)
}

// end records the request. A request that has been left to its rest ends with that.
func (o *observed) end(to recorders, longRunning request.LongRunningRequestCheck) {
	if o.left || readsItself(o.request, &o.access) {
		return
	}
	took := time.Since(o.began)
	info, ok := request.RequestInfoFrom(o.Context)
	// Handlers are asked one after the other, which takes longer than all the rest.
	long := ok && (to.log != nil || took > time.Second) && longRunning(o.request, info)
	if to.ring != nil {
		e := o.entry(info, long, took)
		to.ring.Add(&e)
	}
	if to.log == nil {
		return
	}
	record := accessRecord(o.request, &o.access, &o.answer.answer, took)
	if long {
		record.AddAttrs(slog.Bool("longRunning", true))
	}
	if !o.returned { // a panic does not end the server
		record.AddAttrs(slog.Bool("panic", true))
	}
	_ = to.log.Handle(o.Context, record) // the handler counts lost lines
}

// entry returns the request for the ring. info is nil for a request that cannot be parsed.
func (o *observed) entry(info *request.RequestInfo, long bool, took time.Duration) requestlog.Entry {
	e := requestlog.Entry{
		Time: o.began, Duration: took, User: o.user, As: o.impersonated, Remote: o.request.RemoteAddr, Code: o.answer.code, Bytes: o.answer.bytes,
		Long: long, URI: maskedURI(o.request.URL),
	}
	if info != nil {
		e.Verb = info.Verb
		if info.IsResourceRequest {
			e.Group, e.Version, e.Resource, e.Subresource = info.APIGroup, info.APIVersion, info.Resource, info.Subresource
			e.Namespace, e.Name = info.Namespace, info.Name
		}
	}
	if e.Verb == "" {
		e.Verb = strings.ToLower(o.request.Method)
	}
	if e.Code == 0 { // as in accessRecord
		e.Code = http.StatusInternalServerError
	}
	if e.Code >= http.StatusBadRequest {
		e.Reason, e.Causes = requestlog.Refusal(e.Code, o.answer.refusal)
	}
	return e
}

// readsItself reports whether the server itself reads: its readiness, or objects that its hooks and controllers read.
func readsItself(r *http.Request, who *access) bool {
	return r.RemoteAddr == "" || who.user == user.APIServerUser && who.impersonated == "" && r.Method == http.MethodGet
}

// Limits for logged texts that callers can choose freely, in bytes.
const (
	maxLoggedURI  = 4 << 10
	maxLoggedText = 1 << 10
)

func accessRecord(r *http.Request, who *access, answer *answer, took time.Duration) slog.Record {
	verb := strings.ToLower(r.Method)
	if info, ok := request.RequestInfoFrom(r.Context()); ok && info.Verb != "" {
		verb = info.Verb
	}
	code := answer.code
	if code == 0 { // the handlers panicked; an outer filter answers with 500
		code = http.StatusInternalServerError
	}
	level := slog.LevelInfo
	if code == http.StatusUnauthorized {
		level = slog.LevelWarn // attackers can cause any number of them
	}
	record := slog.NewRecord(time.Now(), level, "", 0)
	record.AddAttrs(slog.String("user", upTo(maxLoggedText, cmp.Or(who.user, "-"))))
	if who.impersonated != "" {
		record.AddAttrs(slog.String("impersonated", upTo(maxLoggedText, who.impersonated)))
	}
	record.AddAttrs(slog.String("remote", r.RemoteAddr))
	if forwarded := r.Header.Get("X-Forwarded-For"); forwarded != "" {
		record.AddAttrs(slog.String("forwardedFor", upTo(maxLoggedText, forwarded)))
	}
	record.AddAttrs(
		slog.String("verb", upTo(maxLoggedText, verb)),
		slog.String("uri", upTo(maxLoggedURI, maskedURI(r.URL))),
		slog.Int("code", code),
		slog.Float64("seconds", math.Round(took.Seconds()*1e6)/1e6),
		slog.Int64("bytes", answer.bytes),
		slog.String("userAgent", upTo(maxLoggedText, r.UserAgent())),
	)
	if ac := audit.AuditContextFrom(r.Context()); ac != nil {
		record.AddAttrs(slog.String("auditID", upTo(maxLoggedText, string(ac.AuditID()))))
	}
	return record
}

func upTo(n int, text string) string {
	if len(text) > n {
		return text[:n] + "..."
	}
	return text
}

// secretNames are substrings of the names of query parameters whose values are credentials.
var secretNames = []string{"token", "password", "passwd", "secret", "credential", "authorization", "apikey", "api_key", "api-key"}

// maskedURI returns the path and query, with credentials in the query masked.
func maskedURI(u *url.URL) string {
	if u.RawQuery == "" {
		return u.RequestURI()
	}
	masked := *u
	pairs := strings.FieldsFunc(u.RawQuery, func(r rune) bool { return r == '&' || r == ';' })
	for i, pair := range pairs {
		name, _, given := strings.Cut(pair, "=")
		if given && isSecret(name) {
			pairs[i] = name + "=***"
		}
	}
	masked.RawQuery = strings.Join(pairs, "&")
	return masked.RequestURI()
}

// isSecret reports whether a query parameter holds a credential. It reports true for a name that cannot be unescaped.
func isSecret(escaped string) bool {
	name, err := url.QueryUnescape(escaped)
	if err != nil {
		return true
	}
	name = strings.ToLower(name)
	if name == "code" { // authorization code
		return true
	}
	for _, part := range secretNames {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// notingCaller records the authenticated user for the access log.
func notingCaller(handler http.Handler) http.Handler {
	return noting(handler, func(a *access, name string) { a.user = name })
}

// notingImpersonated records the impersonated user for the access log.
func notingImpersonated(handler http.Handler) http.Handler {
	return noting(handler, func(a *access, name string) { a.impersonated = name })
}

func noting(handler http.Handler, note func(a *access, name string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, logged := r.Context().Value(accessKey{}).(*access)
		if caller, known := request.UserFrom(r.Context()); logged && known {
			note(a, caller.GetName())
		}
		handler.ServeHTTP(w, r)
	})
}
