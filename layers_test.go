package annex_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// target is a target of the Makefile.
type target struct{ name, recipe string }

// targets reads the Makefile. A recipe ends with the first line that does not begin with a tab.
func targets(t *testing.T) []target {
	t.Helper()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var all []target
	for _, match := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):.*\n((?:\t.*\n)*)`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, target{match[1], match[2]})
	}
	if len(all) < 20 {
		t.Fatalf("the Makefile has %d targets: the pattern of this test is wrong", len(all))
	}
	return all
}

// variable returns the words of a variable of the Makefile.
func variable(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^` + name + ` := (.*(?:\\\n.*)*)$`).FindSubmatch(text)
	if match == nil {
		t.Fatalf("the Makefile has no variable %s", name)
	}
	return strings.Fields(strings.ReplaceAll(string(match[1]), "\\\n", " "))
}

// layer is a line of .ci/turns. Only turns have seconds and paths.
type layer struct {
	when, target string
	seconds      int
	paths        []string
}

func layers(t *testing.T) []layer {
	t.Helper()
	text, err := os.ReadFile(".ci/turns")
	if err != nil {
		t.Fatal(err)
	}
	var all []layer
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if len(words) < 2 {
			t.Fatalf(".ci/turns: %q: want LAYER TARGET, and SECONDS PATH... of a turn", line)
		}
		l := layer{when: words[0], target: words[1]}
		if l.when == "turn" && len(words) > 2 {
			var err error
			if l.seconds, err = strconv.Atoi(words[2]); err != nil {
				t.Fatalf(".ci/turns: %q: %v", line, err)
			}
			l.paths = words[3:]
		}
		all = append(all, l)
	}
	return all
}

// No run would include a target that runs tests and is in no layer.
func TestLayers_haveEveryTargetThatRunsTests(t *testing.T) {
	t.Parallel()
	listed := map[string]layer{}
	for _, l := range layers(t) {
		if _, twice := listed[l.target]; twice {
			t.Errorf(".ci/turns lists %s twice", l.target)
		}
		listed[l.target] = l
	}
	night, err := os.ReadFile(".github/workflows/nightly.yml")
	if err != nil {
		t.Fatal(err)
	}
	run, err := os.ReadFile(".ci/run")
	if err != nil {
		t.Fatal(err)
	}
	tests := regexp.MustCompile(`\$\(call tested|\bgo (-C \S+ )?test\b|\b-C \S+ test\b`)
	known := map[string]bool{}
	for _, target := range targets(t) {
		known[target.name] = true
		l, is := listed[target.name]
		switch {
		case !is && tests.MatchString(target.recipe):
			t.Errorf("make %s runs tests: give it a layer in .ci/turns", target.name)
		case l.when == "turn" && len(l.paths) == 0:
			t.Errorf(".ci/turns: %s has no paths whose change gives it a turn", l.target)
		case l.when == "night" && !regexp.MustCompile(`[\[ ]`+l.target+`[,\]]`).Match(night):
			t.Errorf(".ci/turns: %s runs every night, but .github/workflows/nightly.yml does not name it", l.target)
		case l.when == "change" && l.target != "quick" && !regexp.MustCompile(`make `+l.target+`\s`).Match(run):
			t.Errorf(".ci/turns: each change runs %s, but .ci/run does not", l.target)
		case is && !slices.Contains([]string{"change", "turn", "night", "hand"}, l.when):
			t.Errorf(".ci/turns: %s: there is no layer %q", l.target, l.when)
		}
	}
	for name, l := range listed {
		if !known[name] {
			t.Errorf(".ci/turns: the Makefile has no target %s", name)
		}
		for _, path := range l.paths {
			if _, err := os.Stat(path); err != nil {
				t.Errorf(".ci/turns: %s: %v", name, err)
			}
		}
	}
}

// Packages with tests that -short leaves out or shortens, as make test does, are run in full by a layer.
func TestLayers_runEveryShortenedPackage(t *testing.T) {
	t.Parallel()
	when := map[string]string{}
	for _, l := range layers(t) {
		when[l.target] = l.when
	}
	var full []string
	for _, target := range targets(t) {
		call, _, is := strings.Cut(target.recipe, "-count=1")
		if is && when[target.name] == "turn" && !strings.Contains(target.recipe, "-short") {
			full = append(full, regexp.MustCompile(`[\s,]+`).Split(call, -1)...)
		}
	}
	shortens := regexp.MustCompile(`testing\.Short\(\)|storetest\.Trials\(`)
	n := 0
	check := func(module, path string, entry fs.DirEntry) error {
		if entry.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			if path != module && (err == nil || entry.Name() == "testdata" || entry.Name()[0] == '.') {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if !shortens.Match(text) {
			return err
		}
		n++
		dir := filepath.ToSlash(filepath.Dir(path))
		if !slices.ContainsFunc(full, func(pattern string) bool {
			below, all := strings.CutSuffix(strings.TrimPrefix(pattern, "./"), "/...")
			return below == dir || all && strings.HasPrefix(dir, below+"/")
		}) {
			t.Errorf("make test shortens tests of %s, and no target of .ci/turns that has turns runs them in full", path)
		}
		return nil
	}
	for _, module := range variable(t, "TESTED") {
		err := filepath.WalkDir(module, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return check(module, path, entry)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n == 0 {
		t.Fatal("no file shortens tests: the pattern of this test is wrong")
	}
}

// A Makefile pattern that names a whole test selects nothing once that test is renamed.
func TestLayers_nameTestsThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{}
	for _, match := range regexp.MustCompile(`'\^(Test\w+)\$\$'`).FindAllStringSubmatch(string(text), -1) {
		wanted[match[1]] = true
	}
	if len(wanted) == 0 {
		t.Fatal("the Makefile names no test: the pattern of this test is wrong")
	}
	err = filepath.WalkDir("cmd/annex/internal/cli", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for name := range wanted {
			if strings.Contains(string(text), "\nfunc "+name+"(") {
				delete(wanted, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range wanted {
		t.Errorf("the Makefile runs %s, which does not exist", name)
	}
}

// make lint runs the analyzers of go vet without go vet.
func TestLint_hasEveryAnalyzerOfVet(t *testing.T) {
	t.Parallel()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	passes := func(file string) []string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`go/analysis/passes/\w+`).FindAllString(string(text), -1)
	}
	vet := passes(filepath.Join(strings.TrimSpace(string(root)), "src", "cmd", "vet", "main.go"))
	ours := passes("internal/testing/lint/vet.go")
	if len(vet) == 0 || !slices.Equal(vet, ours) {
		t.Errorf("internal/testing/lint/vet.go has\n%q\nwant those of go vet:\n%q", ours, vet)
	}
}

// Readers compare a failure with earlier ones on the page of flaky tests.
func TestFlaky_entriesAreComplete(t *testing.T) {
	t.Parallel()
	file := filepath.Join("docs", "maintaining", "flaky.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	columns := []string{"test", "date", "failure", "cause", "mended in"}
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	if len(rows) < 2 || !slices.Equal(rows[0], columns) {
		t.Fatalf("%s has no table with the columns %q", file, columns)
	}
	named, mended := regexp.MustCompile(`^(Test\w+|[a-z][\w./-]*)$`), regexp.MustCompile(`^(open|[0-9a-f]{7,40})$`)
	for _, cells := range rows[2:] {
		if len(cells) != len(columns) {
			t.Errorf("%s: %q has %d columns, want %d", file, cells, len(cells), len(columns))
			continue
		}
		if !named.MatchString(cells[0]) {
			t.Errorf("%s: %q is no test and no package", file, cells[0])
		}
		if _, err := time.Parse(time.DateOnly, cells[1]); err != nil {
			t.Errorf("%s: %s: %v", file, cells[0], err)
		}
		if cells[2] == "" {
			t.Errorf("%s: %s: nothing was seen", file, cells[0])
		}
		if !mended.MatchString(cells[4]) || (cells[3] == "" || cells[3] == "unknown") && cells[4] != "open" {
			t.Errorf("%s: %s: mended in %q: want a commit that removed a known cause, or open", file, cells[0], cells[4])
		}
	}
}
