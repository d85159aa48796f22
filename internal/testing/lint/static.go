package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/config"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

// allStatic returns the analyzers of staticcheck.
func allStatic() []*analysis.Analyzer {
	var all []*analysis.Analyzer
	for _, some := range [][]*lint.Analyzer{simple.Analyzers, staticcheck.Analyzers, stylecheck.Analyzers, {unused.Analyzer}} {
		for _, a := range some {
			all = append(all, a.Analyzer)
		}
	}
	return all
}

// static returns the analyzers of staticcheck that its configuration has for the directory.
func static(dir string) ([]*analysis.Analyzer, error) {
	settings, err := config.Load(dir)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of staticcheck for %s: %w", dir, err)
	}
	return slices.DeleteFunc(allStatic(), func(a *analysis.Analyzer) bool { return !wanted(settings.Checks, a.Name) }), nil
}

// reported returns what the analyzers of staticcheck have found, as the command staticcheck reports it: without the lines that
// have lint:ignore. A directive that ignores nothing is reported.
func reported(files *token.FileSet, syntax []*ast.File, found []analysis.Diagnostic) []analysis.Diagnostic {
	directives := lint.ParseDirectives(syntax, files)
	useful := map[*lint.Directive]bool{}
	var all []analysis.Diagnostic
	for _, d := range found {
		ignored := false
		for i := range directives {
			if ignores(files, directives[i], d) {
				useful[&directives[i]], ignored = true, true
			}
		}
		if !ignored {
			d.Message += " (" + d.Category + ")"
			all = append(all, d)
		}
	}
	for i, d := range directives {
		if d.Command != "ignore" && d.Command != "file-ignore" {
			continue
		}
		switch {
		case len(d.Arguments) < 2:
			all = append(all, analysis.Diagnostic{Pos: d.Directive.Pos(), Message: "this directive for linters has no reason"})
		case d.Command == "ignore" && !useful[&directives[i]] && !strings.Contains(d.Arguments[0], "U1000"):
			all = append(all, analysis.Diagnostic{Pos: d.Directive.Pos(), Message: "this directive for linters matches nothing: remove it"})
		}
	}
	return all
}

// ignores reports whether the directive is for what was found.
func ignores(files *token.FileSet, directive lint.Directive, d analysis.Diagnostic) bool {
	if len(directive.Arguments) < 2 {
		return false
	}
	at, found := files.Position(directive.Node.Pos()), files.Position(d.Pos)
	if at.Filename != found.Filename {
		return false
	}
	if directive.Command != "file-ignore" && (directive.Command != "ignore" || at.Line != found.Line) {
		return false
	}
	return slices.ContainsFunc(strings.Split(directive.Arguments[0], ","), func(check string) bool {
		ok, _ := filepath.Match(check, d.Category)
		return ok
	})
}

// wanted reports whether the last of the checks that names a check, all, or a prefix with *, is without a minus.
func wanted(checks []string, check string) bool {
	wants := false
	for _, c := range checks {
		name, without := strings.CutPrefix(c, "-")
		prefix, glob := strings.CutSuffix(name, "*")
		if name == "all" || name == check || glob && strings.HasPrefix(check, prefix) {
			wants = !without
		}
	}
	return wants
}

// position returns the place of what has been printed with its file, line and column.
func position(files *token.FileSet, at token.Position) token.Pos {
	pos := token.NoPos
	files.Iterate(func(file *token.File) bool {
		if file.Name() == at.Filename {
			pos = file.Pos(at.Offset)
		}
		return pos == token.NoPos
	})
	return pos
}
