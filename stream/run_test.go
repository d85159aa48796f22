package stream_test

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	codes "k8s.io/client-go/util/exec"

	v1 "github.com/annexapi/annex/internal/testing/shop/v1"
	"github.com/annexapi/annex/stream"
)

func runs(ctx context.Context, r *stream.ExecRequest[v1.Widget], s stream.Streams) error {
	cmd := exec.CommandContext(ctx, r.Options.Command[0], r.Options.Command[1:]...)
	if r.Options.Container == "own" {
		cmd.Stdout = io.Discard
	}
	return s.Run(cmd)
}

func TestRun_clientStreams(t *testing.T) {
	t.Parallel()
	config := startWidgets(t, widgets(stream.Exec("exec", runs)))
	eachDialect(t, false, func(t *testing.T, d dialect) {
		out, errs, err := d.run(t, t.Context(), config, command{words: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}})
		var exit codes.CodeExitError
		if out != "out\n" || errs != "err\n" || !errors.As(err, &exit) || exit.Code != 7 {
			t.Errorf("got %q, %q, %v", out, errs, err)
		}
		if out, _, err := d.run(
			t,
			t.Context(),
			config,
			command{words: []string{"head", "-c", "5"}, input: io.MultiReader(strings.NewReader("input and more"), waiting{t.Context()})},
		); out != "input" ||
			err != nil {
			t.Errorf("a command that ends before its input: got %q, %v", out, err)
		}
		if d.halfClose {
			if out, _, err := d.run(
				t,
				t.Context(),
				config,
				command{words: []string{"wc", "-c"}, input: strings.NewReader("four")},
			); strings.TrimSpace(out) != "4" ||
				err != nil {
				t.Errorf("input to its end: got %q, %v", out, err)
			}
		}
		if _, _, err := d.run(
			t,
			t.Context(),
			config,
			command{words: []string{"sh", "-c", "kill -TERM $$"}},
		); !errors.As(err, &exit) ||
			exit.Code != 128+15 {
			t.Errorf("a signal: %v", err)
		}
		for want, c := range map[string]command{
			"Internal error occurred: run a command: fork/exec /no/such/program: no such file or directory": {words: []string{"/no/such/program"}},
			"Internal error occurred: run a command: its streams must not be set": {words: []string{"true"},
				query: map[string][]string{"container": {"own"}}},
		} {
			if _, _, err := d.run(t, t.Context(), config, c); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	})
}

func TestRun_clientGone_killsProcess(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	config := startWidgets(
		t,
		widgets(stream.Exec("exec", func(ctx context.Context, r *stream.ExecRequest[v1.Widget], s stream.Streams) error {
			err := runs(ctx, r, s)
			ended <- err
			return err
		})),
	)
	var client killable
	out, in := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = dialects()[0].stream(
			t,
			ctx,
			client.between(t, config),
			command{words: []string{"sh", "-c", "echo started; exec sleep 1000"}},
			in,
			io.Discard,
		)
	}()
	if _, err := io.ReadFull(out, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	client.kill()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended with %v", err)
	}
	cancel()
	<-done
}
