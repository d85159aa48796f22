package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// writeTable writes results as a table of Markdown.
func (r *results) writeTable(w io.Writer) {
	fmt.Fprintf(w, "| attack | sent: answers | user p50 / p99 / max, failed | administrator p50 / p99 / max, failed | peak memory | "+
		"processor time, busy after | verdict |\n")
	fmt.Fprintf(w, "|---|---|---|---|---:|---:|---|\n")
	for _, one := range r.Results {
		verdict := "held"
		if len(one.Failed) > 0 {
			verdict = "**failed**: " + strings.Join(one.Failed, "; ")
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %d MB | %.1f s, %.0f s | %s |\n", one.Attack, cell(one.Sent), one.User, one.Admin, one.Peak>>20,
			one.Processor.Seconds(), one.Busy.Seconds(), cell(verdict))
	}
	history := fmt.Sprintf("The history of the %d operations of both callers is linearizable: no acknowledged write was lost.", r.Checked)
	if r.History != "" {
		history = "**The history is not linearizable**: " + r.History
	}
	fmt.Fprintf(w, "\n%s\n", history)
	if r.Stopped != "" {
		fmt.Fprintf(w, "\n**Further attacks were left out** %s.\n", r.Stopped)
	}
	if r.Ended != "" {
		fmt.Fprintf(w, "\n**The server did not end in order**: %s\n", r.Ended)
	}
}

// String returns a latency in milliseconds.
func (l latency) String() string {
	text := fmt.Sprintf("%s / %s / %s ms", milliseconds(l.P50), milliseconds(l.P99), milliseconds(l.Max))
	if l.Failed > 0 {
		text += fmt.Sprintf(", **%d of %d**", l.Failed, l.Requests)
	}
	return text
}

func milliseconds(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprint(d.Milliseconds())
}

// cell makes a text fit into a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;").Replace(text)
}

// The marks in a page between which the results of a server are written.
func marks(server string) (begin, end string) {
	return "<!-- attack: " + server + " -->", "<!-- /attack: " + server + " -->"
}

// writePage writes the results into a page, between the marks of their server.
func (r *results) writePage(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("write the results into the page: %w", err)
	}
	begin, end := marks(r.Server)
	before, rest, found := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("write the results into the page %s: it has no lines %q and %q", path, begin, end)
	}
	var b strings.Builder
	b.WriteString(before + begin + "\n\n")
	fmt.Fprintf(&b, "%s; %s for each attack; memory bound %d MB.\n\n", machine(), r.Duration, r.Bound>>20)
	r.writeTable(&b)
	b.WriteString("\n" + end + after)
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// machine describes the machine that the figures depend on.
func machine() string {
	value := func(file, name string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			return "unknown"
		}
		for line := range strings.Lines(string(data)) {
			if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == name {
				return strings.TrimSpace(value)
			}
		}
		return "unknown"
	}
	load := "unknown"
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(data), " ")
	}
	return fmt.Sprintf("%s, %d processors, %s, %s/%s, %s; load %s at the end", value("/proc/cpuinfo", "model name"), runtime.NumCPU(),
		value("/proc/meminfo", "MemTotal"), runtime.GOOS, runtime.GOARCH, runtime.Version(), load)
}
