// Package testlog keeps the log of Kubernetes' libraries, of which a process has one, out of the output of tests.
// Servers that start and stop in hundreds of tests log thousands of lines that are irrelevant to a failure.
package testlog

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"k8s.io/klog/v2"
)

// kept is the number of lines that a failure prints: the last ones.
const kept = 100

// Tests is the interface of testing.M that Quiet needs.
type Tests interface{ Run() int }

// Quiet returns tests that print the last log lines only if one of them fails. If the environment variable
// ANNEX_TEST_LOG is set, every line is printed when it is logged.
//
//	func TestMain(m *testing.M) { os.Exit(testlog.Quiet(m).Run()) }
func Quiet(tests Tests) Tests { return quiet{tests, os.Stderr} }

type quiet struct {
	tests Tests
	out   io.Writer
}

// Run implements Tests.
func (q quiet) Run() int {
	if os.Getenv("ANNEX_TEST_LOG") != "" {
		return q.tests.Run()
	}
	var lines tail
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&lines, nil)))
	code := q.tests.Run()
	if code != 0 {
		lines.print(q.out)
	}
	return code
}

// tail holds the last lines that are written to it. The handler writes each with one call.
type tail struct {
	mu    sync.Mutex
	lines []string
	lost  int
}

func (t *tail) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, string(line))
	if len(t.lines) > kept {
		t.lines, t.lost = t.lines[1:], t.lost+1
	}
	return len(line), nil
}

func (t *tail) print(out io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == 0 {
		return
	}
	fmt.Fprintf(
		out,
		"\nThe end of the log, of all tests; %d lines before it are left out, which ANNEX_TEST_LOG=1 prints.\n%s",
		t.lost,
		strings.Join(t.lines, ""),
	)
}

var _ Tests = (*testing.M)(nil)
