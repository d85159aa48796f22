// Command checks analyzes a package of the repository for command lint.
package main

import (
	"encoding/gob"
	"encoding/json"
	"log"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() {
	debug.SetGCPercent(400)
	analyzers := slices.Concat(vet(), static())
	if file := os.Args[len(os.Args)-1]; strings.HasSuffix(file, ".cfg") {
		var unit struct {
			Dir      string
			VetxOnly bool
		}
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &unit)
		}
		if err != nil {
			log.Fatal(err)
		}
		if unit.VetxOnly {
			analyzers = factual(analyzers)
		} else {
			reported, err := report(unit.Dir)
			if err != nil {
				log.Fatal(err)
			}
			// A package whose configuration leaves out the checks that need facts still reads the facts of its imports.
			for _, a := range factual(analyzers) {
				for _, fact := range a.FactTypes {
					gob.Register(fact)
				}
			}
			analyzers = append(vet(), reported)
		}
	}
	unitchecker.Main(analyzers...)
}

// factual returns those of the analyzers, and of what they require, that export facts.
func factual(analyzers []*analysis.Analyzer) []*analysis.Analyzer {
	var facts []*analysis.Analyzer
	seen := map[*analysis.Analyzer]bool{}
	var add func([]*analysis.Analyzer)
	add = func(some []*analysis.Analyzer) {
		for _, a := range some {
			if seen[a] {
				continue
			}
			seen[a] = true
			if len(a.FactTypes) > 0 {
				facts = append(facts, a)
			}
			add(a.Requires)
		}
	}
	add(analyzers)
	return facts
}
