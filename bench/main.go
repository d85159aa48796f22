package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings are the settings of the command line.
type settings struct {
	out    string
	dir    string
	short  bool
	rounds int
	only   string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.out, "out", "", "directory for storage.md, the raw storage.txt and what benchstat says; without one, standard output")
	flags.StringVar(&s.dir, "dir", os.TempDir(), "directory on the disk to measure; not a tmpfs")
	flags.BoolVar(&s.short, "short", false, "a tenth of everything, once, without a million objects")
	flags.IntVar(&s.rounds, "rounds", 4, "how often each is measured, but for what takes minutes")
	flags.StringVar(&s.only, "only", "", "comma-separated benchmarks, such as Create,Watch; all if empty")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if s.rounds < 1 {
		return fmt.Errorf("-rounds %d: at least one", s.rounds)
	}
	machine, err := describeMachine(s.dir)
	if err != nil {
		return err
	}
	if machine.fileSystem == "tmpfs" {
		return fmt.Errorf("-dir %s is a tmpfs, where a sync costs nothing: name a directory on a disk", s.dir)
	}
	work, err := os.MkdirTemp(s.dir, "annex-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	start := time.Now()
	raw, err := s.measure(ctx, work, stderr)
	if err != nil {
		return err
	}
	results, err := parse(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	var table bytes.Buffer
	if err := write(&table, machine, s, results, time.Since(start)); err != nil {
		return err
	}
	if s.out == "" {
		_, err := io.Copy(stdout, &table)
		return err
	}
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	rawPath := filepath.Join(s.out, "storage.txt")
	if err := os.WriteFile(rawPath, raw, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.out, "storage.md"), table.Bytes(), 0o644); err != nil {
		return err
	}
	compared, err := exec.CommandContext(ctx, "go", "tool", "benchstat", "-col", `/backend@(etcd "etcd+cacher" embedded memory)`, rawPath).
		Output()
	if err != nil {
		return fmt.Errorf("benchstat: %w", err)
	}
	return os.WriteFile(filepath.Join(s.out, "storage.benchstat.txt"), compared, 0o644)
}

// cell is one benchmark on one backend, measured in a process of its own.
type cell struct {
	benchmark string
	backend   string
	times     string // as with -benchtime; one iteration does everything if empty
	objects   int    // in the kept store; 0 if it needs none
	fresh     bool   // the kept store is emptied first
}

// group is a set of cells that are measured one after the other, in several rounds.
type group struct {
	cells  []cell
	rounds int
}

func (s settings) plan() []group {
	hundredThousand := 100_000
	writes, lists := "1000x", "10x"
	if s.short {
		s.rounds, hundredThousand = 1, 10_000
		writes, lists = "100x", "2x"
	}
	few := min(s.rounds, 2)
	each := func(benchmark, times string, rounds int, backends ...string) group {
		g := group{rounds: rounds}
		for _, backend := range backends {
			g.cells = append(g.cells, cell{benchmark: benchmark, backend: backend, times: times})
		}
		return g
	}
	sized := func(objects, rounds int, cells ...cell) group {
		for i := range cells {
			cells[i].objects, cells[i].fresh = objects, cells[i].benchmark == "Load"
		}
		return group{cells, rounds}
	}
	plan := []group{
		each("Create", "", s.rounds, "memory", "embedded", "etcd", "etcd+cacher"),
		each("CreateProtobuf", "", s.rounds, "memory", "embedded", "etcd", "etcd+cacher"),
		each("Read", "", s.rounds, "embedded", "etcd", "etcd+cacher"),
		each("Watch", "", s.rounds, "memory", "embedded", "etcd+cacher"),
		each("WatchOne", "", few, "memory", "embedded", "etcd+cacher"),
		sized(
			hundredThousand,
			few,
			cell{
				benchmark: "Load",
				backend:   "embedded",
			},
			cell{benchmark: "Restart", backend: "embedded"},
			cell{benchmark: "Select", backend: "embedded"},
			cell{benchmark: "Load", backend: "etcd"},
			cell{benchmark: "Restart", backend: "etcd"},
			cell{benchmark: "Select", backend: "etcd"},
			cell{
				benchmark: "Load",
				backend:   "etcd+cacher",
			},
			cell{benchmark: "Restart", backend: "etcd+cacher"},
			cell{benchmark: "Select", backend: "etcd+cacher"},
		),
		each("UpstreamWriteThroughput", writes, few, "embedded", "etcd", "etcd+cacher"),
		each("UpstreamStoreList", lists, few, "embedded", "etcd", "etcd+cacher"),
		each("UpstreamStoreStats", writes, few, "embedded", "etcd", "etcd+cacher"),
	}
	if !s.short {
		// etcd's million is filled through the watch cache and also read without it.
		plan = append(plan, sized(1_000_000, 1,
			cell{benchmark: "Load", backend: "embedded"}, cell{benchmark: "Restart", backend: "embedded"},
			cell{benchmark: "Load", backend: "etcd+cacher"}, cell{benchmark: "Restart", backend: "etcd+cacher"},
			cell{benchmark: "Restart", backend: "etcd"},
		))
	}
	if s.only != "" {
		only := strings.Split(s.only, ",")
		for i := range plan {
			plan[i].cells = slices.DeleteFunc(plan[i].cells, func(c cell) bool { return !slices.Contains(only, c.benchmark) })
		}
	}
	return plan
}

// measure runs the plan and returns the output of the benchmarks.
func (s settings) measure(ctx context.Context, work string, progress io.Writer) ([]byte, error) {
	program := filepath.Join(work, "bench.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, ".")
	build.Stderr = progress
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build the benchmarks (run this in the folder bench): %w", err)
	}
	var raw bytes.Buffer
	start := time.Now()
	for _, g := range s.plan() {
		for round := range g.rounds {
			for _, c := range g.cells {
				fmt.Fprintf(progress, "%6.0fs  %s on %s, round %d of %d\n", time.Since(start).Seconds(), c.benchmark, c.backend, round+1, g.rounds)
				if err := s.run(ctx, program, work, c, &raw, progress); err != nil {
					return nil, fmt.Errorf("%s on %s: %w", c.benchmark, c.backend, err)
				}
			}
		}
	}
	return raw.Bytes(), nil
}

// cellTimeout bounds the time of one process.
const cellTimeout = 20 * time.Minute

func (s settings) run(ctx context.Context, program, work string, c cell, raw *bytes.Buffer, progress io.Writer) error {
	kept := filepath.Join(work, "kept")
	if c.fresh {
		if err := os.RemoveAll(kept); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cellTimeout)
	defer cancel()
	pattern := fmt.Sprintf("^Benchmark%s$/^backend=%s$", c.benchmark, strings.ReplaceAll(c.backend, "+", `\+`))
	if c.objects > 0 {
		pattern = fmt.Sprintf("^Benchmark%s$/^objects=%d$/^backend=%s$", c.benchmark, c.objects, strings.ReplaceAll(c.backend, "+", `\+`))
	}
	times := c.times
	if times == "" {
		times = "1x"
	}
	cmd := exec.CommandContext(
		ctx,
		program,
		"-test.run=^$",
		"-test.bench="+pattern,
		"-test.benchtime="+times,
		fmt.Sprintf("-test.short=%v", s.short),
		"-test.timeout=0",
	)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "TMPDIR="+work, "ANNEX_BENCH_STORE="+kept, fmt.Sprintf("ANNEX_BENCH_OBJECTS=%d", c.objects))
	// Interrupted, it also stops its etcd server, whose standard input ends.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, progress
	if err := cmd.Run(); err != nil {
		_, _ = io.Copy(progress, &out)
		return err
	}
	if !bytes.Contains(out.Bytes(), []byte("\nBenchmark")) {
		return errors.New("nothing was measured")
	}
	_, err := io.Copy(raw, &out)
	return err
}
