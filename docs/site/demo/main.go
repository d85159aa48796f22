// Command demo runs the commands of a scene in a shell, and draws their output as a picture that moves: an SVG file without scripts.
//
//	demo -path FOLDERS -out FILE SCENE
//
// A line of the scene that begins with "$ " is typed and shown; one with "# " is shown as a comment; one with "! " is run and not
// shown. "$ COMMAND &" runs on, and the next line begins when it has printed TEXT of "@ TEXT" below it. Pauses have their true length,
// but for waits longer than the limit, which the picture names.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	path := flag.String("path", "", "folders of the programs, before those of PATH")
	out := flag.String("out", "", "the picture")
	flag.Parse()
	if *out == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: demo -path FOLDERS -out FILE SCENE")
		os.Exit(2)
	}
	if err := run(*path, *out, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(path, out, scene string) error {
	text, err := os.ReadFile(scene)
	if err != nil {
		return err
	}
	lines, err := record(string(text), path)
	if err != nil {
		return err
	}
	picture, err := draw(lines)
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(picture), 0o644)
}

// step is a command of a scene, or a comment.
type step struct {
	text    string
	comment bool
	hidden  bool
	until   string
}

func steps(scene string) ([]step, error) {
	var all []step
	for line := range strings.Lines(scene) {
		line = strings.TrimRight(line, "\n")
		mark, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "":
		case mark == "$":
			all = append(all, step{text: rest})
		case mark == "#":
			all = append(all, step{text: rest, comment: true})
		case mark == "!":
			all = append(all, step{text: rest, hidden: true})
		case mark == "@" && len(all) > 0:
			all[len(all)-1].until = rest
		default:
			return nil, fmt.Errorf("the scene has the line %q: lines begin with $, #, ! or @", line)
		}
	}
	for _, s := range all {
		if strings.HasSuffix(s.text, "&") && s.until == "" && !s.comment {
			return nil, fmt.Errorf("the scene does not name the text of %q with which it has begun: add a line \"@ TEXT\"", s.text)
		}
	}
	return all, nil
}

// shown is a line of the picture, with its time since the beginning.
type shown struct {
	at   time.Duration
	text string
	kind string // command, comment, output, or wait
}

const (
	typing  = 25 * time.Millisecond // of a character
	reading = 1200 * time.Millisecond
	longest = 2 * time.Second // longer waits are cut, and named
	hangs   = 10 * time.Minute
)

const done = "--done "

// record runs a scene, and returns its lines.
func record(scene, path string) ([]shown, error) {
	all, err := steps(scene)
	if err != nil {
		return nil, err
	}
	home, err := os.MkdirTemp("", "demo-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(home)
	s, err := begin(home, path)
	if err != nil {
		return nil, err
	}
	defer s.end()
	var lines []shown
	var now time.Duration
	for _, one := range all {
		if one.comment {
			lines = append(lines, shown{now, "# " + one.text, "comment"})
			now += reading / 2
			continue
		}
		if !one.hidden {
			now += time.Duration(len(one.text)) * typing
			lines = append(lines, shown{now, "$ " + one.text, "command"})
		}
		printed, took, err := s.do(one)
		if err != nil {
			return nil, err
		}
		if one.hidden {
			continue
		}
		var cut time.Duration
		last := time.Duration(0)
		for _, p := range printed {
			if wait := p.at - last; wait > longest {
				lines = append(lines, shown{now + p.at - cut - wait + longest, fmt.Sprintf("  (%.0f s)", wait.Seconds()), "wait"})
				cut += wait - longest
			}
			last = p.at
			lines = append(lines, shown{now + p.at - cut, p.text, "output"})
		}
		now += min(took-cut, last-cut+longest) + reading
	}
	return lines, nil
}

// shell runs commands in a session of its own.
type shell struct {
	cmd  *exec.Cmd
	in   io.Writer
	out  chan string
	home string
}

func begin(home, path string) (*shell, error) {
	known, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	caches := strings.Split(string(known), "\n")
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("bash")
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "HOME="+home, "PATH="+path+string(filepath.ListSeparator)+os.Getenv("PATH"), "KUBECONFIG=", "LC_ALL=C",
		"GOWORK=off", "GOCACHE="+caches[0], "GOMODCACHE="+caches[1], "GOPATH="+caches[2])
	cmd.Stdout, cmd.Stderr = write, write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start bash: %w", err)
	}
	if err := write.Close(); err != nil {
		return nil, err
	}
	s := &shell{cmd, in, make(chan string), home}
	go func() {
		defer close(s.out)
		for lines := bufio.NewScanner(read); lines.Scan(); {
			s.out <- lines.Text()
		}
	}()
	return s, nil
}

// end ends the shell with all programs that it has started.
func (s *shell) end() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM)
	go func() {
		for range s.out { //nolint:revive // until the last program has closed its output
		}
	}()
	_ = s.cmd.Wait()
}

// do runs a command, and returns the lines that it prints, with their times, and its duration.
func (s *shell) do(one step) ([]shown, time.Duration, error) {
	began := time.Now()
	mark := "\nprintf '%s%d\\n' '" + done + "' $?\n"
	if one.until != "" {
		mark = "\n"
	}
	if _, err := io.WriteString(s.in, "{\n"+one.text+"\n} </dev/null"+mark); err != nil {
		return nil, 0, err
	}
	var lines []shown
	for {
		select {
		case line, ok := <-s.out:
			if !ok {
				return nil, 0, errors.New("the shell ended")
			}
			if code, ended := strings.CutPrefix(line, done); ended {
				if code != "0" {
					return nil, 0, fmt.Errorf("%s: exit code %s\n%s", one.text, code, texts(lines))
				}
				return lines, time.Since(began), nil
			}
			line = strings.ReplaceAll(line, s.home, "~")
			lines = append(lines, shown{time.Since(began), line, "output"})
			if one.until != "" && strings.Contains(line, one.until) {
				return lines, time.Since(began), nil
			}
		case <-time.After(hangs):
			return nil, 0, fmt.Errorf("%s: nothing happens\n%s", one.text, texts(lines))
		}
	}
}

func texts(lines []shown) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(line.text + "\n")
	}
	return b.String()
}

const (
	columns = 112
	rows    = 26
	width   = 8.0 // of a character
	height  = 19.0
	margin  = 14.0
	rest    = 5 * time.Second // before it begins again
)

var colours = map[string]string{"command": "#e6edf3", "comment": "#8b98a5", "output": "#b6c2cf", "wait": "#e3c06b"}

var spaces = regexp.MustCompile(`\t`)

// draw returns the picture: each line appears at its time, and lines move up when the rows are full.
func draw(lines []shown) (string, error) {
	if len(lines) == 0 {
		return "", errors.New("the scene shows nothing")
	}
	total := lines[len(lines)-1].at + rest
	percent := func(at time.Duration) string {
		return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.2f", 100*at.Seconds()/total.Seconds()), "0"), ".") + "%"
	}
	w, h := columns*width+2*margin, rows*height+2*margin
	var css, body, scroll strings.Builder
	for i, line := range lines {
		text := []rune(spaces.ReplaceAllString(line.text, "    "))
		if len(text) > columns {
			text = append(text[:columns-3], []rune("...")...)
		}
		fmt.Fprintf(&css, "@keyframes l%d{0%%,%s{opacity:0}%[2]s,100%%{opacity:1}}#l%[1]d{animation-name:l%[1]d}\n", i, percent(line.at))
		fmt.Fprintf(&body, "<text id=\"l%d\" class=%q x=\"%g\" y=\"%g\">%s</text>\n", i, line.kind, margin, margin+float64(i+1)*height-5,
			html.EscapeString(string(text)))
		if i >= rows {
			fmt.Fprintf(&scroll, "%s{transform:translateY(%gpx)}", percent(line.at), -float64(i-rows+1)*height)
		}
	}
	last := -float64(max(0, len(lines)-rows)) * height
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%[1]g" height="%[2]g" role="img"`, w, h)
	b.WriteString(" aria-label=\"A recorded terminal\">\n")
	b.WriteString("<style>\ntext{font:13.2px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;animation:" +
		fmt.Sprintf("%.2fs step-end infinite}\n", total.Seconds()))
	for _, kind := range []string{"command", "comment", "output", "wait"} {
		fmt.Fprintf(&b, ".%s{fill:%s}\n", kind, colours[kind])
	}
	b.WriteString(".command{font-weight:600}\n")
	if scroll.Len() > 0 {
		fmt.Fprintf(&b, "@keyframes scroll{0%%{transform:none}%s100%%{transform:translateY(%gpx)}}\n", scroll.String(), last)
		fmt.Fprintf(&b, "#lines{animation:scroll %.2fs step-end infinite}\n", total.Seconds())
	}
	b.WriteString(css.String())
	// Without motion, the end is shown.
	b.WriteString("@media (prefers-reduced-motion:reduce){text,#lines{animation:none}")
	fmt.Fprintf(&b, "#lines{transform:translateY(%gpx)}}\n</style>\n", last)
	b.WriteString(`<rect width="100%" height="100%" rx="8" fill="#0f1318"/>` + "\n")
	fmt.Fprintf(&b, `<svg y="%g" height="%g" width="%g">`, margin, rows*height, w)
	fmt.Fprintf(&b, "<g transform=\"translate(0 %g)\"><g id=\"lines\">\n", -margin)
	b.WriteString(body.String())
	b.WriteString("</g></g></svg>\n</svg>\n")
	return b.String(), nil
}
