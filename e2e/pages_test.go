package e2e

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The pages of the project contain commands, and TestPages runs them, in their order and unchanged, in a shell and an
// empty folder for each page:
//
//   - A block of console has commands after "$ ", with their output; "..." stands for
//     any text, and as a line for any number of lines. With -update, the actual output
//     replaces different output in the page.
//   - A block of sh has commands only. Each has to end with 0.
//   - A block of diff is applied to the files that it names.
//
// A comment before a block, or alone, describes steps that the page omits or that the reader does elsewhere:
//
//	<!-- run: COMMANDS -->       runs commands that the page does not show
//	<!-- background: TEXT -->    the block's command keeps running; it has begun when it prints TEXT
//	<!-- not run: REASON -->     the block is not run
//	<!-- needs: PROGRAM ... -->  the page is only run where these programs are, in bin or PATH
//	<!-- file: PATH -->          the block is the file at that path
//	<!-- project -->             the page begins in a project that annex init and create api made
//
// Differences from the page: servers listen on free ports, and make works in the checkout while its server keeps its
// data in the page's folder.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, path := range pages(t) {
		text := readFile(t, path)
		if !strings.Contains(text, "```console\n") && !strings.Contains(text, "```sh\n") {
			continue
		}
		t.Run(strings.TrimPrefix(strings.TrimSuffix(path, ".md"), "../"), func(t *testing.T) {
			t.Parallel()
			p := parsePage(t, path, text)
			if !slices.ContainsFunc(p, block.isRun) {
				t.Skip("no block of this page is run")
			}
			out := runPage(t, path, p)
			if *update {
				if err := os.WriteFile(path, []byte(out), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(strings.Split(text, "\n"), strings.Split(out, "\n")); diff != "" {
				t.Errorf("%s is not what happens (-page +now); go test -run '%s' -update rewrites it\n%s", path, t.Name(), diff)
			}
		})
	}
}

// TestPages_everyCommandIsRun finds commands that TestPages would not see.
func TestPages_everyCommandIsRun(t *testing.T) {
	t.Parallel()
	command := regexp.MustCompile(`^(\$ |(annex|wardle|kubectl|SERVER|go|make) [^[\n]*\n)`) // with brackets it is a synopsis
	tests := testNames(t)
	for _, path := range pages(t) {
		for _, b := range parsePage(t, path, readFile(t, path)) {
			if !b.text && slices.Contains([]string{"", "text", "bash", "shell"}, b.kind) && b.notRun == "" && command.MatchString(b.body) {
				t.Errorf("%s: these commands are not run: make the block sh or console\n%s", path, b.body)
			}
			for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(b.notRun, -1) {
				if !tests[name] {
					t.Errorf("%s says that %s runs commands: there is no such test", path, name)
				}
			}
		}
	}
}

// testNames returns the names of all tests of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.Command("git", "-C", "..", "grep", "-hoE", `^func Test\w+`, "--", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		names[strings.TrimPrefix(line, "func ")] = true
	}
	return names
}

// TestTutorial_beginsWithFiveCommands keeps the first section short: from an empty folder to kubectl get.
func TestTutorial_beginsWithFiveCommands(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(readFile(t, "../docs/tutorial.md"), "\n## 1.")
	section, _, _ = strings.Cut(section, "\n## 2.")
	if n := strings.Count(section, "\n$ "); n != 5 {
		t.Errorf("the first section has %d commands, not 5", n)
	}
}

// TestPages_verbsExist runs the programs' help for every verb and flag that the pages name.
func TestPages_verbsExist(t *testing.T) {
	t.Parallel()
	span := regexp.MustCompile("`(annex|SERVER|wardle|shop) ([a-z][^`\n]*)`")
	help := map[string]string{}
	for _, path := range pages(t) {
		for _, match := range span.FindAllStringSubmatch(readFile(t, path), -1) {
			program := match[1]
			if program != "annex" {
				program = "wardle"
			}
			own, _, _ := strings.Cut(match[2], " -- ")
			words := strings.Fields(own)
			var verbs []string
			for _, word := range words {
				if !regexp.MustCompile(`^[a-z-]+$`).MatchString(word) || strings.HasPrefix(word, "-") {
					break
				}
				verbs = append(verbs, word)
			}
			if len(verbs) == 0 {
				continue
			}
			text, known := "", false
			for n := min(len(verbs), 2); n > 0 && text == ""; n-- { // the text after a verb may be an argument
				key := program + " " + strings.Join(verbs[:n], " ")
				if text, known = help[key]; !known {
					out, err := exec.Command(filepath.Join(bin, program), append(verbs[:n:n], "--help")...).CombinedOutput()
					if text = string(out); err != nil || !strings.Contains(text, key) {
						text = ""
					}
					help[key] = text
				}
			}
			if text == "" {
				t.Errorf("%s: `%s` names a verb that %s does not have", path, match[1]+" "+match[2], program)
				continue
			}
			for _, word := range words {
				flag, _, _ := strings.Cut(strings.TrimRight(word, ",.)'\""), "=")
				if strings.HasPrefix(flag, "--") && flag != "--" && !strings.Contains(text, flag) {
					t.Errorf("%s: `%s` names %s, which the verb does not have", path, match[1]+" "+match[2], flag)
				}
			}
		}
	}
}

// pages returns the pages for people who use Annex or work on it.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"../*.md", "../samples/*/README.md"} {
		match, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, match...)
	}
	found = slices.DeleteFunc(found, func(path string) bool {
		return path == "../samples/animal/README.md" // annex init writes it, for any project
	})
	err := filepath.WalkDir("../docs", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// block is a part of a page: a fenced block, or the text up to it.
type block struct {
	text       bool   // not fenced
	kind       string // console, sh, diff...
	indent     string
	body       string // without indent; of text, the text
	opening    string
	closing    string
	hidden     []string // commands to run before it
	background string
	notRun     string
	needs      []string
	file       string
	project    bool
}

func (b block) isRun() bool {
	return !b.text && b.notRun == "" && slices.Contains([]string{"console", "sh"}, b.kind)
}

var (
	fenceLine = regexp.MustCompile("^([ \t]*)```([a-z]*)[ \t]*$")
	remark    = regexp.MustCompile(`(?m)^[ \t]*<!-- (run|background|not run|needs|file|project):? ?(.*?) ?-->$`)
)

func parsePage(t *testing.T, path, text string) []block {
	t.Helper()
	var blocks []block
	var prose strings.Builder
	lines := strings.SplitAfter(text, "\n")
	for i := 0; i < len(lines); i++ {
		opening := fenceLine.FindStringSubmatch(strings.TrimSuffix(lines[i], "\n"))
		if opening == nil {
			prose.WriteString(lines[i])
			continue
		}
		b := block{kind: opening[2], indent: opening[1], opening: lines[i]}
		before := prose.String()
		for _, match := range remark.FindAllStringSubmatch(before, -1) {
			switch match[1] {
			case "run":
				b.hidden = append(b.hidden, match[2])
			case "background":
				b.background = match[2]
			case "not run":
				b.notRun = match[2]
			case "needs":
				b.needs = strings.Fields(match[2])
			case "file":
				b.file = match[2]
			case "project":
				b.project = true
			}
		}
		blocks = append(blocks, block{text: true, body: before})
		prose.Reset()
		for i++; ; i++ {
			if i == len(lines) {
				t.Fatalf("%s: a block has no end", path)
			}
			if closing := fenceLine.FindStringSubmatch(strings.TrimSuffix(lines[i], "\n")); closing != nil && closing[2] == "" {
				b.closing = lines[i]
				break
			}
			b.body += strings.TrimPrefix(lines[i], b.indent)
		}
		blocks = append(blocks, b)
	}
	return append(blocks, block{text: true, body: prose.String()})
}

// runPage runs a page's blocks and returns the page with their current output.
func runPage(t *testing.T, path string, p []block) string {
	home := t.TempDir()
	r := &reader{t: t, page: path, home: home, ports: map[string]string{}}
	for _, b := range p {
		for _, program := range b.needs {
			if _, err := os.Stat(filepath.Join(bin, program)); err == nil {
				continue
			}
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("%s is not here", program)
			}
		}
	}
	r.start()
	defer r.end()
	if slices.ContainsFunc(p, func(b block) bool { return b.project }) {
		r.hidden("mkdir demo && cd demo && annex init --domain demo.io && annex create api --group animal --version v1alpha1 --kind Cat && " +
			"git init -q . && git add . && git commit -q -m begin")
	}
	var out strings.Builder
	began := false
	for _, b := range p {
		if b.text {
			out.WriteString(b.body)
			continue
		}
		for _, command := range b.hidden {
			r.hidden(command)
		}
		body := b.body
		switch {
		case b.notRun != "":
		case b.file != "":
			r.hidden("cat > " + b.file + " <<'END OF FILE'\n" + body + "END OF FILE")
			began = true
		case b.kind == "console":
			body, began = r.console(body), true
		case b.kind == "sh":
			r.sh(body, b.background)
			began = true
		case b.kind == "diff" && began: // before any command it is a quotation
			r.apply(body)
		}
		out.WriteString(b.opening)
		for _, line := range strings.SplitAfter(body, "\n") {
			if line != "" && line != "\n" {
				line = b.indent + line
			}
			out.WriteString(line)
		}
		out.WriteString(b.closing)
	}
	return out.String()
}

// reader types the commands of a page into a shell.
type reader struct {
	t     *testing.T
	page  string
	home  string // the shell begins here
	ports map[string]string
	shell *exec.Cmd
	in    io.Writer
	out   *bufio.Reader
}

// start begins a shell with job control, so that a server started in the background is a job that can be ended with
// all its processes.
func (r *reader) start() {
	r.t.Helper()
	known, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		r.t.Fatal(err)
	}
	caches := strings.Split(string(known), "\n")
	programs := r.checkout()
	if *released != "" {
		programs = r.release(caches[1])
	}
	r.shell = exec.Command("bash")
	r.shell.Dir = r.home
	r.shell.Env = append(
		os.Environ(),
		"HOME="+r.home,
		"GOCACHE="+caches[0],
		"GOMODCACHE="+caches[1],
		"GOPATH="+caches[2],
		"GIT_AUTHOR_NAME=Ada",
		"GIT_AUTHOR_EMAIL=ada@example.com",
		"GIT_COMMITTER_NAME=Ada",
		"GIT_COMMITTER_EMAIL=ada@example.com",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GOWORK=off",
		"LC_ALL=C",
		"TZ=UTC",
		"KUBECONFIG=",
	)
	r.shell.Env = append(r.shell.Env, programs...)
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

// checkout returns the environment of a page whose reader has a checkout. It is beside the files of the page, by a symbolic link.
func (r *reader) checkout() []string {
	r.t.Helper()
	checkout := filepath.Join(r.home, "annex")
	if err := os.Symlink(filepath.Dir(bin), checkout); err != nil {
		r.t.Fatal(err)
	}
	return []string{
		"PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"CHECKOUT=" + filepath.Dir(bin),
		"ANNEX_CHECKOUT=" + checkout,
	}
}

// release returns the environment of a page whose reader has an output of make release-dry, kubectl and Go, and nothing else: the
// tool is from the archive, its modules are from the file proxy, and all others from the modules in cache, or over the network.
func (r *reader) release(cache string) []string {
	r.t.Helper()
	output, err := filepath.Abs(*released)
	if err != nil {
		r.t.Fatal(err)
	}
	proxy, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		r.t.Fatal(err)
	}
	programs, modules := filepath.Join(r.home, ".bin"), filepath.Join(r.home, ".modules")
	if err := os.Mkdir(programs, 0o755); err != nil {
		r.t.Fatal(err)
	}
	version := strings.TrimSpace(readFile(r.t, filepath.Join(output, "VERSION")))
	archive := "annex_" + version + "_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	for _, args := range [][]string{
		{"tar", "-xzf", filepath.Join(output, archive), "-C", programs, "annex"},
		{"ln", "-s", filepath.Join(bin, "kubectl"), filepath.Join(programs, "kubectl")},
	} {
		if err := run(args); err != nil {
			r.t.Fatal(err)
		}
	}
	return []string{
		"PATH=" + programs + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"ANNEX_CHECKOUT=",
		"GOMODCACHE=" + modules,
		"GOFLAGS=-modcacherw -trimpath", // the next run finds what this one has compiled
		"CGO_ENABLED=0",
		"GOPROXY=file://" + filepath.Join(output, "proxy") + ",file://" + filepath.Join(cache, "cache", "download") + "," +
			strings.TrimSpace(string(proxy)),
		"GONOSUMDB=*", // unpublished modules are not in the checksum database
	}
}

// end ends the shell and all processes that it has started, which are in one session.
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

// hidden runs commands that the page does not show.
func (r *reader) hidden(commands string) {
	r.t.Helper()
	if out, code := r.run(commands, nil); code != 0 {
		r.t.Fatalf("%s: %s: exit code %d\n%s", r.page, commands, code, out)
	}
}

// sh runs the commands of a block.
func (r *reader) sh(body, background string) {
	r.t.Helper()
	if background != "" {
		r.run("{ {\n"+body+"}; echo '"+ended+"'; } &", func(line string) bool { return strings.Contains(line, background) })
		return
	}
	// The failure of any command is the failure of the block. The block's effects stay: folders, variables.
	if out, code := r.run("set -E; trap 'failed=$?' ERR; failed=0\n"+body+"\ntrap - ERR; (exit $failed)", nil); code != 0 {
		r.t.Fatalf("%s: exit code %d of\n%s\n%s", r.page, code, body, out)
	}
}

// console runs the commands of a block and returns it with their current output.
func (r *reader) console(body string) string {
	r.t.Helper()
	var out strings.Builder
	lines := strings.SplitAfter(body, "\n")
	for i := 0; i < len(lines) && lines[i] != ""; {
		command, ok := strings.CutPrefix(lines[i], "$ ")
		if !ok {
			r.t.Fatalf("%s: %q is no command", r.page, lines[i])
		}
		out.WriteString(lines[i])
		for i++; i < len(lines) && strings.HasPrefix(lines[i], "> "); i++ {
			out.WriteString(lines[i])
			command += strings.TrimPrefix(lines[i], "> ")
		}
		shown := ""
		for ; i < len(lines) && !strings.HasPrefix(lines[i], "$ "); i++ {
			shown += lines[i]
		}
		var until func(string) bool
		if strings.HasSuffix(strings.TrimSpace(command), "&") {
			left := strings.Count(shown, "\n")
			until = func(string) bool { left--; return left <= 0 }
			if left == 0 {
				r.t.Fatalf("%s: %s: what runs on has to print something, or it is not known when it has begun", r.page, command)
			}
		}
		printed, _ := r.run(command, until)
		if printed != "" && !strings.HasSuffix(printed, "\n") {
			printed += "\n"
		}
		if stands(shown).MatchString(printed) {
			printed = shown
		}
		out.WriteString(printed)
	}
	return out.String()
}

// stands returns a pattern for the output in a page.
func stands(shown string) *regexp.Regexp {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for _, line := range strings.SplitAfter(shown, "\n") {
		if line == "...\n" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, `.*?`))
	}
	return regexp.MustCompile(pattern.String() + `\z`)
}

const (
	done  = "--this command is done--"   // ends the output of a command
	ended = "--this program has ended--" // a program that should keep running in the background
)

// run types commands and returns their output, and the exit code of the last command. For a command that keeps
// running in the background, until reports from its lines whether it has begun.
func (r *reader) run(command string, until func(line string) bool) (string, int) {
	r.t.Helper()
	began := time.Now()
	// A hanging command must not hang the test: without the shell there is nothing to read.
	limit := 10 * time.Minute
	if *released != "" {
		limit = 30 * time.Minute // the first command compiles all modules
	}
	hung := time.AfterFunc(limit, r.end)
	defer hung.Stop()
	end := "\nprintf '\\n%s%d\\n' '" + done + "' $?\n"
	if until != nil {
		end = "\n"
	}
	// Commands do not share the shell's input: a command that reads would take the next input.
	fmt.Fprint(r.in, "{\n"+r.typed(strings.TrimSuffix(command, "\n"))+"\n} </dev/null"+end)
	var out strings.Builder
	code := 0
	for {
		line, err := r.out.ReadString('\n')
		if rest, ok := strings.CutPrefix(line, done); ok {
			code, _ = strconv.Atoi(strings.TrimSpace(rest))
			break
		}
		if err != nil {
			r.t.Fatalf("%s: %s: the shell ended: %v; so far it printed\n%s", r.page, command, err, out.String())
		}
		if strings.TrimSpace(line) == ended {
			if until != nil {
				r.t.Fatalf("%s: %s: it ended, and printed\n%s", r.page, command, out.String())
			}
			continue // it was requested
		}
		out.WriteString(line)
		if until != nil && until(line) {
			break
		}
	}
	r.t.Logf("%5.1fs  %s", time.Since(began).Seconds(), strings.TrimSpace(command))
	text := out.String()
	if until == nil {
		text = strings.TrimSuffix(text, "\n")
	}
	return r.normalize(text), code
}

var (
	serves    = regexp.MustCompile(`\b(?:wardle|animal|demo|run \.|run) serve\b[^\n|;]*`)
	namesPort = regexp.MustCompile(`\b(?:6080|8443|8444|8080|6443|2379|2380)\b`)
	makes     = regexp.MustCompile(`(?m)^make run\b`)
)

// typed returns a command with free ports.
func (r *reader) typed(command string) string {
	command = makes.ReplaceAllLiteralString(
		command,
		`GOWORK= make -s --no-print-directory -C "$CHECKOUT" run SERVE="--data-dir '$PWD/data' --secure-port 8443"`,
	)
	command = serves.ReplaceAllStringFunc(command, func(serve string) string {
		if strings.Contains(serve, "--secure-port") || strings.Contains(serve, "--help") {
			return serve
		}
		at := strings.Index(serve, " serve") + len(" serve")
		return serve[:at] + " --secure-port=8443" + serve[at:]
	})
	return namesPort.ReplaceAllStringFunc(command, func(port string) string {
		if r.ports[port] == "" {
			r.ports[port] = freePort(r.t)
		}
		return r.ports[port]
	})
}

// freePort returns a port below the range that the system uses for ephemeral ports.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20000 + rand.IntN(10000))
		if listener, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			listener.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return ""
}

var differs = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`(?m)\b\d+s$`), "1s"},
	{regexp.MustCompile(`\t(\d+\.\d+s|\(cached\))`), "\t0.1s"},
	{regexp.MustCompile(`\[\d+\]\+? +(Interrupt|Terminated|Done|Exit \d+).*\n`), ""},
	{regexp.MustCompile(`(creationTimestamp|uid|resourceVersion): .*`), "$1: ..."},
}

// normalize replaces text that differs from run to run by text that a page can show.
func (r *reader) normalize(text string) string {
	text = strings.ReplaceAll(text, r.home, "/home/ada")
	for port, free := range r.ports {
		text = strings.ReplaceAll(text, ":"+free, ":"+port)
	}
	for _, d := range differs {
		text = d.pattern.ReplaceAllString(text, d.word)
	}
	return text
}

// apply changes files by a diff of the page.
func (r *reader) apply(diff string) {
	r.t.Helper()
	r.hidden("git apply - <<'END OF DIFF'\n" + diff + "END OF DIFF")
}
