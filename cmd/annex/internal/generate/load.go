package generate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/packages"
	"k8s.io/gengo/v2/generator"
	"k8s.io/gengo/v2/namer"
	"k8s.io/gengo/v2/parser"
	"k8s.io/gengo/v2/types"
)

// Packages that generated code imports, apart from those that its types need.
const (
	apiPackage      = "github.com/annexapi/annex/api"
	metaPackage     = "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimePackage  = "k8s.io/apimachinery/pkg/runtime"
	schemaPackage   = "k8s.io/apimachinery/pkg/runtime/schema"
	commonPackage   = "k8s.io/kube-openapi/pkg/common"
	specPackage     = "k8s.io/kube-openapi/pkg/validation/spec"
	pointersPackage = "k8s.io/utils/ptr"
)

var supportPackages = []string{
	apiPackage, metaPackage, runtimePackage, schemaPackage, commonPackage, specPackage, pointersPackage,
}

// loaded is everything a pass knows about the packages it generates and those
// they are made of.
type loaded struct {
	fset     *token.FileSet
	listed   map[string]*packages.Package
	sources  []*source // sorted by import path
	base     *generator.Context
	universe types.Universe
}

// list finds the packages that patterns match, and their dependencies, without
// parsing anything.
func list(ctx context.Context, patterns []string) (matched, support []*packages.Package, err error) {
	cfg := &packages.Config{
		Context: ctx,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps |
			packages.NeedModule,
	}
	all, err := packages.Load(cfg, append(slices.Clone(patterns), supportPackages...)...)
	if err != nil {
		return nil, nil, listProblem(err)
	}
	var problems Problems
	for _, p := range all {
		if slices.Contains(supportPackages, p.PkgPath) {
			support = append(support, p)
			if len(p.Errors) > 0 {
				problems = append(problems, missingSupport(p))
			}
			continue
		}
		matched = append(matched, p)
		for _, e := range p.Errors {
			if e.Kind != packages.ParseError {
				problems = append(problems, packageProblem(e))
			}
		}
	}
	if len(problems) > 0 {
		return nil, nil, problems
	}
	return matched, support, nil
}

// missingSupport says how to get the module that a support package is in.
func missingSupport(p *packages.Package) Problem {
	module := apiPackage[:strings.LastIndex(apiPackage, "/")]
	if p.PkgPath == apiPackage {
		return Problem{Message: fmt.Sprintf("the module does not require %s, which generated code imports: run go get %s", module, module)}
	}
	return Problem{Message: fmt.Sprintf("the module does not provide %s, which generated code imports: run go get %s, then go mod tidy", p.PkgPath, module)}
}

// load lists, scans and parses what patterns match. explicit patterns must be
// API packages; those that came from a wildcard may be anything.
func load(ctx context.Context, req request) (*loaded, error) {
	matched, support, err := list(ctx, req.Patterns)
	if err != nil {
		return nil, err
	}
	l := &loaded{fset: token.NewFileSet(), listed: map[string]*packages.Package{}}
	packages.Visit(append(slices.Clone(matched), support...), nil, func(p *packages.Package) { l.listed[p.PkgPath] = p })

	var problems Problems
	for _, p := range matched {
		if len(p.GoFiles) == 0 {
			continue
		}
		s, err := scan(l.fset, p)
		if err == nil {
			var api bool
			if api, err = s.identify(); err == nil && !api && !s.shared() {
				if len(s.files) > 0 && slices.Contains(req.Explicit, s.dir) {
					problems = append(problems, noGroup(s))
				}
				continue
			}
		}
		if err != nil {
			problems = append(problems, asProblems(err)...)
			continue
		}
		l.sources = append(l.sources, s)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	if len(l.sources) == 0 {
		return nil, Problem{Message: fmt.Sprintf(
			"no API packages in %s: mark a package of types by a comment // +groupName=GROUP above its package clause", strings.Join(req.Patterns, " "))}
	}
	slices.SortFunc(l.sources, func(a, b *source) int { return strings.Compare(a.path, b.path) })
	return l, l.parse()
}

func noGroup(s *source) Problem {
	at := s.position()
	return Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
		"package %s has no API group: add the comment // +groupName=GROUP above the package clause", s.name)}
}

// parse reads and types the packages and all their dependencies, once. The
// files that generate wrote earlier are hidden, so that what they hold can
// neither be missed nor relied on.
func (l *loaded) parse() error {
	restore, err := l.hide()
	if err != nil {
		return err
	}
	defer restore()

	p := parser.New()
	paths := slices.Clone(supportPackages)
	for _, s := range l.sources {
		paths = append(paths, s.path)
	}
	if err := p.LoadPackages(paths...); err != nil {
		return listProblem(err)
	}
	l.base, err = generator.NewContext(p, namer.NameSystems{}, "")
	if err != nil {
		return fmt.Errorf("read types: %w", err)
	}
	l.universe = l.base.Universe
	return nil
}

// hide makes the go command overlook generated files, by the -overlay flag,
// which is the one way to reach the generators' own loader. It changes this
// process's environment until the function it returns is called.
func (l *loaded) hide() (restore func(), err error) {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for _, s := range l.sources {
		overlay.Replace[filepath.Join(s.dir, FileName)] = ""
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		return nil, fmt.Errorf("hide generated files: %w", err)
	}
	f, err := os.CreateTemp("", "annex-overlay-*.json")
	if err != nil {
		return nil, fmt.Errorf("hide generated files: %w", err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return nil, fmt.Errorf("hide generated files: %w", err)
	}
	before, had := os.LookupEnv("GOFLAGS")
	os.Setenv("GOFLAGS", strings.TrimSpace(before+" '-overlay="+f.Name()+"'"))
	return func() {
		os.Remove(f.Name())
		if had {
			os.Setenv("GOFLAGS", before)
		} else {
			os.Unsetenv("GOFLAGS")
		}
	}, nil
}

// context returns a copy of the one parsed context for one generator and one
// package, and where the files that the generator makes are kept.
//
// A second generator.NewContext on the same parser would see nothing, and
// writing files is not wanted: hence the copy, and the file type that captures.
func (l *loaded) context(s *source, names namer.NameSystems, order string) (*generator.Context, *captured) {
	files := &captured{}
	c := *l.base
	c.Universe = l.universe
	c.Inputs = []string{s.path}
	c.Namers = names
	c.Order = (&namer.Orderer{Namer: names[order]}).OrderUniverse(l.universe)
	c.FileTypes = map[string]generator.FileType{generator.GoFileType: files}
	return &c, files
}

// captured collects a generator's files instead of writing them.
type captured struct{ files []*generator.File }

func (c *captured) AssembleFile(f *generator.File, _ string) error {
	c.files = append(c.files, f)
	return nil
}

func asProblems(err error) Problems {
	var many Problems
	var one Problem
	switch {
	case errors.As(err, &many):
		return many
	case errors.As(err, &one):
		return Problems{one}
	}
	return Problems{{Message: oneLine(err.Error())}}
}

func syntaxProblems(err error) Problems {
	var list scanner.ErrorList
	if !errors.As(err, &list) {
		return asProblems(err)
	}
	problems := make(Problems, len(list))
	for i, e := range list {
		problems[i] = Problem{File: e.Pos.Filename, Line: e.Pos.Line, Column: e.Pos.Column, Message: e.Msg}
	}
	return problems
}

// packageProblem takes the position out of what the go command said.
func packageProblem(e packages.Error) Problem {
	p := Problem{Message: oneLine(e.Msg)}
	parts := strings.Split(e.Pos, ":")
	if len(parts) >= 2 && parts[0] != "" && parts[0] != "-" {
		p.File = parts[0]
		p.Line, _ = strconv.Atoi(parts[1])
		if len(parts) > 2 {
			p.Column, _ = strconv.Atoi(parts[2])
		}
	}
	return p
}

var outsideModule = regexp.MustCompile(`go\.mod file not found|cannot find main module|not using modules`)

func listProblem(err error) error {
	msg := oneLine(err.Error())
	switch {
	case strings.Contains(msg, "executable file not found"):
		return Problem{Message: "the go command is not in PATH: install Go from https://go.dev/dl"}
	case outsideModule.MatchString(msg):
		return Problem{Message: "there is no Go module here: run go mod init, or go to the folder of one"}
	}
	return Problem{Message: msg}
}

var spaces = regexp.MustCompile(`\s+`)

func oneLine(s string) string {
	return strings.TrimSpace(spaces.ReplaceAllString(s, " "))
}
