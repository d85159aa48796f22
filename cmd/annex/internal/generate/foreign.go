package generate

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	gotypes "go/types"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/template"

	"golang.org/x/mod/modfile"
	"golang.org/x/tools/go/packages"
)

// foreign requests the facts of a package that cannot be edited, in a package beside it.
type foreign struct {
	// For is the package's import path.
	For string
	// Group and Version are the group version under which its types are registered; the core group is empty. If
	// Version is empty, the package's tag +groupName determines the group.
	Group, Version string
	// Dir is the folder of the package for the facts.
	Dir string
}

// foreignRequest returns the request for o.For, in the module of the folder for the facts.
func foreignRequest(dir string, o Options) (moduleRequest, error) {
	into := dir
	switch {
	case len(o.Args) > 1:
		return moduleRequest{}, Problem{File: o.Args[1], Message: "--for supports only one folder: pass one folder for the generated code"}
	case len(o.Args) == 1 && filepath.IsAbs(o.Args[0]):
		into = o.Args[0]
	case len(o.Args) == 1:
		into = filepath.Join(dir, o.Args[0])
	}
	if info, err := os.Stat(into); err == nil && !info.IsDir() {
		return moduleRequest{}, Problem{File: o.Args[0], Message: "is a file: pass the folder of the package for the generated code"}
	}
	group, version, ok := strings.Cut(o.As, "/")
	if !ok && versionElement.MatchString(o.As) { // in the core group
		group, version = "", o.As
	} else if o.As != "" && (!groupPattern.MatchString(group) || !versionPattern.MatchString(version)) {
		return moduleRequest{}, Problem{
			Message: fmt.Sprintf("--as %q: must be a group and a version, such as apps.example.com/v1, or v1 for the core group", o.As),
		}
	}
	root, ok := moduleRoot(into)
	if !ok {
		return moduleRequest{}, Problem{File: into, Message: "is not in a Go module: run go mod init in the module's folder"}
	}
	return moduleRequest{dir: root, request: request{Foreign: &foreign{For: o.For, Group: group, Version: version, Dir: into}}}, nil
}

// generateForeign generates the package of a request for foreign facts.
func generateForeign(ctx context.Context, f foreign) ([]output, []string, error) {
	hidden, err := findGenerated()
	if err != nil {
		return nil, nil, err
	}
	restore, err := hide(hidden)
	if err != nil {
		return nil, nil, err
	}
	defer restore()
	target, read, err := f.target()
	if err != nil {
		return nil, nil, err
	}
	if slices.Contains(supportPackages, f.For) {
		return nil, nil, noKinds(f.For)
	}
	matched, support, err := list(ctx, []string{f.For})
	if err != nil {
		return nil, nil, err
	}
	if len(matched) != 1 || len(matched[0].GoFiles) == 0 {
		return nil, nil, cmp.Or(
			outsideWorkspace(ctx),
			error(Problem{Message: fmt.Sprintf("--for %s: package not found in the module's dependencies: run go get %[1]s", f.For)}),
		)
	}
	l := &packageSet{fset: token.NewFileSet(), listed: map[string]*packages.Package{}}
	packages.Visit(append(slices.Clone(matched), support...), nil, func(p *packages.Package) { l.listed[p.PkgPath] = p })
	s, err := scan(l.fset, matched[0])
	if err != nil {
		return nil, nil, err
	}
	identified, err := s.identify()
	if err != nil {
		return nil, nil, err
	}
	own := identified && (f.Version == "" || f.Group == s.group && f.Version == s.version)
	switch {
	case f.Version != "":
		s.group, s.version = f.Group, f.Version
	case !identified:
		return nil, nil, Problem{
			Message: fmt.Sprintf(
				"--for %s: the package has no group: set the group, as in --as %s/%s",
				f.For,
				path.Base(path.Dir(f.For)),
				s.name,
			),
		}
	}
	if _, named, _ := s.lookup("versionName"); f.Version == "" && !named && !versionElement.MatchString(s.version) {
		return nil, nil, Problem{
			Message: fmt.Sprintf("--for %s: the package has no version: set the version, as in --as %s/v1", f.For, s.group),
		}
	}
	l.sources = []*source{s}
	if err := l.parse(); err != nil {
		return nil, nil, err
	}
	o, err := l.foreignFacts(s, target, own)
	if err != nil {
		return nil, nil, err
	}
	return []output{o}, append(l.read(), read...), nil
}

func noKinds(path string) Problem {
	return Problem{Message: fmt.Sprintf("--for %s: the package has no kinds: a kind is an exported struct that embeds metav1.TypeMeta and "+
		"metav1.ObjectMeta", path)}
}

// target returns the package for the facts, and its files.
func (f foreign) target() (*source, []string, error) {
	root, _ := moduleRoot(f.Dir)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, nil, fmt.Errorf("generate: %w", err)
	}
	rel, err := filepath.Rel(root, f.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("generate: %w", err)
	}
	t := &source{
		path: path.Join(modfile.ModulePath(mod), filepath.ToSlash(rel)),
		name: notIdentifier.ReplaceAllString(strings.ToLower(filepath.Base(f.Dir)), ""),
		dir:  f.Dir, fset: token.NewFileSet(),
		declared: map[string]token.Position{}, methods: map[string]map[string]bool{},
	}
	file := filepath.Join(f.Dir, FileName)
	if ours, err := generated(file); err != nil || !ours {
		return nil, nil, Problem{
			File:    file,
			Line:    1,
			Message: "annex generate did not write this file, and would overwrite it: rename or remove it",
		}
	}
	names, err := filepath.Glob(filepath.Join(f.Dir, "*.go"))
	if err != nil {
		return nil, nil, fmt.Errorf("generate: %w", err)
	}
	var read []string
	for _, name := range names {
		if name == file || strings.HasSuffix(name, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(t.fset, name, nil, parser.ParseComments)
		if err != nil {
			return nil, nil, syntaxProblems(err)
		}
		t.name = parsed.Name.Name
		t.files = append(t.files, parsed)
		t.readNames(parsed)
		read = append(read, name)
	}
	for _, name := range append([]string{"AddToScheme"}, reserved...) {
		if at, ok := t.declared[name]; ok {
			return nil, nil, Problem{
				File:    at.Filename,
				Line:    at.Line,
				Message: fmt.Sprintf("%s is the name of a generated function: rename this function", name),
			}
		}
	}
	if !token.IsIdentifier(t.name) {
		return nil, nil, Problem{File: f.Dir, Message: "the name of the folder is not a valid package name: add a file with a package " +
			"clause to the folder"}
	}
	return t, read, nil
}

var foreignTemplate = template.Must(template.New("foreign").Parse(`
// API returns the facts about the package {{.Path}}.
func API() api.Facts {
	return api.Facts{
		GroupVersion: schema.GroupVersion{Group: {{printf "%q" .Group}}, Version: {{printf "%q" .Version}}},
		AddToScheme: AddToScheme,
		{{- if .OwnDefaults}}
		AddDefaults: foreign.RegisterDefaults,
		{{- else if .Defaulted}}
		AddDefaults: registerDefaults,
		{{- end}}
		OpenAPI: openAPIDefinitions,
		{{- if .CustomResources}}
		CustomResources: customResources,
		{{- end}}
		{{- if .Messages}}
		Messages: messageSchemas,
		{{- end}}
	}
}

// AddToScheme registers the types of {{.Path}} under {{with .Group}}{{.}}/{{end}}{{.Version}}, and the
// meta types that clients need with them. Calling it again with the same scheme is harmless.
func AddToScheme(scheme *runtime.Scheme) error {
	{{- if .Register}}
	gv := schema.GroupVersion{Group: {{printf "%q" .Group}}, Version: {{printf "%q" .Version}}}
	scheme.AddKnownTypes(gv,
		{{- range .Objects}}
		&foreign.{{.}}{},
		{{- end}}
	)
	metav1.AddToGroupVersion(scheme, gv)
	return nil
	{{- else}}
	return foreign.AddToScheme(scheme)
	{{- end}}
}
{{if and .Defaulted (not .OwnDefaults)}}
// registerDefaults registers the package's defaulting functions.
func registerDefaults(scheme *runtime.Scheme) error {
	{{- range .Defaulted}}
	scheme.AddTypeDefaultingFunc(&foreign.{{.}}{}, func(obj any) { foreign.SetObjectDefaults_{{.}}(obj.(*foreign.{{.}})) })
	{{- end}}
	return nil
}
{{end}}`))

// foreignFacts generates the facts of s for the package target. If own is set, the group version is the package's
// own, and its AddToScheme is used if there is one.
func (l *packageSet) foreignFacts(s, target *source, own bool) (output, error) {
	objects := findObjects(l.universe[s.path])
	for _, t := range slices.Concat(objects.kinds, objects.lists) {
		if t.Methods["DeepCopyObject"] == nil {
			return output{}, Problem{Message: fmt.Sprintf(
				"--for %s: type %s has no method DeepCopyObject, and other packages cannot add it: copy the type, or embed it in your "+
					"own type",
				s.path,
				t.Name.Name,
			)}
		}
	}
	if len(objects.kinds) == 0 {
		return output{}, noKinds(s.path)
	}
	if problems := l.formless(s); len(problems) > 0 {
		return output{}, problems
	}
	exists := func(name string) bool { return s.declares(name) && l.universe[s.path].Functions[name] != nil }
	data := struct {
		facts
		Path string
	}{facts{Group: s.group, Version: s.version, Register: !own || !s.declares("AddToScheme"), OwnDefaults: exists("RegisterDefaults")}, s.path}
	for _, t := range objects.all() {
		data.Objects = append(data.Objects, t.Name.Name)
		if exists("SetObjectDefaults_" + t.Name.Name) {
			data.Defaulted = append(data.Defaulted, t.Name.Name)
		}
	}
	m := newMerger(target)
	m.ownSchemas = schemaPrefix(s.path)
	functions := map[string]bool{}
	files, err := l.openapiInto(s, target, definitions(slices.Concat(objects.all(), l.roots(s))))
	if err != nil {
		return output{}, err
	}
	for _, file := range files {
		p, err := partOf(file)
		if err == nil {
			err = m.add(p, functions)
		}
		if err != nil {
			return output{}, err
		}
	}
	marked, err := l.markers()
	if err != nil {
		return output{}, err
	}
	rules, err := customResources(marked, s, names(objects.kinds), names(objects.other))
	if err != nil {
		return output{}, err
	}
	if rules != nil {
		data.CustomResources, data.Messages = true, strings.Contains(rules.body, "func "+messagesFunction+"()")
		if err := m.add(*rules, functions); err != nil {
			return output{}, err
		}
	}
	var b bytes.Buffer
	if err := foreignTemplate.Execute(&b, data); err != nil {
		return output{}, err
	}
	err = m.add(part{name: "registration", body: b.String(), imports: map[string]string{
		"api": apiPackage, "metav1": metaPackage, "runtime": runtimePackage, "schema": schemaPackage, "foreign": s.path,
	}}, functions)
	if err != nil {
		return output{}, err
	}
	text, err := m.file()
	if err != nil {
		return output{}, err
	}
	o := output{Package: target.path, Dir: target.dir, Group: s.group, Version: s.version, Kinds: names(objects.kinds), Source: string(text)}
	return o, l.checkForeign(target, o)
}

// checkForeign type-checks the result.
func (l *packageSet) checkForeign(target *source, o output) error {
	f, err := parser.ParseFile(l.fset, filepath.Join(o.Dir, FileName), o.Source, parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parse generated code: %w", err)
	}
	parsed := l.parsedPackages()
	cfg := &gotypes.Config{
		Importer: importerFunc(func(path string) (*gotypes.Package, error) {
			if p := parsed[path]; p != nil {
				return p, nil
			}
			return nil, fmt.Errorf("package %s is not loaded", path)
		}),
		Sizes: gotypes.SizesFor("gc", runtime.GOARCH),
	}
	if _, err := cfg.Check(target.path, l.fset, []*ast.File{f}, nil); err != nil {
		return fmt.Errorf("the code generated for %s does not compile: %s", l.sources[0].path, oneLine(err.Error()))
	}
	return nil
}
