package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
)

// write writes the page.
func (b *bench) write(w io.Writer, curves []*curve) {
	fmt.Fprintf(w, `# Growth

Written by `+"`make bench-growth`"+`, which runs [bench/growth](../../bench/growth). Do not edit: run it. [growth.json](growth.json) has
the values of every round.

The processor time of a request, as a server holds more of one thing. A server is a process with stock settings, the embedded
storage, all writes synced, and objects of a kilobyte. Requests go to its handler, with all filters, %d at once and without TLS.
The servers of a picture run at the same time and are measured in turn, %d requests at a time, once they are at rest; figures are
medians of all rounds. Garbage is collected before each measurement and not within one; a request is charged with its part of that
collection, by the bytes that it allocates out of those that a process may allocate between two collections.
A curve is flat if it ends within %.0f %% of its begin, which the grey band shows. Curves that are not flat are in bold.

`, workers, each, 100*(flat-1))
	for _, c := range curves {
		c.write(w)
	}
}

// machine describes the machine, and its load while an axis was measured.
func machine(loadBefore string, took time.Duration) string {
	return fmt.Sprintf("%s, %d cores, %s, Linux %s, %s; it took %s, with a load average of %s before and %s after.",
		valueIn("/proc/cpuinfo", "model name"), runtime.NumCPU(), valueIn("/proc/meminfo", "MemTotal"), release(), runtime.Version(),
		took.Round(time.Second), loadBefore, load())
}

func (c *curve) write(w io.Writer) {
	fmt.Fprintf(w, "## %s\n\n![%s: growth of each request](growth-%s.svg)\n\n%s\n\n", c.axis.title, c.axis.title, c.axis.name, c.axis.why)
	fmt.Fprintf(w, "Measured on %s\n\n", c.Machine)
	fmt.Fprintf(w, "Processor time of a request in microseconds, with this many %s:\n\n| |", c.axis.of)
	for _, n := range c.Steps {
		fmt.Fprintf(w, " %s |", grouped(float64(n)))
	}
	fmt.Fprintf(w, " growth |\n|---|%s---:|\n", strings.Repeat("---:|", len(c.Steps)))
	for _, op := range operations {
		fmt.Fprintf(w, "| %s |", op)
		for i := range c.Steps {
			fmt.Fprintf(w, " %s |", grouped(c.us(op, i)))
		}
		growth := fmt.Sprintf("%.2fx", c.growth(op))
		switch {
		case c.grows(op) && c.axis.linear && slices.Contains(writes, op):
			last := len(c.Steps) - 1
			growth += fmt.Sprintf(", %.1f us for each", (c.us(op, last)-c.us(op, 0))/float64(c.Steps[last]-c.Steps[0]))
		case c.grows(op):
			growth = "**" + growth + "**"
		}
		fmt.Fprintf(w, " %s |\n", growth)
	}
	fmt.Fprintln(w)
	if len(c.Starts) == 0 {
		return
	}
	fmt.Fprint(w, "A start on these objects, until the first page of 500 has been read, and the memory of the servers:\n\n"+
		"| objects | first page, s | processor time, s | resident then, MB | resident after they were created, MB |\n"+
		"|---:|---:|---:|---:|---:|\n")
	for i, s := range c.Starts {
		fmt.Fprintf(w, "| %s | %.2f | %.2f | %s | %s |\n", grouped(float64(c.Steps[i])), s.Took.Seconds(), s.Processor.Seconds(),
			grouped(s.Resident), grouped(c.Filled[i].Resident))
	}
	fmt.Fprintln(w)
}

// grows reports whether the curve of an operation is not flat.
func (c *curve) grows(operation string) bool { return c.growth(operation) > flat }

// grouped writes a number with three digits at least, and its thousands grouped.
func grouped(v float64) string {
	switch {
	case v < 10:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	case v < 1000:
		return fmt.Sprintf("%.0f", v)
	}
	whole := int64(math.Round(v))
	digits := fmt.Sprint(whole)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
