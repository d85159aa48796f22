package apitest_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/store/memory"
)

// BenchmarkPriorityAndFairness measures the server's processor time that priority and fairness takes for each request
// of a caller that is not exempt, compared with counting requests in flight.
//
//	go test ./internal/testing/apitest -run xxx -bench PriorityAndFairness -benchtime 20000x
func BenchmarkPriorityAndFairness(b *testing.B) {
	allowed := annex.Options{AuthorizationModes: []annex.AuthorizationMode{annex.AuthorizationAlwaysAllow}}
	queued := allowed
	queued.PriorityAndFairness = new(true)
	compare(b, handlerOf(b, allowed, "secret"), handlerOf(b, queued, "secret"), "us/queueing")
}

// BenchmarkRecording measures the server's processor time that an audit to a file, at the default level, an access log, and
// the requests of the console take for each request. Rounds of requests to a server with it and to one without alternate, so that both
// run under the same conditions. The requests have no network below them.
//
//	go test ./internal/testing/apitest -run xxx -bench Recording -benchtime 20000x
func BenchmarkRecording(b *testing.B) {
	b.Run("audit", func(b *testing.B) {
		compare(
			b,
			handlerOf(b, annex.Options{}, "root"),
			handlerOf(
				b,
				annex.Options{Audit: annex.AuditOptions{Log: annex.AuditLogOptions{Path: filepath.Join(b.TempDir(), "audit.log")}}},
				"root",
			),
			"us/recording",
		)
	})
	b.Run("requests", func(b *testing.B) {
		without, with := annex.Options{Console: new(false)}, annex.Options{Console: new(true)}
		compare(b, handlerOf(b, without, "root"), handlerOf(b, with, "root"), "us/recording")
	})
	b.Run("access-log", func(b *testing.B) {
		compare(
			b,
			handlerOf(b, annex.Options{}, "root"),
			handlerOf(b, annex.Options{AccessLog: annex.AccessLogOptions{Path: filepath.Join(b.TempDir(), "access.log")}}, "root"),
			"us/recording",
		)
	})
}

// compare reports the cost of requests to two servers, and the difference.
func compare(b *testing.B, without, with func(), difference string) {
	const round = 500
	var used [2]time.Duration
	for n := 0; n < b.N; n += round {
		for i, get := range []func(){without, with} {
			before := processorTime(b)
			for range round {
				get()
			}
			used[i] += processorTime(b) - before
		}
	}
	rounds := float64((b.N + round - 1) / round * round)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(used[0].Nanoseconds())/1000/rounds, "us/request-without")
	b.ReportMetric(float64(used[1].Nanoseconds())/1000/rounds, "us/request-with")
	b.ReportMetric(float64((used[1]-used[0]).Nanoseconds())/1000/rounds, difference)
}

// handlerOf runs a server with one widget, and returns a get of it by the bearer of a token.
func handlerOf(b *testing.B, options annex.Options, token string) func() {
	b.Helper()
	send := requestsOf(b, options, token)
	return func() { send(http.MethodGet, widgetsPath+"/w", "", 200) }
}

// measured runs a server in memory until the end of a benchmark.
func measured(b *testing.B, options annex.Options) *annex.Instance {
	b.Helper()
	return measuredServer(b, shop(), options)
}

// measuredServer is measured for another server than the shop, and for tests, too.
func measuredServer(b testing.TB, server annex.Server, options annex.Options) *annex.Instance {
	b.Helper()
	options.Storage, options.Listen = memory.Storage(), anyPort
	options.TokenAuthFile = tokenFile(b)
	instance, err := annex.New(b.Context(), server, options)
	if err != nil {
		b.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(b.Context(), func() { close(ready) }) }()
	b.Cleanup(func() {
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	<-ready
	return instance
}

// requestsOf runs a server with one widget, and returns a function that sends requests to its handler.
func requestsOf(b *testing.B, options annex.Options, token string) func(method, path, body string, code int) {
	b.Helper()
	instance := measured(b, options)
	send := func(method, path, body string, code int) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", jsonType)
		r.Header.Set("User-Agent", "kubectl/v1.37.2 (linux/amd64) kubernetes/abcdef0")
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		instance.Handler().ServeHTTP(w, r)
		if w.Code != code {
			b.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	send(http.MethodPost, widgetsPath, `{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"w"}}`, 201)
	return send
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
