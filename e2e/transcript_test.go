package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// TestTranscripts replays what is in testdata/PROGRAM/*.txt on a server of each
// transcript's own, and compares everything that is printed.
//
// A transcript is read by people first. Text at the left margin is explanation;
// everything else is indented as the terminal would show it:
//
//	$ COMMAND          runs in a shell
//	> MORE             continues the command above, for here documents
//	& [READY] COMMAND  runs in the background and goes on when it has printed READY
//	= LAST             waits for the background command to print LAST, and ends it
//
// and beneath each, indented by two spaces, what it printed on both its outputs.
// Files that commands need follow as a txtar archive. With -update the outputs are
// rewritten, to be reviewed as a diff. What differs from run to run is replaced by
// words such as <age>, see normalize.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		program := filepath.Base(filepath.Dir(file))
		t.Run(program+"/"+strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			replay(t, startServer(t, program), file)
		})
	}
}

func replay(t *testing.T, s *server, file string) {
	archive := txtar.Parse([]byte(readFile(t, file)))
	r := &replayer{server: s, dir: t.TempDir()}
	for _, f := range archive.Files {
		if err := os.WriteFile(filepath.Join(r.dir, f.Name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	defer r.end()
	want := string(archive.Comment)
	got, err := r.replay(t.Context(), want)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if *update {
		archive.Comment = []byte(got)
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s differs from what is printed now (-file +now); go test -run Transcripts -update rewrites it\n%s", file, diff)
	}
}

// replayer runs the commands of one transcript.
type replayer struct {
	server     *server
	dir        string
	background *exec.Cmd
	output     *lockedBuffer
}

// replay returns the transcript with the outputs of now.
func (r *replayer) replay(ctx context.Context, script string) (string, error) {
	var out strings.Builder
	lines := strings.SplitAfter(script, "\n")
	for len(lines) > 0 {
		line := lines[0]
		lines = lines[1:]
		out.WriteString(line)
		verb, argument, _ := strings.Cut(line, " ")
		if !strings.Contains("$&=", verb) || verb == "" {
			continue
		}
		for len(lines) > 0 && strings.HasPrefix(lines[0], "> ") {
			out.WriteString(lines[0])
			argument += strings.TrimPrefix(lines[0], "> ")
			lines = lines[1:]
		}
		printed, err := r.step(ctx, verb, strings.TrimSuffix(argument, "\n"))
		if err != nil {
			return "", fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
		}
		out.WriteString(indent(r.normalize(printed)))
		lines = skipOutput(lines)
	}
	return out.String(), nil
}

// skipOutput drops what a command printed when the transcript was written, but not
// the empty lines after it.
func skipOutput(lines []string) []string {
	for i := 0; i < len(lines); i++ {
		switch {
		case strings.HasPrefix(lines[i], "  "):
			lines, i = lines[i+1:], -1
		case lines[i] != "\n":
			return lines
		}
	}
	return lines
}

func (r *replayer) step(ctx context.Context, verb, argument string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	switch verb {
	case "$":
		return r.run(ctx, argument)
	case "&":
		return "", r.start(ctx, argument)
	case "=":
		return r.finish(ctx, argument)
	}
	return "", nil
}

func (r *replayer) shell(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir = r.dir
	cmd.Env = []string{
		"PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"HOME=" + r.dir,
		"KUBECONFIG=" + r.server.kubeconfig(),
		"SERVER=" + r.server.url(),
		"LC_ALL=C",
		"TZ=UTC",
	}
	// The whole group is ended, not the shell alone, which leaves its children the
	// pipes that Wait waits for.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

func (r *replayer) run(ctx context.Context, script string) (string, error) {
	out, err := r.shell(ctx, script).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%w; so far it printed\n%s", ctx.Err(), out)
	case errors.As(err, &exit):
		return fmt.Sprintf("%s[exit code %d]\n", endLine(string(out)), exit.ExitCode()), nil
	}
	return string(out), err
}

var backgroundCommand = regexp.MustCompile(`^\[(.+?)\] (.+)$`)

func (r *replayer) start(ctx context.Context, argument string) error {
	parts := backgroundCommand.FindStringSubmatch(argument)
	if parts == nil {
		return errors.New("it does not say [WHAT] it prints when it is ready")
	}
	r.output = &lockedBuffer{}
	// It outlives this step.
	r.background = r.shell(context.Background(), parts[2])
	r.background.Stdout, r.background.Stderr = r.output, r.output
	if err := r.background.Start(); err != nil {
		return err
	}
	return r.await(ctx, parts[1])
}

func (r *replayer) finish(ctx context.Context, last string) (string, error) {
	if r.background == nil {
		return "", errors.New("nothing runs in the background")
	}
	if err := r.await(ctx, last); err != nil {
		return "", err
	}
	r.end()
	return logLine.ReplaceAllString(r.output.String(), ""), nil
}

// logLine is a line of kubectl's log, which background commands keep only to say
// that they are ready. Their order is not certain.
var logLine = regexp.MustCompile(`(?m)^[IWE]\d{4} .*\n`)

// await returns when the background command has printed a line with the text.
func (r *replayer) await(ctx context.Context, text string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for line := regexp.MustCompile(regexp.QuoteMeta(text) + `.*\n`); !line.MatchString(r.output.String()); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w while waiting for %q; so far it printed\n%s", ctx.Err(), text, r.output)
		}
	}
	return nil
}

func (r *replayer) end() {
	if r.background != nil {
		r.background.Cancel()
		r.background.Wait()
		r.background = nil
	}
}

// indent is how a transcript shows what was printed, without trailing spaces of lines
// and trailing empty lines.
func indent(text string) string {
	var out strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, " \n")) {
		out.WriteString(strings.TrimRight("  "+line, " \n") + "\n")
	}
	return out.String()
}

func endLine(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\n"
}
