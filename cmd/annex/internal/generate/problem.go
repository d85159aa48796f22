package generate

import (
	"fmt"
	"strings"
)

// Problem is a reason why a package cannot be generated, described for its developer.
type Problem struct {
	// File is the file at fault, or the package's folder; empty if there is none.
	File string `json:"file,omitempty"`
	// Line and Column are 1-based; zero means unknown.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Message names the problem and, after a colon, the fix, on one line.
	Message string `json:"message"`
	// Stub is the missing function, for a conversion: Go code that does not compile until a developer has completed
	// what cannot be derived. It is empty for other problems.
	Stub string `json:"stub,omitempty"`
}

// Error returns the problem as one line, FILE:LINE:COLUMN: MESSAGE.
func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
			if p.Column > 0 {
				fmt.Fprintf(&b, ":%d", p.Column)
			}
		}
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems are all problems of a run. The text of the error has a line for each.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}
