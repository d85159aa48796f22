//go:build unix

// Package transcript replays commands and compares their whole output with a recorded transcript.
//
// A transcript is read by people first. Text at the left margin is explanation; everything else is indented as the
// terminal would show it:
//
//	$ COMMAND          runs in a shell
//	> MORE             continues the command above, for here documents
//	& [READY] COMMAND  runs in the background and continues when it has printed READY
//	= LAST             waits for the background command to print LAST, and ends it
//
// and beneath each, indented by two spaces, its output on both standard output and standard error. Files that
// commands need follow as a txtar archive. Text that differs from run to run is replaced by words such as <age>, see
// [Terminal.Normalize].
package transcript

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
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/annexapi/annex/internal/testing/testlog"
)

// Terminal is the environment of commands. It belongs to one test and is not used concurrently.
type Terminal struct {
	Dir        string // where commands begin, and their home
	Bin        string // first in their PATH
	Kubeconfig string
	Server     string // its URL, in their environment as SERVER and <server> in their output
	// Words replaces texts that belong to this run, such as paths, before all other normalization. It may be nil.
	Words *strings.Replacer
	// Typed replaces texts of commands before they are run, such as ports that other processes may use. It may be
	// nil.
	Typed *strings.Replacer

	background *exec.Cmd
	output     *testlog.Buffer
}

// Test replays a file and fails the test if the output differs. With update it writes the file anew instead.
func Test(t *testing.T, terminal *Terminal, file string, update bool) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range archive.Files {
		if err := os.WriteFile(filepath.Join(terminal.Dir, f.Name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := string(archive.Comment)
	got, err := terminal.Replay(t.Context(), want)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if update {
		archive.Comment = []byte(got)
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s differs from what is printed now (-file +now)\n%s", file, diff)
	}
}

// Replay returns the transcript with the current outputs.
func (t *Terminal) Replay(ctx context.Context, script string) (string, error) {
	defer t.end()
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
		printed, err := t.step(ctx, verb, strings.TrimSuffix(argument, "\n"))
		if err != nil {
			return "", fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
		}
		out.WriteString(indent(t.Normalize(printed)))
		lines = skipOutput(lines)
	}
	return out.String(), nil
}

// skipOutput drops the recorded output of a command, but not the empty lines after it.
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

func (t *Terminal) step(ctx context.Context, verb, argument string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if t.Typed != nil {
		argument = t.Typed.Replace(argument)
	}
	switch verb {
	case "$":
		return t.Run(ctx, argument)
	case "&":
		return "", t.start(ctx, argument)
	case "=":
		return t.finish(ctx, argument)
	}
	return "", nil
}

func (t *Terminal) shell(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir = t.Dir
	cmd.Env = []string{
		"PATH=" + t.Bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"HOME=" + t.Dir,
		"KUBECONFIG=" + t.Kubeconfig,
		"SERVER=" + t.Server,
		"LC_ALL=C",
		"TZ=UTC",
	}
	// End the whole group: the shell alone would leave its children the pipes that Wait waits for.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// Run returns the output of a script, which ends with the exit code if that is not 0.
func (t *Terminal) Run(ctx context.Context, script string) (string, error) {
	out, err := t.shell(ctx, script).CombinedOutput()
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

func (t *Terminal) start(ctx context.Context, argument string) error {
	parts := backgroundCommand.FindStringSubmatch(argument)
	if parts == nil {
		return errors.New("it does not say [WHAT] it prints when it is ready")
	}
	t.output = &testlog.Buffer{}
	// It outlives this step.
	t.background = t.shell(context.Background(), parts[2])
	t.background.Stdout, t.background.Stderr = t.output, t.output
	if err := t.background.Start(); err != nil {
		return err
	}
	return t.await(ctx, parts[1])
}

func (t *Terminal) finish(ctx context.Context, last string) (string, error) {
	if t.background == nil {
		return "", errors.New("nothing runs in the background")
	}
	if err := t.await(ctx, last); err != nil {
		return "", err
	}
	t.end()
	return logLine.ReplaceAllString(t.output.String(), ""), nil
}

// logLine matches a line of kubectl's log, which background commands only keep to show that they are ready. Their
// order is not certain.
var logLine = regexp.MustCompile(`(?m)^[IWE]\d{4} .*\n`)

// await returns when the background command has printed a line with the text.
func (t *Terminal) await(ctx context.Context, text string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for line := regexp.MustCompile(regexp.QuoteMeta(text) + `.*\n`); !line.MatchString(t.output.String()); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w while waiting for %q; so far it printed\n%s", ctx.Err(), text, t.output)
		}
	}
	return nil
}

func (t *Terminal) end() {
	if t.background != nil {
		t.background.Cancel()
		t.background.Wait()
		t.background = nil
	}
}

// indent formats an output for a transcript, without trailing spaces of lines and trailing empty lines.
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
