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

	"github.com/annexapi/annex/internal/wire/push"
)

// access is what is known of a request's caller; it is written by the filters inside of the one
// that logs it.
type access struct{ user, impersonated string }

type accessKey struct{}

// withAccessLog logs each request when it has ended, those as well that are refused before their
// caller is known, but for what the server reads of itself. It needs the request info.
func withAccessLog(handler http.Handler, log slog.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, ctx := time.Now(), r.Context()
		who, answer, returned, left := &access{}, &answer{ResponseWriter: w}, false, false
		end := func() {
			if left || readsItself(r, who) {
				return
			}
			record := accessRecord(r, who, answer, time.Since(began))
			if info, ok := request.RequestInfoFrom(ctx); ok && longRunning(r, info) {
				record.AddAttrs(slog.Bool("longRunning", true))
			}
			if !returned { // the server goes on after a panic
				record.AddAttrs(slog.Bool("panic", true))
			}
			_ = log.Handle(ctx, record) // lines that are lost are counted
		}
		defer end()
		handler.ServeHTTP(responsewriter.WrapForHTTP1Or2(answer), r.WithContext(context.WithValue(ctx, accessKey{}, who)))
		if answer.code == 0 {
			answer.code = http.StatusOK
		}
		returned = true
		left = push.RestFrom(ctx).Around(func(serve func()) {
			left, returned = false, false
			defer end()
			serve()
			returned = true
		})
	})
}

// readsItself says whether it is the server that reads what it has: whether it is ready, and what
// its hooks and controllers look at.
func readsItself(r *http.Request, who *access) bool {
	return r.RemoteAddr == "" || who.user == user.APIServerUser && who.impersonated == "" && r.Method == http.MethodGet
}

// How much of what callers may choose freely is logged.
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
	if code == 0 { // it panicked, and is answered outside
		code = http.StatusInternalServerError
	}
	level := slog.LevelInfo
	if code == http.StatusUnauthorized {
		level = slog.LevelWarn // there may be any number of them
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

// secretNames are parts of the names of query parameters whose values are credentials.
var secretNames = []string{"token", "password", "passwd", "secret", "credential", "authorization", "apikey", "api_key", "api-key"}

// maskedURI is the path with the query, without credentials in it.
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

// isSecret takes a name that cannot be read for that of a secret.
func isSecret(escaped string) bool {
	name, err := url.QueryUnescape(escaped)
	if err != nil {
		return true
	}
	name = strings.ToLower(name)
	if name == "code" { // of authorization
		return true
	}
	for _, part := range secretNames {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// notingCaller notes for the access log who has been authenticated.
func notingCaller(handler http.Handler) http.Handler {
	return noting(handler, func(a *access, name string) { a.user = name })
}

// notingImpersonated notes on whose behalf the caller acts.
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
