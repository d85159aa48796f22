package queries

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/embedded"
)

// event is an event of a tail.
type event struct {
	id     string // "none" without one
	kind   string
	object object
}

func (e event) String() string {
	m, _ := e.object["metadata"].(object)
	return fmt.Sprintf("%s %v", e.kind, m["name"])
}

// tail is a stream of events.
type tail struct {
	t    testing.TB
	body io.ReadCloser
	in   *bufio.Reader
	last string // id
	end  context.CancelFunc
}

func (c *client) tail(path string, headers ...string) *tail {
	c.t.Helper()
	ctx, end := context.WithTimeout(c.t.Context(), testwait.Patience)
	c.t.Cleanup(end)
	response := c.request(ctx, http.MethodGet, path, nil, append(headers, "Accept", "text/event-stream")...)
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
		raw, _ := io.ReadAll(response.Body)
		c.t.Fatalf("%s: %d %s", path, response.StatusCode, raw)
	}
	return &tail{c.t, response.Body, bufio.NewReader(response.Body), "", end}
}

// next returns the next event; at the end, an event without a kind.
func (t *tail) next() event {
	t.t.Helper()
	e := event{id: "none"}
	for {
		line, err := t.in.ReadString('\n')
		if err != nil {
			return event{}
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			e.id, t.last = value, value
		case "event":
			e.kind = value
		case "data":
			var data struct {
				Type   string
				Object object
			}
			if err := json.Unmarshal([]byte(value), &data); err != nil || data.Type != e.kind {
				t.t.Fatalf("%q of an event %s: %v", value, e.kind, err)
			}
			e.object = data.Object
		case "":
			if e.kind != "" && value == "" && line == "\n" {
				return e
			}
		}
	}
}

func (t *tail) want(kinds ...string) {
	t.t.Helper()
	for _, want := range kinds {
		e := t.next()
		for e.kind == "BOOKMARK" && !strings.HasPrefix(want, "BOOKMARK") {
			e = t.next()
		}
		if e.String() != want {
			t.t.Fatalf("got %s %v, want %s", e, e.object, want)
		}
	}
}

func (t *tail) close() {
	t.end()
	_ = t.body.Close()
}

func (c *client) update(name string, w object) {
	c.t.Helper()
	w["metadata"].(object)["namespace"] = "default"
	var current object
	if err := json.Unmarshal(c.must(http.MethodGet, fmt.Sprintf(api, "default")+"/"+name, nil), &current); err != nil {
		c.t.Fatal(err)
	}
	w["metadata"].(object)["resourceVersion"] = current["metadata"].(object)["resourceVersion"]
	c.must(http.MethodPut, fmt.Sprintf(api, "default")+"/"+name, w)
}

func TestTail_initialAndLaterEvents(t *testing.T) {
	t.Parallel()
	c := stocked(t)
	s := c.tail(widgets + "?watch=true&spec.size=small&spec.replicas[gte]=0&fields=spec.size")
	for _, name := range []string{"w0", "w5"} {
		e := s.next()
		if e.String() != "ADDED "+name || e.id != "none" || fmt.Sprint(e.object["spec"]) != "map[size:small]" {
			t.Fatalf("got %s with id %s: %v, want %s without one, and only its size", e, e.id, e.object, name)
		}
	}
	e := s.next()
	if fmt.Sprint(e.object["metadata"].(object)["annotations"]) != "map[k8s.io/initial-events-end:true]" || e.id == "none" ||
		e.kind != "BOOKMARK" {
		t.Fatalf("got %s %s %v, want the end of what is there", e, e.id, e.object)
	}
	c.update("w1", widget("w1", object{"size": "small", "replicas": 3}))
	c.update("w3", widget("w3", object{"size": "large", "replicas": 3}))
	c.update("w0", widget("w0", object{"size": "small", "replicas": 11}))
	c.update("w0", widget("w0", object{"size": "medium"}))
	c.create("default", widget("w7", object{"size": "small"}))
	c.create("default", widget("w8", object{"size": "small", "replicas": 0}))
	c.must(http.MethodDelete, fmt.Sprintf(api, "default")+"/w8", nil)
	s.want("ADDED w1", "MODIFIED w0", "DELETED w0", "ADDED w8", "DELETED w8")

	// It resumes after the last event.
	from := s.last
	s.close()
	c.update("w1", widget("w1", object{"size": "small", "replicas": 4}))
	c.update("w5", widget("w5", object{"size": "large"}))
	again := c.tail(widgets+"?watch=true&spec.size=small&spec.replicas[gte]=0", "Last-Event-ID", from)
	again.want("MODIFIED w1", "DELETED w5")
	byParameter := c.tail(widgets + "?watch=true&q=w1&resourceVersion=" + from)
	byParameter.want("MODIFIED w1")
}

func TestTail_expiredVersion(t *testing.T) {
	t.Parallel()
	c := stocked(t)
	s := c.tail(widgets+"?watch=true", "Last-Event-ID", "1")
	if e := s.next(); e.kind != "ERROR" || e.id != "" || e.object["code"] != float64(http.StatusGone) || s.next().kind != "" {
		t.Errorf("got %s with id %q: %v, want 410, an empty id and the end", e, e.id, e.object)
	}
}

func TestTail_webSocket(t *testing.T) {
	t.Parallel()
	c := stocked(t)
	tlsConfig, err := rest.TLSConfigFor(c.config)
	if err != nil {
		t.Fatal(err)
	}
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig, Subprotocols: []string{"json"}}
	if c.config.Dial != nil {
		dialer.NetDialContext = c.config.Dial
	}
	at := strings.Replace(c.config.Host, "http", "ws", 1) + widgets + "?watch=true&spec.size=" + url.QueryEscape("large")
	header := http.Header{}
	if c.config.BearerToken != "" {
		header.Set("Authorization", "Bearer "+c.config.BearerToken)
	}
	conn, _, err := dialer.DialContext(t.Context(), at, header)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	next := func() string {
		var e struct {
			Type   string
			Object object
		}
		if err := conn.ReadJSON(&e); err != nil {
			t.Fatal(err)
		}
		return event{kind: e.Type, object: e.Object}.String()
	}
	for _, want := range []string{"ADDED w1", "ADDED w4", "BOOKMARK <nil>"} {
		if got := next(); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	c.update("w4", widget("w4", object{"size": "small"}))
	if got := next(); got != "DELETED w4" {
		t.Errorf("got %s", got)
	}
	if _, response, err := dialer.DialContext(
		t.Context(),
		at+"&sortBy=name",
		header,
	); err == nil || response == nil ||
		response.StatusCode != http.StatusBadRequest {
		t.Errorf("a bad request: %v", err)
	}
}

// TestTail_reconnectsAndRestart_loseNothing follows writes with a tail that is cut off again and again; in the middle
// the server is restarted.
func TestTail_reconnectsAndRestart_loseNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve := func() (*client, func()) {
		instance, err := annex.New(t.Context(), shop(), annex.Options{DataDir: dir, Storage: embedded.Dir(""), Listen: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended, ready := make(chan error, 1), make(chan struct{})
		go func() { ended <- instance.Run(ctx, func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatal(err)
		}
		config, err := instance.ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		return connect(t, config), func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	c, stop := serve()
	var told, written []string
	n := 0
	write := func(count int) {
		for range count {
			if n%7 == n || n%5 == 0 {
				name := fmt.Sprintf("w%d", 100+n)
				c.create("default", widget(name, object{"size": "small"}))
				written = append(written, "ADDED "+name)
			} else {
				const name = "w100"
				c.update(name, widget(name, object{"size": "small", "replicas": n % 100}))
				written = append(written, "MODIFIED "+name)
			}
			n++
		}
	}
	last := ""
	for part := range 6 {
		if part == 3 {
			stop()
			c, stop = serve()
		}
		write(5)
		headers := []string{}
		if last != "" {
			headers = []string{"Last-Event-ID", last}
		}
		s := c.tail(widgets+"?watch=true&spec.size=small", headers...)
		if last == "" {
			for e := s.next(); e.kind == "ADDED"; e = s.next() {
			}
			written = nil
		}
		write(4)
		// It is cut off before all events have arrived.
		for range 3 {
			e := s.next()
			for e.kind == "BOOKMARK" {
				e = s.next()
			}
			told = append(told, e.String())
		}
		last = s.last
		s.close()
	}
	s := c.tail(widgets+"?watch=true&spec.size=small", "Last-Event-ID", last)
	for len(told) < len(written) {
		e := s.next()
		if e.kind == "" || e.kind == "ERROR" {
			t.Fatalf("%s %v", e, e.object)
		}
		if e.kind != "BOOKMARK" {
			told = append(told, e.String())
		}
	}
	if !slices.Equal(told, written) {
		t.Errorf("told %q, want %q", told, written)
	}
	stop()
}

// TestTail_endsWithServer checks that a tail does not delay a shutdown.
func TestTail_endsWithServer(t *testing.T) {
	t.Parallel()
	var s *tail
	t.Run("server", func(t *testing.T) {
		c := start(t, shop(), annex.Options{})
		s = c.tail(widgets + "?watch=true")
		s.want("BOOKMARK <nil>")
	})
	if e := s.next(); e.kind != "" {
		t.Errorf("after the end: %s", e)
	}
}

func TestTail_severalNamespaces(t *testing.T) {
	t.Parallel()
	c, jane := inFive(t)
	s := jane.tail(widgets + "?watch=true&name=w1")
	s.want("ADDED w1", "ADDED w1", "BOOKMARK <nil>")
	for i := range 5 {
		c.create(fmt.Sprintf("ns%d", i), widget(fmt.Sprintf("w1-%d", i), object{"size": "small"}))
	}
	s.want("ADDED w1-1", "ADDED w1-3")
	// After a resume, the events lack an object's previous state, except for its namespace.
	change := func(name string, spec object) {
		for i := range 5 {
			path := fmt.Sprintf(api, fmt.Sprint("ns", i)) + "/" + name
			if code, raw := c.do(
				http.MethodPatch,
				path,
				object{"spec": spec},
				"Content-Type",
				"application/merge-patch+json",
			); code != http.StatusOK {
				t.Fatalf("%s: %d %s", path, code, raw)
			}
		}
	}
	s.close()
	change("w1", object{"replicas": 7})
	s = jane.tail(widgets+"?watch=true&name=w1", "Last-Event-ID", s.last)
	s.want("MODIFIED w1", "MODIFIED w1")
	change("w1", object{"replicas": 8})
	for i := range 5 {
		c.must(http.MethodDelete, fmt.Sprintf(api, fmt.Sprint("ns", i))+"/w1", nil)
	}
	s.want("MODIFIED w1", "MODIFIED w1", "DELETED w1", "DELETED w1")
	c.create("ns1", widget("w1-last", object{"size": "small"}))
	s.want("ADDED w1-last")
}
