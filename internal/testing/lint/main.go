// Command lint runs the analyzers of go vet and of staticcheck on the packages that its arguments name, with their tests, and
// prints what they find. Its exit code is 1 if they find something, and 2 if they cannot run.
//
// It reads everything from sources, each package once and in one process. The programs that go vet and staticcheck start for each
// package read the types of all that it imports again, which takes longer for 2,500 dependencies than to check the repository.
// Analyzers know of a dependency what they found out about it before, such as which functions are deprecated, print or have no
// side effects: their facts. Lint computes them for the dependencies that a named package imports, and with -deep for all.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("lint: ")
	debug.SetGCPercent(400) // the types of all packages stay in memory
	deep := flag.Bool("deep", false, "compute facts for all dependencies, which takes twice as long and 6 GiB of memory")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: lint [-deep] PACKAGE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	found, err := findings(flag.Args(), *deep)
	if err != nil {
		log.Print(err)
		os.Exit(2)
	}
	for _, line := range found {
		fmt.Println(line)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

// findings returns what the analyzers find in the packages that the patterns of the go command match, a line each, in the order of their places.
func findings(patterns []string, deep bool) ([]string, error) {
	units, err := load(patterns, deep)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	if err := run(files, units); err != nil {
		return nil, err
	}
	type finding struct {
		at      token.Position
		message string
	}
	var all []finding
	for _, u := range units {
		for _, d := range u.found {
			all = append(all, finding{files.Position(d.Pos), d.Message})
		}
	}
	slices.SortFunc(all, func(a, b finding) int {
		return cmp.Or(strings.Compare(a.at.Filename, b.at.Filename), a.at.Line-b.at.Line, a.at.Column-b.at.Column, strings.Compare(a.message, b.message))
	})
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, f := range slices.Compact(all) {
		if name, err := filepath.Rel(here, f.at.Filename); err == nil {
			f.at.Filename = name
		}
		lines = append(lines, fmt.Sprintf("%s: %s", f.at, f.message))
	}
	return lines, nil
}
