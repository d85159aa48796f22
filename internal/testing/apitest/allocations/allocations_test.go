// Package allocations compares the allocations of whole requests with a committed table. They hardly depend on the machine
// and on its load, unlike times, so that a change that makes a request more expensive fails in CI.
package allocations

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testlog"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
)

func TestMain(m *testing.M) { os.Exit(testlog.Quiet(m).Run()) }

const (
	table = "testdata/allocations.txt"
	// A request may have this many allocations and bytes more than in the table: one allocation more is too much. On one
	// machine, runs differ by four bytes.
	moreAllocations = 0.9
	moreBytes       = 128
	// The least of batches counts: in others, the server may have done work of its own.
	batches   = 6
	perBatch  = 64
	listed    = 100 // objects
	watchers  = 10
	namespace = "/apis/shop.example.com/v1/namespaces/default/widgets"
)

// cost is the cost of a request.
type cost struct{ allocations, bytes float64 }

// tooMuch reports whether the cost of a request is above that of the table.
func (c cost) tooMuch(committed cost) bool {
	return c.allocations > committed.allocations+moreAllocations || c.bytes > committed.bytes+moreBytes
}

// server is the handler of a running server.
type server struct {
	t       *testing.T
	handler http.Handler
	sent    int
}

func start(t *testing.T) *server {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,root,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	shop := annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API),
	}}}}
	// The clock stands still, so that the server does not drop cached objects while it rests.
	still := clocktesting.NewFakeClock(time.Now())
	options := annex.Options{Clock: still, Storage: memory.Storage(), Listen: "127.0.0.1:0", TokenAuthFile: tokens}
	instance, err := annex.New(t.Context(), shop, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- instance.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("the server ended before it was ready: %v", err)
	}
	return &server{t: t, handler: instance.Handler()}
}

// answer is a response. It keeps the body, and reuses its memory.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header            { return a.header }
func (a *answer) WriteHeader(code int)           { a.code = code }
func (a *answer) Write(data []byte) (int, error) { return a.body.Write(data) }
func (a *answer) Flush()                         {}
func (a *answer) reset()                         { clear(a.header); a.code = http.StatusOK; a.body.Reset() }
func newAnswer() *answer                         { return &answer{header: http.Header{}, code: http.StatusOK} }

// body is a request body that can be read again.
type body struct{ *bytes.Reader }

func (body) Close() error { return nil }

// request makes a request without the allocations of a client or a connection.
func request(ctx context.Context, method, path, contentType string, content []byte) *http.Request {
	target, err := url.Parse(path)
	if err != nil {
		panic(err)
	}
	r := &http.Request{
		Method: method, URL: target, RequestURI: path, Host: "server", Proto: "HTTP/2.0", ProtoMajor: 2, RemoteAddr: "127.0.0.1:1234",
		Header: http.Header{
			"Authorization": {"Bearer secret"}, "Accept": {"application/json"}, "User-Agent": {"test"}, "Content-Type": {contentType},
		},
		Body: http.NoBody, ContentLength: int64(len(content)),
	}
	if content != nil {
		r.Body = body{bytes.NewReader(content)}
	}
	return r.WithContext(ctx)
}

// do sends a request, and fails the test unless it succeeds.
func (s *server) do(to *answer, r *http.Request) {
	to.reset()
	if s.handler.ServeHTTP(to, r); to.code/100 != 2 {
		s.t.Fatalf("%s %s: %d %s", r.Method, r.RequestURI, to.code, to.body.Bytes())
	}
}

// measure returns the least cost of a request. make makes the i-th request beforehand; done, which may be nil, waits for what
// belongs to it.
func (s *server) measure(make func(i int) *http.Request, done func()) cost {
	least, to := cost{math.Inf(1), math.Inf(1)}, newAnswer()
	to.body.Grow(1 << 20)
	requests := [perBatch]*http.Request{}
	for range batches + 1 { // one warms up
		for i := range requests {
			requests[i] = make(s.sent)
			s.sent++
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for _, r := range requests {
			s.do(to, r)
			if done != nil {
				done()
			}
		}
		runtime.ReadMemStats(&after)
		least.allocations = min(least.allocations, float64(after.Mallocs-before.Mallocs)/perBatch)
		least.bytes = min(least.bytes, float64(after.TotalAlloc-before.TotalAlloc)/perBatch)
	}
	return least
}

func widget(name string, i int) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":%q,"labels":{"app":"web","group":"g%d"},`+
		`"annotations":{"example.com/sequence":"%08d","example.com/note":%q}},"spec":{"size":"small","replicas":3}}`,
		name, i%10, i, strings.Repeat("some text of the usual length ", 8))
}

// watch follows all objects with several watches, and returns a function that waits until each had another event.
func (s *server) watch(version string) (wait func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan struct{}, watchers)
	all := make([]*events, watchers)
	for i := range all {
		all[i] = &events{header: http.Header{}, came: make(chan struct{}, 1)}
		go func() {
			s.handler.ServeHTTP(all[i], request(ctx, http.MethodGet, namespace+"?watch=1&resourceVersion="+version, "", nil))
			ended <- struct{}{}
		}()
	}
	s.t.Cleanup(func() {
		cancel()
		for range all {
			<-ended
		}
	})
	want := int64(0)
	return func() {
		want++
		for _, e := range all {
			for e.count.Load() < want {
				<-e.came
			}
		}
	}
}

// events is the response of a watch. It counts the events.
type events struct {
	header http.Header
	count  atomic.Int64
	came   chan struct{}
}

func (e *events) Header() http.Header { return e.header }
func (e *events) WriteHeader(int)     {}
func (e *events) Flush()              {}
func (e *events) Write(data []byte) (int, error) {
	e.count.Add(int64(bytes.Count(data, []byte{'\n'})))
	select {
	case e.came <- struct{}{}:
	default:
	}
	return len(data), nil
}

// costs measures all requests.
func costs(t *testing.T) map[string]cost {
	s, ctx, to := start(t), t.Context(), newAnswer()
	found := map[string]cost{}
	post := func(name string, i int) *http.Request {
		return request(ctx, http.MethodPost, namespace, "application/json", widget(name, i))
	}
	testwait.Until(t, "the namespace exists", func() bool {
		to.reset()
		s.handler.ServeHTTP(to, post("first", 0))
		return to.code == http.StatusCreated
	})
	for i := range listed - 1 {
		s.do(to, post(fmt.Sprintf("listed-%03d", i), i))
	}
	get := func(path string) func(int) *http.Request {
		return func(int) *http.Request { return request(ctx, http.MethodGet, path, "", nil) }
	}
	found["list"] = s.measure(get(namespace), nil)
	found["list-label"] = s.measure(get(namespace+"?labelSelector=group%3Dg3"), nil)
	name := func(i int) string { return fmt.Sprintf("w-%08d", i) }
	begin := s.sent
	found["create"] = s.measure(func(i int) *http.Request { return post(name(i), i) }, nil)
	created := s.sent - begin
	at := func(i int) string { return namespace + "/" + name(begin+i%created) }
	found["get"] = s.measure(func(i int) *http.Request { return get(at(i))(i) }, nil)
	patch := func(contentType, query, format string) func(int) *http.Request {
		return func(i int) *http.Request {
			return request(ctx, http.MethodPatch, at(i)+query, contentType, fmt.Appendf(nil, format, i))
		}
	}
	merge := patch("application/merge-patch+json", "", `{"metadata":{"annotations":{"example.com/sequence":"%08d"}}}`)
	found["merge-patch"] = s.measure(merge, nil)
	found["json-patch"] = s.measure(patch("application/json-patch+json", "",
		`[{"op":"replace","path":"/metadata/annotations/example.com~1sequence","value":"%08d"}]`), nil)
	found["apply"] = s.measure(patch("application/apply-patch+yaml", "?fieldManager=applier&force=true",
		`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"annotations":{"example.com/sequence":"%08d"}}}`), nil)
	found["update"] = s.measure(func(i int) *http.Request { return s.updated(ctx, at(i), i) }, nil)
	s.do(to, get(namespace)(0))
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(to.body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	found["merge-patch-watched"] = s.measure(merge, s.watch(list.Metadata.ResourceVersion))
	deleted := begin - 1
	found["delete"] = s.measure(func(int) *http.Request {
		deleted++
		return request(ctx, http.MethodDelete, namespace+"/"+name(deleted), "", nil)
	}, nil)
	return found
}

// updated makes an update of an object, as controllers do.
func (s *server) updated(ctx context.Context, path string, i int) *http.Request {
	to := newAnswer()
	s.do(to, request(ctx, http.MethodGet, path, "", nil))
	const sequence = `"example.com/sequence":"`
	content := bytes.Clone(to.body.Bytes())
	at := bytes.Index(content, []byte(sequence))
	copy(content[at+len(sequence):], fmt.Sprintf("%08d", i))
	return request(ctx, http.MethodPut, path, "application/json", content)
}

func TestRequests_allocations_areNotAboveTheTable(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector empties pools
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	found := costs(t)
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	var now strings.Builder
	fmt.Fprintf(&now, "# Allocations and bytes of a request, by UPDATE=1 go test ./internal/testing/apitest/allocations. A list has\n"+
		"# %d objects, of which a tenth have the label; %d watches follow the watched patches.\n", listed, watchers)
	for _, name := range names {
		fmt.Fprintf(&now, "%-20s %6.0f %8.0f\n", name, found[name].allocations, found[name].bytes)
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(table, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed := readTable(t)
	for _, name := range names {
		before, ok := committed[name]
		if !ok || found[name].tooMuch(before) {
			t.Errorf("%s: %.1f allocations and %.0f bytes, in the table %.0f and %.0f; if that is meant, UPDATE=1 writes the table",
				name, found[name].allocations, found[name].bytes, before.allocations, before.bytes)
		}
	}
	t.Logf("measured:\n%s", now.String())
}

func readTable(t *testing.T) map[string]cost {
	t.Helper()
	data, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]cost{}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(fields) != 3 {
			continue
		}
		allocations, err1 := strconv.ParseFloat(fields[1], 64)
		bytes, err2 := strconv.ParseFloat(fields[2], 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("%s: %q", table, line)
		}
		all[fields[0]] = cost{allocations, bytes}
	}
	return all
}

func TestCost_tooMuch(t *testing.T) {
	committed := cost{100, 10_000}
	for c, want := range map[cost]bool{
		{100, 10_000}: false, {100.5, 10_100}: false, {101, 10_000}: true, {100, 10_129}: true, {1, 1}: false, {math.Inf(1), math.Inf(1)}: true,
	} {
		if got := c.tooMuch(committed); got != want {
			t.Errorf("%v against %v is too much: %v, want %v", c, committed, got, want)
		}
	}
}
