package upstream

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serveTest serves handler over TLS, in HTTP/1.1 or HTTP/2.
func serveTest(t *testing.T, http2 bool, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = http2
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

var protocols = map[string]bool{"HTTP/1.1": false, "HTTP/2": true}

func TestWithRecovery_panicBeforeResponse_answers500(t *testing.T) {
	for name, http2 := range protocols {
		t.Run(name, func(t *testing.T) {
			server := serveTest(t, http2, withRecovery(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/panics" {
					w.Header().Set("Content-Type", "application/yaml")
					panic("a mistake")
				}
			})))
			response, err := server.Client().Get(server.URL + "/panics")
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			var status metav1.Status
			if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != 500 || response.Header.Get("Content-Type") != "application/json" ||
				status.Kind != "Status" || status.Reason != metav1.StatusReasonInternalError || status.Code != 500 {
				t.Errorf("got %s, %v, %+v", response.Status, response.Header, status)
			}
			response, err = server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
		})
	}
}

func TestWithRecovery_panicWithinResponse_cutsItOff(t *testing.T) {
	for begin, begun := range map[string]func(http.ResponseWriter){
		"written":    func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"items":[`) },
		"flushed":    func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"headers":    func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) },
		"controlled": func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
	} {
		for name, http2 := range protocols {
			t.Run(begin+" "+name, func(t *testing.T) {
				server := serveTest(t, http2, withRecovery(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					begun(w)
					panic("a mistake")
				})))
				response, err := server.Client().Get(server.URL)
				if err != nil {
					return
				}
				defer response.Body.Close()
				if whole, err := io.ReadAll(response.Body); err == nil {
					t.Errorf("got a whole answer: %s %q", response.Status, whole)
				}
			})
		}
	}
}
