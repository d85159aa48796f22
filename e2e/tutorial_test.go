package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const tutorial = "../docs/tutorial.md"

// TestTheTutorial does what docs/tutorial.md says, in its order and to the letter, and
// compares what is printed with what the page shows; with -update it rewrites the page.
// Blocks of console are typed into one shell, in which a command that ends with & runs
// on; blocks of diff are applied to the files that they name. It prints how long the
// first page takes, from an empty folder to kubectl get.
//
// The one thing done otherwise is the port: the server takes a free one.
func TestTheTutorial(t *testing.T) {
	text := readFile(t, tutorial)
	dir := filepath.Join(t.TempDir(), "animal")
	r := &reader{t: t, dir: dir, home: filepath.Dir(dir)}
	r.start()
	defer r.end()
	var out strings.Builder
	began, commands, page := time.Now(), 0, 0
	for blocks := text; ; {
		at := blockStart.FindStringSubmatchIndex(blocks)
		if at == nil {
			out.WriteString(blocks)
			break
		}
		before, kind := blocks[:at[1]], blocks[at[2]:at[3]]
		out.WriteString(before)
		body, rest, ok := strings.Cut(blocks[at[1]:], "```\n")
		if !ok {
			t.Fatalf("%s: a block has no end", tutorial)
		}
		blocks = rest
		if strings.Contains(before, "\n## ") {
			if page++; page == 2 {
				t.Logf("from an empty folder to kubectl get: %d commands, %.1fs", commands, time.Since(began).Seconds())
				if commands != 5 {
					t.Errorf("the first page has %d commands, not 5", commands)
				}
			}
		}
		switch kind {
		case "console":
			body = r.typeBlock(body, &commands)
		case "diff":
			r.apply(body)
		}
		out.WriteString(body + "```\n")
		if page == 0 {
			began, commands = time.Now(), 0 // what has to be there
		}
	}
	if *update {
		if err := os.WriteFile(tutorial, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(text, "\n"), strings.Split(out.String(), "\n")); diff != "" {
		t.Errorf("%s is not what happens (-page +now); go test -run Tutorial -update rewrites it\n%s", tutorial, diff)
	}
}

var blockStart = regexp.MustCompile("(?m)^```(console|diff)\n")

// reader types what a page says into a shell.
type reader struct {
	t         *testing.T
	home, dir string
	shell     *exec.Cmd
	in        io.Writer
	out       *bufio.Reader
}

// start begins a shell with job control, so that the server it starts in the background
// is a job that can be ended with all its processes.
func (r *reader) start() {
	r.t.Helper()
	r.shell = exec.Command("bash")
	r.shell.Dir = r.home
	r.shell.Env = append(os.Environ(),
		"PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"GOWORK=off", "LC_ALL=C", "TZ=UTC", "KUBECONFIG=")
	r.shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := r.shell.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	pipe, to, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	r.shell.Stdout, r.shell.Stderr = to, to
	if err := r.shell.Start(); err != nil {
		r.t.Fatal(err)
	}
	to.Close()
	r.in, r.out = in, bufio.NewReader(pipe)
	fmt.Fprintln(r.in, "set -m")
}

// end ends the shell and what it has started, which is all in one session.
func (r *reader) end() {
	if all, err := exec.Command("ps", "-o", "pid=", "-s", fmt.Sprint(r.shell.Process.Pid)).Output(); err == nil {
		for _, field := range strings.Fields(string(all)) {
			if pid, err := strconv.Atoi(field); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	_ = r.shell.Wait()
}

// typeBlock types the commands of a block and returns it with what is printed now.
func (r *reader) typeBlock(body string, commands *int) string {
	var out strings.Builder
	lines := strings.SplitAfter(body, "\n")
	for i := 0; i < len(lines); {
		command, ok := strings.CutPrefix(lines[i], "$ ")
		if !ok {
			r.t.Fatalf("%s: %q is no command", tutorial, lines[i])
		}
		out.WriteString(lines[i])
		for i++; i < len(lines) && strings.HasPrefix(lines[i], "> "); i++ {
			out.WriteString(lines[i])
			command += strings.TrimPrefix(lines[i], "> ")
		}
		expected := 0
		for ; i < len(lines) && lines[i] != "" && !strings.HasPrefix(lines[i], "$ "); i++ {
			expected++
		}
		*commands++
		out.WriteString(r.run(command, expected))
		if i < len(lines) && lines[i] == "" {
			break
		}
	}
	return out.String()
}

// done ends what a command prints.
const done = "--this command is done--"

// run types one command. One that runs on has printed all when there are as many lines
// as the page shows.
func (r *reader) run(command string, expected int) string {
	r.t.Helper()
	began := time.Now()
	// What hangs must not hang the test: without the shell there is nothing to read.
	hung := time.AfterFunc(3*time.Minute, r.end)
	defer hung.Stop()
	typed := strings.ReplaceAll(command, "go run . serve", "go run . serve --secure-port=0")
	background := strings.HasSuffix(strings.TrimSpace(typed), "&")
	end := "printf '\\n%s\\n' '" + done + "'\n"
	if background {
		end = "\n"
	}
	fmt.Fprint(r.in, typed+end)
	var out strings.Builder
	for n := 0; !background || n < expected; n++ {
		line, err := r.out.ReadString('\n')
		if strings.TrimSpace(line) == done {
			break
		}
		if err != nil {
			r.t.Fatalf("%s: the shell ended: %v; so far it printed\n%s", command, err, out.String())
		}
		out.WriteString(line)
	}
	r.t.Logf("%5.1fs  %s", time.Since(began).Seconds(), strings.TrimSpace(command))
	return r.normalize(strings.TrimSuffix(out.String(), "\n"), background)
}

var differs = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:8443"},
	{regexp.MustCompile(`(?m)\b\d+s$`), "1s"},
	{regexp.MustCompile(`\t(\d+\.\d+s|\(cached\))`), "\t0.1s"},
	{regexp.MustCompile(`\[\d+\]\+? +(Interrupt|Terminated|Done|Exit \d+).*\n`), ""},
	{regexp.MustCompile(`(creationTimestamp|uid|resourceVersion): .*`), "$1: ..."},
}

// normalize replaces what differs from run to run by what a page can show.
func (r *reader) normalize(text string, background bool) string {
	text = strings.ReplaceAll(text, r.home, "/home/ada")
	for _, d := range differs {
		text = d.pattern.ReplaceAllString(text, d.word)
	}
	if background && text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}

// apply changes files as a diff of the page says.
func (r *reader) apply(diff string) {
	r.t.Helper()
	cmd := exec.Command("git", "apply", "-")
	cmd.Dir = r.dir
	cmd.Stdin = strings.NewReader(diff)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("a diff of %s does not apply: %v\n%s", tutorial, err, out)
	}
}
