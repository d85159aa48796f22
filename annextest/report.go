package annextest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Report records the requests of the code under test, and writes them down when a test fails: in order, each with its
// user, its object, the answer and the fields that it changed, with the events of the server and with all objects that
// have changed since the test began.
//
//	var report annextest.Report
//	config = report.Wrap(config)
//	report.OnFailure(t)
//
// Requests of clients that are made of the configuration which Wrap returns are recorded. A report holds the last 10,000
// requests and events of watches, with bodies of at most 32 MiB in all and 1 MiB each. Bodies are decoded only when
// a report is written.
//
// The data of Secrets, tokens in the bodies of requests, and the messages of errors and events about them are never
// written. The server does not matter.
//
// The zero value has recorded nothing. All methods may be called concurrently.
type Report struct {
	// Dir is the folder for the whole reports, which must exist. Empty means the artifact directory of the test if go test
	// has -artifacts, or else a new folder in that for temporary files, which stays.
	Dir string
	// Redact changes each object before its fields are written, as its JSON has it; nil changes none. It is called by the
	// goroutine that writes the report.
	Redact func(obj map[string]any)

	mu        sync.Mutex
	config    *rest.Config // the first that was wrapped
	open      map[*exchange]bool
	records   []record
	forgotten int // records that were before the first of records
	held      int // bytes
}

// ReportOnFailure returns a copy of a client configuration whose requests are reported if the test fails: Wrap and OnFailure
// of a new Report. If the configuration has faults as well, wrap it by the faults first, so that their answers are
// reported.
//
//	config := annextest.ReportOnFailure(t, annextest.Start(t, server))
func ReportOnFailure(t Test, config *rest.Config) *rest.Config {
	t.Helper()
	r := &Report{}
	config = r.Wrap(config)
	r.OnFailure(t)
	return config
}

// Wrap returns a copy of a client configuration whose requests are recorded. Several configurations may be wrapped, for
// example of several users; the user of the first one reads the objects and events for reports.
func (r *Report) Wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	prefix, who := prefixOf(config), userOf(config)
	r.mu.Lock()
	if r.config == nil {
		r.config = rest.CopyConfig(config)
		r.config.QPS = -1
	}
	r.mu.Unlock()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &recorder{r, prefix, who, next} })
	return config
}

// OnFailure logs a report of at most 50 lines if the test fails, from now until its end, and writes the whole into a file
// whose path is logged. A suite calls it at the beginning of each test. It reads the revision of the server at once, and
// the objects when the test has failed; what cannot be read is named in the report.
func (r *Report) OnFailure(t Test) {
	t.Helper()
	since := r.now()
	t.Cleanup(func() {
		t.Helper()
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), gatherTime)
		defer cancel()
		text := r.text(ctx, t.Name(), since)
		place, err := r.keep(t, text.whole())
		if err != nil {
			place = "not kept: " + err.Error()
		}
		t.Logf("%s", text.screen(place))
	})
}

// WriteTo writes the whole report from the first request on, whether a test has failed or not.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), gatherTime)
	defer cancel()
	n, err := w.Write(r.text(ctx, "", moment{}).whole())
	return int64(n), err
}

// gatherTime bounds the reading of objects and events for a report.
const gatherTime = 20 * time.Second

// moment is a beginning of a report.
type moment struct {
	time     time.Time
	record   int
	revision string // empty means that it is not known
	err      error
}

// now returns the moment after the last request.
func (r *Report) now() moment {
	r.mu.Lock()
	m := moment{time: time.Now(), record: r.forgotten + len(r.records)}
	config := r.config
	r.mu.Unlock()
	if config == nil {
		m.err = fmt.Errorf("no configuration was wrapped when the test began")
		return m
	}
	ctx, cancel := context.WithTimeout(context.Background(), gatherTime)
	defer cancel()
	m.revision, m.err = revisionOf(ctx, config)
	return m
}

// keep writes a whole report into a new file and returns its path.
func (r *Report) keep(t Test, text []byte) (string, error) {
	dir := r.Dir
	if f := flag.Lookup("test.artifacts"); dir == "" && f != nil && f.Value.String() == "true" {
		if a, ok := t.(interface{ ArtifactDir() string }); ok {
			dir = a.ArtifactDir()
		}
	}
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "annextest-report-"); err != nil {
			return "", err
		}
	}
	file, err := os.CreateTemp(dir, "report-"+fileName(t.Name())+"-*.txt")
	if err != nil {
		return "", err
	}
	if _, err := file.Write(text); err != nil {
		_ = file.Close() // the first error is the reason
		return "", err
	}
	return file.Name(), file.Close()
}

// fileName replaces the characters of a test's name that are awkward in names of files.
func fileName(test string) string {
	const most = 80
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			return c
		}
		return '_'
	}, test)
	return name[:min(len(name), most)]
}

// reportText is a report that is ready to be written.
type reportText struct {
	head    string
	steps   []reportStep
	events  []string
	objects []string
	notes   []string
}

// reportStep is a request, or an event of a watch.
type reportStep struct {
	at      string
	line    string
	took    string // empty for an event
	details []string
	// minor steps changed nothing and failed at nothing: they are in the file alone.
	minor bool
}

func (s *reportStep) text() string {
	if s.took == "" {
		return s.at + " " + s.line
	}
	return s.at + " " + s.line + ", " + s.took
}

// Bounds of the part of a report that is logged.
const (
	screenLines   = 50
	screenColumns = 160
	screenEvents  = 8
	screenObjects = 14
	screenDetails = 4
)

// screen is the report in at most 50 lines, with the place of the whole.
func (t *reportText) screen(place string) string {
	lines := []string{t.head}
	events := lastOf("events:", t.events, screenEvents, "earlier events")
	objects := firstOf("objects that changed since the test began:", t.objects, screenObjects, "more lines")
	notes := t.notes[:min(len(t.notes), 3)]
	room := screenLines - len(lines) - len(events) - len(objects) - len(notes) - 1
	lines = append(lines, t.requests(room)...)
	lines = append(append(append(lines, events...), objects...), notes...)
	for i, line := range lines {
		lines[i] = shortened(strings.ReplaceAll(line, "\n", " "), screenColumns)
	}
	return strings.Join(append(lines, "the whole report: "+place), "\n")
}

// requests returns the last steps that fit into a number of lines, without the minor ones. Equal steps in a row are one
// line.
func (t *reportText) requests(room int) []string {
	var blocks [][]string
	previous, times := "", 0
	for _, s := range t.steps {
		if s.minor {
			continue
		}
		key := s.line + "\n" + strings.Join(s.details, "\n")
		if key == previous {
			times++
			last := blocks[len(blocks)-1]
			count := fmt.Sprintf(" (%d times)", times) // a long line must not hide it
			last[0] = shortened(s.at+" "+s.line, screenColumns-len(count)) + count
			continue
		}
		previous, times = key, 1
		block := []string{s.text()}
		for i, detail := range s.details {
			if i == screenDetails-1 && len(s.details) > screenDetails {
				block = append(block, fmt.Sprintf("         ... %d more", len(s.details)-i))
				break
			}
			block = append(block, "         "+detail)
		}
		blocks = append(blocks, block)
	}
	if len(blocks) == 0 {
		return []string{"no request changed anything or failed"}
	}
	var lines []string
	for i := len(blocks) - 1; i >= 0; i-- {
		if len(lines)+len(blocks[i])+1 > room {
			return append([]string{fmt.Sprintf("... %d earlier lines of writes and failures", i+1)}, lines...)
		}
		lines = append(blocks[i], lines...)
	}
	return lines
}

// whole is the report without bounds.
func (t *reportText) whole() []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, t.head)
	for _, note := range t.notes {
		fmt.Fprintln(&b, note)
	}
	fmt.Fprintln(&b, "\nrequests:")
	for _, s := range t.steps {
		fmt.Fprintln(&b, s.text())
		for _, detail := range s.details {
			fmt.Fprintln(&b, "        ", detail)
		}
	}
	for _, section := range []struct {
		title string
		lines []string
	}{{"events:", t.events}, {"objects that changed since the test began:", t.objects}} {
		if len(section.lines) > 0 {
			fmt.Fprintf(&b, "\n%s\n%s\n", section.title, strings.Join(section.lines, "\n"))
		}
	}
	return b.Bytes()
}

// firstOf returns a title and the first lines of a section; nil if it is empty.
func firstOf(title string, lines []string, most int, rest string) []string {
	switch {
	case len(lines) == 0:
		return nil
	case len(lines) <= most:
		return append([]string{title}, lines...)
	}
	return append(append([]string{title}, lines[:most-1]...), fmt.Sprintf("  ... %d %s", len(lines)-most+1, rest))
}

// lastOf returns a title and the last lines of a section; nil if it is empty.
func lastOf(title string, lines []string, most int, rest string) []string {
	if len(lines) <= most {
		return firstOf(title, lines, most, rest)
	}
	left := len(lines) - most + 1
	return append([]string{title, fmt.Sprintf("  ... %d %s", left, rest)}, lines[left:]...)
}
