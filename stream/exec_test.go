package stream_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/internal/testing/testwait"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/stream"
)

const widgetsPath = "/apis/shop.example.com/v1/namespaces/default/widgets"

// patience bounds how long tests wait for an event.
const patience = 30 * time.Second

func shop(kind *annex.KindBuilder[v1.Widget]) annex.Server {
	return annex.Server{Name: "shop", Groups: []annex.Group{{Name: "shop.example.com", Kinds: []annex.Kind{kind}}}}
}

func widgets(subresources ...annex.SubresourceOf[v1.Widget]) *annex.KindBuilder[v1.Widget] {
	return annex.KindOf[v1.Widget, v1.WidgetList]("widgets", v1.API).Subresources(subresources...)
}

// startWidgets runs a server with the widget w.
func startWidgets(t testing.TB, kind *annex.KindBuilder[v1.Widget]) *rest.Config {
	t.Helper()
	config := annextest.Start(t, shop(kind))
	create(t, config, "w")
	return config
}

func create(t testing.TB, config *rest.Config, name string) {
	t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"shop.example.com/v1","kind":"Widget","metadata":{"name":%q}}`, name)
	if err := restClient(t, config).Post().AbsPath(widgetsPath).Body([]byte(body)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
}

func restClient(t testing.TB, config *rest.Config) *rest.RESTClient {
	t.Helper()
	config = rest.CopyConfig(config)
	config.GroupVersion = &schema.GroupVersion{Group: "shop.example.com", Version: "v1"}
	config.APIPath = "/apis"
	config.NegotiatedSerializer = codecs
	c, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func get(t testing.TB, config *rest.Config, path string) string {
	t.Helper()
	raw, err := restClient(t, config).Get().RequestURI(path).Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// urlOf returns the URL of a widget's subresource, with options.
func urlOf(t testing.TB, config *rest.Config, path string, query url.Values) *url.URL {
	t.Helper()
	u, err := url.Parse(config.Host + widgetsPath + "/" + path)
	if err != nil {
		t.Fatal(err)
	}
	if query != nil {
		u.RawQuery = query.Encode()
	}
	return u
}

// dialect is a protocol of clients.
type dialect struct {
	name      string
	halfClose bool // the client can close its input
	codes     bool // the client gets exit codes
	resizes   bool
	executor  func(config *rest.Config, u *url.URL) (remotecommand.Executor, error)
}

func dialects() []dialect {
	webSocket := func(protocol string) func(*rest.Config, *url.URL) (remotecommand.Executor, error) {
		return func(config *rest.Config, u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutorForProtocols(config, http.MethodGet, u.String(), protocol)
		}
	}
	overSPDY := func(protocol string) func(*rest.Config, *url.URL) (remotecommand.Executor, error) {
		return func(config *rest.Config, u *url.URL) (remotecommand.Executor, error) {
			transport, upgrader, err := spdy.RoundTripperFor(config)
			if err != nil {
				return nil, err
			}
			return remotecommand.NewSPDYExecutorForProtocols(transport, upgrader, http.MethodPost, u, protocol)
		}
	}
	return []dialect{
		{"WebSocket v5", true, true, true, webSocket("v5.channel.k8s.io")},
		{"WebSocket v4", false, true, true, webSocket("v4.channel.k8s.io")},
		{"SPDY v4", true, true, true, overSPDY("v4.channel.k8s.io")},
		{"SPDY v3", true, false, true, overSPDY("v3.channel.k8s.io")},
		{"SPDY v2", true, false, false, overSPDY("v2.channel.k8s.io")},
		{"SPDY v1", false, false, false, overSPDY("channel.k8s.io")},
	}
}

// eachDialect runs a test with the protocols of current clients, and, if all is set, with the old ones as well.
func eachDialect(t *testing.T, all bool, test func(t *testing.T, d dialect)) {
	for _, d := range dialects() {
		if all || d.codes {
			t.Run(d.name, func(t *testing.T) { test(t, d) })
		}
	}
}

// command is a command that the tests' clients run. A nil input means no input.
type command struct {
	words  []string
	input  io.Reader
	tty    bool
	sizes  remotecommand.TerminalSizeQueue
	object string
	query  url.Values
}

func (d dialect) run(t testing.TB, ctx context.Context, config *rest.Config, c command) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs lockedBuffer // cancelled clients may still write
	err = d.stream(t, ctx, config, c, &out, &errs)
	return out.String(), errs.String(), err
}

func (d dialect) stream(t testing.TB, ctx context.Context, config *rest.Config, c command, out, errs io.Writer) error {
	t.Helper()
	query := url.Values{"command": c.words, "stdin": {strconv.FormatBool(c.input != nil)}, "tty": {strconv.FormatBool(c.tty)}}
	for name, values := range c.query {
		query[name] = values
	}
	if c.object == "" {
		c.object = "w"
	}
	executor, err := d.executor(config, urlOf(t, config, c.object+"/exec", query))
	if err != nil {
		return err
	}
	options := remotecommand.StreamOptions{Stdin: c.input, Stdout: out, Stderr: errs, Tty: c.tty, TerminalSizeQueue: c.sizes}
	if c.tty {
		options.Stderr = nil
	}
	return executor.StreamWithContext(ctx, options)
}

// toy is the command that the tests run. Sessions that wait send to began and ended.
type toy struct {
	began, ended chan error
}

func newToy() *toy { return &toy{make(chan error, 500), make(chan error, 500)} }

func (toy *toy) run(ctx context.Context, r *stream.ExecRequest[v1.Widget], s stream.Streams) error {
	word := func(i int) string {
		if i < len(r.Options.Command) {
			return r.Options.Command[i]
		}
		return ""
	}
	switch word(0) {
	case "cat":
		_, err := io.Copy(s.Stdout, s.Stdin)
		return err
	case "head": // N bytes
		n, _ := strconv.ParseInt(word(1), 10, 64)
		_, err := io.CopyN(s.Stdout, s.Stdin, n)
		return err
	case "sum": // reads to the end and prints its sum
		h := sha256.New()
		n, err := io.Copy(h, s.Stdin)
		fmt.Fprintf(s.Stdout, "%d %s", n, hex.EncodeToString(h.Sum(nil)))
		return err
	case "echo":
		fmt.Fprintf(s.Stdout, "%s %s %s", r.Name, r.Options.Container, strings.Join(r.Options.Command[1:], " "))
		fmt.Fprint(s.Stderr, "err")
	case "exit":
		code, _ := strconv.Atoi(word(1))
		fmt.Fprint(s.Stdout, "out")
		return fmt.Errorf("the command: %w", stream.ExitError{Code: code})
	case "resized": // N sizes
		n, _ := strconv.Atoi(word(1))
		for size := range s.Resize {
			fmt.Fprintf(s.Stdout, "%dx%d ", size.Width, size.Height)
			if n--; n == 0 {
				return nil
			}
		}
		fmt.Fprint(s.Stdout, "no more")
	case "wait":
		fmt.Fprint(s.Stdout, "waiting")
		toy.began <- nil
		<-ctx.Done()
		toy.ended <- context.Cause(ctx)
		return ctx.Err()
	case "taste": // waits without reading its input
		if _, err := io.ReadFull(s.Stdin, make([]byte, 1)); err != nil {
			return err
		}
		toy.began <- nil
		<-ctx.Done()
		toy.ended <- context.Cause(ctx)
		return ctx.Err()
	case "read": // waits by reading
		fmt.Fprint(s.Stdout, "reading")
		toy.began <- nil
		_, err := io.Copy(io.Discard, s.Stdin)
		toy.ended <- err
		return err
	case "write": // writes for ever
		toy.began <- nil
		for {
			if _, err := s.Stdout.Write(make([]byte, 1<<20)); err != nil {
				toy.ended <- err
				return err
			}
		}
	case "panic":
		fmt.Fprint(s.Stdout, "half")
		panic("as the test wants")
	case "conflict":
		return fmt.Errorf("start: %w", apierrors.NewConflict(schema.GroupResource{Resource: "widgets"}, r.Name, errors.New("it is stopped")))
	case "fail":
		return errors.New("no such command")
	}
	return nil
}

func execs(toy *toy) *stream.ExecBuilder[v1.Widget] { return stream.Exec("exec", toy.run) }

func TestExec_everyProtocol(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(execs(newToy())))
	eachDialect(t, true, func(t *testing.T, d dialect) {
		out, errs, err := d.run(t, t.Context(), config, command{words: []string{"echo", "a b", "c"}, query: url.Values{"container": {"side"}}})
		if out != "w side a b c" || errs != "err" || err != nil {
			t.Errorf("got %q, %q, %v", out, errs, err)
		}
		if out, _, err := d.run(
			t,
			t.Context(),
			config,
			command{words: []string{"head", "5"}, input: strings.NewReader("input")},
		); out != "input" ||
			err != nil {
			t.Errorf("input: got %q, %v", out, err)
		}
		if d.halfClose {
			if out, _, err := d.run(
				t,
				t.Context(),
				config,
				command{words: []string{"cat"}, input: strings.NewReader("to the end")},
			); out != "to the end" ||
				err != nil {
				t.Errorf("half close: got %q, %v", out, err)
			}
		}
		if out, _, err := d.run(t, t.Context(), config, command{words: []string{"cat"}}); out != "" || err != nil {
			t.Errorf("no input: got %q, %v", out, err)
		}
	})
}

func TestExec_exitCodesAndErrors_reachClient(t *testing.T) { // alone: it counts goroutines
	config := startWidgets(t, widgets(execs(newToy())))
	leavesNothing(t, func(t *testing.T) { commandsEnd(t, config) })
}

func commandsEnd(t *testing.T, config *rest.Config) {
	eachDialect(t, true, func(t *testing.T, d dialect) {
		if d.name == "SPDY v1" {
			return // its clients need not wait for errors
		}
		out, _, err := d.run(t, t.Context(), config, command{words: []string{"exit", "7"}})
		var code exec.CodeExitError
		if out != "out" || err == nil || d.codes && (!errors.As(err, &code) || code.Code != 7) {
			t.Errorf("exit code: %q, %v", out, err)
		}
		if _, _, err := d.run(t, t.Context(), config, command{words: []string{"exit", "0"}}); err != nil {
			t.Errorf("exit code 0: %v", err)
		}
		for word, want := range map[string]string{
			"fail":     "Internal error occurred: no such command",
			"conflict": `start: Operation cannot be fulfilled on widgets "w": it is stopped`,
			"panic":    "Internal error occurred: the session caused a panic in the server; see the server's log",
		} {
			if _, _, err := d.run(t, t.Context(), config, command{words: []string{word}}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v", word, err)
			}
		}
	})
}

// sizeQueue is a client's terminal with a list of sizes.
type sizeQueue struct{ left []remotecommand.TerminalSize }

func (q *sizeQueue) Next() *remotecommand.TerminalSize {
	if len(q.left) == 0 {
		return nil
	}
	size := q.left[0]
	q.left = q.left[1:]
	return &size
}

func TestExec_terminalResize(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(execs(newToy())))
	eachDialect(t, true, func(t *testing.T, d dialect) {
		if !d.resizes {
			out, _, err := d.run(t, t.Context(), config, command{words: []string{"resized", "1"}, tty: true})
			if out != "no more" || err != nil {
				t.Errorf("without sizes: got %q, %v", out, err)
			}
			return
		}
		out, _, err := d.run(
			t,
			t.Context(),
			config,
			command{words: []string{"resized", "1"}, tty: true, sizes: &sizeQueue{[]remotecommand.TerminalSize{{Width: 80, Height: 25}}}},
		)
		if out != "80x25 " || err != nil {
			t.Errorf("got %q, %v", out, err)
		}
		if out, _, err := d.run(t, t.Context(), config, command{words: []string{"resized", "1"}}); out != "no more" || err != nil {
			t.Errorf("no terminal: got %q, %v", out, err)
		}
		out, errs, err := d.run(t, t.Context(), config, command{words: []string{"echo", "x"}, tty: true, sizes: &sizeQueue{}})
		if out != "w  x" || errs != "" || err != nil {
			t.Errorf("a terminal has one output: got %q, %q, %v", out, errs, err)
		}
	})
}

// megabytes returns the amount of data to send through commands: ANNEX_STREAM_MB, which is 100 for a full run.
func megabytes(t testing.TB) int {
	n := 8
	if env := os.Getenv("ANNEX_STREAM_MB"); env != "" {
		var err error
		if n, err = strconv.Atoi(env); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func TestExec_largeInput_isUnchanged(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(execs(newToy())))
	size := int64(megabytes(t)) << 20
	random := func() io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{7}), size) }
	want := sha256.New()
	if _, err := io.Copy(want, random()); err != nil {
		t.Fatal(err)
	}
	eachDialect(t, false, func(t *testing.T, d dialect) {
		began := time.Now()
		got := sha256.New()
		err := d.stream(t, t.Context(), config, command{words: []string{"head", strconv.FormatInt(size, 10)}, input: random()}, got, io.Discard)
		if err != nil || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.Errorf("%x, not %x, %v", got.Sum(nil), want.Sum(nil), err)
		}
		t.Logf("%d MiB in and out: %.0f MiB/s", size>>20, float64(size>>20)/time.Since(began).Seconds())
	})
}

// begun waits until a session has begun.
func (toy *toy) begun(t testing.TB) {
	t.Helper()
	select {
	case <-toy.began:
	case <-time.After(patience):
		t.Fatal("the session has not begun")
	}
}

// over waits until a session has ended, and returns the time it took and the reason.
func (toy *toy) over(t testing.TB) (time.Duration, error) {
	t.Helper()
	since := time.Now()
	select {
	case err := <-toy.ended:
		return time.Since(since), err
	case <-time.After(patience):
		t.Fatal("the session has not ended")
		return 0, nil
	}
}

// waiting is an input that never delivers.
type waiting struct{ ctx context.Context }

func (w waiting) Read([]byte) (int, error) { <-w.ctx.Done(); return 0, io.EOF }

func TestExec_clientGone_endsSession(t *testing.T) { // alone: it counts goroutines
	toy := newToy()
	config := startWidgets(t, widgets(execs(toy)))
	leavesNothing(t, func(t *testing.T) { clientsGo(t, toy, config) })
}

func clientsGo(t *testing.T, toy *toy, config *rest.Config) {
	eachDialect(t, false, func(t *testing.T, d dialect) {
		for name, c := range map[string]command{
			"waits":  {words: []string{"wait"}},
			"reads":  {words: []string{"read"}, input: waiting{t.Context()}},
			"writes": {words: []string{"write"}},
			"does not read its input": {words: []string{"taste"}, input: io.MultiReader(strings.NewReader(strings.Repeat("x", 16<<10)),
				waiting{t.Context()})},
		} {
			t.Run(name, func(t *testing.T) {
				var client killable
				config := client.between(t, config)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = d.stream(t, ctx, config, c, io.Discard, io.Discard)
				}()
				toy.begun(t)
				client.kill()
				took, err := toy.over(t)
				if err == nil || took > 2*time.Second && runtime.GOOS == "linux" {
					t.Errorf("ended with %v after %s", err, took)
				}
				if name != "writes" && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("ended with %v", err)
				}
				cancel()
				<-done
			})
		}
	})
}

// leavesNothing runs sessions twice and fails if a goroutine is left, or if the second run leaves more descriptors
// than the first: clients keep connections.
func leavesNothing(t *testing.T, sessions func(t *testing.T)) {
	t.Helper()
	t.Run("once", sessions)
	nothingIsLeft(t)
	before := descriptors(t)
	t.Run("again", sessions)
	nothingIsLeft(t)
	testwait.Until(t, "no descriptor of a session is left", func() bool { return descriptors(t) <= before })
}

// nothingIsLeft waits until no goroutine runs a session.
func nothingIsLeft(t testing.TB) {
	t.Helper()
	testwait.Until(t, "no goroutine of a session is left", func() bool {
		stacks := make([]byte, 16<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return !bytes.Contains(stacks, []byte("internal/server/streams.")) && !bytes.Contains(stacks, []byte("streams.(*session)")) &&
			!bytes.Contains(stacks, []byte("registry.(*requestREST)"))
	})
}

func TestExec_serverStops_endsSession(t *testing.T) {
	t.Parallel()
	for _, d := range dialects() {
		if !d.codes {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			toy := newToy()
			ctx, stop := context.WithCancel(context.Background())
			instance, err := annex.New(ctx, shop(widgets(execs(toy))), annex.Options{Storage: memory.Storage(), Listen: "127.0.0.1:0"})
			if err != nil {
				t.Fatal(err)
			}
			ready, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- instance.Run(ctx, func() { close(ready) }) }()
			<-ready
			config, err := instance.ClientConfig()
			if err != nil {
				t.Fatal(err)
			}
			create(t, config, "w")
			answer := make(chan error, 1)
			go func() {
				_, _, err := d.run(t, context.Background(), config, command{words: []string{"wait"}})
				answer <- err
			}()
			toy.begun(t)
			stop()
			if err := <-answer; err == nil || !strings.Contains(err.Error(), "the server is shutting down") {
				t.Errorf("the client was told %v", err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestExec_idleAndTotal(t *testing.T) { // alone: it counts goroutines
	toy := newToy()
	config := startWidgets(t, widgets(
		stream.Exec("idle", toy.run).Idle(200*time.Millisecond),
		stream.Exec("total", toy.run).Total(200*time.Millisecond),
		stream.Exec("none", toy.run).Idle(-1).Total(-1),
	))
	leavesNothing(t, func(t *testing.T) { limitsEnd(t, config) })
}

func limitsEnd(t *testing.T, config *rest.Config) {
	for _, d := range dialects() {
		if !d.codes {
			continue
		}
		for sub, want := range map[string]string{
			"idle":  "the session was idle for too long",
			"total": "the session exceeded its maximum duration",
		} {
			executor, err := d.executor(config, urlOf(t, config, "w/"+sub, url.Values{"command": {"wait"}}))
			if err != nil {
				t.Fatal(err)
			}
			err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: %v", d.name, sub, err)
			}
		}
		executor, err := d.executor(config, urlOf(t, config, "w/none", url.Values{"command": {"echo", "x"}}))
		if err != nil {
			t.Fatal(err)
		}
		if err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard}); err != nil {
			t.Errorf("%s, without limits: %v", d.name, err)
		}
	}
}

func TestExec_concurrentSessions(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(execs(newToy())))
	for _, d := range dialects()[:3] {
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				text := strings.Repeat(strconv.Itoa(i), 100_000)
				out, _, err := d.run(t, t.Context(), config, command{words: []string{"head", strconv.Itoa(len(text))}, input: strings.NewReader(text)})
				if out != text || err != nil {
					t.Errorf("%s: %d bytes of %d, %v", d.name, len(out), len(text), err)
				}
			})
		}
		all.Wait()
	}
}

func TestExec_metrics(t *testing.T) {
	t.Parallel()
	toy := newToy()
	config := startWidgets(t, widgets(execs(toy).Check(func(_ context.Context, r *stream.ExecRequest[v1.Widget]) error {
		if len(r.Options.Command) > 0 && r.Options.Command[0] == "refused" {
			return apierrors.NewConflict(schema.GroupResource{Resource: "widgets"}, r.Name, errors.New("it is stopped"))
		}
		return nil
	})))
	d := dialects()[0]
	const labels = `{group="shop.example.com",resource="widgets",`
	for word, result := range map[string]string{"echo": "succeeded", "exit": "exit_code", "fail": "failed", "panic": "panicked",
		"refused": "refused"} {
		_, _, _ = d.run(t, t.Context(), config, command{words: []string{word, "3"}})
		want := "annex_connections_ended_total" + labels + `result="` + result + `",subresource="exec"} 1`
		testwait.Until(t, want, func() bool { return strings.Contains(get(t, config, "/metrics"), want) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _, _, _ = d.run(t, ctx, config, command{words: []string{"wait"}}) }()
	toy.begun(t)
	if metrics := get(t, config, "/metrics"); !strings.Contains(metrics, "annex_connections"+labels+`subresource="exec"} 1`) {
		t.Error("the session is not counted")
	}
	cancel()
	<-done
	testwait.Until(t, "the session counts as one whose client went", func() bool {
		metrics := get(t, config, "/metrics")
		return strings.Contains(metrics, "annex_connections_ended_total"+labels+`result="client_gone",subresource="exec"} 1`) &&
			strings.Contains(metrics, "annex_connections"+labels+`subresource="exec"} 0`)
	})
}
