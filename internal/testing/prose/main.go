// Command prose measures the comments and pages of a source tree, and fails where they leave plain words.
//
// It counts three habits that make sentences hard to read: a clause in the place of a noun ("what is stored" for
// "the stored object"), a pronoun whose noun is elsewhere ("one that", "those which"), and data that speaks
// ("the flag says" for "the flag sets"). It counts lines of code that are wider than a screen, too. Questions and
// quoted text do not count, and neither do generated files, testdata and fenced code.
//
//	go run ./internal/testing/prose            # the rates of each directory, and every finding over the limit
//	go run ./internal/testing/prose -v dir...  # every finding below the directories
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// A habit is a pattern that may occur so often in 1,000 words.
type habit struct {
	name    string
	pattern *regexp.Regexp
}

var habits = []habit{
	{"clause as a noun", regexp.MustCompile(`(?i)\bwhat (is|are|was|were|it|they|the|this|that|has|have|had|its|an?|there)\b`)},
	{"verb of speech", regexp.MustCompile(`(?i)\b(say|says|said|saying|tell|tells|told|telling)\b`)},
	{"pronoun without its noun", regexp.MustCompile(`(?i)\b(one|ones|those|that) (that|which|who|whose)\b`)},
}

const (
	perThousandWords = 0.5
	perThousandLines = 0.5
	columns          = 140
)

// tally is the count of a directory.
type tally struct {
	words, lines, wide int
	found              [3]int
}

func (t *tally) add(other tally) {
	t.words, t.lines, t.wide = t.words+other.words, t.lines+other.lines, t.wide+other.wide
	for i := range t.found {
		t.found[i] += other.found[i]
	}
}

func rate(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return 1000 * float64(n) / float64(of)
}

// over reports whether a tree exceeds a limit.
func (t *tally) over() bool {
	for _, n := range t.found {
		if rate(n, t.words) > perThousandWords {
			return true
		}
	}
	return rate(t.wide, t.lines) > perThousandLines
}

func (t *tally) String() string {
	return fmt.Sprintf("%8d words %6.2f %6.2f %6.2f   %7d lines %5.2f", t.words, rate(t.found[0], t.words), rate(t.found[1], t.words),
		rate(t.found[2], t.words), t.lines, rate(t.wide, t.lines))
}

// A reader measures texts, and prints findings.
type reader struct{ print bool }

var quoted = regexp.MustCompile("`[^`\n]*`|\"[^\"\n]*\"")

// text measures prose that begins at a line of a file.
func (r reader) text(t *tally, file string, line int, text string) {
	text = quoted.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("_", len(s)) })
	t.words += len(strings.Fields(text))
	for i, h := range habits {
		for _, at := range h.pattern.FindAllStringIndex(text, -1) {
			if question(text[at[1]:]) {
				continue
			}
			t.found[i]++
			if r.print {
				from, to := max(0, at[0]-50), min(len(text), at[1]+40)
				fmt.Printf("%s:%d: %s: …%s…\n", file, line+strings.Count(text[:at[0]], "\n"), h.name, strings.Join(strings.Fields(text[from:to]), " "))
			}
		}
	}
}

// question reports whether a sentence, of which this is the rest, is a question.
func question(rest string) bool {
	end := strings.IndexAny(rest, ".?;|")
	return end >= 0 && rest[end] == '?'
}

// code measures a file of Go: its comments, and its lines.
func (r reader) code(t *tally, path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if ast.IsGenerated(file) {
		return nil
	}
	for i, line := range strings.Split(string(src), "\n") {
		t.lines++
		if n := utf8.RuneCountInString(line); n > columns {
			t.wide++
			if r.print {
				fmt.Printf("%s:%d: wide: %d columns\n", path, i+1, n)
			}
		}
	}
	for _, group := range file.Comments {
		var text strings.Builder
		for _, comment := range group.List {
			line := strings.TrimPrefix(comment.Text, "//")
			if strings.HasPrefix(line, "go:") || strings.HasPrefix(line, "\t") {
				line = ""
			}
			text.WriteString(line + "\n")
		}
		r.text(t, path, files.Position(group.Pos()).Line, text.String())
	}
	return nil
}

// page measures a page of Markdown but for its blocks of code.
func (r reader) page(t *tally, path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var text strings.Builder
	fenced := false
	for line := range strings.Lines(string(src)) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			line = "\n"
		}
		if fenced || strings.HasPrefix(line, "    ") {
			line = "\n"
		}
		text.WriteString(line)
	}
	r.text(t, path, 1, text.String())
	return nil
}

// skipped are directories whose text is not ours or not prose.
var skipped = []string{"testdata", "node_modules", "dist", ".git", "bin", "data"}

// measure counts the files below a directory, by their directories.
func (r reader) measure(root string) (map[string]*tally, error) {
	tallies := map[string]*tally{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains(skipped, entry.Name()) && path != root {
				return fs.SkipDir
			}
			return nil
		}
		dir := filepath.Dir(path)
		if tallies[dir] == nil {
			tallies[dir] = &tally{}
		}
		switch filepath.Ext(path) {
		case ".go":
			return r.code(tallies[dir], path)
		case ".md":
			return r.page(tallies[dir], path)
		}
		return nil
	})
	return tallies, err
}

func main() {
	verbose := flag.Bool("v", false, "print every finding")
	check := flag.Bool("check", false, "fail if the trees together exceed a limit")
	flag.Parse()
	roots := flag.Args()
	if len(roots) == 0 {
		roots = []string{"."}
	}
	total := tally{}
	for _, root := range roots {
		tallies, err := reader{*verbose}.measure(root)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		dirs := make([]string, 0, len(tallies))
		for dir := range tallies {
			dirs = append(dirs, dir)
		}
		slices.Sort(dirs)
		for _, dir := range dirs {
			if total.add(*tallies[dir]); tallies[dir].words > 0 && !*check {
				fmt.Printf("%-50s %s\n", dir, tallies[dir])
			}
		}
	}
	fmt.Printf("%-50s %s\n", "clauses, speech, pronouns; wide lines: all", &total)
	if *check && total.over() {
		fmt.Fprintf(
			os.Stderr,
			"more than %v in 1,000 words, or %v wide lines in 1,000: go run ./internal/testing/prose -v shows them\n",
			perThousandWords,
			perThousandLines,
		)
		os.Exit(1)
	}
}
