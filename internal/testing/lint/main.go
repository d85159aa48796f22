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
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"runtime"
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
	last := os.Args[len(os.Args)-1]
	if last == "-V=full" {
		fmt.Printf("lint version devel buildID=%x\n", version())
		return
	}
	if strings.HasSuffix(last, ".cfg") && outside(last) {
		debug.SetGCPercent(400)
		unitchecker.Main(printf.Analyzer, ctrlflow.Analyzer, deprecated.Analyzer)
	}
	self, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	checks := filepath.Join(filepath.Dir(self), "checks")
	log.Fatal(syscall.Exec(checks, slices.Concat([]string{checks}, os.Args[1:]), os.Environ()))
}

//go:embed *.go go.* checks
var sources embed.FS

// version returns what the go command knows results by: a hash of the sources and of the compiler, which is the same in every
// checkout, unlike the programs.
func version() []byte {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version())
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		fmt.Fprintln(sum, path, len(text))
		sum.Write(text)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	return sum.Sum(nil)
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
