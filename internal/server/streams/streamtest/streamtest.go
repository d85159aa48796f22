// Package streamtest tests the subresources exec, attach, log, portforward and proxy of an object from the client's
// side. It is used by tests of whole servers: standalone, on every storage, and behind a cluster.
package streamtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// Target is an object with these properties: a shell runs its commands, attach echoes its input, its ports are those
// of this machine, and its log has ten lines, of two containers.
type Target struct {
	Config *rest.Config
	// Path is the path of the object, such as /apis/theatre.example.com/v1/namespaces/default/halls/s.
	Path string
	// Log is the text of the last two lines of the second container's log.
	Container, Log string
}

// Box starts the backend of the target's proxy subresource, which ends with the test.
func Box(t *testing.T) string {
	t.Helper()
	box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %q", r.Method, r.URL.RequestURI(), body, r.Header.Get("Authorization")+r.Header.Get("X-Remote-User"))
	}))
	t.Cleanup(box.Close)
	return box.URL
}

// Test tests all subresources. size is the number of bytes that are sent through a command in each direction.
func (target Target) Test(t *testing.T, size int) {
	target.Commands(t, size)
	t.Run("attach", target.attached)
	t.Run("log", target.log)
	for name, dial := range dialers {
		t.Run("ports over "+name, func(t *testing.T) { target.ports(t, dial) })
	}
	t.Run("proxy", target.proxied)
}

// Commands tests exec over every protocol.
func (target Target) Commands(t *testing.T, size int) {
	for _, d := range dialects() {
		t.Run("commands over "+d.name, func(t *testing.T) { target.commands(t, d, size) })
	}
}

// sizes are the sizes of a client's terminal.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	if size, ok := <-s; ok {
		return &size
	}
	return nil
}

// Terminal tests that a command has a terminal with the size that the client sets.
func (target Target) Terminal(t *testing.T) {
	const script = `until [ "$(stty size)" = "25 80" ]; do sleep 0.1; done; echo resized`
	for _, d := range dialects() {
		executor, err := d.executor(
			target.Config,
			target.url(t, "exec", url.Values{"command": {"sh", "-c", script}, "stdout": {"true"}, "tty": {"true"}}),
		)
		if err != nil {
			t.Fatal(err)
		}
		queue := make(sizes, 1)
		queue <- remotecommand.TerminalSize{Width: 80, Height: 25}
		close(queue)
		var out bytes.Buffer
		err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Tty: true, TerminalSizeQueue: queue})
		if err != nil || out.String() != "resized\r\n" {
			t.Errorf("%s: %q, %v", d.name, out.String(), err)
		}
	}
}

type dialect struct {
	name     string
	executor func(config *rest.Config, u *url.URL) (remotecommand.Executor, error)
	// halfClose is set if the client can signal the end of its input.
	halfClose bool
}

func dialects() []dialect {
	webSocket := func(protocol string) func(*rest.Config, *url.URL) (remotecommand.Executor, error) {
		return func(config *rest.Config, u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutorForProtocols(config, http.MethodGet, u.String(), protocol)
		}
	}
	return []dialect{
		{"WebSocket v5", webSocket("v5.channel.k8s.io"), true},
		{"WebSocket v4", webSocket("v4.channel.k8s.io"), false},
		{"SPDY", func(config *rest.Config, u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(config, http.MethodPost, u)
		}, true},
		{"what kubectl chooses", func(config *rest.Config, u *url.URL) (remotecommand.Executor, error) {
			first, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, u.String())
			if err != nil {
				return nil, err
			}
			second, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, u)
			if err != nil {
				return nil, err
			}
			return remotecommand.NewFallbackExecutor(first, second, func(err error) bool { return httpstream.IsUpgradeFailure(err) })
		}, true},
	}
}

func (target Target) url(t *testing.T, subresource string, query url.Values) *url.URL {
	t.Helper()
	u, err := url.Parse(target.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	u.Path, u.RawQuery = target.Path+"/"+subresource, query.Encode()
	return u
}

// run runs a command, and returns its exit code.
func (target Target) run(t *testing.T, d dialect, subresource string, stdin io.Reader, words ...string) (stdout, stderr string, code int) {
	t.Helper()
	executor, err := d.executor(
		target.Config,
		target.url(
			t,
			subresource,
			url.Values{"command": words, "stdin": {strconv.FormatBool(stdin != nil)}, "stdout": {"true"}, "stderr": {"true"}},
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errs})
	var exit exec.CodeExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s of %v: %v", subresource, words, err)
	}
	return out.String(), errs.String(), exit.Code
}

func (target Target) commands(t *testing.T, d dialect, size int) {
	if out, errs, code := target.run(
		t,
		d,
		"exec",
		nil,
		"sh",
		"-c",
		"echo out; echo err >&2; exit 7",
	); out != "out\n" || errs != "err\n" ||
		code != 7 {
		t.Errorf("it printed %q and %q with the exit code %d", out, errs, code)
	}
	sent := make([]byte, size)
	_, _ = rand.Read(sent) // never fails
	words := []string{"cat"}
	if !d.halfClose {
		words = []string{"head", "-c", strconv.Itoa(size)}
	}
	if out, _, code := target.run(t, d, "exec", bytes.NewReader(sent), words...); out != string(sent) || code != 0 {
		t.Errorf("%d bytes came back of %d, exit code %d", len(out), len(sent), code)
	}
}

func (target Target) attached(t *testing.T) {
	if out, errs, _ := target.run(
		t,
		dialects()[0],
		"attach",
		strings.NewReader("hello"),
	); out != "hello" ||
		!strings.HasPrefix(errs, "attached") {
		t.Errorf("attached: %q, %q", out, errs)
	}
}

func (target Target) client(t *testing.T) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(target.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (target Target) log(t *testing.T) {
	response, err := target.client(t).Get(target.url(t, "log", url.Values{"container": {target.Container}, "tailLines": {"2"}}).String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != target.Log || response.StatusCode != http.StatusOK {
		t.Errorf("log: %s %q, %v", response.Status, body, err)
	}
}

var dialers = map[string]func(config *rest.Config, u *url.URL) (httpstream.Dialer, error){
	"a WebSocket": func(config *rest.Config, u *url.URL) (httpstream.Dialer, error) {
		return portforward.NewSPDYOverWebsocketDialerForStreaming(u, config)
	},
	"SPDY": func(config *rest.Config, u *url.URL) (httpstream.Dialer, error) {
		transport, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			return nil, err
		}
		return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u), nil
	},
}

// ports opens fifty connections at once through one forward.
func (target Target) ports(t *testing.T, dialer func(*rest.Config, *url.URL) (httpstream.Dialer, error)) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	dial, err := dialer(target.Config, target.url(t, "portforward", nil))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	forward, err := portforward.NewOnAddressesForStreamingWithContext(
		ctx,
		dial,
		[]string{"127.0.0.1"},
		[]string{fmt.Sprintf("0:%d", echo.Addr().(*net.TCPAddr).Port)},
		ready,
		io.Discard,
		io.Discard,
	)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- forward.ForwardPorts() }()
	defer func() { cancel(); <-ended }()
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		t.Fatalf("forward: %v", err)
	}
	ports, err := forward.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			sent := bytes.Repeat([]byte{byte(i)}, 100_000)
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			go func() {
				_, _ = conn.Write(sent)
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
			if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("connection %d: %d bytes came back of %d, %v", i, len(got), len(sent), err)
			}
		})
	}
	all.Wait()
}

func (target Target) proxied(t *testing.T) {
	u := target.url(t, "proxy", url.Values{"seat": {"7"}})
	u.Path += "/tickets"
	response, err := target.client(t).Post(u.String(), "text/plain", strings.NewReader("two"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != `POST /tickets?seat=7 two ""` {
		t.Errorf("proxy: %s %s, %v", response.Status, body, err)
	}
}

// Refused tests that a command is rejected before the upgrade, with a matching error, over every protocol.
func (target Target) Refused(t *testing.T, is func(error) bool) {
	t.Helper()
	for _, d := range dialects() {
		executor, err := d.executor(target.Config, target.url(t, "exec", url.Values{"command": {"true"}, "stdout": {"true"}}))
		if err != nil {
			t.Fatal(err)
		}
		err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		if err == nil || !is(err) && !is(errors.Unwrap(err)) {
			t.Errorf("%s: %v", d.name, err)
		}
	}
}
