package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// results are the outcome of a package or of a suite. Specs of Ginkgo count as tests do; a test with subtests does not count.
type results struct {
	passed, failed, skipped int
	failures                []string
	wall, cpu               time.Duration
	// memory is the peak of one kube-apiserver in bytes.
	memory int64
}

func (r *results) add(other results) {
	r.passed, r.failed, r.skipped = r.passed+other.passed, r.failed+other.failed, r.skipped+other.skipped
	r.failures = append(r.failures, other.failures...)
	r.wall, r.cpu, r.memory = r.wall+other.wall, r.cpu+other.cpu, max(r.memory, other.memory)
}

func (r *results) row() string {
	return fmt.Sprintf("%d\t%d\t%d\t%.1f s\t%.1f s\t%d MB", r.passed, r.failed, r.skipped, r.wall.Seconds(), r.cpu.Seconds(), r.memory/1e6)
}

var (
	// ended matches the line of a test, whose first group is its result.
	ended = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)
	// specs matches the summary of a suite of Ginkgo.
	specs = regexp.MustCompile(`(?m)^(SUCCESS|FAIL)!.* -- (\d+) Passed \| (\d+) Failed \| (\d+) Pending \| (\d+) Skipped$`)
	// failedSpec matches a spec in the list of failures at the end of a suite of Ginkgo, and coloured the escape sequences of lines.
	failedSpec = regexp.MustCompile(`(?m)^\s*\[(?:FAIL|PANICKED!|TIMEDOUT)\] (.+)$`)
	coloured   = regexp.MustCompile("\x1b\\[[0-9;]*m")
)

// parse reads what go test -v prints.
func parse(text string) results {
	text = coloured.ReplaceAllString(text, "")
	var got results
	// The tests that run suites of Ginkgo are no tests of their own: each passes or fails as its suite does.
	for _, m := range specs.FindAllStringSubmatch(text, -1) {
		got.passed, got.failed = got.passed+number(m[2]), got.failed+number(m[3])
		got.skipped += number(m[4]) + number(m[5])
		if m[1] == "SUCCESS" {
			got.passed--
		} else {
			got.failed--
		}
	}
	tests := ended.FindAllStringSubmatch(text, -1)
	parents := make(map[string]bool)
	for _, m := range tests {
		for name := m[2]; strings.Contains(name, "/"); {
			name = name[:strings.LastIndex(name, "/")]
			parents[name] = true
		}
	}
	for _, m := range tests {
		result, name := m[1], m[2]
		if parents[name] {
			continue
		}
		switch result {
		case "PASS":
			got.passed++
		case "SKIP":
			got.skipped++
		case "FAIL":
			got.failed++
			got.failures = append(got.failures, name)
		}
	}
	for _, m := range failedSpec.FindAllStringSubmatch(text, -1) {
		got.failures = append(got.failures, strings.TrimSpace(m[1]))
	}
	return got
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
