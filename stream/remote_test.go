package stream_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/annexapi/annex"
	"github.com/annexapi/annex/annextest"
	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/store/memory"
	"github.com/annexapi/annex/stream"
)

// agent returns a server that serves the sessions which another server forwards.
func agent(t *testing.T, toy *toy) func(sub, token string) *stream.Backend {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("secret,front,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := annextest.StartWith(t, shop(everything(t, toy)), annex.Options{Storage: memory.Storage(), TokenAuthFile: tokens})
	create(t, config, "w")
	host, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := rest.TLSConfigFor(rest.AnonymousClientConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	return func(sub, token string) *stream.Backend {
		return &stream.Backend{
			URL: &url.URL{Scheme: "https", Host: host.Host, Path: widgetsPath + "/w/" + sub}, TLS: trusted, BearerToken: token,
		}
	}
}

func TestAgent_servesSessions(t *testing.T) { // alone: it counts goroutines
	toy := newToy()
	behind := agent(t, toy)
	config := startWidgets(t, widgets(
		stream.ExecAt("exec", func(context.Context, *stream.ExecRequest[v1.Widget]) (*stream.Backend, error) {
			return behind("exec", "secret"), nil
		}),
		stream.AttachAt("attach", func(context.Context, *stream.AttachRequest[v1.Widget]) (*stream.Backend, error) {
			return behind("attach", "secret"), nil
		}),
		stream.PortForwardAt("portforward", func(context.Context, *stream.PortForwardRequest[v1.Widget]) (*stream.Backend, error) {
			return behind("portforward", "secret"), nil
		}),
	))
	leavesNothing(t, func(t *testing.T) { agentsServe(t, toy, config) })
}

func agentsServe(t *testing.T, toy *toy, config *rest.Config) {
	eachDialect(t, false, func(t *testing.T, d dialect) {
		out, errs, err := d.run(t, t.Context(), config, command{words: []string{"echo", "a b"}, query: url.Values{"container": {"side"}}})
		if out != "w side a b" || errs != "err" || err != nil {
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
		var code exec.CodeExitError
		if _, _, err := d.run(t, t.Context(), config, command{words: []string{"exit", "7"}}); !errors.As(err, &code) || code.Code != 7 {
			t.Errorf("exit code: %v", err)
		}
		if _, _, err := d.run(
			t,
			t.Context(),
			config,
			command{words: []string{"conflict"}},
		); err == nil ||
			!strings.Contains(err.Error(), "it is stopped") {
			t.Errorf("an error: %v", err)
		}
		out, _, err = d.run(
			t,
			t.Context(),
			config,
			command{words: []string{"resized", "1"}, tty: true, sizes: &sizeQueue{[]remotecommand.TerminalSize{{Width: 80, Height: 25}}}},
		)
		if out != "80x25 " || err != nil {
			t.Errorf("sizes: got %q, %v", out, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = d.run(t, ctx, config, command{words: []string{"wait"}})
		}()
		toy.begun(t)
		cancel()
		if _, err := toy.over(t); err == nil {
			t.Error("the agent's session ended without a reason")
		}
		<-done
	})
	echoing := echo(t)
	for way := range forwards {
		address, _ := forwarded(t, config, way, "w/portforward", portOf(echoing))
		text := strings.Repeat("x", 1<<20)
		if got, err := exchange(address, text); got != text || err != nil {
			t.Errorf("%s: %d bytes, %v", way, len(got), err)
		}
	}
	if got, text := answer(t, config, "GET", "w/attach", asWebSocket); got != 101 {
		t.Errorf("attach: %d %s", got, text)
	}
	if got, text := answer(t, config, "GET", "w/portforward", asWebSocket); got != 400 {
		t.Errorf("a protocol for commands: %d %s", got, text)
	}
}

func TestAgent_refusesOrIsUnreachable(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	behind := agent(t, newToy())
	config := startWidgets(t, widgets(
		stream.ExecAt("exec", func(_ context.Context, r *stream.ExecRequest[v1.Widget]) (*stream.Backend, error) {
			switch r.Options.Command[0] {
			case "down":
				return &stream.Backend{URL: &url.URL{Scheme: "http", Host: closed.Addr().String()}}, nil
			case "stranger":
				return behind("exec", "wrong"), nil
			case "none":
				return nil, nil
			case "query":
				b := behind("exec", "secret")
				b.URL.RawQuery = "stdout=true&stderr=true&command=echo&command=mine"
				return b, nil
			}
			return nil, errors.New("no idea where")
		}),
		stream.PortForwardAt("portforward", func(context.Context, *stream.PortForwardRequest[v1.Widget]) (*stream.Backend, error) {
			return &stream.Backend{URL: &url.URL{Scheme: "http", Host: closed.Addr().String()}}, nil
		}),
	))
	eachDialect(t, false, func(t *testing.T, d dialect) {
		for word, want := range map[string]string{
			"down":     "error trying to reach service: connect with the agent: ",
			"stranger": "Unauthorized",
			"none":     "the backend has no http or https URL",
			"nowhere":  "no idea where",
		} {
			if _, _, err := d.run(t, t.Context(), config, command{words: []string{word}}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", word, err)
			}
		}
		if out, _, err := d.run(t, t.Context(), config, command{words: []string{"query"}}); out != "w  mine" || err != nil {
			t.Errorf("a query of one's own: %q, %v", out, err)
		}
	})
	if got, text := answer(
		t,
		config,
		"POST",
		"w/portforward",
		asForward,
	); got != 503 ||
		!strings.Contains(text, "error trying to reach service") {
		t.Errorf("forward: %d %s", got, text)
	}
	if got, text := answer(
		t,
		config,
		"GET",
		"w/portforward",
		asTunnel,
	); got != 503 ||
		!strings.Contains(text, "error trying to reach service") {
		t.Errorf("tunnel: %d %s", got, text)
	}
}
