package apitest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/annexapi/annex"
)

// writes are the requests of BenchmarkWrites to one object; i is the number of the change. An object of a kilobyte
// has a realistic content: labels, a long annotation, and a few fields of its own.
var writes = []struct {
	name                string
	method, contentType string
	query               string
	body                func(i int) string // nil for the object as the server has sent it, with another annotation
}{
	{"update", http.MethodPut, jsonType, "", nil},
	{"merge-patch", http.MethodPatch, "application/merge-patch+json", "", func(i int) string {
		return fmt.Sprintf(`{"metadata":{"annotations":{"example.com/sequence":"%08d"}}}`, i)
	}},
	{"json-patch", http.MethodPatch, "application/json-patch+json", "", func(i int) string {
		return fmt.Sprintf(`[{"op":"replace","path":"/metadata/annotations/example.com~1sequence","value":"%08d"}]`, i)
	}},
	{"apply", http.MethodPatch, "application/apply-patch+yaml", "?fieldManager=applier&force=true", func(i int) string {
		return fmt.Sprintf(
			`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"annotations":{"example.com/sequence":"%08d"}},`+
				`"spec":{"size":"large"}}`,
			i,
		)
	}},
}

const sequence = `"example.com/sequence":"`

var longNote = strings.Repeat("image replicas template container port env value limit request ", 6)

func widgetOfAKilobyte(name string, i int) string {
	return fmt.Sprintf(
		`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":%q,"labels":{"app":"web","tier":"front","group":"group-%02d"},`+
			`"annotations":{"example.com/sequence":"%08d","example.com/note":%q}},"spec":{"replicas":3,`+
			`"parts":[{"name":"wheel","count":4},{"name":"door","count":2}],"options":{"color":"red"}}}`,
		name,
		i%100,
		i,
		longNote,
	)
}

// BenchmarkWrites measures the processor time of requests that write one object and have no network and no disk below
// them: the handler chain, routing, the handler and the core.
//
//	go test ./internal/testing/apitest -run xxx -bench Writes -benchtime 10000x
func BenchmarkWrites(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("create/%d", clients), func(b *testing.B) {
			send := senderOf(b)
			writeWith(b, clients, func(_ int, i int) {
				send(http.MethodPost, widgetsPath, jsonType, widgetOfAKilobyte(fmt.Sprintf("web-%d", i), i), 201)
			})
		})
		for _, w := range writes {
			b.Run(fmt.Sprintf("%s/%d", w.name, clients), func(b *testing.B) {
				send := senderOf(b)
				names, sent := make([]string, clients), make([]string, clients)
				for c := range clients {
					names[c] = fmt.Sprintf("w-%d", c)
					sent[c] = send(http.MethodPost, widgetsPath, jsonType, widgetOfAKilobyte(names[c], 0), 201)
				}
				body := w.body
				writeWith(b, clients, func(c, i int) {
					var changed string
					if body == nil {
						before, after, _ := strings.Cut(sent[c], sequence)
						changed = fmt.Sprintf("%s%s%08d%s", before, sequence, i, after[8:])
					} else {
						changed = body(i)
					}
					sent[c] = send(w.method, widgetsPath+"/"+names[c]+w.query, w.contentType, changed, 200)
				})
			})
		}
		// The first configuration of a manager takes over the fields of the manager that created the object.
		b.Run(fmt.Sprintf("first-apply/%d", clients), func(b *testing.B) {
			send := senderOf(b)
			for i := range b.N {
				send(http.MethodPost, widgetsPath, jsonType, widgetOfAKilobyte(fmt.Sprintf("w-%d", i+1), i), 201)
			}
			writeWith(b, clients, func(_ int, i int) {
				configuration := fmt.Sprintf(
					`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"annotations":{"example.com/sequence":"%08d"}}}`,
					i,
				)
				send(
					http.MethodPatch,
					fmt.Sprintf("%s/w-%d?fieldManager=applier&force=true", widgetsPath, i),
					"application/apply-patch+yaml",
					configuration,
					200,
				)
			})
		})
		b.Run(fmt.Sprintf("delete/%d", clients), func(b *testing.B) {
			send := senderOf(b)
			for i := range b.N {
				send(http.MethodPost, widgetsPath, jsonType, widgetOfAKilobyte(fmt.Sprintf("w-%d", i+1), i), 201)
			}
			writeWith(b, clients, func(_ int, i int) {
				send(http.MethodDelete, fmt.Sprintf("%s/w-%d", widgetsPath, i), jsonType, "", 200)
			})
		})
	}
}

// writeWith has clients do b.N requests together; i numbers them all.
func writeWith(b *testing.B, clients int, write func(client, i int)) {
	b.ReportAllocs()
	before := processorTime(b)
	b.ResetTimer()
	var next atomic.Int64
	var working sync.WaitGroup
	for c := range clients {
		working.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				write(c, int(i))
			}
		})
	}
	working.Wait()
	b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/1000/float64(b.N), "us/request")
}

// senderOf runs a server whose requests fail the benchmark on another status, and return the body of the response.
func senderOf(b *testing.B) func(method, path, contentType, body string, code int) string {
	b.Helper()
	instance := measured(b, annex.Options{})
	return func(method, path, contentType, body string, code int) string {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("User-Agent", "kubectl/v1.37.2 (linux/amd64) kubernetes/abcdef0")
		r.Header.Set("Authorization", "Bearer root")
		w := httptest.NewRecorder()
		instance.Handler().ServeHTTP(w, r)
		if w.Code != code {
			b.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
		return w.Body.String()
	}
}
