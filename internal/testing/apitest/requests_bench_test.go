package apitest_test

import (
	"net/http"
	"testing"

	"github.com/annexapi/annex"
)

// BenchmarkRequests measures the processor time of requests that have no network below them: the handler chain,
// routing, the handler and the storage.
//
//	go test ./internal/testing/apitest -run xxx -bench Requests -benchtime 20000x
func BenchmarkRequests(b *testing.B) {
	for _, c := range []struct{ name, path string }{
		{"healthz", "/healthz"},
		{"version", "/version"},
		{"get", widgetsPath + "/w"},
		{"get-by-upstream", widgetsPath + "/w?resourceVersion="},
		{"list", widgetsPath},
		{"list-by-upstream", widgetsPath + "?pretty=true"},
	} {
		b.Run(c.name, func(b *testing.B) {
			send := requestsOf(b, annex.Options{}, "root")
			b.ReportAllocs()
			before := processorTime(b)
			b.ResetTimer()
			for range b.N {
				send(http.MethodGet, c.path, "", 200)
			}
			b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/1000/float64(b.N), "us/request")
		})
	}
}
