package lint

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// AcceptFile is the name of the file of accepted findings. It is in the folder in which lint runs, or in one above it
// up to the module's. It is a file and not a comment, because a removed declaration has no line left for one, and so
// that all accepted breakage can be read in one place.
const AcceptFile = "api.lint"

// accept marks the findings that the file accepts, and returns the lines that match no finding.
func accept(dir string, findings []Finding) ([]string, error) {
	file, ok := findAcceptFile(dir)
	if !ok {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read accepted findings: %w", err)
	}
	defer f.Close()
	var stale []string
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		what, reason, _ := strings.Cut(line, " # ")
		rule, where, ok := strings.Cut(strings.TrimSpace(what), ": ")
		if reason = strings.TrimSpace(reason); !ok || reason == "" {
			return nil, fmt.Errorf(
				"%s:%d: must be RULE: WHERE # REASON, as in field-removed: shop.example.com/v1 Widget .spec.size # never released",
				file,
				n,
			)
		}
		used := false
		for i := range findings {
			if findings[i].Rule == rule && findings[i].Where == strings.TrimSpace(where) {
				findings[i].Accepted, used = reason, true
			}
		}
		if !used {
			stale = append(stale, fmt.Sprintf("%s:%d: %s", file, n, strings.TrimSpace(what)))
		}
	}
	slices.Sort(stale)
	return stale, lines.Err()
}

func findAcceptFile(dir string) (string, bool) {
	for {
		file := filepath.Join(dir, AcceptFile)
		if _, err := os.Stat(file); err == nil {
			return file, true
		}
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		up := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || up == dir {
			return "", false
		}
		dir = up
	}
}
