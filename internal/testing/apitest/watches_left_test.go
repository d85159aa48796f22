package apitest_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/etcd"
)

// The metrics of watches at /metrics, during a watch and after its end, do not depend on the handler.
func TestWatch_metrics_likeUpstream(t *testing.T) {
	c := start(t, shop())
	version := c.create("w", spec(fields{"size": "small"})).ResourceVersion
	counted := func() map[string]float64 {
		of := c.counted()
		maps.DeleteFunc(of, func(name string, _ float64) bool {
			family, _, _ := strings.Cut(name, "{")
			switch family {
			case "apiserver_watch_events_total", "apiserver_watch_events_sizes_sum":
				return !strings.Contains(name, `resource="widgets"`)
			case "apiserver_request_total",
				"apiserver_response_sizes_sum",
				"apiserver_response_sizes_count",
				"apiserver_request_duration_seconds_count",
				"apiserver_longrunning_requests":
				return !strings.Contains(name, `resource="widgets"`) || !strings.Contains(name, `verb="WATCH"`)
			}
			return true
		})
		return of
	}
	for path, events := range map[string]int{
		widgetsPath + "?watch=true&resourceVersion=" + version:                                                                           0,
		widgetsPath + "?watch=true&fieldSelector=metadata.name%3Dw":                                                                      1,
		"/apis/shop.example.com/v1/widgets?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true": 2,
	} {
		asked := func(accept string) (while, after map[string]float64) {
			before := counted()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			response := c.send(ctx, http.MethodGet, path, nil, "Accept", accept, "Accept-Encoding", "identity")
			defer response.Body.Close()
			lines := bufio.NewReader(response.Body)
			for range events {
				if _, err := lines.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			only := func(prefix string, of map[string]float64) map[string]float64 {
				maps.DeleteFunc(of, func(name string, _ float64) bool { return !strings.HasPrefix(name, prefix) })
				return of
			}
			testwait.Until(t, "the watch counts", func() bool {
				while = only("apiserver_longrunning_requests", grown(before, counted()))
				return len(while) > 0
			})
			cancel()
			testwait.Until(t, "the watch has been counted", func() bool {
				after = grown(before, counted())
				return len(only("apiserver_response_sizes_count", maps.Clone(after))) > 0 &&
					len(only("apiserver_longrunning_requests", maps.Clone(after))) == 0
			})
			// A scrape is no snapshot: it collects each family at another moment. The size of the response is
			// counted last, so a scrape that begins after one has seen the size sees all the rest.
			return while, grown(before, counted())
		}
		asked(unremembered) // so that all series exist
		gotWhile, got := asked(jsonType)
		wantWhile, want := asked(unremembered)
		if !maps.Equal(gotWhile, wantWhile) || len(gotWhile) != 1 {
			t.Errorf("%s: %v while it lasts; upstream: %v", path, gotWhile, wantWhile)
		}
		if !maps.Equal(got, want) || len(got) < 3 {
			t.Errorf("%s: %v when it has ended; upstream: %v", path, got, want)
		}
	}
}

// A watch that waits for events keeps no handlers on its stack, which would be most of its memory.
func TestWatch_idle_keepsNoHandlers(t *testing.T) {
	notOn(t, cacheWaits, etcd.Name)
	if slow() {
		t.Skip("upstream's handler waits for events itself")
	}
	c := start(t, shop())
	c.create("w", spec(fields{"size": "small"}))
	w := c.watch(widgetsPath + "?watch=1")
	w.next()
	var waits string
	testwait.Until(t, "the watch waits", func() bool {
		buffer := make([]byte, 64<<20)
		for goroutine := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
			if strings.Contains(goroutine, "mvcc.(*watcher).wait(") && strings.Contains(goroutine, "(*serverConn).runHandler") {
				waits = goroutine
				return true
			}
		}
		return false
	})
	if strings.Contains(waits, "endpoints/filters") || strings.Contains(waits, "go-restful") {
		t.Errorf("it waits below handlers:\n%s", waits)
	}
	c.create("x", spec(fields{"size": "small"}))
	w.next()
}

// However a client leaves, its watches end: a half-closed connection is closed, for a watch as for any other request.
func TestWatch_endsWithConnection(t *testing.T) {
	notOn(t, cacheWaits, etcd.Name)
	c := start(t, shop())
	c.create("w")
	waiting := func() int {
		buffer := make([]byte, 64<<20)
		return strings.Count(string(buffer[:runtime.Stack(buffer, true)]), "mvcc.(*watcher).wait(")
	}
	below := func(conn *tls.Conn) *net.TCPConn { return conn.NetConn().(*net.TCPConn) }
	before := waiting()
	for _, protocol := range []string{"http/1.1", "h2"} {
		for how, leave := range map[string]func(*tls.Conn) error{
			"says goodbye in TLS":      (*tls.Conn).CloseWrite,
			"sends no more, below TLS": func(conn *tls.Conn) error { return below(conn).CloseWrite() },
			"closes the connection":    (*tls.Conn).Close,
			"has the connection reset": func(conn *tls.Conn) error { return errors.Join(below(conn).SetLinger(0), below(conn).Close()) },
			"is gone without a word":   func(conn *tls.Conn) error { return below(conn).Close() },
		} {
			config := rest.CopyConfig(c.config)
			config.NextProtos = []string{protocol}
			security, err := rest.TLSConfigFor(config)
			if err != nil {
				t.Fatal(err)
			}
			var conns []*tls.Conn
			dial := func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&tls.Dialer{Config: security}).DialContext(ctx, network, address)
				if err == nil {
					conns = append(conns, conn.(*tls.Conn))
				}
				return conn, err
			}
			transport := &http.Transport{DialTLSContext: dial, ForceAttemptHTTP2: protocol == "h2"}
			const watches = 5
			for range watches {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.config.Host+widgetsPath+"?watch=1", nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := transport.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				if response.StatusCode != http.StatusOK || (response.ProtoMajor == 2) != (protocol == "h2") {
					t.Fatalf("%s: %s %s", protocol, response.Status, response.Proto)
				}
				if _, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			testwait.Until(t, "all watches of a client to wait", func() bool { return waiting() == before+watches })
			for _, conn := range conns {
				if err := leave(conn); err != nil {
					t.Errorf("%s, a client %s: %v", protocol, how, err)
				}
			}
			testwait.Until(t, "the watches of a client that "+how+" to end, "+protocol, func() bool { return waiting() == before })
			transport.CloseIdleConnections()
		}
	}
}
