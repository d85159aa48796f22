package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"
)

// results are measured values by benchmark without its backend, backend and unit.
type results map[point][]float64

type point struct{ benchmark, backend, unit string }

var (
	backendPart = regexp.MustCompile(`/backend=([^/]+)`)
	procsPart   = regexp.MustCompile(`-\d+$`)
)

// parse reads results in Go's benchmark format.
func parse(raw io.Reader) (results, error) {
	found := results{}
	reader := benchfmt.NewReader(raw, "storage.txt")
	for reader.Scan() {
		switch record := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			return nil, record
		case *benchfmt.Result:
			name := procsPart.ReplaceAllString(string(record.Name), "")
			backend := ""
			if match := backendPart.FindStringSubmatch(name); match != nil {
				backend, name = match[1], strings.Replace(name, match[0], "", 1)
			}
			for _, value := range record.Values {
				p := point{name, backend, value.Unit}
				if value.OrigUnit != "" {
					p.unit, value.Value = value.OrigUnit, value.OrigValue
				}
				found[p] = append(found[p], value.Value)
			}
		}
	}
	return found, reader.Err()
}

// median returns NaN if nothing was measured.
func (r results) median(benchmark, backend, unit string) float64 {
	values := slices.Sorted(slices.Values(r[point{benchmark, backend, unit}]))
	switch n := len(values); {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return values[n/2]
	default:
		return (values[n/2-1] + values[n/2]) / 2
	}
}

var columns = []string{"memory", "embedded", "etcd", "etcd+cacher"}

// line is one row of a table: one unit of one benchmark.
type line struct {
	label     string
	benchmark string
	unit      string
	// more means that more is better.
	more bool
}

func (r results) table(w io.Writer, lines []line) {
	fmt.Fprintln(w, "| | memory | embedded | etcd | etcd + cacher | embedded against etcd | against etcd + cacher |")
	fmt.Fprintln(w, "|---|---:|---:|---:|---:|---:|---:|")
	for _, l := range lines {
		fmt.Fprintf(w, "| %s |", l.label)
		for _, backend := range columns {
			fmt.Fprintf(w, " %s |", number(r.median(l.benchmark, backend, l.unit)))
		}
		for _, backend := range columns[2:] {
			fmt.Fprintf(w, " %s |", factor(r.better(l, backend)))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

// better returns the factor by which embedded is better than another backend.
func (r results) better(l line, than string) float64 {
	ours, theirs := r.median(l.benchmark, "embedded", l.unit), r.median(l.benchmark, than, l.unit)
	if l.more {
		return ours / theirs
	}
	return theirs / ours
}

func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return ""
	case v >= 1000:
		digits := fmt.Sprintf("%.0f", v)
		for i := len(digits) - 3; i > 0; i -= 3 {
			digits = digits[:i] + "," + digits[i:]
		}
		return digits
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func factor(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return number(v) + "x"
}

// write writes the document.
func write(w io.Writer, m machine, s settings, r results, took time.Duration) error {
	fmt.Fprintf(w, `# Storage benchmarks

Written by `+"`make bench-storage`"+`, which runs the Go benchmarks of the module [bench](../../bench) and takes
%s here. Do not edit: run it. The raw results are in [storage.txt](storage.txt), and
[storage.benchstat.txt](storage.benchstat.txt) is how benchstat compares them.

All is measured at `+"`storage.Interface`"+`, every write synced to disk before it is acknowledged.

- **memory**, **embedded**: the project's own storage, as a server opens it, with its stock settings.
- **etcd**: upstream's etcd3 store and one real etcd 3.7 with stock settings (but for a quota of 8 GiB) in a process
  of its own, reached over gRPC without TLS. Processor time is that of both processes.
- **etcd + cacher**: the same with upstream's watch cache, as kube-apiserver runs it.

Objects are pods of upstream's example group as JSON, with managed fields, and where it says so as protobuf. Each measurement is a process of its own,
the backends take turns, and the figures are medians of %d rounds (of 100,000 objects and upstream's benchmarks: %d; of
a million: 1). Factors above 1 are in favour of embedded.

| | |
|---|---|
| processor | %s, %d cores |
| memory | %s |
| kernel, file system | Linux %s, %s |
| Go | %s |

`, took.Round(time.Minute), s.rounds, min(s.rounds, 2), m.processor, m.processors, m.memory, m.kernel, m.fileSystem, m.goVersion)
	if s.short {
		fmt.Fprint(w, "**With -short: a tenth of the operations and objects, once. These figures show that it runs.**\n\n")
	}
	r.aims(w, s)
	r.body(w, s)
	return nil
}

// aims writes the table of targets.
func (r results) aims(w io.Writer, s settings) {
	objects := "100000"
	if s.short {
		objects = "10000"
	}
	rate := line{benchmark: "Create/size=1KB/writers=64", unit: "writes/s", more: true}
	cpu := line{benchmark: "Create/size=1KB/writers=64", unit: "cpu-us/write"}
	rateProtobuf, cpuProtobuf := rate, cpu
	rateProtobuf.benchmark, cpuProtobuf.benchmark = "CreateProtobuf/size=1KB/writers=64", "CreateProtobuf/size=1KB/writers=64"
	selector := "Select/objects=" + objects
	fmt.Fprint(w, "## Aims\n\n| | aim | against etcd | against etcd + cacher |\n|---|---|---:|---:|\n")
	fmt.Fprintf(
		w,
		"| durable creates per second, 64 writers, 1 KB | 4x | %s | %s |\n",
		factor(r.better(rate, "etcd")),
		factor(r.better(rate, "etcd+cacher")),
	)
	fmt.Fprintf(
		w,
		"| processor time of such a create | at most 1/3 | 1/%s | 1/%s |\n",
		number(r.better(cpu, "etcd")),
		number(r.better(cpu, "etcd+cacher")),
	)
	fmt.Fprintf(
		w,
		"| such creates, stored as protobuf by both | 4x | %s | %s |\n",
		factor(r.better(rateProtobuf, "etcd")),
		factor(r.better(rateProtobuf, "etcd+cacher")),
	)
	fmt.Fprintf(
		w,
		"| processor time of such a create as protobuf | at most 1/3 | 1/%s | 1/%s |\n",
		number(r.better(cpuProtobuf, "etcd")),
		number(r.better(cpuProtobuf, "etcd+cacher")),
	)
	scan := r.median(selector+"/indexed=false", "etcd", "lists/s")
	cached := r.median(selector+"/indexed=false", "etcd+cacher", "lists/s")
	cachedIndexed := r.median(selector+"/indexed=true", "etcd+cacher", "lists/s")
	ours := r.median(selector+"/indexed=true", "embedded", "lists/s")
	fmt.Fprintf(
		w,
		"| list with a 1 %% selector, indexed, of %s | 20x | %s | %s not indexed, %s indexed |\n",
		objects,
		factor(ours/scan),
		factor(ours/cached),
		factor(ours/cachedIndexed),
	)
	fmt.Fprintf(
		w,
		"| processor time of a delivered event, 1,000 watches | 6 us | %s us | etcd + cacher: %s us |\n",
		number(
			r.median("Watch/watchers=1000", "embedded", "cpu-us/event"),
		),
		number(r.median("Watch/watchers=1000", "etcd+cacher", "cpu-us/event")),
	)
	fmt.Fprintf(
		w,
		"| restart with %s objects until the first page of a list is read | 1 s | %s s | etcd: %s s, etcd + cacher: %s s |\n\n",
		objects,
		number(
			r.median("Restart/objects="+objects, "embedded", "page-s"),
		),
		number(r.median("Restart/objects="+objects, "etcd", "page-s")),
		number(r.median("Restart/objects="+objects, "etcd+cacher", "page-s")),
	)
}

func (r results) body(w io.Writer, s settings) {
	fmt.Fprint(w, "## Creating\n\nThe stored object is decoded for the answer.\n\n")
	var lines []line
	for _, stored := range []struct{ benchmark, as string }{{"Create", ""}, {"CreateProtobuf", " as protobuf"}} {
		for _, size := range []string{"1KB", "8KB"} {
			for _, writers := range []string{"1", "16", "64"} {
				name := stored.benchmark + "/size=" + size + "/writers=" + writers
				lines = append(lines,
					line{size + stored.as + ", " + writers + " writers: creates/s", name, "writes/s", true},
					line{size + stored.as + ", " + writers + " writers: CPU us each", name, "cpu-us/write", false})
			}
		}
	}
	r.table(w, lines)

	fmt.Fprint(w, "## Reading\n\nOf 10,000 objects of 1 KB, after a first list of all.\n\n")
	r.table(w, []line{
		{"get: per second", "Read/get", "gets/s", true}, {"get: CPU us each", "Read/get", "cpu-us/get", false},
		{"list of all: per second", "Read/list=10k", "lists/s", true}, {"list of all: CPU us each", "Read/list=10k", "cpu-us/list", false},
	})

	fmt.Fprint(w, "## Watching\n\nUpdates of one object of 1 KB; each event is encoded as JSON by upstream's watch handler for each watch "+
		"and\nwritten to a connection that takes everything. The time of the updates is part of the events'.\n\n")
	lines = nil
	for _, watchers := range []string{"1", "100", "1000"} {
		lines = append(lines,
			line{watchers + " watches: events/s", "Watch/watchers=" + watchers, "events/s", true},
			line{watchers + " watches: CPU us per event", "Watch/watchers=" + watchers, "cpu-us/event", false})
	}
	r.table(w, lines)

	fmt.Fprint(w, "A thousand watches with a field selector each, of which every update concerns one:\n\n")
	r.table(w, []line{
		{"updates/s", "WatchOne/watchers=1000", "updates/s", true}, {"CPU us each", "WatchOne/watchers=1000", "cpu-us/update", false},
	})

	sizes := []string{"100000", "1000000"}
	if s.short {
		sizes = []string{"10000"}
	}
	fmt.Fprint(w, "## Selecting 1 %\n\nBy a label with a hundred values. Upstream's bare store has no indexes.\n\n")
	name := "Select/objects=" + sizes[0]
	r.table(w, []line{
		{
			"of " + sizes[0] + ", no index: lists/s",
			name + "/indexed=false",
			"lists/s",
			true,
		},
		{"no index: CPU us each", name + "/indexed=false", "cpu-us/list", false},
		{
			"of " + sizes[0] + ", indexed: lists/s",
			name + "/indexed=true",
			"lists/s",
			true,
		},
		{"indexed: CPU us each", name + "/indexed=true", "cpu-us/list", false},
	})
	for _, objects := range sizes {
		fmt.Fprintf(w, "## %s objects of 1 KB\n\nCreated by 64 writers; then a restart, with etcd that of its server, too. Times count from "+
			"its start. The whole\nlist comes in pages of 10,000. Memory is what is resident in the process that stores, and in etcd's.\n\n",
			number(parseInt(objects)))
		load, restart := "Load/objects="+objects, "Restart/objects="+objects
		r.table(w, []line{
			{"creates/s", load, "writes/s", true},
			{"CPU us each", load, "cpu-us/write", false},
			{"memory then, MB", load, "RSS-MB", false},
			{"etcd's, MB", load, "etcd-RSS-MB", false},
			{"disk, MB", load, "disk-MB", false},
			{
				"restart: first get, s",
				restart,
				"get-s",
				false,
			},
			{"first page of 500, s", restart, "page-s", false},
			{"whole list, s", restart, "list-s", false},
			{
				"memory after the first page, MB",
				restart,
				"RSS-MB",
				false,
			},
			{"after the whole list, MB", restart, "listed-RSS-MB", false},
			{"etcd's, MB", restart, "etcd-RSS-MB", false},
		})
	}

	fmt.Fprint(w, "## Upstream's own benchmarks\n\n`RunBenchmark*` of k8s.io/apiserver/pkg/storage/testing on 5,000 pods instead of "+
		"150,000, with indexes where there are any.\n\n")
	lines = nil
	for _, p := range slices.SortedFunc(maps.Keys(r), func(a, b point) int { return strings.Compare(a.benchmark, b.benchmark) }) {
		if p.backend != "embedded" || !strings.HasPrefix(p.benchmark, "Upstream") {
			continue
		}
		label := strings.TrimPrefix(p.benchmark, "Upstream")
		switch p.unit {
		case "writes/s", "list-calls/s":
			if p.unit == "list-calls/s" && strings.HasPrefix(label, "Write") {
				continue
			}
			lines = append(lines, line{label + ": " + p.unit, p.benchmark, p.unit, true})
		case "ns/op":
			if strings.HasPrefix(label, "StoreStats") {
				lines = append(lines, line{label + ": ns", p.benchmark, p.unit, false})
			}
		}
	}
	r.table(w, lines)
}

func parseInt(text string) float64 {
	var n float64
	_, _ = fmt.Sscan(text, &n)
	return n
}
