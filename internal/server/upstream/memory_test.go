package upstream

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server"

	"github.com/annexapi/annex/internal/base/budget"
)

func memoryConfig() *server.Config {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	return &server.Config{Serializer: serializer.NewCodecFactory(scheme), MaxRequestBodyBytes: 3 << 20}
}

// accounted returns a handler behind withBody and withMemory.
func accounted(handler http.Handler, b *budget.Budget, c *server.Config) http.Handler {
	return withBody(withMemory(handler, newTurns(), c), b, nil, nil, nil, c)
}

func resourceRequest(verb string, r *http.Request) *http.Request {
	info := &request.RequestInfo{IsResourceRequest: true, Verb: verb, APIGroup: "shop.example.com", APIVersion: "v1", Resource: "widgets"}
	return r.WithContext(request.WithRequestInfo(r.Context(), info))
}

// A body holds more memory than its bytes, until the handler returns.
func TestWithMemory_body_holdsItsNeed(t *testing.T) {
	b := budget.New(1 << 30)
	elements := "[" + strings.Repeat("{},", 1<<18) + "{}]"
	for name, test := range map[string]struct {
		media, body string
		least, most int64
	}{
		"a long string": {"application/json", `"` + strings.Repeat("x", 1<<20) + `"`, 1 << 20, 16 << 20},
		"many elements": {"application/json", elements, 50 << 20, 150 << 20},
		"YAML":          {"application/yaml", strings.Repeat("- a\n", 1<<18), 50 << 20, 150 << 20},
		"aliases":       {"application/yaml", "a: &a " + strings.Repeat("x", 1<<18) + "\nb: [*a, *a, *a]\n", 1 << 20, 300 << 20},
		"protobuf":      {"application/vnd.kubernetes.protobuf", strings.Repeat("\x0a\x00", 1<<18), 20 << 20, 100 << 20},
		"nothing":       {"", "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var read string
			handler := accounted(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				read = string(body)
				if used := b.Stats().Used; used < test.least || used > test.most {
					t.Errorf("%d bytes held for a body of %d", used, len(body))
				}
			}), b, memoryConfig())
			r := httptest.NewRequest(http.MethodPost, "/apis/shop.example.com/v1/widgets", strings.NewReader(test.body))
			r.Header.Set("Content-Type", test.media)
			handler.ServeHTTP(httptest.NewRecorder(), resourceRequest("create", r))
			if read != test.body {
				t.Errorf("%d bytes came through of %d", len(read), len(test.body))
			}
			if used := b.Stats().Used; used != 0 {
				t.Errorf("%d bytes held after the answer", used)
			}
		})
	}
}

func TestWithMemory_noMemory_answersRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := budget.New(budget.Minimum)
		other := b.Account(budget.Caller{}, nil)
		if err := other.Hold(t.Context(), math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		handler := accounted(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			t.Error("it came through")
		}), b, memoryConfig())
		r := httptest.NewRequest(http.MethodPost, "/apis/shop.example.com/v1/widgets", strings.NewReader(strings.Repeat(",", 1<<20)))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, resourceRequest("create", r))
		var status metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
			t.Fatalf("%v: %s", err, w.Body)
		}
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || status.Reason != metav1.StatusReasonTooManyRequests ||
			!strings.Contains(status.Message, "other requests use the server's memory, and this request needs about") {
			t.Errorf("%d, retry after %q: %+v", w.Code, w.Header().Get("Retry-After"), status)
		}
	})
}

func TestAnswerPrice_mediaTypes(t *testing.T) {
	c := memoryConfig()
	tables := prettyPrice
	tables.Object, tables.Byte = tablePrice.Object, tablePrice.Byte+prettyPrice.Byte-plainPrice.Byte
	for name, test := range map[string]struct {
		accept, query, agent string
		want                 budget.Price
	}{
		"anything":              {"", "", "", plainPrice},
		"JSON":                  {"application/json", "", "", plainPrice},
		"protobuf":              {"application/vnd.kubernetes.protobuf", "", "", plainPrice},
		"pretty":                {"application/json", "pretty=true", "", prettyPrice},
		"pretty by media type":  {"application/json;pretty=1", "", "", prettyPrice},
		"curl":                  {"*/*", "", "curl/8", prettyPrice},
		"curl, but not pretty":  {"*/*", "pretty=0", "curl/8", plainPrice},
		"a table":               {"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "", "kubectl", tablePrice},
		"a pretty table":        {"application/json;as=Table;v=v1;g=meta.k8s.io", "pretty=true", "", tables},
		"metadata":              {"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "", "", tablePrice},
		"a table of the past":   {"application/json;as=Table;v=v1alpha1;g=meta.k8s.io,application/json", "", "", plainPrice},
		"YAML":                  {"application/yaml", "", "", yamlPrice},
		"YAML, behind protobuf": {"application/vnd.kubernetes.protobuf, application/yaml", "", "", yamlPrice},
		"YAML, last":            {"application/json, application/yaml", "", "", plainPrice},
		"nothing that there is": {"text/html", "", "", plainPrice},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/apis/shop.example.com/v1/widgets?"+test.query, nil)
			r.Header.Set("Accept", test.accept)
			r.Header.Set("User-Agent", test.agent)
			if got := answerPrice(r, c.Serializer); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
