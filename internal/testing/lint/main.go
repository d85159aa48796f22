// Command lint is the tool that make lint has go vet run on every package: the analyzers of vet and of staticcheck in one pass.
// Each alone reads the sources of all dependencies for the facts that it needs, which takes longer than the repository itself.
//
// Of packages outside the repository it computes only the facts that follow from declarations and control flow: what is
// deprecated, what prints, what does not return. Facts for which staticcheck builds an intermediate representation of a package
// (which functions are pure, which never return nil, which take pairs of arguments) are computed only of packages of the
// repository, and by make staticcheck of all. The program checks, beside this one, has the analyzers; this one has those for
// facts alone, for it starts 2,000 times, and the tables of the others take longer to set up than most packages to read.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/analysis/passes/printf"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/analysis/facts/deprecated"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("lint: ")
	self, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	checks := filepath.Join(filepath.Dir(self), "checks")
	last := os.Args[len(os.Args)-1]
	switch {
	case last == "-V=full": // what the go command knows results by
		sum := sha256.New()
		for _, program := range []string{self, checks} {
			text, err := os.ReadFile(program)
			if err != nil {
				log.Fatal(err)
			}
			sum.Write(text)
		}
		fmt.Printf("lint version devel buildID=%x\n", sum.Sum(nil))
	case strings.HasSuffix(last, ".cfg") && outside(last):
		debug.SetGCPercent(400)
		unitchecker.Main(printf.Analyzer, ctrlflow.Analyzer, deprecated.Analyzer)
	default:
		log.Fatal(syscall.Exec(checks, slices.Concat([]string{checks}, os.Args[1:]), os.Environ()))
	}
}

// outside reports whether the go command asks in the file for the facts of a package outside the repository.
func outside(file string) bool {
	var unit struct {
		ModulePath, ModuleVersion string
		VetxOnly                  bool
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &unit)
	}
	if err != nil {
		log.Fatal(err)
	}
	return unit.VetxOnly && (unit.ModulePath == "" || unit.ModuleVersion != "") // modules of the workspace have no version
}
