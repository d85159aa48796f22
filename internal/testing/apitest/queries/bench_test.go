package queries

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annexapi/annex"
)

const (
	manyObjects = 100_000
	manyClients = 32
)

// BenchmarkPages requests pages of 100,000 objects by 32 clients, over HTTPS, while another client writes 100 objects
// a second: page 1 and page 500 in the order of a declared field, and the next page by cursor. The clients are in the
// same process. Under full each client sends the next request as soon as it has read a response, so that all
// processors are busy and the time is the cost of 32 requests, including the clients' part; under paced each sends
// ten requests a second, like people who hardly look. For comparison, it measures the alternative without queries:
// one client lists all objects, and sorts them. Run it with -bench 'Pages/(full|paced)' -benchtime 3000x, and -bench
// Pages/List -benchtime 10x.
func BenchmarkPages(b *testing.B) {
	c, quiet := crowded(b)
	defer quiet()
	_, p := c.query(widgets + "?sortBy=spec.replicas&page=499&limit=50")
	for _, pace := range []struct {
		name  string
		pause time.Duration
	}{{"full", 0}, {"paced", 100 * time.Millisecond}} {
		for name, query := range map[string]string{
			"page=1":   "?sortBy=spec.replicas&limit=50",
			"page=500": "?sortBy=spec.replicas&limit=50&page=500",
			"cursor":   "?sortBy=spec.replicas&limit=50&cursor=" + p.Cursor,
		} {
			b.Run(pace.name+"/"+name, func(b *testing.B) {
				c.measure(b, manyClients, pace.pause, func(answer *bytes.Buffer) { c.read(widgets+query, answer) })
			})
		}
	}
	b.Run("ListAndSort", func(b *testing.B) {
		c.measure(b, 1, 0, func(answer *bytes.Buffer) { // the server has no memory for one list per client
			var list struct {
				Items []struct{ Spec struct{ Replicas int } }
			}
			c.read("/apis/shop.example.com/v1/widgets", answer)
			if err := json.Unmarshal(answer.Bytes(), &list); err != nil {
				panic(err)
			}
			slices.SortFunc(list.Items, func(a, b struct{ Spec struct{ Replicas int } }) int {
				return cmp.Compare(a.Spec.Replicas, b.Spec.Replicas)
			})
		})
	})
}

// crowded has many widgets, some of which are written all the time, until quiet is called.
func crowded(b *testing.B) (c *client, quiet func()) {
	c = start(b, shop(), annex.Options{})
	name := func(i int) string { return fmt.Sprintf("widget-%06d", i) }
	spec := func() object {
		return object{
			"size":     "small",
			"replicas": rand.IntN(1 << 30),
			"options":  object{"note": "some text that makes it as long as objects usually are"},
		}
	}
	var next atomic.Int64
	var creating sync.WaitGroup
	for range 16 {
		creating.Go(func() {
			for i := next.Add(1); i <= manyObjects; i = next.Add(1) {
				c.create("default", widget(name(int(i)), spec(), "app", "bench"))
			}
		})
	}
	creating.Wait()
	writing, stop := context.WithCancel(context.Background())
	var writers sync.WaitGroup
	writers.Go(func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-writing.Done():
				return
			case <-ticker.C:
				changed := name(1 + rand.IntN(manyObjects))
				c.update(changed, widget(changed, spec(), "app", "bench"))
			}
		}
	})
	return c, func() {
		stop()
		writers.Wait()
	}
}

// read reads the body of a response into a buffer that is reused: decoding by clients is not measured.
func (c *client) read(path string, into *bytes.Buffer) {
	response := c.request(context.Background(), http.MethodGet, path, nil)
	defer response.Body.Close()
	into.Reset()
	if _, err := into.ReadFrom(response.Body); err != nil || response.StatusCode != http.StatusOK {
		panic(fmt.Sprintf("%s: %d, %d bytes, %v", path, response.StatusCode, into.Len(), err))
	}
}

// measure lets clients send requests concurrently, each client at most one per pause, and reports the time per
// request.
func (c *client) measure(b *testing.B, clients int, pause time.Duration, ask func(answer *bytes.Buffer)) {
	ask(&bytes.Buffer{}) // caches filled by the first request are not measured
	var mu sync.Mutex
	var took []time.Duration
	var left atomic.Int64
	left.Store(int64(b.N))
	var asking sync.WaitGroup
	b.ResetTimer()
	for i := range clients {
		asking.Go(func() {
			var own []time.Duration
			var answer bytes.Buffer
			next := time.Now().Add(pause * time.Duration(i) / time.Duration(clients))
			for left.Add(-1) >= 0 {
				if pause > 0 {
					time.Sleep(time.Until(next))
					next = next.Add(pause)
				}
				began := time.Now()
				ask(&answer)
				own = append(own, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
		})
	}
	asking.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
