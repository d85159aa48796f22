// Command growth measures how the processor time of requests grows with the content of a server: objects, kinds, namespaces,
// bindings of roles, and policies. It writes a page with a curve for each.
//
//	go run ./growth -out ../docs/benchmarks    # the whole, as committed
//	go run ./growth -short -only objects       # fewer and smaller steps, to standard output
//
// Each step of an axis is a process of its own, which fills a server and passes requests to its handler: TLS and
// connections, whose cost does not grow, are left out. All steps of an axis are alive at the same time and measured in turn.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if step := os.Getenv(stepEnv); step != "" {
		err = serveStep(ctx, step, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "growth:", err)
		os.Exit(1)
	}
}

// axis is one thing that grows.
type axis struct {
	name, title, of string
	steps           []int
	// linear operations grow because each of the things has a part in the request.
	linear bool
	// why explains the curve.
	why string
}

func axes(short bool) []axis {
	all := []axis{
		{
			name: "objects", title: "Objects of a kind", of: "objects", steps: []int{1_000, 10_000, 100_000, 1_000_000},
			why: "An object is found in a B-tree, whose depth grows with the logarithm of the number, and a label in an index. \"get of any\"\n" +
				"reads objects for the first time since they were written, if there are many: the first read decodes an object.\n" +
				"The remaining growth with a million has no profile yet. The servers have just been filled, so that a start reads a\n" +
				"history with an event for each object.",
		},
		{
			name: "kinds", title: "Kinds", of: "custom resource definitions", steps: []int{1, 10, 100, 1_000},
			why: "The requests are for one of the custom resources, and allocate the same with 1 and with 1,000. What grows is the part of a\n" +
				"collection with which they are charged: a byte costs about two thirds more with a live heap of 430 MB than with one of 55 MB.\n" +
				"Half of the larger one is the OpenAPI of the definitions.",
		},
		{
			name: "namespaces", title: "Namespaces", of: "namespaces with an object each", steps: []int{1, 10, 100, 1_000, 10_000},
			why: "The requests are for one namespace, with 1,000 objects. The index of a label has the objects of all namespaces.",
		},
		{
			name: "bindings", title: "Bindings of roles", of: "bindings, of which the caller's is one", steps: []int{1, 10, 100, 1_000},
			why: "Each other binding is for another user, half of them in the namespace of the requests and half in all.",
		},
		{
			name: "policies", title: "Policies and webhooks for other kinds", of: "validating policies and as many webhooks",
			steps: []int{1, 10, 100},
			why: "None of them concerns the kind of the requests. A write looks up its resource among the resources that their rules name, and\n" +
				"passes them by.",
		},
		{
			name: "matching", title: "Policies for the kind", of: "validating policies", steps: []int{1, 10, 100}, linear: true,
			why: "A create or an update evaluates each of them, and so has to grow. Reads and deletes do not.",
		},
	}
	if short {
		for i := range all {
			all[i].steps = all[i].steps[:2]
		}
	}
	return all
}

// operations are the measured requests, in this order in each round.
var operations = []string{"create", "get", "get of any", "update", "merge patch", "list of 100", "list by label", "delete"}

// writes are operations whose cost grows on a linear axis.
var writes = []string{"create", "update", "merge patch", "delete"}

// flat is the factor up to which a curve counts as flat.
const flat = 1.20

type settings struct {
	out, dir, only string
	short, page    bool
	rounds         int
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s := settings{}
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.out, "out", "", "directory for growth.md, its figures and its pictures; without one, standard output")
	flags.StringVar(&s.dir, "dir", os.TempDir(), "directory on the disk to store in")
	flags.StringVar(&s.only, "only", "", "axes to measure, separated by commas; all if empty. The page keeps the figures of the others")
	flags.BoolVar(&s.short, "short", false, "two steps of each axis")
	flags.BoolVar(&s.page, "page", false, "measure nothing, and write the page anew from the figures that there are")
	flags.IntVar(&s.rounds, "rounds", 9, "how often each is measured")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.rounds < 1 {
		return fmt.Errorf("-rounds %d: at least one", s.rounds)
	}
	work, err := os.MkdirTemp(s.dir, "annex-growth-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if s.short && s.out != "" {
		return errors.New("-out writes the page: leave out -short")
	}
	b := &bench{settings: s, work: work, progress: stderr, began: time.Now()}
	all := axes(s.short)
	for _, name := range strings.Split(s.only, ",") {
		if s.only != "" && !slices.ContainsFunc(all, func(a axis) bool { return a.name == name }) {
			return fmt.Errorf("-only %s: there is no axis %q", s.only, name)
		}
	}
	var curves []*curve
	for _, a := range all {
		if s.page || s.only != "" && !slices.Contains(strings.Split(s.only, ","), a.name) {
			continue
		}
		c, err := b.measure(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		curves = append(curves, c)
	}
	if curves, err = b.keep(curves, all); err != nil {
		return err
	}
	return b.report(curves, stdout)
}

// bench is one run.
type bench struct {
	settings settings
	work     string
	progress io.Writer
	began    time.Time
}

// curve has the figures of an axis.
type curve struct {
	axis axis

	Axis    string
	Steps   []int
	Values  map[string][][]float64 // microseconds of all rounds by operation and step
	Filled  []filled               // by step
	Starts  []started              // by step
	Machine string
}

// filled is the state of a server that has been filled.
type filled struct {
	Took     time.Duration
	Resident float64 // MB
}

// started is the begin of a server on stored objects, up to the first page of a list.
type started struct {
	Took, Processor time.Duration
	Resident        float64 // MB
}

// us returns the median of an operation at a step.
func (c *curve) us(operation string, step int) float64 { return median(c.Values[operation][step]) }

// growth returns the factor between the first and the last step.
func (c *curve) growth(operation string) float64 {
	return c.us(operation, len(c.Steps)-1) / c.us(operation, 0)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n%2 == 0 && n > 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	} else if n > 0 {
		return sorted[n/2]
	}
	return 0
}

func (b *bench) log(format string, args ...any) {
	fmt.Fprintf(b.progress, "%6.0fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// measure measures an axis: all steps in turn, in rounds.
func (b *bench) measure(ctx context.Context, a axis) (*curve, error) {
	c := &curve{axis: a, Axis: a.name, Steps: a.steps, Values: map[string][][]float64{}}
	loadBefore, begun := load(), time.Now()
	defer func() { c.Machine = machine(loadBefore, time.Since(begun)) }()
	var steps []*step
	defer func() {
		for _, s := range steps {
			s.end()
		}
	}()
	for _, n := range a.steps {
		began := time.Now()
		s, err := b.start(ctx, a, n)
		if err != nil {
			return nil, fmt.Errorf("%d: %w", n, err)
		}
		steps = append(steps, s)
		c.Filled = append(c.Filled, filled{time.Since(began), s.resident})
		b.log("%s: %d after %s", a.name, n, time.Since(began).Round(time.Second))
	}
	for _, op := range operations {
		c.Values[op] = make([][]float64, len(steps))
	}
	for round := range b.settings.rounds + 1 { // the first one warms up
		for _, op := range operations {
			for i := range steps {
				i = (i + round) % len(steps)
				us, err := steps[i].ask(op)
				if err != nil {
					return nil, fmt.Errorf("%s at %d: %w", op, a.steps[i], err)
				}
				if round > 0 {
					c.Values[op][i] = append(c.Values[op][i], us)
				}
			}
		}
	}
	b.log("%s: measured", a.name)
	if a.name != "objects" {
		return c, nil
	}
	for i, s := range steps {
		s.end()
		restarted, err := b.restart(ctx, s, a.steps[i])
		if err != nil {
			return nil, fmt.Errorf("restart with %d: %w", a.steps[i], err)
		}
		c.Starts = append(c.Starts, restarted)
	}
	b.log("%s: restarted", a.name)
	return c, nil
}

// step is a running process with a filled server.
type step struct {
	command  *exec.Cmd
	in       io.WriteCloser
	out      *bufio.Reader
	dir      string
	resident float64
	ended    bool
}

const stepEnv = "ANNEX_GROWTH_STEP"

// start starts the process of a step, and waits until its server is filled.
func (b *bench) start(ctx context.Context, a axis, n int) (*step, error) {
	s := &step{dir: filepath.Join(b.work, fmt.Sprintf("%s-%d", a.name, n))}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, err
	}
	return s, s.run(ctx, b.progress, fmt.Sprintf("%s %d %s", a.name, n, s.dir))
}

func (s *step) run(ctx context.Context, progress io.Writer, what string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	s.command = exec.CommandContext(ctx, program)
	s.command.Env = append(os.Environ(), stepEnv+"="+what)
	s.command.Stderr = progress
	if s.in, err = s.command.StdinPipe(); err != nil {
		return err
	}
	out, err := s.command.StdoutPipe()
	if err != nil {
		return err
	}
	s.out = bufio.NewReader(out)
	if err := s.command.Start(); err != nil {
		return err
	}
	s.ended = false
	s.resident, err = s.answer()
	if err != nil {
		s.end()
	}
	return err
}

// ask makes the process measure an operation, and returns the microseconds of each.
func (s *step) ask(operation string) (float64, error) {
	if _, err := fmt.Fprintln(s.in, operation); err != nil {
		return 0, err
	}
	return s.answer()
}

func (s *step) answer() (float64, error) {
	line, err := s.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the process of the step has ended: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(line), 64)
}

// end ends the process.
func (s *step) end() {
	if s.ended {
		return
	}
	s.ended = true
	_ = s.in.Close()
	_ = s.command.Wait() // its objects are not read again, or by another process that would fail
}

// restart starts a server on the objects of a step, and returns the time and the memory until the first page of a list.
func (b *bench) restart(ctx context.Context, of *step, n int) (started, error) {
	s, began := &step{dir: of.dir}, time.Now()
	if err := s.run(ctx, b.progress, fmt.Sprintf("%s %d %s", restarted, n, s.dir)); err != nil {
		return started{}, err
	}
	took := time.Since(began)
	processor, err := s.ask("processor")
	s.end()
	return started{took, time.Duration(processor) * time.Microsecond, s.resident}, err
}

// report writes the page and its pictures.
func (b *bench) report(curves []*curve, stdout io.Writer) error {
	var page bytes.Buffer
	b.write(&page, curves)
	if b.settings.out == "" {
		_, err := stdout.Write(page.Bytes())
		return err
	}
	for _, c := range curves {
		if err := os.WriteFile(filepath.Join(b.settings.out, "growth-"+c.axis.name+".svg"), draw(c), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(b.settings.out, "growth.md"), page.Bytes(), 0o644)
}

// keep writes the measured curves beside the earlier ones of other axes, and returns all.
func (b *bench) keep(measured []*curve, all []axis) ([]*curve, error) {
	if b.settings.out == "" {
		return measured, nil
	}
	path, kept := filepath.Join(b.settings.out, "growth.json"), map[string]*curve{}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the earlier curves: %w", err)
	}
	for _, c := range measured {
		kept[c.Axis] = c
	}
	if data, err = json.Marshal(kept); err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return nil, err
	}
	var curves []*curve
	for _, a := range all {
		if c := kept[a.name]; c != nil {
			c.axis = a
			curves = append(curves, c)
		}
	}
	return curves, nil
}

// load returns the machine's load average of a minute.
func load() string {
	data, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(data), " ")
	return cmp.Or(first, "unknown")
}
