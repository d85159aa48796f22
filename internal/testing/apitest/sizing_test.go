package apitest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/stalled"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

// liveHeap returns the bytes that are live after a collection, with stacks.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // pools release their memory at the second collection
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() + samples[1].Value.Uint64())
}

// Each line of the table of docs/howto/limits.md is measured: many such concurrent requests, whose clients read
// nothing and send nothing more. It is not parallel: the heap is the process's.
func TestSizing_waitingForAClient_holdsAsThePageSays(t *testing.T) {
	page, err := os.ReadFile("../../../docs/howto/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	config := annextest.StartWith(t, shop(), annex.Options{Storage: memory.Storage()})
	c := connect(t, config)
	c.create("small", nil)
	c.create("large", metadata(fields{"annotations": fields{"long": strings.Repeat("x", 200<<10)}}))
	for i := range 40 {
		c.create(fmt.Sprintf("w%d", i), metadata(fields{"annotations": fields{"long": strings.Repeat("x", 20<<10)}}))
	}
	large := len(c.get(widgetsPath + "/large").raw)
	newline := strings.Repeat("\n", 15<<10)
	for _, test := range []struct {
		request, bound string
		count          int
		most           int // bytes for each
		send           func(*stalled.Client) error
	}{
		{"a body that arrives slowly", "the bytes that have come, and 80 KiB", 50, 8<<10 + 80<<10, func(s *stalled.Client) error {
			return s.Send(http.MethodPost, widgetsPath, []byte(`{"apiVersion":"shop.example.com/v1"`+newline[:8<<10]), true, "content-type",
				jsonType)
		}},
		{"an answer about an object", "the bytes of the answer, and 80 KiB", 20, large + 80<<10, func(s *stalled.Client) error {
			return s.Send(http.MethodGet, widgetsPath+"/large", nil, false)
		}},
		{"an answer about an object, as YAML", "the bytes of the answer, and 80 KiB", 20, large + 80<<10, func(s *stalled.Client) error {
			return s.Send(http.MethodGet, widgetsPath+"/large", nil, false, "accept", yamlType)
		}},
		{"the refusal of a body", "the bytes of the answer, and 80 KiB", 50, 80 << 10, func(s *stalled.Client) error {
			return s.Send(http.MethodPost, widgetsPath, []byte("[1]"+newline), false, "content-type", jsonType)
		}},
		{"a list as JSON", "512 KiB", 20, 512 << 10, func(s *stalled.Client) error {
			return s.Send(http.MethodGet, widgetsPath, nil, false, "accept", jsonType)
		}},
		{"a watch without events", "64 KiB", 50, 64 << 10, func(s *stalled.Client) error {
			return s.Send(http.MethodGet, widgetsPath+"?watch=true&labelSelector=no=such", nil, false, "accept", jsonType)
		}},
		{"a watch that is not read", "256 KiB", 20, 256 << 10, func(s *stalled.Client) error {
			return s.Send(http.MethodGet, widgetsPath+"?watch=true", nil, false, "accept", jsonType)
		}},
	} {
		t.Run(test.request, func(t *testing.T) {
			if row := "| " + test.request + " | " + test.bound + " |"; !strings.Contains(string(page), row) {
				t.Errorf("docs/howto/limits.md lacks the row %s", row)
			}
			before := liveHeap()
			s := stall(t, config)
			for range test.count {
				if err := test.send(s); err != nil {
					t.Fatal(err)
				}
			}
			// The server handles the requests as they arrive, so the figure grows for a while. No request ends within
			// the time in which two measurements are equal.
			var last int64
			testwait.Until(t, "the requests to wait", func() bool {
				now := liveHeap() - before
				steady := now-last < 4<<10 && last-now < 4<<10 && handled(test.count)
				last = now
				return steady
			})
			each := last / int64(test.count)
			t.Logf("%d bytes each", each)
			if each > int64(test.most) {
				t.Errorf("%d requests hold %d bytes each, more than %d", test.count, each, test.most)
			}
		})
	}
}

// handled reports whether so many streams have goroutines of their own, or have been answered.
func handled(count int) bool {
	buffer := make([]byte, 16<<20)
	stacks := string(buffer[:runtime.Stack(buffer, true)])
	return strings.Count(stacks, "runHandler") >= count
}

func stall(t *testing.T, config *rest.Config) *stalled.Client {
	t.Helper()
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	s, err := stalled.Dial(at.Host, secure)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// A handled body takes no more memory than the server reserves for it: the decoded object, and its copies.
func TestSizing_bodies_takeNoMoreThanIsReserved(t *testing.T) {
	page, err := os.ReadFile("../../../docs/howto/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	entries := make([]string, 60_000)
	for i := range entries {
		entries[i] = fmt.Sprintf("%q:%q", fmt.Sprint("k", i), "v")
	}
	for _, test := range []struct {
		body, bound string
		options     string // of a widget
		most        int64
	}{
		{"one long string of n bytes", "9 n", `{"a":"` + strings.Repeat("x", 2<<20) + `"}`, 9 * 2 << 20},
		{"n members", "250 n, and 9 bytes for each byte", "{" + strings.Join(entries, ",") + "}", 60_000*250 + 9*900_000},
		{"n characters of white space", "n", `{"a":` + strings.Repeat(" ", 2<<20) + `"x"}`, 3 << 20},
	} {
		t.Run(test.body, func(t *testing.T) {
			if row := "| " + test.body + " | " + test.bound + " |"; !strings.Contains(string(page), row) {
				t.Errorf("docs/howto/limits.md lacks the row %s", row)
			}
			body := `{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":"n"},"spec":{"size":"small","options":` +
				test.options + `}}`
			var before, after int64
			// The hook runs when the body has been decoded, defaulted and converted, and its fields have their
			// managers.
			hooked := widgets().Admit(func(_ context.Context, _ annex.Request[v1.Widget]) error {
				after = liveHeap()
				return nil
			})
			c := startKind(t, hooked)
			before = liveHeap()
			c.post(widgetsPath, body).want(http.StatusCreated)
			if held := after - before - int64(len(body)); held > test.most { // the client has the body, too
				t.Errorf("a body of %d bytes holds %d while it is handled, more than %d", len(body), held, test.most)
			} else {
				t.Logf("%d bytes for %d", held, len(body))
			}
		})
	}
}
