package main

import (
	"fmt"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/tools/go/analysis"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/config"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

// static returns the analyzers of staticcheck.
func static() []*analysis.Analyzer {
	var all []*analysis.Analyzer
	for _, some := range [][]*lint.Analyzer{simple.Analyzers, staticcheck.Analyzers, stylecheck.Analyzers, {unused.Analyzer}} {
		for _, a := range some {
			all = append(all, a.Analyzer)
		}
	}
	return all
}

// found holds what the analyzers of staticcheck find in the package.
var found struct {
	sync.Mutex
	diagnostics []analysis.Diagnostic
}

// report has the analyzers of staticcheck collect what they find, and returns one that reports it after them, as the command
// staticcheck does: those checks that staticcheck.conf has for the directory, but for lines with lint:ignore. A directive that
// ignores nothing is reported.
func report(dir string) (*analysis.Analyzer, error) {
	settings, err := config.Load(dir)
	if err != nil {
		return nil, err
	}
	analyzers := slices.DeleteFunc(static(), func(a *analysis.Analyzer) bool { return !wanted(settings.Checks, a.Name) })
	for _, a := range analyzers {
		run := a.Run
		a.Run = func(pass *analysis.Pass) (any, error) {
			collecting := *pass
			collecting.Report = func(d analysis.Diagnostic) {
				d.Category = a.Name
				found.Lock()
				defer found.Unlock()
				found.diagnostics = append(found.diagnostics, d)
			}
			result, err := run(&collecting)
			if result, ok := result.(unused.Result); ok {
				for _, object := range result.Unused {
					collecting.Report(analysis.Diagnostic{
						Pos:     position(pass.Fset, object.Position),
						Message: fmt.Sprintf("%s %s is unused", object.Kind, object.Name),
					})
				}
			}
			return result, err
		}
	}
	return &analysis.Analyzer{
		Name:     "staticcheck",
		Doc:      "report what the analyzers of staticcheck find, as staticcheck.conf and directives say",
		Requires: analyzers,
		Run: func(pass *analysis.Pass) (any, error) {
			directives := lint.ParseDirectives(pass.Files, pass.Fset)
			useful := map[*lint.Directive]bool{}
			for _, d := range found.diagnostics {
				ignored := false
				for i := range directives {
					if ignores(pass.Fset, directives[i], d) {
						useful[&directives[i]], ignored = true, true
					}
				}
				if !ignored {
					d.Message += " (" + d.Category + ")"
					pass.Report(d)
				}
			}
			for i, d := range directives {
				if d.Command != "ignore" && d.Command != "file-ignore" {
					continue
				}
				switch {
				case len(d.Arguments) < 2:
					pass.Report(analysis.Diagnostic{Pos: d.Directive.Pos(), Message: "this directive for linters has no reason"})
				case d.Command == "ignore" && !useful[&directives[i]] && !strings.Contains(d.Arguments[0], "U1000"):
					pass.Report(analysis.Diagnostic{Pos: d.Directive.Pos(), Message: "this directive for linters matches nothing: remove it"})
				}
			}
			return nil, nil
		},
	}, nil
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
