package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/tools/go/analysis"
	"honnef.co/go/tools/unused"
)

// analyze runs the analyzers that export facts, and all others on a package that is checked.
func (u *unit) analyze(store *facts, pass analysis.Pass) error {
	work := &passes{store: store, pass: pass, results: map[*analysis.Analyzer]any{}, found: map[*analysis.Analyzer][]analysis.Diagnostic{}}
	ofVet := vet()
	// Packages that import this one need the facts of all analyzers, whatever the configuration for its directory.
	if err := work.run(factual(slices.Concat(ofVet, allStatic()))...); err != nil || u.depth == known {
		return err
	}
	ofStatic, err := static(filepath.Dir(u.GoFiles[0]))
	if err != nil {
		return err
	}
	if err := work.run(slices.Concat(ofVet, ofStatic)...); err != nil {
		return err
	}
	for _, a := range ofVet {
		u.found = append(u.found, work.found[a]...)
	}
	var found []analysis.Diagnostic
	for _, a := range ofStatic {
		for _, d := range work.found[a] {
			d.Category = a.Name
			found = append(found, d)
		}
		if result, ok := work.results[a].(unused.Result); ok {
			for _, o := range result.Unused {
				found = append(found, analysis.Diagnostic{
					Pos: position(pass.Fset, o.Position), Message: fmt.Sprintf("%s %s is unused", o.Kind, o.Name), Category: a.Name,
				})
			}
		}
	}
	u.found = append(u.found, reported(pass.Fset, pass.Files, found)...)
	return nil
}

// passes runs analyzers on one package, each once and after those that it requires.
type passes struct {
	store   *facts
	pass    analysis.Pass // without an analyzer
	results map[*analysis.Analyzer]any
	found   map[*analysis.Analyzer][]analysis.Diagnostic
}

func (p *passes) run(analyzers ...*analysis.Analyzer) error {
	for _, a := range analyzers {
		if _, ran := p.results[a]; ran {
			continue
		}
		if err := p.run(a.Requires...); err != nil {
			return err
		}
		pass := p.pass
		pass.Analyzer = a
		pass.ResultOf = map[*analysis.Analyzer]any{}
		for _, required := range a.Requires {
			pass.ResultOf[required] = p.results[required]
		}
		pass.Report = func(d analysis.Diagnostic) { p.found[a] = append(p.found[a], d) }
		pass.ReadFile = os.ReadFile
		p.store.give(&pass)
		result, err := a.Run(&pass)
		if err != nil {
			return fmt.Errorf("run %s on %s: %w", a, pass.Pkg.Path(), err)
		}
		p.results[a] = result
	}
	return nil
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
