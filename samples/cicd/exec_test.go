package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	"github.com/annexapi/annex/store/memory"

	autobusiv1alpha "example.com/cicd/apis/autobusi/v1alpha"
)

// startExec runs a server, with its controller, on a TCP address, which upgrades need.
func startExec(t *testing.T, options annex.Options) (*api, *rest.Config) {
	t.Helper()
	options.Storage, options.Listen = memory.Storage(), "127.0.0.1:0"
	config := annextest.StartWith(t, server(), options)
	return newAPI(t, config), config
}

// commands are clients of exec, by protocol.
var commands = map[string]func(config *rest.Config, location *url.URL) (remotecommand.Executor, error){
	"WebSocket": func(config *rest.Config, location *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, location.String())
	},
	"SPDY": func(config *rest.Config, location *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, location)
	},
}

func (a *api) execURL(name string, query url.Values) *url.URL {
	r := a.namespaced(a.Post()).Name(name).SubResource("exec")
	for key, values := range query {
		for _, value := range values {
			r.Param(key, value)
		}
	}
	return r.URL()
}

// exec runs a command and returns its output.
func (a *api) exec(
	ctx context.Context,
	t *testing.T,
	config *rest.Config,
	protocol, name string,
	query url.Values,
	stdin io.Reader,
) (stdout, stderr string, err error) {
	t.Helper()
	if stdin != nil {
		query.Set("stdin", "true")
	}
	executor, err := commands[protocol](config, a.execURL(name, query))
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	options := remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errs}
	if query.Get("tty") == "true" {
		options.Stderr, options.Tty = nil, true
	}
	err = executor.StreamWithContext(ctx, options)
	return out.String(), errs.String(), err
}

func TestExec_besideInstance(t *testing.T) {
	t.Parallel()
	a, config := startExec(t, annex.Options{})
	a.running(t, "j", 2)
	big := strings.Repeat("0123456789abcdef", 256<<10) // 4 MiB
	for protocol := range commands {
		for _, test := range []struct {
			container, script, stdin string
			stdout, stderr           string
			code                     int
		}{
			{script: `echo "$INSTANCE of $NAMESPACE/$NAME with $CPU"; pwd -P >&2; test "$(pwd -P)" = "$(cd "$HOME"; pwd -P)"`,
				stdout: "0 of default/j with 2\n", stderr: "/0\n"},
			{container: "1", script: "echo $INSTANCE; echo oops >&2; exit 7", stdout: "1\n", stderr: "oops\n", code: 7},
			{script: "cat", stdin: big, stdout: big},
			{script: "head -c 5", stdin: big, stdout: big[:5]},
			{script: "kill -9 $$", code: 137},
			{script: "sleep 1000 & echo left behind", stdout: "left behind\n"},
		} {
			var stdin io.Reader
			if test.stdin != "" {
				stdin = strings.NewReader(test.stdin)
			}
			query := url.Values{"command": {"sh", "-c", test.script}, "stdout": {"true"}, "stderr": {"true"}}
			if test.container != "" {
				query.Set("container", test.container)
			}
			stdout, stderr, err := a.exec(t.Context(), t, config, protocol, "j", query, stdin)
			code := 0
			if failed := (exec.CodeExitError{}); errors.As(err, &failed) {
				code, err = failed.Code, nil
			}
			if err != nil || code != test.code || stdout != test.stdout || !strings.HasSuffix(stderr, test.stderr) {
				t.Errorf("%s: %s: %v, code %d, %.100q (%d bytes), %.100q", protocol, test.script, err, code, stdout, len(stdout), stderr)
			}
		}
		_, stderr, err := a.exec(
			t.Context(),
			t,
			config,
			protocol,
			"j",
			url.Values{"command": {"no-such-command"}, "stdout": {"true"}, "stderr": {"true"}},
			nil,
		)
		if failed := (exec.CodeExitError{}); !errors.As(err, &failed) || failed.Code != 127 || !strings.Contains(stderr, "no-such-command") {
			t.Errorf("%s: a command that there is not: %v, %q", protocol, err, stderr)
		}
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

func TestExec_terminal(t *testing.T) {
	t.Parallel()
	a, config := startExec(t, annex.Options{})
	a.running(t, "j", 1)
	for protocol, executor := range commands {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			query := url.Values{"command": {"sh"}, "stdin": {"true"}, "stdout": {"true"}, "tty": {"true"}}
			e, err := executor(config, a.execURL("j", query))
			if err != nil {
				t.Fatal(err)
			}
			size := make(sizes, 1)
			size <- remotecommand.TerminalSize{Width: 100, Height: 30}
			defer close(size)
			in, typed := io.Pipe()
			printed, out := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				ended <- e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: size})
				out.Close()
			}()
			var all strings.Builder
			// The size comes over a stream of its own, so the command asks until it has arrived.
			ask := func(want string) {
				go func() {
					// If this fails, the session has ended, which is an error below.
					_, _ = fmt.Fprintf(typed, "until [ \"$(stty size)\" = \"%s\" ]; do :; done; echo \"is $(stty size)\"\n", want)
				}()
				buffer := make([]byte, 4<<10)
				for !strings.Contains(all.String(), "is "+want) {
					n, err := printed.Read(buffer)
					if err != nil {
						t.Fatalf("%v: %q", err, all.String())
					}
					all.Write(buffer[:n])
				}
			}
			ask("30 100")
			size <- remotecommand.TerminalSize{Width: 90, Height: 20}
			ask("20 90")
			go func() { _, _ = io.Copy(io.Discard, printed) }()
			if _, err := io.WriteString(typed, "exit 5\n"); err != nil {
				t.Fatal(err)
			}
			if failed := (exec.CodeExitError{}); !errors.As(<-ended, &failed) || failed.Code != 5 {
				t.Errorf("it ended with %v", failed)
			}
		})
	}
}

func TestExec_clientOrInstanceGone_ends(t *testing.T) {
	t.Parallel()
	needsProc(t)
	a, config := startExec(t, annex.Options{})
	a.running(t, "j", 2)
	for protocol, executor := range commands {
		for _, tty := range []string{"false", "true"} {
			mark := fmt.Sprintf("mark-%d-%s-%s", os.Getpid(), protocol, tty)
			query := url.Values{
				"command": {"sh", "-c", "export MARK=" + mark + "; set -m; sh -c 'sleep 1000' & sh -c 'echo begun; sleep 1001'"},
				"stdout":  {"true"},
				"stderr":  {"false"},
				"tty":     {tty},
			}
			between, leave := between(t, config)
			e, err := executor(between, newAPI(t, between).execURL("j", query))
			if err != nil {
				t.Fatal(err)
			}
			printed, out := io.Pipe()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: out, Tty: tty == "true"})
				out.CloseWithError(fmt.Errorf("it ended: %w", err))
			}()
			if _, err := io.ReadFull(printed, make([]byte, len("begun"))); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, printed) }()
			if len(marked(t, mark)) == 0 {
				t.Errorf("%s, tty %s: the command is not found", protocol, tty)
			}
			begun := time.Now()
			leave()
			<-ended
			for len(marked(t, mark)) > 0 {
				if time.Since(begun) > 10*time.Second {
					t.Fatalf("%s, tty %s: the client has gone, and processes are left: %v", protocol, tty, marked(t, mark))
				}
			}
			t.Logf("%s, tty %s: all processes had ended after %s", protocol, tty, time.Since(begun))
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, _, err := a.exec(
			t.Context(),
			t,
			config,
			"WebSocket",
			"j",
			url.Values{"container": {"1"}, "command": {"sleep", "1000"}, "stdout": {"true"}, "stderr": {"true"}},
			nil,
		)
		ended <- err
	}()
	must(a.patch(t.Context(), "j", `{"spec":{"instanceamount":1}}`))(t)
	must(a.approve(t.Context(), "j", `{"decision":"Approved"}`))(t)
	if err := <-ended; err == nil {
		t.Error("the instance was drained, and the command succeeded")
	}
}

// between is a proxy between a client and the server. leave closes the client's connections, as when its process is
// killed: a cancelled client-go keeps its SPDY connection.
func between(t *testing.T, config *rest.Config) (client *rest.Config, leave func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var mu sync.Mutex
	var open []net.Conn
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", strings.TrimPrefix(config.Host, "https://"))
			if err != nil {
				from.Close()
				continue
			}
			mu.Lock()
			open = append(open, from, to)
			mu.Unlock()
			go func() { _, _ = io.Copy(to, from) }()
			go func() { _, _ = io.Copy(from, to) }()
		}
	}()
	leave = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range open {
			conn.Close()
		}
	}
	t.Cleanup(leave)
	client = rest.CopyConfig(config)
	client.Host, client.Dial = "https://"+listener.Addr().String(), nil
	return client, leave
}

// marked returns the processes with a mark in their environment.
func marked(t *testing.T, mark string) []string {
	t.Helper()
	var pids []string
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if raw, err := os.ReadFile(file); err == nil && strings.Contains(string(raw), "MARK="+mark) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

func TestExec_invalid_isRefused(t *testing.T) {
	t.Parallel()
	a, config := startExec(t, annex.Options{})
	a.running(t, "j", 1)
	must(a.create(t.Context(), "pending", autobusiv1alpha.JenkinsServiceSpec{InstanceAmount: 1, InstanceCPU: 1}))(t)
	for protocol := range commands {
		for _, test := range []struct {
			name  string
			query url.Values
			want  string
		}{
			{"j", url.Values{"stdout": {"true"}}, "you must specify a command"},
			{"j", url.Values{"stdout": {"true"}, "command": {"sh"}, "container": {"3"}}, "container 3 is not valid for jenkinsservices j"},
			{"pending", url.Values{"stdout": {"true"}, "command": {"sh"}}, "it has no instances: it is Pending"},
			{"missing", url.Values{"stdout": {"true"}, "command": {"sh"}}, `"missing" not found`},
		} {
			_, _, err := a.exec(t.Context(), t, config, protocol, test.name, test.query, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %s %v: %v, want %s", protocol, test.name, test.query, err, test.want)
			}
		}
	}
}

// A user who may read logs may not run commands, over any protocol.
func TestExec_needsCreatePermission(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,jane,42,staff\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, config := startExec(t, annex.Options{TokenAuthFile: tokens})
	a.running(t, "j", 1)
	for path, body := range map[string]string{
		"/apis/rbac.authorization.k8s.io/v1/clusterroles": `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"reader"},
			"rules":[{"apiGroups":["autobusi.group.cicd"],"resources":["jenkinsservices/logs","jenkinsservices/exec"],"verbs":["get"]}]}`,
		"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings": `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"reader"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"reader"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"jane"}]}`,
	} {
		if err := a.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	jane := rest.AnonymousClientConfig(config)
	jane.Dial, jane.BearerToken = config.Dial, "secret"
	reader := newAPI(t, jane)
	deadline := time.Now().Add(30 * time.Second)
	for {
		text, err := reader.log(t.Context(), "j")
		if err == nil && strings.HasPrefix(text, "instance 0") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("one who may get logs does not: %v", err)
		}
	}
	for protocol := range commands {
		_, _, err := reader.exec(t.Context(), t, jane, protocol, "j", url.Values{"command": {"true"}, "stdout": {"true"}}, nil)
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), "forbidden") {
			t.Errorf("%s: %v", protocol, err)
		}
	}
}
