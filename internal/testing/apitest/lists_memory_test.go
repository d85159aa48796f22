package apitest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/annexapi/annex"
)

// collecting is a response that is discarded. At intervals it collects garbage, and records the live memory.
type collecting struct {
	header      http.Header
	code        int
	written     int
	next, every int
	live        uint64
}

func (c *collecting) Header() http.Header  { return c.header }
func (c *collecting) WriteHeader(code int) { c.code = code }
func (c *collecting) Write(p []byte) (int, error) {
	if c.written += len(p); c.written >= c.next {
		c.next = c.written + c.every
		c.live = max(c.live, living())
	}
	return len(p), nil
}

// living returns the number of bytes that are live after a garbage collection.
func living() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// A list only holds a small part of its data, in every encoding. It does not run in parallel with other tests, whose
// memory it would count.
func TestLists_liveMemory(t *testing.T) {
	const objects, size = 10_000, 5 << 10
	instance := measuredServer(t, zoo(leases()), annex.Options{ObjectCacheSize: -1})
	send := func(w http.ResponseWriter, method, path, accept, encoding, body string) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", jsonType)
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", encoding)
		r.Header.Set("User-Agent", "annex-test")
		r.Header.Set("Authorization", "Bearer root")
		instance.Handler().ServeHTTP(w, r)
	}
	fill := strings.Repeat("x", size)
	for i := range objects {
		w := httptest.NewRecorder()
		send(
			w,
			http.MethodPost,
			leasesPath,
			jsonType,
			"",
			fmt.Sprintf(`{"apiVersion":"zoo.example.com/v1","kind":"Lease","metadata":{"name":"l%06d"},"spec":{"holderIdentity":%q}}`, i, fill),
		)
		if w.Code != http.StatusCreated {
			t.Fatalf("create: %d %s", w.Code, w.Body)
		}
	}
	const table, metadata = ";as=Table;v=v1;g=meta.k8s.io", ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	for _, path := range []string{leasesPath, leasesBetaPath} {
		for _, accept := range []string{
			jsonType, jsonType + ";pretty=1", yamlType, protobufType, jsonType + table, yamlType + table, jsonType + metadata, yamlType +
				metadata, protobufType + metadata,
			protobufType + strings.Replace(metadata, "v=v1", "v=v1beta1", 1),
		} {
			for _, encoding := range []string{"", "gzip"} {
				w := &collecting{header: http.Header{}, every: objects * size / 8}
				if encoding != "" || strings.Contains(accept, ";as=") {
					w.every = 64 << 10
				}
				before := living()
				send(w, http.MethodGet, path, accept, encoding, "")
				if w.code != http.StatusOK || w.live == 0 {
					t.Errorf("%s as %s: %d, %d bytes", path, accept, w.code, w.written)
				}
				// Items in a version that is not stored are cached, up to 16 MiB.
				if rise := int64(w.live) - int64(before); rise > objects*size/2 {
					t.Errorf(
						"%s as %s, encoding %q: %d MiB more live while a list of %d MiB is written",
						path,
						accept,
						encoding,
						rise>>20,
						objects*size>>20,
					)
				}
			}
		}
	}
}
