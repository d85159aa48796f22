package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The check compares the processor time of requests with committed figures, as ratios against a yardstick: the bare
// server, in the same run. Ratios move less with the load of a machine than times do.
const (
	checkClients = 16
	// checkFails is the factor beyond which a cell fails.
	checkFails = 1.10
	// checkAgain is how often all is measured again while a cell fails.
	checkAgain = 2
	// checkMost is the time after which nothing is measured again.
	checkMost = 200 * time.Second
)

// checkCell is one compared figure.
type checkCell struct {
	name, measurement, yardstick, unit string
}

func checkCells() []checkCell {
	var all []checkCell
	for _, op := range operations {
		yardstick := synced
		if op.name == "get" {
			yardstick = bare
		}
		all = append(all, checkCell{op.name, requestsCell(op.name, checkClients), yardstick, "cpu-us/req"})
	}
	return append(all,
		checkCell{"list", "list=all", bare, "cpu-us/req"},
		checkCell{"watch event", checkWatch.cell(), bare, "cpu-us/event"},
	)
}

var checkWatch = fanOut{watchers: 100, burst: true, updates: 300}

// check measures, and compares with a file of figures, or writes it.
func (b *bench) check(stdout io.Writer) error {
	if err := errors.Join(b.fleet.namespaces(), b.load(0, b.settings.objects)); err != nil {
		return err
	}
	b.rounds("warm up", 1, b.checkRound) // not counted
	b.results = results{}
	b.rounds("check", b.settings.rounds, b.checkRound)
	if b.settings.update {
		return b.writeChecked(stdout)
	}
	committed, from, err := readChecked(b.settings.check)
	if err != nil {
		return err
	}
	for again := 1; len(b.slower(committed)) > 0 && again <= checkAgain && time.Since(b.began) < checkMost; again++ {
		fmt.Fprintf(b.progress, "slower: %s; measured again\n", strings.Join(b.slower(committed), ", "))
		b.rounds(fmt.Sprint("again ", again), b.settings.rounds, b.checkRound)
	}
	b.loadAfter = load()
	fmt.Fprint(stdout, b.checkHead())
	if from != b.machine.processor {
		fmt.Fprintf(stdout, "The figures are from another processor (%s), where ratios differ: compare with those of your base, by "+
			"UPDATE=1 there.\n\n", from)
	}
	if busy, _ := strconv.ParseFloat(b.loadBefore, 64); busy > float64(b.machine.processors) {
		fmt.Fprintf(stdout, "Other programs use the machine (load %s on %d processors): ratios of runs differ by 20 %% then.\n\n",
			b.loadBefore, b.machine.processors)
	}
	fmt.Fprintf(stdout, "%-12s %10s %10s %10s %8s %8s\n", "", "us each", "yardstick", "ratio", "before", "change")
	for _, c := range checkCells() {
		ratio := b.ratio(c)
		fmt.Fprintf(stdout, "%-12s %10s %10s %10.2f %8.2f %+7.1f %%\n", c.name, number(b.results.median(c.measurement, embedded, c.unit)),
			number(b.results.median(c.measurement, c.yardstick, c.unit)), ratio, committed[c.name], 100*(ratio/committed[c.name]-1))
	}
	if len(b.failures) > 0 {
		return errors.New("not all could be measured: " + strings.Join(b.failures, "; "))
	}
	if slower := b.slower(committed); len(slower) > 0 {
		return fmt.Errorf("slower by more than %.0f %% than %s, in the medians of all rounds: %s; if that is meant, UPDATE=1 writes "+
			"the new figures",
			100*(checkFails-1), b.settings.check, strings.Join(slower, ", "))
	}
	return nil
}

// checkRound measures every cell once on every server, the servers in turn.
func (b *bench) checkRound(round int) error {
	if err := b.requestsOf(checkClients, round); err != nil {
		return err
	}
	for _, p := range b.turns(round) {
		if err := b.list(p, "list=all", "", b.settings.objects); err != nil {
			return fmt.Errorf("list on %s: %w", p.name, err)
		}
		if err := b.fanOut(p, checkWatch); err != nil {
			return fmt.Errorf("watch on %s: %w", p.name, err)
		}
	}
	return nil
}

// ratio returns the median of the rounds' ratios; NaN if nothing was measured.
func (b *bench) ratio(c checkCell) float64 {
	ours, theirs := b.results[point{c.measurement, embedded, c.unit}], b.results[point{c.measurement, c.yardstick, c.unit}]
	ratios := results{}
	for i := range min(len(ours), len(theirs)) {
		if theirs[i] > 0 {
			ratios[point{}] = append(ratios[point{}], ours[i]/theirs[i])
		}
	}
	return ratios.median("", "", "")
}

// slower returns the cells that fail. A cell without a figure on either side fails, too.
func (b *bench) slower(committed map[string]float64) []string {
	var all []string
	for _, c := range checkCells() {
		if ratio := b.ratio(c); !(ratio <= committed[c.name]*checkFails) {
			all = append(all, c.name)
		}
	}
	return all
}

func (b *bench) checkHead() string {
	return fmt.Sprintf("%s, %d cores, %s, Linux %s, %s, load %s to %s; objects of %d bytes, lists of %d; %d clients; all writes synced; "+
		"medians of %d rounds of %s\n\n", b.machine.processor, b.machine.processors, b.machine.memory, b.machine.kernel, b.machine.fileSystem,
		b.loadBefore, b.loadAfter, b.objectSize, b.settings.objects, checkClients,
		len(b.results[point{checkCells()[0].measurement, embedded, checkCells()[0].unit}]), b.settings.duration)
}

const checkProcessor = "# processor: "

// writeChecked writes the measured ratios to the file of figures.
func (b *bench) writeChecked(stdout io.Writer) error {
	if len(b.failures) > 0 {
		return errors.New("not all could be measured: " + strings.Join(b.failures, "; "))
	}
	b.loadAfter = load()
	var file bytes.Buffer
	fmt.Fprintf(&file, "# Processor time of the sample for each request, as a multiple of the bare server's for the same, in the "+
		"same run. Written by\n"+
		"# UPDATE=1 make bench-check, which measures both.\n# %s%s%s\n",
		strings.TrimSuffix(b.checkHead(), "\n\n"), "\n", checkProcessor+b.machine.processor)
	for _, c := range checkCells() {
		fmt.Fprintf(&file, "%-12s %.2f\n", c.name, b.ratio(c))
	}
	if _, err := stdout.Write(file.Bytes()); err != nil {
		return err
	}
	return os.WriteFile(b.settings.check, file.Bytes(), 0o644)
}

// readChecked reads a file of figures: the ratios by the names of cells, and the processor they were measured on.
func readChecked(path string) (ratios map[string]float64, processor string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, "", fmt.Errorf("read the committed figures (UPDATE=1 writes them): %w", err)
	}
	ratios = map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if name, ok := strings.CutPrefix(line, checkProcessor); ok {
			processor = name
		}
		if line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		ratio, err := strconv.ParseFloat(line[at+1:], 64)
		if at < 0 || err != nil || ratio <= 0 || math.IsInf(ratio, 0) {
			return nil, "", fmt.Errorf("%s:%d: %q is not a name and a ratio: UPDATE=1 make bench-check writes the file", path, n, line)
		}
		ratios[strings.TrimSpace(line[:at])] = ratio
	}
	if i := slices.IndexFunc(checkCells(), func(c checkCell) bool { return ratios[c.name] == 0 }); i >= 0 {
		return nil, "", fmt.Errorf("%s has no ratio of %s: UPDATE=1 make bench-check writes the file", path, checkCells()[i].name)
	}
	return ratios, cmp.Or(processor, "unknown"), lines.Err()
}
