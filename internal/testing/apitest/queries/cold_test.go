package queries

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/controlplane"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
)

// BenchmarkCustomResources_afterRestart measures the first queries of 50,000 custom resources (OBJECTS) after a restart:
// one in the order of a field, one filtered by another. Each op is a restart with both.
func BenchmarkCustomResources_afterRestart(b *testing.B) {
	objects := 50_000
	if n, err := strconv.Atoi(os.Getenv("OBJECTS")); err == nil {
		objects = n
	}
	server := func() annex.Server {
		s := shop()
		s.ControlPlane = controlplane.New(controlplane.Options{})
		return s
	}
	options := annex.Options{Storage: embedded.Dir(""), DataDir: b.TempDir()}
	gadgets := "/query/stable.example.com/v1/gadgets"
	served := func(c *client) {
		testwait.Until(b, "gadgets can be queried", func() bool {
			code, _ := c.query(gadgets + "?limit=1")
			return code == http.StatusOK
		})
	}
	b.Run("fill", func(b *testing.B) {
		b.StopTimer()
		c := start(b, server(), options)
		c.must(http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition())
		served(c)
		var next atomic.Int64
		var creating sync.WaitGroup
		for range 16 {
			creating.Go(func() {
				for i := next.Add(1); i <= int64(objects); i = next.Add(1) {
					c.must(http.MethodPost, "/apis/stable.example.com/v1/namespaces/default/gadgets", object{
						"apiVersion": "stable.example.com/v1", "kind": "Gadget",
						"metadata": object{"name": fmt.Sprintf("gadget-%06d", i), "labels": object{"team": "red", "tier": "usual"}},
						"spec":     object{"cost": i * 7919 % 50_021, "color": []string{"red", "green", "blue"}[i%3], "ready": i%2 == 0},
					})
				}
			})
		}
		creating.Wait()
	})
	b.Run("first", func(b *testing.B) {
		for range b.N {
			b.Run("", func(b *testing.B) {
				b.StopTimer()
				c := start(b, server(), options)
				served(c)
				for _, q := range []struct{ name, query string }{
					{"sorted", "?sortBy=spec.cost&ascending=false&limit=50"}, {"filtered", "?spec.color=red&limit=50"},
				} {
					for _, which := range []string{"first", "again"} {
						var before, after runtime.MemStats
						runtime.ReadMemStats(&before)
						b.StartTimer()
						began := time.Now()
						code, p := c.query(gadgets + q.query)
						took := time.Since(began)
						b.StopTimer()
						runtime.ReadMemStats(&after)
						if code != http.StatusOK || len(p.Items) != 50 {
							b.Fatalf("%s: %d %s", q.query, code, p.Message)
						}
						b.ReportMetric(took.Seconds(), q.name+"-"+which+"-s")
						if which == "first" {
							b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(objects), q.name+"-B/object")
						}
					}
				}
			})
		}
	})
}
