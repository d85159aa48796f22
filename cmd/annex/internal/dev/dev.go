// Package dev runs a project's server during development: it builds and runs the server, and does so again when the
// source changes. The server's data is kept.
package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options configure Run.
type Options struct {
	// Dir is the project's folder, Package its main package, such as ".".
	Dir     string
	Package string
	// Args are the server's arguments after serve.
	Args []string
	// Generate generates the API packages in these folders, which are relative to Dir.
	Generate func(ctx context.Context, dirs []string) error
	// Deploy deploys the server instead of running it here; nil runs it here.
	Deploy func(ctx context.Context) error
	// Stdout and Stderr are also the server's; Run's own messages go to Stderr.
	Stdout, Stderr io.Writer
}

// quiet is how long the source must be unchanged before a build: editors and version control write several files.
const quiet = 200 * time.Millisecond

// Run builds the project and runs its server, again whenever the source changes, until the context ends. If the
// project does not build, the running server continues, and Run prints the reason. The server has ended when Run
// returns.
func Run(ctx context.Context, o Options) error {
	bin, err := os.MkdirTemp("", "annex-run-")
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	defer os.RemoveAll(bin)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("run: watch the project: %w", err)
	}
	defer watcher.Close()
	if err := watch(watcher, o.Dir); err != nil {
		return fmt.Errorf("run: watch the project: %w", err)
	}
	r := &runner{Options: o, bin: bin}
	defer r.stop()
	for {
		r.refresh(ctx)
		if err := r.await(ctx, watcher); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// await returns when the project may have changed and is quiet again, or when the context has ended.
func (r *runner) await(ctx context.Context, watcher *fsnotify.Watcher) error {
	var settled <-chan time.Time
	for {
		var exited <-chan struct{}
		if r.server != nil {
			exited = r.server.exited
		}
		select {
		case <-ctx.Done():
			return nil
		case <-settled:
			return nil
		case <-exited:
			r.sayf("the server ended: %v; waiting for a change to restart it", r.server.result())
			r.server = nil
		case err := <-watcher.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("run: watch the project: %w", err)
			}
			settled = time.After(quiet)
		case event := <-watcher.Events:
			if info, err := os.Stat(event.Name); err == nil && info.IsDir() && event.Has(fsnotify.Create) {
				if err := watch(watcher, event.Name); err != nil {
					return fmt.Errorf("run: watch the project: %w", err)
				}
				settled = time.After(quiet)
			} else if isSource(event.Name) {
				settled = time.After(quiet)
			}
		}
	}
}

// runner holds the running server and its source.
type runner struct {
	Options
	bin    string
	builds int
	server *server
	source source
	// generated are the sums of the API packages for which the generated files are current.
	generated apis
}

// refresh builds and runs the server if its source has changed.
func (r *runner) refresh(ctx context.Context) {
	now, err := read(r.Dir)
	if err != nil {
		r.sayf("%v", err)
		return
	}
	if now.sum == r.source.sum {
		return
	}
	r.source = now
	r.sayf("building") // may take a while
	if changed := now.apis.changedSince(r.generated); len(changed) > 0 {
		if err := r.Generate(ctx, changed); err != nil {
			if ctx.Err() == nil {
				r.keep("generate", err.Error())
			}
			return
		}
		r.generated = now.apis
	}
	if r.Deploy != nil {
		if err := r.Deploy(ctx); err != nil && ctx.Err() == nil {
			r.keep("deploy", err.Error())
		} else if err == nil {
			r.sayf("deployed; waiting for a change")
		}
		return
	}
	began := time.Now()
	r.builds++
	binary := filepath.Join(r.bin, fmt.Sprintf("server-%d", r.builds))
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, r.Package)
	build.Dir = r.Dir
	if out, err := build.CombinedOutput(); err != nil {
		if ctx.Err() == nil {
			r.keep("build", text(out, err))
		}
		return
	}
	r.stop()
	r.sayf("built in %s; %s serve %s", time.Since(began).Round(10*time.Millisecond), filepath.Base(r.Dir), strings.Join(r.Args, " "))
	if r.server, err = start(binary, r.Dir, append([]string{"serve"}, r.Args...), r.Stdout, r.Stderr); err != nil {
		r.sayf("%v", err)
	}
}

func text(out []byte, err error) string {
	if text := strings.TrimSpace(string(out)); text != "" {
		return text
	}
	return err.Error()
}

// keep prints the reason why there is no new server.
func (r *runner) keep(step, why string) {
	state := "no server runs"
	switch {
	case r.Deploy != nil:
		state = "the cluster keeps the previous version"
	case r.server != nil:
		state = "the server before goes on"
	}
	fmt.Fprintln(r.Stderr, why)
	r.sayf("%s failed, %s; waiting for a change", step, state)
}

func (r *runner) sayf(format string, args ...any) {
	fmt.Fprintf(r.Stderr, "annex run: "+format+"\n", args...)
}

// stop stops the server, and removes its program.
func (r *runner) stop() {
	if r.server == nil {
		return
	}
	if err := r.server.stop(); err != nil {
		r.sayf("the server has ended: %v", err)
	}
	_ = os.Remove(r.server.cmd.Path) // its folder is removed at the end
	r.server = nil
}
