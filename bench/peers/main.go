package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
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

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// settings are the settings of the command line.
type settings struct {
	out      string
	bin      string
	before   string
	dir      string
	short    bool
	rounds   int
	duration time.Duration
	objects  int
	// many is the number of objects of longer lists, all the number that the memory of Annex is measured with.
	many, all int
	churn     time.Duration
	idle      int // watches
	only      string
	peers     string
	pgo       string
	check     string // file
	update    bool
}

// The parts of a run.
const (
	partRequests = "requests"
	partProfiles = "profiles" // only if there is a directory or a file to write to
	partWatch    = "watch"
	partIdle     = "idle"
	partLists    = "lists"
	partRestart  = "restart"
	partMany     = "many"
	partChurn    = "churn"
	partLarge    = "large"
	partMillion  = "million" // only if it is named
	partBursts   = "bursts"  // only if it is named: a minute of each round is rest
)

var parts = []string{
	partRequests,
	partProfiles,
	partWatch,
	partIdle,
	partLists,
	partRestart,
	partMany,
	partChurn,
	partLarge,
	partMillion,
	partBursts,
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.out, "out", "", "directory for peers.md and the raw peers.txt; without one, standard output")
	flags.StringVar(&s.bin, "bin", "../../bin", "directory of the programs; the project's sample is built into it")
	flags.StringVar(&s.before, "before", "", "an older build of the project's sample, to measure against as well; -out then gets "+
		"a page before.md")
	flags.StringVar(&s.dir, "dir", os.TempDir(), "directory on the disk to measure; not a tmpfs")
	flags.BoolVar(&s.short, "short", false, "once, shortly, with a tenth of the objects")
	flags.IntVar(&s.rounds, "rounds", 3, "how often each is measured")
	flags.DurationVar(&s.duration, "duration", time.Second, "how long one kind of request is measured in a round, on each server and with "+
		"each number of clients")
	flags.StringVar(&s.only, "only", "", "comma-separated parts: "+strings.Join(parts, ", ")+"; all but the last two if empty")
	flags.StringVar(&s.peers, "peers", "", "comma-separated servers to measure: embedded, embedded-before, etcd, etcd-before, sample, "+
		"crd, bare, synced; all if empty")
	flags.StringVar(
		&s.pgo,
		"pgo",
		"",
		"file for a profile of all kinds of requests, as go build takes it; it comes with the part "+partProfiles,
	)
	flags.StringVar(&s.check, "check", "", "file of figures to compare the processor time of requests with, in five minutes; "+
		"nothing else is measured")
	flags.BoolVar(&s.update, "update", false, "with -check, write the figures to the file")
	flags.DurationVar(
		&s.churn,
		"churn",
		10*time.Minute,
		"how long objects are created, changed and deleted for the memory that is left after it",
	)
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if s.rounds < 1 {
		return s, fmt.Errorf("-rounds %d: at least one", s.rounds)
	}
	if s.duration <= 0 {
		return s, fmt.Errorf("-duration %s: more than nothing", s.duration)
	}
	for _, part := range strings.Split(s.only, ",") {
		if s.only != "" && !slices.Contains(parts, part) {
			return s, fmt.Errorf("-only %s: there is no part %q", s.only, part)
		}
	}
	for _, peer := range strings.Split(s.peers, ",") {
		if s.peers != "" && !slices.ContainsFunc(columns, func(c column) bool { return c.peer == peer }) {
			return s, fmt.Errorf("-peers %s: there is no server %q", s.peers, peer)
		}
	}
	if s.churn <= 0 {
		return s, fmt.Errorf("-churn %s: more than nothing", s.churn)
	}
	if s.update && s.check == "" {
		return s, errors.New("-update writes the file of -check: name one")
	}
	s.objects, s.many, s.all, s.idle = 10_000, 50_000, 200_000, 10_000
	if s.check != "" {
		s.objects, s.peers = 2_000, strings.Join([]string{embedded, bare, synced}, ",")
	}
	if s.short {
		s.rounds, s.duration, s.objects = 1, min(s.duration, 200*time.Millisecond), 1_000
		s.many, s.all, s.idle, s.churn = 2_000, 4_000, 1_000, min(s.churn, 2*time.Second)
	}
	var err error
	if s.bin, err = filepath.Abs(s.bin); err != nil {
		return s, err
	}
	if s.before == "" {
		return s, nil
	}
	s.before, err = exec.LookPath(s.before)
	return s, err
}

func (s settings) has(part string) bool {
	if s.only == "" {
		return part != partMillion && part != partBursts
	}
	return slices.Contains(strings.Split(s.only, ","), part)
}

// measures reports whether a server is measured. The older build is measured only if it is given.
func (s settings) measures(peer string) bool {
	if s.before == "" && (peer == embeddedBefore || peer == annexedBefore) {
		return false
	}
	return s.peers == "" || slices.Contains(strings.Split(s.peers, ","), peer)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	machine, err := describeMachine(s.dir)
	if err != nil {
		return err
	}
	if machine.fileSystem == "tmpfs" {
		return fmt.Errorf("-dir %s is a tmpfs, where a sync costs nothing: name a directory on a disk", s.dir)
	}
	if err := build(ctx, s.bin, stderr); err != nil {
		return err
	}
	if err := forgetPrograms(s); err != nil {
		return err
	}
	work, err := os.MkdirTemp(s.dir, "annex-peers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	fleet, err := startFleet(starting, s, work)
	defer fleet.close()
	if err != nil {
		return err
	}
	b := &bench{
		ctx:      ctx,
		settings: s,
		work:     work,
		fleet:    fleet,
		results:  results{},
		raw:      &bytes.Buffer{},
		progress: stderr,
		began:    time.Now(),
		machine:  machine,
	}
	if b.versions, err = fleet.versions(ctx, s); err != nil {
		return err
	}
	if s.before != "" {
		b.beforeOf = revisionOf(s.before)
	}
	if s.out != "" {
		if err := os.MkdirAll(s.out, 0o755); err != nil {
			return err
		}
	}
	b.loadBefore = load()
	if s.check != "" {
		return b.check(stdout)
	}
	if err := b.measure(); err != nil {
		return err
	}
	b.loadAfter = load()
	return b.report(stdout)
}

// build leaves the project's sample and the bare server in the directory of programs. The sample is built in the
// workspace, which this module does not belong to.
func build(ctx context.Context, bin string, progress io.Writer) error {
	for _, program := range []struct{ name, dir, workspace, profile string }{
		{"wardle", filepath.Join("..", "..", "samples", "wardle"), "", "server.pgo"}, // as make build has it in a project
		{"bare", "bare", "off", "off"},
	} {
		cmd := exec.CommandContext(ctx, "go", "build", "-pgo="+program.profile, "-o", filepath.Join(bin, program.name), ".")
		cmd.Dir = program.dir
		cmd.Env = append(os.Environ(), "GOWORK="+program.workspace, "PWD=")
		cmd.Stdout, cmd.Stderr = progress, progress
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s (run this in the folder bench/peers): %w", program.name, err)
		}
	}
	return nil
}

// forgetPrograms makes the kernel drop the files of all programs from its cache. The linker leaves a new file there in
// other pieces than a read does, and a process holds whole pieces: a server just built held 35 MB of its file where a
// copy of the same program held 9.
func forgetPrograms(s settings) error {
	programs, err := filepath.Glob(filepath.Join(s.bin, "*"))
	if err != nil {
		return err
	}
	if s.before != "" {
		programs = append(programs, s.before)
	}
	for _, program := range programs {
		if err := forgetFile(program); err != nil {
			return fmt.Errorf("drop a program from the kernel's cache: %w", err)
		}
	}
	return nil
}

func forgetFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return err
	}
	if err := f.Sync(); err != nil { // only written pages can be dropped
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// revisionOf returns the commit that a program was built from; the name of its file if it was built without one.
func revisionOf(program string) string {
	if info, err := buildinfo.ReadFile(program); err == nil {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value[:min(8, len(s.Value))]
			}
		}
	}
	return filepath.Base(program)
}

// bench is one run.
type bench struct {
	ctx      context.Context
	settings settings
	work     string // directory
	fleet    *fleet
	results  results
	raw      *bytes.Buffer
	progress io.Writer
	began    time.Time

	machine               machine
	versions              map[string]string
	beforeOf              string // the commit of the older build
	loadBefore, loadAfter string
	objectSize            int
	written               int // numbers of changes that were used
	failures              []string
}

// turns returns the peers in the order of a round.
func (b *bench) turns(round int) []*peer { return turns(b.fleet.peers, round) }

// turns puts peers in the order of a round: each is the first one in turn.
func turns(peers []*peer, round int) []*peer {
	n := round % max(len(peers), 1)
	return slices.Concat(peers[n:], peers[:n])
}

// measure runs all parts. A failure is reported, but does not end the run, which would lose many minutes.
func (b *bench) measure() error {
	if err := b.fleet.namespaces(); err != nil {
		return err
	}
	s := b.settings
	few := min(s.rounds, 3)
	if s.has(partRestart) {
		b.rounds("restart, empty", few, func(round int) error { return b.restarts(round, 0) })
	}
	b.rounds("memory", 1, func(int) error { return b.empty() })
	if s.has(partIdle) {
		b.rounds("idle watches", 1, b.idleWatches)
		b.rounds("watches that never read", 1, b.deaf)
	}
	if s.has(partChurn) { // before there are other objects
		b.rounds("churn", 1, func(int) error { return b.churn() })
	}
	if s.has(partRequests) {
		b.rounds("requests", s.rounds, b.requests)
	}
	if s.has(partBursts) {
		b.rounds("bursts", s.rounds, b.bursts)
	}
	if s.has(partWatch) {
		b.rounds("watch", s.rounds, b.events)
	}
	if s.has(partLists) || s.has(partRestart) {
		b.rounds("load", 1, func(int) error { return b.load(0, s.objects) })
	}
	if s.has(partLists) {
		b.rounds("lists", s.rounds, b.lists)
	}
	b.rounds("memory", 1, func(int) error { return b.memory("used") })
	if s.has(partRestart) {
		b.rounds("restart", few, func(round int) error { return b.restarts(round, s.objects) })
		b.rounds("memory", 1, func(int) error { return b.memory("restarted") })
	}
	if s.has(partMany) {
		loaded := 0
		if s.has(partLists) || s.has(partRestart) {
			loaded = s.objects
		}
		b.rounds("load many", 1, func(int) error { return b.load(loaded, s.many) })
		b.rounds("lists of many", few, b.manyLists)
	}
	// Profiles are of Annex alone, and leave it a history that the others do not have.
	if s.has(partProfiles) && (s.out != "" || s.pgo != "") {
		b.rounds("profiles", 1, b.profiles)
	}
	// The remaining parts concern Annex alone, in processes of its own.
	b.fleet.close()
	for _, part := range []string{partLarge, partMillion} {
		if s.has(part) && s.measures(embedded) {
			b.rounds(part, 1, func(int) error { return b.alone(part) })
		}
	}
	return b.ctx.Err()
}

func (b *bench) rounds(name string, rounds int, measure func(round int) error) {
	for round := range rounds {
		if b.ctx.Err() != nil {
			return
		}
		fmt.Fprintf(b.progress, "%6.0fs  %s, round %d of %d\n", time.Since(b.began).Seconds(), name, round+1, rounds)
		if err := measure(round); err != nil {
			fmt.Fprintf(b.progress, "%s: %v\n", name, err)
			first, _, _ := strings.Cut(err.Error(), "\n")
			b.failures = append(b.failures, fmt.Sprintf("%s, round %d: %s", name, round+1, first))
		}
	}
}

// report writes the results. It fails if a measurement failed.
func (b *bench) report(stdout io.Writer) error {
	var page bytes.Buffer
	if b.settings.out != "" && b.settings.before != "" {
		b.writeBefore(&page)
		if err := os.WriteFile(filepath.Join(b.settings.out, "before.md"), page.Bytes(), 0o644); err != nil {
			return err
		}
		page.Reset()
		b.results = b.results.without(embeddedBefore, annexedBefore)
	}
	b.write(&page)
	if b.settings.out == "" {
		if _, err := io.Copy(stdout, &page); err != nil {
			return err
		}
	} else {
		if err := os.WriteFile(filepath.Join(b.settings.out, "peers.txt"), b.raw.Bytes(), 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(b.settings.out, "peers.md"), page.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if len(b.failures) > 0 {
		return errors.New("not all could be measured: " + strings.Join(b.failures, "; "))
	}
	return nil
}
