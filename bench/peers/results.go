package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"
)

// results are measured values, one for each round.
type results map[point][]float64

// point is one figure of one measurement of one peer.
type point struct{ measurement, peer, unit string }

// value is one figure and its unit.
type value struct {
	unit  string
	value float64
}

// add records the values of one round, and writes them as a Go benchmark would.
func (r results) add(raw io.Writer, measurement, peer string, count int, took time.Duration, values ...value) {
	fmt.Fprintf(raw, "BenchmarkPeers/%s/peer=%s %d %d ns/op", measurement, peer, max(1, count), took.Nanoseconds()/int64(max(1, count)))
	for _, v := range values {
		p := point{measurement, peer, v.unit}
		r[p] = append(r[p], v.value)
		fmt.Fprintf(raw, " %.6g %s", v.value, v.unit)
	}
	fmt.Fprintln(raw)
}

// without returns the results of all peers but some.
func (r results) without(peers ...string) results {
	kept := maps.Clone(r)
	maps.DeleteFunc(kept, func(p point, _ []float64) bool { return slices.Contains(peers, p.peer) })
	return kept
}

// median returns NaN if nothing was measured.
func (r results) median(measurement, peer, unit string) float64 {
	values := slices.Sorted(slices.Values(r[point{measurement, peer, unit}]))
	switch n := len(values); {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return values[n/2]
	default:
		return (values[n/2-1] + values[n/2]) / 2
	}
}

// better returns the factor by which one peer is better than another.
func (r results) better(l line, peer, than string) float64 {
	ours, theirs := r.median(l.measurement, peer, l.unit), r.median(l.measurement, than, l.unit)
	if l.more {
		return ours / theirs
	}
	return theirs / ours
}

// percentile of sorted durations, in milliseconds.
func percentile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return float64(sorted[min(len(sorted)-1, int(p*float64(len(sorted))))].Nanoseconds()) / 1e6
}

func number(v float64) string {
	switch {
	case math.IsNaN(v), math.IsInf(v, 0):
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
	if text := number(v); text != "" {
		return text + "x"
	}
	return ""
}

// line is one row of a table: one unit of one measurement.
type line struct {
	label       string
	measurement string
	unit        string
	// more means that more is better.
	more bool
}

type column struct{ peer, head string }

// columns are the peers of a table, and of comparisons, in their order. Unmeasured peers are left out.
var (
	columns = []column{
		{embedded, "Annex, embedded"}, {embeddedBefore, "before, embedded"}, {annexed, "Annex, etcd"}, {annexedBefore, "before, etcd"},
		{sample, "sample-apiserver, etcd"}, {crd, "CRD, etcd"}, {bare, "bare Go server"}, {synced, "bare Go server, synced"},
	}
	comparisons = []struct{ peer, than, head string }{
		{
			embedded,
			sample,
			"embedded against sample",
		},
		{annexed, sample, "Annex on etcd against sample"},
		{embedded, crd, "embedded against CRD"},
		{embedded, bare, "embedded against bare"},
		{embedded, synced, "embedded against bare, synced"},
		{embedded, embeddedBefore, "embedded against before"},
		{annexed, annexedBefore, "Annex on etcd against before"},
	}
)

func (r results) table(w io.Writer, lines []line) {
	measured := map[string]bool{}
	for p := range r {
		measured[p.peer] = true
	}
	head, rule := "| ", "|---"
	for _, c := range columns {
		if measured[c.peer] {
			head, rule = head+"| "+c.head+" ", rule+"|---:"
		}
	}
	for _, c := range comparisons {
		if measured[c.peer] && measured[c.than] {
			head, rule = head+"| "+c.head+" ", rule+"|---:"
		}
	}
	fmt.Fprintf(w, "%s|\n%s|\n", head, rule)
	for _, l := range lines {
		fmt.Fprintf(w, "| %s |", l.label)
		for _, c := range columns {
			if measured[c.peer] {
				fmt.Fprintf(w, " %s |", number(r.median(l.measurement, c.peer, l.unit)))
			}
		}
		for _, c := range comparisons {
			if measured[c.peer] && measured[c.than] {
				fmt.Fprintf(w, " %s |", factor(r.better(l, c.peer, c.than)))
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}
