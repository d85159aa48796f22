package main

import (
	"go/types"
	"iter"
	"reflect"
	"sync"

	"golang.org/x/tools/go/analysis"
)

// facts are what analyzers know of objects and packages that they have analyzed.
type facts struct {
	mutex sync.RWMutex
	of    map[*analysis.Analyzer]map[subject]analysis.Fact
}

// subject is what a fact is about: an object, or a package without one.
type subject struct {
	object types.Object
	pkg    *types.Package
	kind   reflect.Type
}

func (f *facts) set(a *analysis.Analyzer, s subject, fact analysis.Fact) {
	s.kind = reflect.TypeOf(fact)
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.of == nil {
		f.of = map[*analysis.Analyzer]map[subject]analysis.Fact{}
	}
	if f.of[a] == nil {
		f.of[a] = map[subject]analysis.Fact{}
	}
	f.of[a][s] = fact
}

// get copies the fact into the one that it is given, and reports whether there is one.
func (f *facts) get(a *analysis.Analyzer, s subject, into analysis.Fact) bool {
	s.kind = reflect.TypeOf(into)
	f.mutex.RLock()
	defer f.mutex.RUnlock()
	fact, ok := f.of[a][s]
	if ok {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(fact).Elem())
	}
	return ok
}

// give sets the functions of the pass that read and write facts.
func (f *facts) give(pass *analysis.Pass) {
	a := pass.Analyzer
	pass.ImportObjectFact = func(o types.Object, into analysis.Fact) bool { return f.get(a, subject{object: o}, into) }
	pass.ExportObjectFact = func(o types.Object, fact analysis.Fact) { f.set(a, subject{object: o}, fact) }
	pass.ImportPackageFact = func(p *types.Package, into analysis.Fact) bool { return f.get(a, subject{pkg: p}, into) }
	pass.ExportPackageFact = func(fact analysis.Fact) { f.set(a, subject{pkg: pass.Pkg}, fact) }
	pass.AllObjectFacts = func() (all []analysis.ObjectFact) {
		for s, fact := range f.all(a) {
			if s.object != nil {
				all = append(all, analysis.ObjectFact{Object: s.object, Fact: fact})
			}
		}
		return all
	}
	pass.AllPackageFacts = func() (all []analysis.PackageFact) {
		for s, fact := range f.all(a) {
			if s.pkg != nil {
				all = append(all, analysis.PackageFact{Package: s.pkg, Fact: fact})
			}
		}
		return all
	}
}

// all yields the facts of an analyzer.
func (f *facts) all(a *analysis.Analyzer) iter.Seq2[subject, analysis.Fact] {
	return func(yield func(subject, analysis.Fact) bool) {
		f.mutex.RLock()
		defer f.mutex.RUnlock()
		for s, fact := range f.of[a] {
			if !yield(s, fact) {
				return
			}
		}
	}
}
