package generate

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"go/format"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/tools/go/packages"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	applyargs "k8s.io/code-generator/cmd/applyconfiguration-gen/args"
	applygen "k8s.io/code-generator/cmd/applyconfiguration-gen/generators"
	clientargs "k8s.io/code-generator/cmd/client-gen/args"
	clientgen "k8s.io/code-generator/cmd/client-gen/generators"
	clienttags "k8s.io/code-generator/cmd/client-gen/generators/util"
	clienttypes "k8s.io/code-generator/cmd/client-gen/types"
	informerargs "k8s.io/code-generator/cmd/informer-gen/args"
	informergen "k8s.io/code-generator/cmd/informer-gen/generators"
	listerargs "k8s.io/code-generator/cmd/lister-gen/args"
	listergen "k8s.io/code-generator/cmd/lister-gen/generators"
	"k8s.io/gengo/v2/generator"
	"k8s.io/gengo/v2/namer"
	"k8s.io/gengo/v2/types"

	"github.com/annexapi/annex/cmd/annex/internal/crd/schema"
)

// clientFolders are the packages of the clients, below the clients' folder.
var clientFolders = []string{"applyconfiguration", "clientset", "informers", "listers"}

// clientPackages are packages that clients import: one of each module that an API package need not require.
var clientPackages = []string{"k8s.io/client-go/gentype", "sigs.k8s.io/structured-merge-diff/v6/typed"}

// clientFile is one file of the clients.
type clientFile struct {
	Name   string // slash-separated, below the clients' folder
	Source string
}

// clientsDir returns the folder of o.Clients. There may be only one request, and the folder must be in its module.
func clientsDir(dir string, o Options, requests []moduleRequest) (string, error) {
	into := o.Clients
	if !filepath.IsAbs(into) {
		into = filepath.Join(dir, into)
	}
	at := func(message string) error { return Problem{File: o.Clients, Message: message} }
	if info, err := os.Stat(into); err == nil && !info.IsDir() {
		return "", at("is a file: set --clients to the folder for the clients")
	}
	// The go command names packages by the real path of their folder, so symbolic links of the existing part are
	// resolved.
	existing, rest := into, ""
	for {
		real, err := filepath.EvalSymlinks(existing)
		if err == nil {
			into = filepath.Join(real, rest)
			break
		}
		up := filepath.Dir(existing)
		if up == existing {
			break
		}
		existing, rest = up, filepath.Join(filepath.Base(existing), rest)
	}
	root, ok := moduleRoot(into)
	if !ok {
		return "", at("is not in a Go module: run go mod init in the module's folder")
	}
	for _, r := range requests {
		other, _ := moduleRoot(r.dir)
		if real, err := filepath.EvalSymlinks(other); err != nil || real != root {
			return "", at(fmt.Sprintf("is in another Go module than the API packages in %s: use a folder in their module", r.dir))
		}
	}
	if len(requests) > 1 {
		return "", at("--clients does not support folders and import paths together: pass only folders, or only import paths")
	}
	return into, nil
}

// clients makes the clients of the pass's API packages for the folder dir. marked are the packages with kubebuilder
// markers.
func (l *packageSet) clients(dir string, marked *schema.Packages) ([]clientFile, error) {
	base, err := packageOf(dir)
	if err != nil {
		return nil, err
	}
	sources, err := l.clientSources(dir, marked)
	if err != nil {
		return nil, err
	}
	document, err := l.clientSchema(sources)
	if err != nil {
		return nil, err
	}
	// The generators create folders, and leave out declarations that a neighbouring file has. They work on a copy of
	// the names.
	scratch, err := os.MkdirTemp("", "annex-clients-")
	if err != nil {
		return nil, fmt.Errorf("generate clients: %w", err)
	}
	defer os.RemoveAll(scratch)
	if err := copyNames(dir, scratch); err != nil {
		return nil, fmt.Errorf("generate clients: %w", err)
	}
	schemaFile := filepath.Join(scratch, "openapi.json")
	if err := os.WriteFile(schemaFile, document, 0o600); err != nil {
		return nil, fmt.Errorf("generate clients: %w", err)
	}

	folder := func(name string) (dir, importPath string) { return filepath.Join(scratch, name), path.Join(base, name) }
	files := &outputCollector{}
	run := func(what string, names namer.NameSystems, order string, targets func(*generator.Context) []generator.Target) error {
		c := l.contextOf(sources, names, order, files)
		if err := c.ExecuteTargets(targets(c)); err != nil {
			return fmt.Errorf("generate %s: %w", what, err)
		}
		return nil
	}

	apply := applyargs.New()
	apply.OutputDir, apply.OutputPkg = folder("applyconfiguration")
	apply.OpenAPISchemaFilePath = schemaFile
	err = run("apply configurations", applygen.NameSystems(), applygen.DefaultNameSystem(), func(c *generator.Context) []generator.Target {
		return applygen.GetTargets(c, apply)
	})
	if err != nil {
		return nil, err
	}

	set := clientargs.New()
	set.OutputDir, set.OutputPkg, set.ClientsetName = scratch, base, "clientset"
	set.ApplyConfigurationPackage = apply.OutputPkg
	set.Groups = clientGroups(sources)
	err = run("clientset", clientgen.NameSystems(nil), clientgen.DefaultNameSystem(), func(c *generator.Context) []generator.Target {
		return clientgen.GetTargets(c, set)
	})
	if err != nil {
		return nil, err
	}

	lister := listerargs.New()
	lister.OutputDir, lister.OutputPkg = folder("listers")
	err = run("listers", listergen.NameSystems(nil), listergen.DefaultNameSystem(), func(c *generator.Context) []generator.Target {
		return listergen.GetTargets(c, lister)
	})
	if err != nil {
		return nil, err
	}

	informer := informerargs.New()
	informer.OutputDir, informer.OutputPkg = folder("informers")
	informer.SingleDirectory = true
	informer.VersionedClientSetPackage, informer.ListersPackage = path.Join(base, "clientset"), lister.OutputPkg
	err = run("informers", informergen.NameSystems(nil), informergen.DefaultNameSystem(), func(c *generator.Context) []generator.Target {
		return informergen.GetTargets(c, informer)
	})
	if err != nil {
		return nil, err
	}

	made := make([]clientFile, len(files.files))
	for i, f := range files.files {
		rel, err := filepath.Rel(scratch, filepath.Join(f.PackageDir, f.Name))
		if err != nil {
			return nil, fmt.Errorf("generate clients: %w", err)
		}
		text, err := l.assemble(f, sources)
		if err != nil {
			return nil, err
		}
		made[i] = clientFile{Name: filepath.ToSlash(rel), Source: string(text)}
	}
	slices.SortFunc(made, func(a, b clientFile) int { return cmp.Compare(a.Name, b.Name) })
	return made, nil
}

// packageOf returns the import path of a folder of this module.
func packageOf(dir string) (string, error) {
	root, ok := moduleRoot(dir)
	if !ok {
		return "", Problem{File: dir, Message: "is not in a Go module: run go mod init in the module's folder"}
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("generate: %w", err)
	}
	rel, err := filepath.Rel(root, dir)
	if err != nil {
		return "", fmt.Errorf("generate: %w", err)
	}
	return path.Join(modfile.ModulePath(mod), filepath.ToSlash(rel)), nil
}

// checkClientPackages returns a problem if the module lacks a package that clients import.
func checkClientPackages(ctx context.Context) error {
	for _, name := range clientPackages {
		all, err := packages.Load(&packages.Config{Context: ctx, Mode: packages.NeedName | packages.NeedFiles}, name)
		if ctx.Err() != nil {
			return fmt.Errorf("find %s: %w", name, ctx.Err())
		}
		// The go command fails if go.mod would have to change.
		if err != nil || len(all) != 1 || len(all[0].Errors) > 0 || len(all[0].GoFiles) == 0 {
			return Problem{Message: fmt.Sprintf("the module does not provide %s, which clients import: run go get %[1]s, then go mod tidy", name)}
		}
	}
	return nil
}

// clientSources returns the pass's API packages that have kinds, after adding the tags that the generators expect.
func (l *packageSet) clientSources(dir string, marked *schema.Packages) ([]*source, error) {
	var sources []*source
	var problems Problems
	groups := map[string]*source{} // by folder and by Go name
	for _, s := range l.sources {
		if s.dir == dir {
			return nil, Problem{File: dir, Message: "is an API package: use a separate folder for clients, such as client"}
		}
		kinds := findObjects(l.universe[s.path])
		if s.group == "" || len(kinds.kinds) == 0 {
			continue
		}
		if err := s.clientFolder(); err != nil {
			problems = append(problems, asProblems(err)...)
			continue
		}
		name := s.goName()
		for _, key := range []string{"folder " + path.Base(path.Dir(s.path)), "name " + name} {
			other := groups[key]
			if other != nil && (other.group != s.group || path.Dir(other.path) != path.Dir(s.path)) {
				at := s.position()
				problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
					"group %s in %s would have the same clients as group %s in %s: give the folders different names, keep all versions of "+
						"a group in one folder, and give one of the groups another Go name with +groupGoName=NAME",
					s.group, path.Dir(s.path), other.group, path.Dir(other.path))})
			}
			groups[key] = s
		}
		markers, err := markersOf(marked, s)
		if err != nil {
			return nil, err
		}
		problems = append(problems, markClients(s, kinds, markers)...)
		sources = append(sources, s)
	}
	switch {
	case len(problems) > 0:
		return nil, problems
	case len(sources) == 0:
		return nil, Problem{File: dir, Message: "no kinds to generate clients for: a kind is an exported struct of an API package that " +
			"embeds metav1.TypeMeta and metav1.ObjectMeta"}
	}
	return sources, nil
}

// clientFolder refuses a package whose path does not contain its version, or cannot name packages: the generators
// derive names from the path.
func (s *source) clientFolder() error {
	at := s.position()
	if path.Base(s.path) != s.version {
		return Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
			"the name of the folder %s is not the API version: clients get their name from the folder, rename "+
				"it to %s", path.Base(s.path), s.version)}
	}
	if group, _, _ := strings.Cut(path.Base(path.Dir(s.path)), "."); !token.IsIdentifier(group) {
		return Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
			"%q is not a valid package name: clients get their package name from the group's folder, rename the folder",
			path.Base(path.Dir(s.path)),
		)}
	}
	return nil
}

// goName returns the group's name in the clients' identifiers.
func (s *source) goName() string {
	if v, found, _ := s.lookup("groupGoName"); found {
		return namer.IC(v.text)
	}
	first, _, _ := strings.Cut(s.group, ".")
	return namer.IC(first)
}

// markClients adds tags for clients of all kinds, and tags for the package's markers. Existing tags of a kind take
// precedence.
func markClients(s *source, o objects, markers map[string]apiextensionsv1.CustomResourceDefinition) Problems {
	var problems Problems
	for _, t := range o.kinds {
		add := func(tag string) { t.CommentLines = append(t.CommentLines, "+"+tag) }
		if !hasAnyTag(t, "genclient") {
			add("genclient")
		}
		if definition, ok := markers[t.Name.Name]; ok {
			if definition.Spec.Scope == apiextensionsv1.ClusterScoped && !hasAnyTag(t, "genclient:nonNamespaced") {
				add("genclient:nonNamespaced")
			}
			if !hasAnyTag(t, "resourceName") {
				add("resourceName=" + definition.Spec.Names.Plural)
			}
			status := slices.ContainsFunc(definition.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
				return v.Subresources != nil && v.Subresources.Status != nil
			})
			if !status && !hasAnyTag(t, "genclient:noStatus") {
				add("genclient:noStatus")
			}
		}
		at := s.declared[t.Name.Name]
		tags, err := clienttags.ParseClientGenTags(slices.Concat(t.SecondClosestCommentLines, t.CommentLines))
		if err != nil {
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: "tags of " + t.Name.Name + ": " + oneLine(err.Error())})
			continue
		}
		hasList := slices.ContainsFunc(o.lists, func(l *types.Type) bool { return l.Name.Name == t.Name.Name+"List" })
		if !hasList && !tags.NoVerbs && tags.HasVerb("list") {
			problems = append(problems, Problem{File: at.Filename, Line: at.Line, Message: fmt.Sprintf(
				"%s has no list type, which clients need: declare %[1]sList, or add +genclient:skipVerbs=list,watch to "+
					"the type", t.Name.Name)})
		}
	}
	return problems
}

// markersOf returns the definitions from the package's kubebuilder markers, by kind; nil if it has no markers.
func markersOf(marked *schema.Packages, s *source) (map[string]apiextensionsv1.CustomResourceDefinition, error) {
	if marked == nil || !slices.Contains(marked.Paths(), s.path) {
		return nil, nil
	}
	definitions, err := marked.Version(s.path)
	if err != nil {
		return nil, fmt.Errorf("read markers of %s: %w", s.path, err)
	}
	return definitions, nil
}

func clientGroups(sources []*source) []clienttypes.GroupVersions {
	byName := map[string]clienttypes.GroupVersions{}
	for _, s := range sources {
		group := byName[s.group]
		group.Group, group.PackageName = clienttypes.Group(s.group), strings.ToLower(path.Base(path.Dir(s.path)))
		group.Versions = append(group.Versions, clienttypes.PackageVersion{Version: clienttypes.Version(s.version), Package: s.path})
		byName[s.group] = group
	}
	var groups []clienttypes.GroupVersions
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		groups = append(groups, byName[name])
	}
	return groups
}

// contextOf returns a context, as context does, for several sources.
func (l *packageSet) contextOf(sources []*source, names namer.NameSystems, order string, files *outputCollector) *generator.Context {
	c, _ := l.context(sources[0], names, order)
	c.Inputs = nil
	for _, s := range sources {
		c.Inputs = append(c.Inputs, s.path)
	}
	c.FileTypes[generator.GoFileType] = files
	return c
}

// copyNames creates an empty file below to for each Go file below from, except for generated clients.
func copyNames(from, to string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".go" {
			if os.IsNotExist(err) {
				return nil
			}
			return err
		}
		ours, err := generated(name)
		if err != nil || ours {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, rel)
		if err := os.MkdirAll(filepath.Dir(copied), 0o700); err != nil {
			return err
		}
		return os.WriteFile(copied, nil, 0o600)
	})
}

var generatedBy = regexp.MustCompile(`(?m)^// Code generated by .*$`)

// assemble returns the text of one client file.
func (l *packageSet) assemble(f *generator.File, sources []*source) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(marker + "\n\n")
	b.Write(bytes.TrimLeft(generatedBy.ReplaceAll(f.Header, nil), "\n"))
	fmt.Fprintf(&b, "package %s\n\n", f.PackageName)
	p, err := partOf(f)
	if err != nil {
		return nil, err
	}
	if len(p.imports) > 0 {
		b.WriteString("import (\n")
		byPath := slices.SortedFunc(maps.Keys(p.imports), func(a, b string) int { return cmp.Compare(p.imports[a], p.imports[b]) })
		for _, name := range byPath {
			if name != path.Base(p.imports[name]) {
				b.WriteString(name + " ")
			}
			b.WriteString(strconv.Quote(p.imports[name]) + "\n")
		}
		b.WriteString(")\n\n")
	}
	if f.Vars.Len() > 0 {
		fmt.Fprintf(&b, "var (\n%s)\n\n", f.Vars.Bytes())
	}
	if f.Consts.Len() > 0 {
		fmt.Fprintf(&b, "const (\n%s)\n\n", f.Consts.Bytes())
	}
	body := withoutRegistration(f.Body.Bytes(), p.imports, sources)
	b.Write(l.withModelNames(body, sources))
	text, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("format %s of the clients: %w", f.Name, err)
	}
	return text, nil
}

// withoutRegistration replaces SchemeGroupVersion and Resource, which the API packages of kubebuilder and Kubernetes
// declare by hand, by the group version of API, in packages that do not declare them.
func withoutRegistration(body []byte, imports map[string]string, sources []*source) []byte {
	for alias, importPath := range imports {
		s := pick(sources, importPath)
		if s == nil {
			continue
		}
		if !s.declares("SchemeGroupVersion") {
			old := regexp.MustCompile(`\b` + alias + `\.SchemeGroupVersion\b`)
			body = old.ReplaceAll(body, []byte(alias+".API().GroupVersion"))
		}
		if !s.declares("Resource") {
			old := regexp.MustCompile(`\b` + alias + `\.Resource\(("[^"]*")\)`)
			body = old.ReplaceAll(body, []byte(alias+".API().GroupVersion.WithResource($1).GroupResource()"))
		}
	}
	return body
}

// withModelNames replaces the names of the kinds' definitions, which the generators derive from import paths, by the
// definitions' names in a scheme.
func (l *packageSet) withModelNames(body []byte, sources []*source) []byte {
	for _, s := range sources {
		ofPackage, _, _ := s.lookup(modelPackageTag)
		if ofPackage.text == "" {
			ofPackage.text = defaultModelPackage(s)
		}
		for _, t := range findObjects(l.universe[s.path]).kinds {
			if s.methods[t.Name.Name]["OpenAPIModelName"] {
				continue // its value is known only at run time
			}
			model := ofPackage.text
			for _, line := range slices.Concat(t.SecondClosestCommentLines, t.CommentLines) {
				if own, ok := strings.CutPrefix(strings.TrimSpace(line), "+"+modelPackageTag+"="); ok {
					model = own
				}
			}
			old := regexp.MustCompile(`\b` + regexp.QuoteMeta(clientModel(s.path, t.Name.Name)) + `\b`)
			body = old.ReplaceAll(body, []byte(model+"."+t.Name.Name))
		}
	}
	return body
}
