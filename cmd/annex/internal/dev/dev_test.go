package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience bounds the waits of a test. Only failures reach it.
const patience = 2 * time.Minute

// program prints its arguments, and exits on a signal.
const program = `package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Printf("%s runs %v as %d\n", version, os.Args[1:], os.Getpid())
	if version == "short" {
		os.Exit(3)
	}
	<-signals
	fmt.Printf("%s ends\n", version)
}
`

// transcript collects output, line by line.
type transcript struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

func (o *transcript) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	close(o.changed)
	o.changed = make(chan struct{})
	return len(p), nil
}

// await waits until lines with the parts have been written, in this order and after all lines awaited before, and
// returns the last of these lines.
func (p *project) await(parts ...string) (line string) {
	p.t.Helper()
	timeout := time.After(patience)
	for _, part := range parts {
		for {
			p.out.mu.Lock()
			text, changed := p.out.text.String()[p.seen:], p.out.changed
			p.out.mu.Unlock()
			if i := strings.Index(text, part); i >= 0 && strings.Contains(text[i:], "\n") {
				end := i + strings.Index(text[i:], "\n")
				line = text[strings.LastIndex(text[:i], "\n")+1 : end]
				p.seen += end
				break
			}
			select {
			case <-changed:
			case <-timeout:
				p.t.Fatalf("%q was not written, but\n%s", part, text)
			}
		}
	}
	return line
}

type project struct {
	t         *testing.T
	dir       string
	out       *transcript
	seen      int
	generated chan []string
	fail      atomic.Pointer[error]
	end       func() error
}

func (p *project) write(files ...string) {
	p.t.Helper()
	for i := 0; i < len(files); i += 2 {
		name := filepath.Join(p.dir, files[i])
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			p.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(files[i+1]), 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
}

func begin(t *testing.T, files ...string) *project {
	t.Helper()
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "-mod=mod")
	p := &project{t: t, dir: t.TempDir(), out: &transcript{changed: make(chan struct{})}, generated: make(chan []string, 100)}
	p.write("go.mod", "module example.com/p\n\ngo 1.26\n", "main.go", program)
	p.write(files...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Dir: p.dir, Package: ".", Args: []string{"--port=0"}, Stdout: p.out, Stderr: p.out,
			Generate: func(_ context.Context, dirs []string) error {
				p.generated <- dirs
				if err := p.fail.Load(); err != nil {
					return *err
				}
				return nil
			}})
	}()
	p.end = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = p.end() })
	return p
}

// version returns a source file with the name that a server prints.
func version(name string) string { return fmt.Sprintf("package main\n\nconst version = %q\n", name) }

func pidOf(t *testing.T, line string) int {
	t.Helper()
	var pid int
	if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &pid); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return pid
}

func isGone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func TestRun_change_restartsServer(t *testing.T) {
	p := begin(t, "version.go", version("one"))
	one := pidOf(t, p.await("one runs [serve --port=0] as"))
	p.write("version.go", version("two"))
	two := pidOf(t, p.await("one ends", "two runs [serve --port=0] as"))
	if !isGone(one) {
		t.Errorf("server %d still runs, or is a zombie", one)
	}
	// The folder did not exist before.
	p.write("more/more.go", "package more\n")
	three := pidOf(t, p.await("two ends", "two runs"))
	if !isGone(two) {
		t.Errorf("server %d still runs, or is a zombie", two)
	}
	p.write("more/more.go", "package more // changed\n")
	last := pidOf(t, p.await("two ends", "two runs"))
	if err := p.end(); err != nil {
		t.Error(err)
	}
	p.await("two ends")
	if !isGone(three) || !isGone(last) {
		t.Errorf("server %d or %d still runs, or is a zombie", three, last)
	}
}

func TestRun_buildFails_keepsServer(t *testing.T) {
	p := begin(t, "version.go", version("one"))
	one := pidOf(t, p.await("one runs"))
	p.write("version.go", "package main\n\nconst version = nothing\n")
	p.await("./version.go:3:17: undefined: nothing", "annex run: build failed, the server before goes on; waiting for a change")
	if isGone(one) {
		t.Error("the server before has ended")
	}
	p.write("version.go", version("two"))
	p.await("one ends", "two runs")
}

func TestRun_firstBuildFails_retries(t *testing.T) {
	p := begin(t, "version.go", "package main\n\nconst\n")
	p.await("./version.go:4:1: syntax error", "annex run: build failed, no server runs; waiting for a change")
	p.write("version.go", version("one"))
	p.await("one runs")
}

func TestRun_serverExits_restartsOnChange(t *testing.T) {
	p := begin(t, "version.go", version("short"))
	short := pidOf(t, p.await("short runs"))
	p.await("annex run: the server ended: exit status 3; waiting for a change to restart it")
	if !isGone(short) {
		t.Error("it is a zombie")
	}
	p.write("version.go", version("two"))
	p.await("two runs")
}

func TestRun_generate_onlyForAPIChanges(t *testing.T) {
	api := "// Package v1 is an API.\n//\n// +groupName=example.com\npackage v1\n"
	failure := errors.New("apis/v1/doc.go:5:1: no type")
	p := begin(t, "version.go", version("one"), "apis/v1/doc.go", api, "plain/plain.go", "package plain // not +groupName=x\n")
	p.await("one runs")
	if dirs := <-p.generated; !slices.Equal(dirs, []string{"apis/v1"}) {
		t.Errorf("generated %v", dirs)
	}
	p.write("version.go", version("two"))
	p.await("two runs")
	select {
	case dirs := <-p.generated:
		t.Errorf("generated %v although no API has changed", dirs)
	default:
	}
	p.fail.Store(&failure)
	p.write("apis/v1/types.go", "package v1\n")
	p.await("apis/v1/doc.go:5:1: no type", "annex run: generate failed, the server before goes on")
	<-p.generated
	p.fail.Store(nil)
	// The API package is still not generated, whatever else changes.
	p.write("version.go", version("three"))
	p.await("two ends", "three runs")
	if dirs := <-p.generated; !slices.Equal(dirs, []string{"apis/v1"}) {
		t.Errorf("generated %v", dirs)
	}
}

func TestIsSource(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"main.go": true, "go.mod": true, "go.sum": true, "go.work": true, "apis/v1/types.go": true,
		"main_test.go": false, "zz_generated.annex.go": false, "README.md": false, ".#main.go": false, "_x.go": false, "main.go~": false,
	} {
		if got := isSource(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	dir := t.TempDir()
	for name, want := range map[string]bool{"apis": true, ".git": false, "testdata": false, "_old": false, "node_modules": false,
		"data": false, "vendor": true} {
		sub := filepath.Join(dir, name)
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "data" { // the data directory of a server
			if err := os.Mkdir(filepath.Join(sub, "cert"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if got := hasSource(sub); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
