package stream_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/legacy/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/stream"
)

const gizmosPath = "/apis/legacy.example.com/v1/namespaces/default/gizmos"

// logged returns a server whose gizmos have a log.
func logged(logs *stream.LogsBuilder[v1.Gizmo]) annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "legacy.example.com", Kinds: []annex.Kind{
		annex.KindOf[v1.Gizmo, v1.GizmoList]("gizmos", v1.API).Subresources(logs),
	}}}}
}

// client sends requests to a server with the gizmo w.
type client struct {
	t      testing.TB
	http   *http.Client
	config *rest.Config
}

func start(t testing.TB, logs *stream.LogsBuilder[v1.Gizmo]) *client {
	t.Helper()
	config := annextest.StartWith(t, logged(logs), annex.Options{Storage: memory.Storage(), Listen: "127.0.0.1:0"})
	return connect(t, config)
}

func connect(t testing.TB, config *rest.Config) *client {
	t.Helper()
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.CloseIdleConnections)
	c := &client{t, h, config}
	response, err := h.Post(
		config.Host+gizmosPath,
		"application/json",
		strings.NewReader(`{"apiVersion":"legacy.example.com/v1","kind":"Gizmo","metadata":{"name":"w"}}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return c
}

// send asks for the log of w.
func (c *client) send(ctx context.Context, query string, headers ...string) *http.Response {
	c.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.config.Host+gizmosPath+"/w/logs?"+query, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := c.http.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { response.Body.Close() })
	return response
}

// get returns the log of w.
func (c *client) get(query string) string {
	c.t.Helper()
	response := c.send(c.t.Context(), query)
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		c.t.Errorf("%s: %s, %v: %s", query, response.Status, err, text)
	}
	return string(text)
}

func (c *client) refused(query string, code int, message string) {
	c.t.Helper()
	response := c.send(c.t.Context(), query)
	var status metav1.Status
	text, _ := io.ReadAll(response.Body)
	if err := json.Unmarshal(
		text,
		&status,
	); err != nil || int(status.Code) != code || response.StatusCode != code ||
		!strings.Contains(status.Message, message) {
		c.t.Errorf("%s: %s: %s; want %d with %s", query, response.Status, text, code, message)
	}
}

// text returns an open function whose log leaves all options to the builder.
func text(log string) func(context.Context, *stream.LogRequest[v1.Gizmo]) (io.ReadCloser, error) {
	return func(context.Context, *stream.LogRequest[v1.Gizmo]) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(log)), nil
	}
}

const stampedText = "2026-11-23T10:00:00.5Z one\n2026-11-23T10:00:01Z two\nno time\n2026-11-23T10:00:02Z three\n"

func TestLogs_options_areThoseOfPods(t *testing.T) {
	t.Parallel()
	c := start(t, stream.Logs("logs", text(stampedText)).Timestamped())
	for query, want := range map[string]string{
		"":                               "one\ntwo\nno time\nthree\n",
		"tailLines=0":                    "",
		"tailLines=3":                    "two\nno time\nthree\n",
		"tailLines=9":                    "one\ntwo\nno time\nthree\n",
		"timestamps=true":                stampedText,
		"timestamps=true&tailLines=1":    "2026-11-23T10:00:02Z three\n",
		"sinceTime=2026-11-23T10:00:01Z": "two\nno time\nthree\n",
		"sinceTime=2026-11-23T10:00:02Z": "three\n",
		"sinceTime=2030-01-01T00:00:00Z": "",
		"sinceSeconds=1":                 "",
		"sinceSeconds=9000000000000":     "one\ntwo\nno time\nthree\n",
		"sinceTime=2026-11-23T10:00:01Z&tailLines=1":                   "three\n",
		"sinceTime=2026-11-23T10:00:02Z&tailLines=3":                   "three\n",
		"sinceTime=2026-11-23T10:00:01Z&timestamps=true&tailLines=100": "2026-11-23T10:00:01Z two\nno time\n2026-11-23T10:00:02Z three\n",
		"limitBytes=5":             "one\nt",
		"limitBytes=5&tailLines=1": "three",
		"limitBytes=1000":          "one\ntwo\nno time\nthree\n",
		"follow=true":              "one\ntwo\nno time\nthree\n", // and the reader ends
		"follow=false":             "one\ntwo\nno time\nthree\n",
	} {
		if got := c.get(query); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

func TestLogs_invalidOptions(t *testing.T) {
	t.Parallel()
	c := start(t, stream.Logs("logs", text("line\n")))
	for _, test := range []struct {
		query   string
		code    int
		message string
	}{
		{"tailLines=-1", 422, `LogOptions "w" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0`},
		{"limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"},
		{"sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"},
		{"sinceSeconds=1&sinceTime=2026-11-23T10:00:00Z", 422, "at most one of `sinceTime` or `sinceSeconds` may be specified"},
		{"tailLines=-1&limitBytes=-7", 422, "[tailLines: Invalid value: -1: must be greater than or equal to 0, limitBytes: Invalid value: -7"},
		{"tailLines=many", 400, `parameter tailLines: "many" is not an integer of 64 bits`},
		{"sinceTime=yesterday", 400, "yesterday"},
		{"timestamps=true", 400, "timestamps: lines of gizmos w have no timestamps"},
		{"sinceSeconds=5", 400, "sinceTime, sinceSeconds: lines of gizmos w have no timestamps"},
		{"sinceTime=2026-11-23T10:00:00Z", 400, "sinceTime, sinceSeconds: lines of gizmos w have no timestamps"},
		{"previous=true", 400, "previous: gizmos w has no log of a previous run"},
		{"container=a", 400, "container a is not valid for gizmos w"},
		{"follow=true&tailLines=1", 400, "tailLines: the log of gizmos w does not support follow together with tailLines: remove " +
			"one of them"},
		{"dryRun=All", 400, "dryRun is not supported"},
	} {
		c.refused(test.query, test.code, test.message)
	}
	response := c.send(t.Context(), "tail=5&pretty=true&tailLines=9")
	if warning := response.Header.Values(
		"Warning",
	); len(warning) != 1 ||
		!strings.Contains(warning[0], `ignored unknown option \"tail\"; options are container, follow, `) {
		t.Errorf("%q", warning)
	}
	if got, _ := io.ReadAll(response.Body); string(got) != "line\n" {
		t.Errorf("%q", got)
	}
	response = c.send(
		t.Context(),
		"",
		"Connection",
		"Upgrade",
		"Upgrade",
		"websocket",
		"Sec-WebSocket-Key",
		"dGhlIHNhbXBsZSBub25jZQ==",
		"Sec-WebSocket-Version",
		"13",
	)
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("an upgrade: %s", response.Status)
	}
}

func TestLogs_containers(t *testing.T) {
	t.Parallel()
	var has []string
	c := start(t, stream.Logs("logs", func(_ context.Context, r *stream.LogRequest[v1.Gizmo]) (io.ReadCloser, error) {
		return io.NopCloser(
			strings.NewReader(fmt.Sprintf("%s of %s for %s in %s/%s", r.Options.Container, r.Object.Name, r.User.GetName(), r.Namespace, r.Name)),
		), nil
	}).Containers(func(w *v1.Gizmo) []string { return has }))
	c.refused("", 400, "gizmos w has no containers")
	has = []string{"a", "b"}
	for query, want := range map[string]string{"": "a of w", "container=b": "b of w"} {
		if got := c.get(query); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, " in default/w") {
			t.Errorf("%s: %q", query, got)
		}
	}
	c.refused("container=c", 400, "container c is not valid for gizmos w")
}

func TestLogs_errors_areStatuses(t *testing.T) {
	t.Parallel()
	var open func() (io.ReadCloser, error)
	c := start(t, stream.Logs("logs", func(context.Context, *stream.LogRequest[v1.Gizmo]) (io.ReadCloser, error) { return open() }))
	open = func() (io.ReadCloser, error) {
		return nil, fmt.Errorf(
			"open: %w",
			apierrors.NewConflict(v1.API().GroupVersion.WithResource("gizmos").GroupResource(), "w", errors.New("it has stopped")),
		)
	}
	c.refused("", 409, "it has stopped")
	open = func() (io.ReadCloser, error) { return nil, errors.New("the disk is ill") }
	c.refused("", 500, "the disk is ill")
	open = func() (io.ReadCloser, error) { return nil, nil }
	c.refused("", 500, "returned no reader")
	open = func() (io.ReadCloser, error) { return io.NopCloser(failing{}), nil }
	c.refused("", 500, "read the log: the line is broken")
	c.refused("tailLines=1", 500, "read the log: the line is broken")
	open = func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader("line\n"), failing{})), nil
	}
	response, err := c.http.Get(c.config.Host + gizmosPath + "/w/logs") // it may fail before it has read the answer
	if err == nil {
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
	}
	if err == nil {
		t.Error("a log that breaks off is answered as a whole one")
	}
	open = func() (io.ReadCloser, error) { panic("in the function") }
	c.refused("", 500, "panic")
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the line is broken") }

func TestLogs_invalidDefinition(t *testing.T) {
	t.Parallel()
	s := logged(stream.Logs[v1.Gizmo]("logs", nil))
	if _, err := annex.New(
		t.Context(),
		s,
		annex.Options{Storage: memory.Storage()},
	); err == nil ||
		!strings.Contains(err.Error(), "the function is missing") {
		t.Error(err)
	}
}

// files returns a log that a process writes while it is read.
func files(t testing.TB, o stream.LogFilesOptions) (io.WriteCloser, *stream.LogFiles, *stream.LogsBuilder[v1.Gizmo]) {
	t.Helper()
	logs, err := stream.OpenLogFiles(t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	w, err := logs.Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w, logs, stream.Logs("logs", func(_ context.Context, r *stream.LogRequest[v1.Gizmo]) (io.ReadCloser, error) {
		return logs.Open(&r.Options)
	})
}

// protocols make the client use HTTP/2 or HTTP/1.1.
var protocols = map[string][]string{"HTTP/2.0": nil, "HTTP/1.1": {"http/1.1"}}

func TestLogs_follow_hasNoDeadline(t *testing.T) {
	t.Parallel()
	c := start(t, stream.Logs("logs", func(ctx context.Context, _ *stream.LogRequest[v1.Gizmo]) (io.ReadCloser, error) {
		_, bounded := ctx.Deadline()
		return io.NopCloser(strings.NewReader(fmt.Sprint("bounded: ", bounded))), nil
	}))
	for _, query := range []string{"", "follow=true"} {
		response := c.send(t.Context(), query)
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || strings.TrimSpace(string(body)) != "bounded: false" {
			t.Errorf("%q: %s, %v", query, body, err)
		}
	}
}

func TestLogs_follow_sendsAtOnce(t *testing.T) {
	t.Parallel()
	for protocol, offered := range protocols {
		t.Run(protocol, func(t *testing.T) {
			w, _, logs := files(t, stream.LogFilesOptions{})
			config := rest.CopyConfig(start(t, logs).config)
			config.NextProtos = offered
			c := connect(t, config)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			response := c.send(ctx, "follow=true", "Accept-Encoding", "gzip") // the response headers come before the first line
			if response.Proto != protocol || response.Header.Get("Content-Encoding") != "" || response.Header.Get("Content-Type") != "text/plain" {
				t.Errorf("%s, %v", response.Proto, response.Header)
			}
			lines := bufio.NewReader(response.Body)
			for i := range 20 {
				want := fmt.Sprintf("line %d\n", i)
				if _, err := io.WriteString(w, want); err != nil {
					t.Fatal(err)
				}
				if got, err := lines.ReadString('\n'); err != nil || got != want {
					t.Fatalf("%q, %v", got, err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
				t.Errorf("the run has ended: %q, %v", rest, err)
			}
			if got := c.get("tailLines=2"); got != "line 18\nline 19\n" {
				t.Errorf("%q", got)
			}
			if got := c.get("tailLines=1&timestamps=true"); !strings.HasSuffix(got, "Z line 19\n") {
				t.Errorf("%q", got)
			}
			c.refused("previous=true", 400, "previous: no log of a previous run")
		})
	}
}

// blocking is a reader whose Read waits.
type blocking struct {
	*io.PipeReader
	closed chan struct{}
}

func (b *blocking) Close() error {
	close(b.closed)
	return b.PipeReader.Close()
}

func TestLogs_clientGone_closesReader(t *testing.T) {
	t.Parallel()
	for protocol, offered := range protocols {
		t.Run(protocol, func(t *testing.T) {
			from, to := io.Pipe()
			reader := &blocking{from, make(chan struct{})}
			config := rest.CopyConfig(start(t, stream.Logs("logs", func(context.Context, *stream.LogRequest[v1.Gizmo]) (io.ReadCloser, error) {
				return reader, nil
			})).config)
			config.NextProtos = offered
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			response := connect(t, config).send(ctx, "follow=true")
			go func() { _, _ = io.WriteString(to, "one\n") }()
			if line, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || line != "one\n" {
				t.Fatalf("%q, %v", line, err)
			}
			cancel()
			select {
			case <-reader.closed:
			case <-time.After(10 * time.Second):
				t.Error("the client has gone, and the reader is not closed")
			}
		})
	}
}

func TestLogs_serverStops_endsFollow(t *testing.T) {
	t.Parallel()
	w, _, logs := files(t, stream.LogFilesOptions{})
	instance, err := annex.New(
		t.Context(),
		logged(logs),
		annex.Options{Storage: memory.Storage(), DataDir: t.TempDir(), Listen: "127.0.0.1:0"},
	)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ready, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- instance.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-stopped:
		t.Fatal(err)
	}
	config, err := instance.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	response := connect(t, config).send(t.Context(), "follow=true")
	if _, err := io.WriteString(w, "one\n"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(response.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "one\n" {
		t.Fatalf("%q, %v", line, err)
	}
	stop()
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("the stream was cut off: %q, %v", rest, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// endless is a log without an end.
type endless struct {
	line []byte
	read atomic.Int64
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n+len(e.line) <= len(p) {
		n += copy(p[n:], e.line)
	}
	e.read.Add(int64(n))
	return n, nil
}

func (e *endless) Close() error { return nil }

func TestLogs_slowClient_isBounded(t *testing.T) {
	for protocol, offered := range protocols {
		t.Run(protocol, func(t *testing.T) {
			const clients = 50
			var readers []*endless
			c := start(t, stream.Logs("logs", func(context.Context, *stream.LogRequest[v1.Gizmo]) (io.ReadCloser, error) {
				e := &endless{line: []byte("2026-11-23T10:00:00Z a line of a log that is much faster than its reader\n")}
				readers = append(readers, e)
				return e, nil
			}).Timestamped())
			c.http = narrow(t, c.config, offered)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			before := heap()
			for range clients {
				response := c.send(ctx, "follow=true")
				if _, err := io.ReadFull(response.Body, make([]byte, 100)); err != nil {
					t.Fatal(err)
				}
			}
			var read int64
			testwait.Until(t, "the readers have stopped", func() bool {
				last := read
				read = 0
				for _, e := range readers {
					read += e.read.Load() / clients
				}
				return read == last
			})
			each := (heap() - before) / clients
			t.Logf(
				"%s: of %d slow clients each costs %d KiB, the client itself included, and %d KiB have been read for it",
				protocol,
				clients,
				each>>10,
				read>>10,
			)
			if each > 400<<10 {
				t.Errorf("each costs %d KiB", each>>10)
			}
		})
	}
}

// narrow returns a client with small receive buffers.
func narrow(t *testing.T, config *rest.Config, offered []string) *http.Client {
	t.Helper()
	config = rest.CopyConfig(config)
	config.NextProtos = offered
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		DialContext:       config.Dial,
		TLSClientConfig:   tls,
		ForceAttemptHTTP2: offered == nil,
		HTTP2:             &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 64 << 20},
	}
	t.Cleanup(transport.CloseIdleConnections)
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: wrapped}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestLogsAt(t *testing.T) {
	t.Parallel()
	const token = "Bearer secret"
	asked := make(chan *http.Request, 100)
	gone := make(chan struct{})
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		switch r.URL.Query().Get("container") {
		case "refused":
			http.Error(w, "no such container here", http.StatusBadRequest)
			return
		case "elsewhere":
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
			return
		case "broken":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			return
		}
		_, _ = io.WriteString(w, "one\ntwo\n")
		if r.URL.Query().Get("follow") != "" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(gone)
		}
	}))
	defer agent.Close()
	location, err := url.Parse(agent.URL + "/logs/w")
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, stream.LogsAt("logs", func(_ context.Context, r *stream.LogRequest[v1.Gizmo]) (*stream.Backend, error) {
		switch r.Options.Container {
		case "stopped":
			return nil, apierrors.NewBadRequest("it has stopped")
		case "down":
			return &stream.Backend{URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}, nil
		}
		return &stream.Backend{URL: location, BearerToken: "secret"}, nil
	}))
	if got := c.get("container=a&previous=true&tailLines=2&sinceTime=2026-11-23T10:00:00Z&timestamps=true&limitBytes=5"); got != "one\nt" {
		t.Errorf("%q", got)
	}
	r := <-asked
	if want := "container=a&limitBytes=5&previous=true&sinceTime=2026-11-23T10%3A00%3A00Z&tailLines=2&timestamps=true"; r.URL.RawQuery != want ||
		r.URL.Path != "/logs/w" ||
		r.Header.Get("Authorization") != token {
		t.Errorf("asked %s, %v", r.URL, r.Header)
	}
	c.refused("container=refused", 400, "no such container here")
	c.refused("container=stopped", 400, "it has stopped")
	c.refused("container=down", 503, "error trying to reach service")
	c.refused("container=elsewhere", 503, "redirects forbidden")
	c.refused("tailLines=-1", 422, "tailLines")
	response, err := c.http.Get(c.config.Host + gizmosPath + "/w/logs?container=broken")
	if err == nil {
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
	}
	if err == nil {
		t.Error("an agent's log that breaks off is answered as a whole one")
	}
	ctx, leave := context.WithCancel(t.Context())
	lines := bufio.NewReader(c.send(ctx, "follow=true").Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "one\n" {
		t.Errorf("%q, %v", line, err)
	}
	leave()
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the client has gone, and the agent does not know")
	}
}

func TestLogs_needGetPermission(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,jane,42,staff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := annextest.StartWith(
		t,
		logged(stream.Logs("logs", text("line\n"))),
		annex.Options{Storage: memory.Storage(), TokenAuthFile: tokens},
	)
	connect(t, config)
	jane := rest.AnonymousClientConfig(config)
	jane.Dial, jane.BearerToken = config.Dial, "secret"
	h, err := rest.HTTPClientFor(jane)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t, h, jane}
	c.refused("", 403, `User "jane" cannot get resource "gizmos/logs" in API group "legacy.example.com" in the namespace "default"`)
}

func TestLogs_discoveryAndOpenAPI(t *testing.T) {
	t.Parallel()
	c := start(t, stream.Logs("logs", text("line\n")))
	for path, want := range map[string]string{
		"/apis/legacy.example.com/v1": `{"name":"gizmos/logs","singularName":"",` +
			`"namespaced":true,"kind":"LogOptions","verbs":["get"]}`,
		"/openapi/v3/apis/legacy.example.com/v1": `{"name":"tailLines","in":"query","description":"Number of lines from the end of the log. Defaults to all lines."`,
	} {
		response, err := c.http.Get(c.config.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if got, _ := io.ReadAll(response.Body); !strings.Contains(string(got), want) {
			t.Errorf("%s has no %s:\n%.5000s", path, want, got)
		}
	}
}

// BenchmarkFollow follows a log of a million lines as it is written, and checks that all lines arrive in order.
func BenchmarkFollow(b *testing.B) {
	const lines = 1_000_000
	for protocol, offered := range protocols {
		b.Run(protocol, func(b *testing.B) {
			for b.Loop() {
				w, _, logs := files(b, stream.LogFilesOptions{MaxFileBytes: 1 << 30})
				config := rest.CopyConfig(start(b, logs).config)
				config.NextProtos = offered
				c := connect(b, config)
				begun, cpu := time.Now(), processorTime(b)
				go func() {
					var all []byte
					for i := range lines {
						if all = fmt.Appendf(all, "this is line %07d of a log that is followed at full speed\n", i); len(all) > 30<<10 {
							_, _ = w.Write(all) // the reader reports missing lines
							all = all[:0]
						}
					}
					_, _ = w.Write(all)
					_ = w.Close()
				}()
				from := bufio.NewReaderSize(c.send(b.Context(), "follow=true").Body, 64<<10)
				var want []byte
				for i := range lines {
					want = fmt.Appendf(want[:0], "this is line %07d of a log that is followed at full speed\n", i)
					if line, err := from.ReadSlice('\n'); err != nil || string(line) != string(want) {
						b.Fatalf("%q, %v, want %q", line, err, want)
					}
				}
				if rest, err := io.ReadAll(from); err != nil || len(rest) > 0 {
					b.Fatalf("%q, %v", rest, err)
				}
				b.ReportMetric(lines/time.Since(begun).Seconds(), "lines/s")
				b.ReportMetric(float64((processorTime(b)-cpu).Nanoseconds())/lines, "cpu-ns/line")
			}
		})
	}
}

// processorTime returns the processor time of this process: server, writer and client.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The function opens an object's log; the builder does the rest.
func ExampleLogs() {
	logs := stream.Logs("logs", func(_ context.Context, r *stream.LogRequest[v1.Gizmo]) (io.ReadCloser, error) {
		if r.Object.Spec.Size == "" {
			return nil, field.Required(field.NewPath("spec", "size"), "it has no log yet")
		}
		return os.Open(filepath.Join("/var/log/gizmos", r.Namespace, r.Name))
	})
	gizmos := annex.KindOf[v1.Gizmo, v1.GizmoList]("gizmos", v1.API).Subresources(logs)
	fmt.Println(gizmos != nil)
	// Output: true
}
