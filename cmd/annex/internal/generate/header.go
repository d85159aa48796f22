package generate

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"strings"
)

// readHeader reads the header for generated files, such as a licence. A header consists of Go comments only.
func readHeader(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("generate: read the header: %w", err)
	}
	header := strings.TrimSpace(string(text)) + "\n\n"
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, header+"package p\n", parser.ParseComments)
	if err != nil || fset.Position(f.Package).Offset != len(header) || strings.Contains(header, marker) {
		return "", Problem{File: file, Message: "is not a header for Go files: the file may have only comments"}
	}
	return header, nil
}

// headerOf returns the text in front of the marker line of a generated file, and false if generate did not write the
// file.
func headerOf(text string) (string, bool) {
	if strings.HasPrefix(text, marker) {
		return "", true
	}
	at := strings.Index(text, "\n"+marker+"\n")
	if at < 0 {
		return "", false
	}
	header := text[:at+1]
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", header+"package p\n", parser.PackageClauseOnly|parser.ParseComments)
	if err != nil || fset.Position(f.Package).Offset != len(header) {
		return "", false
	}
	return header, true
}

// withHeader returns the text of a generated file with its header. Without a header, the header of the existing file
// is kept.
func withHeader(file, text, header string) (string, error) {
	if header == "" {
		before, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("generate: %w", err)
		}
		header, _ = headerOf(string(before))
	}
	return header + text, nil
}
