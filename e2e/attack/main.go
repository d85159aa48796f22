package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

// errHarmed is the error of a run in which an attack did harm.
var errHarmed = errors.New("criteria failed: see the verdicts")

// settings are the settings of the command line.
type settings struct {
	kubeconfig, weakToken, only, output, peer, annex, bin, page, resource, serverArgs string
	duration, long                                                                    time.Duration
	pid                                                                               int
	budget, most                                                                      int64
	list                                                                              bool
}

func parse(arguments []string, stderr io.Writer) (settings, error) {
	var s settings
	var budget, most int64
	long := false
	f := flag.NewFlagSet("attack", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(
		&s.kubeconfig,
		"kubeconfig",
		"",
		"attack the server of this kubeconfig, which is an administrator's; without it, start a server",
	)
	f.StringVar(&s.weakToken, "weak-token", "", "token of a caller without rights; without it, create one")
	f.StringVar(&s.only, "only", "", "comma-separated attacks; all if empty")
	f.DurationVar(&s.duration, "duration", 10*time.Second, "how long each attack goes on")
	f.BoolVar(&long, "long", false, "let stalled-reviews and stalled-reviews-large go on for a minute")
	f.StringVar(&s.output, "output", "markdown", "markdown or json")
	f.IntVar(&s.pid, "pid", 0, "process of the server of --kubeconfig, on this machine, to measure its memory and processor time")
	f.StringVar(&s.peer, "server", "annex", "the server to start: annex or kube-apiserver")
	f.StringVar(&s.annex, "annex", "", "program to start as annex; without it, build ../../cmd/annex")
	f.StringVar(
		&s.bin,
		"bin",
		"../../bin",
		"directory of the programs etcd and kube-apiserver, which make bin/etcd bin/kube-apiserver builds",
	)
	f.StringVar(&s.serverArgs, "server-arguments", "", "arguments for the server that is started, separated by spaces")
	f.StringVar(&s.resource, "resource", "v1/configmaps/ConfigMap", "the resource that the callers use: GROUP/VERSION/RESOURCE/KIND")
	f.Int64Var(&budget, "budget", 1<<10, "memory budget of the server's requests, in MiB; a server may use twice as much beside what it "+
		"had before")
	f.Int64Var(&most, "most-memory", 6<<10, "MiB of resident memory of the server beyond which no further attack is tried; 0 for no limit")
	f.StringVar(&s.page, "page", "", "page to write the table into, between the marks of the server")
	f.BoolVar(&s.list, "list", false, "print the names of the attacks")
	if err := f.Parse(arguments); err != nil {
		return s, err
	}
	s.budget, s.most = budget<<20, most<<20
	if long {
		s.long = time.Minute
	}
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("unknown argument %q", f.Arg(0))
	case s.output != "markdown" && s.output != "json":
		return s, fmt.Errorf("--output %s: give markdown or json", s.output)
	case s.peer != "annex" && s.peer != "kube-apiserver":
		return s, fmt.Errorf("--server %s: give annex or kube-apiserver", s.peer)
	case s.duration <= 0:
		return s, fmt.Errorf("--duration %s: give more than zero", s.duration)
	case s.pid != 0 && s.kubeconfig == "":
		return s, errors.New("--pid is for --kubeconfig: the process of a server that is started is known")
	}
	return s, nil
}

// kindOf reads GROUP/VERSION/RESOURCE/KIND, without a group for the core.
func kindOf(text string) (kind, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 && len(parts) != 4 {
		return kind{}, fmt.Errorf("--resource %s: give GROUP/VERSION/RESOURCE/KIND, as in wardle.example.com/v1alpha1/flunders/Flunder", text)
	}
	n := len(parts)
	return kind{apiVersion: strings.Join(parts[:n-2], "/"), resource: parts[n-2], name: parts[n-1]}, nil
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	s, err := parse(arguments, stderr)
	if err != nil {
		return err
	}
	some, err := named(s.only)
	if err != nil {
		return err
	}
	if s.list {
		for _, a := range some {
			fmt.Fprintln(stdout, a.Name())
		}
		return nil
	}
	resource, err := kindOf(s.resource)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "annex-attack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t, stop, err := s.server(ctx, dir)
	if err != nil {
		return err
	}
	t.kind = resource
	rs, err := s.attack(ctx, t, some, stderr)
	stopped := stop()
	if err != nil {
		return errors.Join(err, stopped)
	}
	if stopped != nil {
		rs.Ended = stopped.Error()
	}
	if err := s.write(rs, stdout); err != nil {
		return err
	}
	if rs.failed() {
		return errHarmed
	}
	return nil
}

// server returns the server to attack, and a function that ends it, or deletes the objects created there.
func (s settings) server(ctx context.Context, dir string) (*target, func() error, error) {
	switch {
	case s.kubeconfig != "":
		t, err := readKubeconfig(s.kubeconfig)
		if err != nil {
			return nil, nil, err
		}
		t.pid = s.pid
		return t, func() error {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
			defer cancel()
			return t.clean(clean)
		}, nil
	case s.peer == "kube-apiserver":
		return serveKubernetes(ctx, s.bin, dir, strings.Fields(s.serverArgs))
	}
	program := s.annex
	if program == "" {
		program = filepath.Join(dir, "annex")
		build := exec.CommandContext(ctx, "go", "-C", "../../cmd/annex", "build", "-o", program, ".")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, nil, fmt.Errorf("build annex (run this in e2e/attack, or give --annex): %w: %s", err, out)
		}
	}
	return serveAnnex(ctx, program, dir, strings.Fields(s.serverArgs))
}

func (s settings) attack(ctx context.Context, t *target, some []attack, stderr io.Writer) (*results, error) {
	if err := t.prepare(ctx, s.weakToken); err != nil {
		return nil, fmt.Errorf("prepare the server: %w", err)
	}
	b := &bench{t: t, duration: s.duration, long: s.long, budget: s.budget, most: s.most, timing: true, done: func(one result) {
		verdict := "held"
		if len(one.Failed) > 0 {
			verdict = strings.Join(one.Failed, "; ")
		}
		fmt.Fprintf(
			stderr,
			"%s %s | %s | user %s | administrator %s | %d MB | %.1f s, busy %.0f s after | %s\n",
			time.Now().Format(time.TimeOnly),
			one.Attack,
			one.Sent,
			one.User,
			one.Admin,
			one.Peak>>20,
			one.Processor.Seconds(),
			one.Busy.Seconds(),
			verdict,
		)
	}}
	rs, err := b.run(ctx, some)
	rs.Server = s.peer
	if s.kubeconfig != "" {
		rs.Server = t.url.Host
	}
	return rs, err
}

func (s settings) write(rs *results, stdout io.Writer) error {
	if s.page != "" {
		return rs.writePage(s.page)
	}
	if s.output == "json" {
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(rs)
	}
	rs.writeTable(stdout)
	return nil
}
