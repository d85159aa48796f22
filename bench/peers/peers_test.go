package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// server serves HTTP/2 and returns its address and its client configuration.
func server(t *testing.T, handler http.HandlerFunc) (string, *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), s.Client().Transport.(*http.Transport).TLSClientConfig
}

func TestConn_readsWholeResponses(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB, more than stock windows
	address, config := server(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/large":
			_, _ = w.Write(large)
		case "/missing":
			http.NotFound(w, r)
		default:
			fmt.Fprintf(w, "%s %s %s %s", r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), body)
		}
	})
	c, err := dial(address, config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for range 3 {
		got, err := c.get("/large")
		if err != nil || !bytes.Equal(got, large) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(large), err)
		}
		got, err = c.do(http.MethodPatch, "/o?a=b", "application/merge-patch+json", []byte("{}"))
		if want := "PATCH /o?a=b application/merge-patch+json {}"; err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		if _, err := c.get("/missing"); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("an answer that is no success: %v", err)
		}
	}
}

func TestWatches_resume(t *testing.T) {
	address, config := server(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		var from int
		_, _ = fmt.Sscan(r.URL.Query().Get("resourceVersion"), &from)
		for i := from + 1; i <= from+2 && i <= 6; i++ { // in pieces, and never more than two at once
			fmt.Fprintf(w, `{"type":"MODIFIED","object":{"metadata":{"resource`)
			w.(http.Flusher).Flush()
			fmt.Fprintf(w, `Version":"%d","annotations":{%s%08d"}}}}`+"\n", i, sequence, 100+i)
			w.(http.Flusher).Flush()
		}
		if from >= 4 {
			<-r.Context().Done()
		}
	})
	watchers := []*watcher{{seen: make([]bool, 7), missing: 6}, {seen: make([]bool, 7), missing: 6}}
	left := len(watchers)
	var all *watches
	on := func(n int, event []byte, _ time.Time) {
		w := watchers[n]
		if w.take(event, 100, func(int) time.Duration { return 0 }); w.err != nil {
			t.Error(w.err)
		}
		if w.missing == 0 {
			if left--; left == 0 {
				all.conn.close()
			}
		}
	}
	all, err := openWatches(address, config, "/w", "0", []int{0, 1}, on)
	if err != nil {
		t.Fatal(err)
	}
	if err := all.run(); err != nil {
		t.Fatal(err)
	}
	if left != 0 || all.resumed != 4 {
		t.Errorf("%d watches are not complete, %d resumed", left, all.resumed)
	}
}

func TestWatcher_detectsViolations(t *testing.T) {
	event := func(version, number int) []byte {
		return fmt.Appendf(nil, `{"metadata":{"resourceVersion":"%d","annotations":{%s%08d"}}}`, version, sequence, number)
	}
	tests := []struct {
		name   string
		events [][]byte
		want   string
	}{
		{"all is well", [][]byte{event(5, 11), event(6, 10)}, ""},
		{"twice", [][]byte{event(5, 10), event(6, 10)}, "change 0 twice"},
		{"out of order", [][]byte{event(6, 10), event(5, 11)}, "revision 5 after 6"},
		{"of another run", [][]byte{event(5, 9)}, "an event of no write"},
		{"no event", [][]byte{[]byte("{}")}, "invalid syntax"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := &watcher{seen: make([]bool, 2), missing: 2}
			for _, e := range test.events {
				w.take(e, 10, func(int) time.Duration { return 0 })
			}
			if test.want == "" && (w.err != nil || w.missing != 0) ||
				test.want != "" && (w.err == nil || !strings.Contains(w.err.Error(), test.want)) {
				t.Errorf("%v, %d are missing", w.err, w.missing)
			}
		})
	}
}

func TestResults(t *testing.T) {
	r, raw := results{}, &bytes.Buffer{}
	for _, v := range []float64{3, 1, 2} {
		r.add(raw, "op=get/clients=1", embedded, 10, time.Second, value{"req/s", v * 10}, value{"p50-ms", v})
		r.add(raw, "op=get/clients=1", sample, 10, time.Second, value{"req/s", v * 5}, value{"p50-ms", 4 * v})
	}
	if want := "BenchmarkPeers/op=get/clients=1/peer=embedded 10 100000000 ns/op 30 req/s 3 p50-ms\n"; !strings.HasPrefix(
		raw.String(),
		want,
	) {
		t.Errorf("%q does not begin with %q", raw, want)
	}
	if got := r.better(line{"", "op=get/clients=1", "req/s", true}, embedded, sample); got != 2 {
		t.Errorf("more is better: %v", got)
	}
	if got := r.better(line{"", "op=get/clients=1", "p50-ms", false}, embedded, sample); got != 4 {
		t.Errorf("less is better: %v", got)
	}
	if got := factor(
		r.better(line{"", "op=get/clients=1", "req/s", true}, embedded, crd),
	); got != "" ||
		!math.IsNaN(r.median("x", crd, "y")) {
		t.Errorf("what was not measured has a factor: %q", got)
	}
	sorted := []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 100 * time.Millisecond}
	if p50, p99 := percentile(sorted, 0.5), percentile(sorted, 0.99); p50 != 3 || p99 != 100 {
		t.Errorf("p50 %v, p99 %v", p50, p99)
	}
}

func TestProcessorTimeAndMemory(t *testing.T) {
	pids := []int{os.Getpid(), os.Getpid()}
	before, err := processorTime(pids)
	if err != nil {
		t.Fatal(err)
	}
	for n, after := 0, before; after < before+2*clockTick; n++ {
		if after, err = processorTime(pids); err != nil {
			t.Fatal(err)
		}
	}
	if mb, err := resident(os.Getpid()); err != nil || mb < 1 || mb > 10_000 {
		t.Errorf("%v MB, %v", mb, err)
	}
	if _, err := processorTime([]int{-1}); err == nil {
		t.Error("a process that there is not has used time")
	}
}

func TestCommandLine_mistakes(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-rounds", "0"}, "-rounds 0: at least one"},
		{[]string{"-duration", "-1s"}, "-duration -1s: more than nothing"},
		{[]string{"-only", "requests,lunch"}, `there is no part "lunch"`},
		{[]string{"-peers", "embedded,kine"}, `there is no server "kine"`},
		{[]string{"-before", "./no-such-build"}, "no-such-build"},
		{[]string{"all"}, `unknown argument "all"`},
	} {
		if _, err := parse(test.args, io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %s", test.args, err, test.want)
		}
	}
	s, err := parse([]string{"-short", "-only", "lists"}, io.Discard)
	if err != nil || s.rounds != 1 || !s.has(partLists) || s.has(partWatch) {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestTurns(t *testing.T) {
	a, b, limit := &peer{name: "a"}, &peer{name: "b"}, &peer{name: synced}
	names := func(peers []*peer) string {
		var all []string
		for _, p := range peers {
			all = append(all, p.name)
		}
		return strings.Join(all, " ")
	}
	f := &fleet{peers: []*peer{a, b}, synced: limit}
	if got := names(turns(f.requested(), 4)); got != "b synced a" {
		t.Errorf("requests: %s", got)
	}
	if got := names(turns(f.peers, 3)); got != "b a" {
		t.Errorf("all else: %s", got)
	}
	if got := names(turns(nil, 3)); got != "" {
		t.Errorf("none: %s", got)
	}
}

// checked is a bench whose cells were measured with ratios around 2, but for one.
func checked(t *testing.T, odd string, ratios ...float64) *bench {
	t.Helper()
	b := &bench{results: results{}}
	for _, c := range checkCells() {
		for _, ratio := range ratios {
			if c.name != odd {
				ratio = 2
			}
			b.results[point{c.measurement, embedded, c.unit}] = append(b.results[point{c.measurement, embedded, c.unit}], 30*ratio)
			b.results[point{c.measurement, c.yardstick, c.unit}] = append(b.results[point{c.measurement, c.yardstick, c.unit}], 30)
		}
	}
	return b
}

func TestCheck_median_decides(t *testing.T) {
	b := checked(t, "get", 2, 2, 2)
	b.settings.check = filepath.Join(t.TempDir(), "check.txt")
	if err := b.writeChecked(io.Discard); err != nil {
		t.Fatal(err)
	}
	committed, _, err := readChecked(b.settings.check)
	if err != nil || committed["get"] != 2 || committed["merge patch"] != 2 {
		t.Fatalf("%v, %v", committed, err)
	}
	for _, test := range []struct {
		ratios []float64
		want   string
	}{
		{[]float64{2.19, 2.19, 2.19}, "[]"},
		{[]float64{2.3, 2.3, 2.3}, "[get]"},
		{[]float64{9, 2.1, 2.1}, "[]"}, // noise
		{[]float64{2.3, 2.3, 2}, "[get]"},
		{[]float64{1, 1, 1}, "[]"},
	} {
		if got := fmt.Sprint(checked(t, "get", test.ratios...).slower(committed)); got != test.want {
			t.Errorf("%v is slower in %s, want %s", test.ratios, got, test.want)
		}
	}
	if got := (&bench{results: results{}}).slower(committed); len(got) != len(checkCells()) {
		t.Errorf("without a measurement, slower are %v, want all", got)
	}
	for _, content := range []string{"", "get 2", "get two", "get -1", "get"} {
		if err := os.WriteFile(b.settings.check, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := readChecked(b.settings.check); err == nil || !strings.Contains(err.Error(), "UPDATE=1") {
			t.Errorf("a file with %q: %v", content, err)
		}
	}
	if _, _, err := readChecked(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file is read")
	}
}

func TestReport_withBefore_isPageOfItsOwn(t *testing.T) {
	b := &bench{
		settings: settings{out: t.TempDir(), before: "wardle-of-yesterday", only: partRequests, rounds: 1},
		results:  results{},
		raw:      &bytes.Buffer{},
		beforeOf: revisionOf("wardle-of-yesterday"),
		versions: map[string]string{},
	}
	for peer, us := range map[string]float64{sample: 800, embeddedBefore: 200, embedded: 100} {
		b.results.add(b.raw, requestsCell("get", 64), peer, 1, 0, value{"cpu-us/req", us})
	}
	if err := b.report(io.Discard); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		text string
		is   bool
	}{
		"before.md": {"the build wardle-of-yesterday of", true},
		"peers.md":  {"before, embedded", false},
		"peers.txt": {"peer=embedded-before", true},
	} {
		page, err := os.ReadFile(filepath.Join(b.settings.out, name))
		if err != nil || strings.Contains(string(page), want.text) != want.is {
			t.Errorf("%s has %q: %v, want %v; %v", name, want.text, !want.is, want.is, err)
		}
	}
	page, _ := os.ReadFile(filepath.Join(b.settings.out, "before.md"))
	want := "| get: processor time of a request, 64 clients | 800 | 200 | 100 | 4.00x | 8.00x | 2.00x |\n"
	if !strings.Contains(string(page), want) {
		t.Errorf("no row %q in\n%s", want, page)
	}
}
