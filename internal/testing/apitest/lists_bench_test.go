package apitest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/annexapi/annex"
)

// discarded is a response of which only the code and the size are kept.
type discarded struct {
	header http.Header
	code   int
	bytes  int
}

func (d *discarded) Header() http.Header  { return d.header }
func (d *discarded) WriteHeader(code int) { d.code = code }
func (d *discarded) Write(p []byte) (int, error) {
	d.bytes += len(p)
	return len(p), nil
}

// BenchmarkLists measures the processor time and memory of lists of many objects of about 1 KB, without a network
// below. Each list is also requested in a form that only upstream answers.
//
//	go test ./internal/testing/apitest -run xxx -bench Lists -benchtime 20x
//	ANNEX_LISTED=50000 go test ./internal/testing/apitest -run xxx -bench Lists -benchtime 20x
func BenchmarkLists(b *testing.B) {
	objects := 10_000
	if text := os.Getenv("ANNEX_LISTED"); text != "" {
		var err error
		if objects, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	instance := measured(b, annex.Options{})
	send := func(method, path, accept, body string, code int) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", jsonType)
		r.Header.Set("Accept", accept)
		r.Header.Set("User-Agent", "annex-test")
		r.Header.Set("Authorization", "Bearer root")
		w := &discarded{header: http.Header{}}
		instance.Handler().ServeHTTP(w, r)
		if w.code != code {
			b.Fatalf("%s %s: %d", method, path, w.code)
		}
	}
	for i := range objects {
		send(
			http.MethodPost,
			widgetsPath,
			jsonType,
			fmt.Sprintf(
				`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"w%06d",`+
					`"labels":{"percent":"p%d"}},"spec":{"options":{"text":%q}}}`,
				i,
				i%100,
				strings.Repeat("x", 500),
			),
			201,
		)
	}
	for _, c := range []struct{ name, query, accept string }{
		{"full", "", jsonType},
		{"page", "?limit=500", jsonType},
		{"label", "?labelSelector=percent%3Dp7", jsonType},
		{"table", "", tableType},
		{"table-page", "?limit=500", tableType},
		{"metadata", "", metadataType},
	} {
		for name, accept := range map[string]string{"": c.accept, "-by-upstream": c.accept + ";answered=upstream"} {
			b.Run(c.name+name, func(b *testing.B) {
				send(http.MethodGet, widgetsPath+c.query, accept, "", 200)
				send(http.MethodGet, widgetsPath+c.query, accept, "", 200)
				b.ReportAllocs()
				before := processorTime(b)
				for b.Loop() {
					send(http.MethodGet, widgetsPath+c.query, accept, "", 200)
				}
				b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "us/request")
			})
		}
	}
}
