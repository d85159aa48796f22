package scaffold

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// ImportedKind is a kind whose Go types exist, but are not generated yet: a kind of a CustomResourceDefinition.
type ImportedKind struct {
	Group, Kind, Resource string
	// Hub is the version to which the others convert, Versions are the others.
	Hub      string
	Versions []string
	// Folder is the folder of the group's versions, relative to Options.Dir.
	Folder string
}

// ErrNoProject reports that there is no project in which kinds can be registered. The error that wraps it has the
// reason.
var ErrNoProject = errors.New("no project")

var notInAlias = strings.NewReplacer(".", "", "-", "")

// InModule reports whether dir is in a Go module; an empty dir is the current folder.
func InModule(dir string) bool {
	_, err := moduleFolder(dir)
	return err == nil
}

// Register adds kinds to the definition of the server in the project that contains Options.Dir. Kinds that are
// registered already are skipped. Versions are converted field by field, by name, as a cluster converts those of a
// CustomResourceDefinition without a webhook.
func Register(o Options, kinds []ImportedKind) (*Result, error) {
	p, err := findProject(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoProject, err)
	}
	s := p.server
	annex := s.importName(library)
	w := &plan{root: p.root}
	result := &Result{}
	lines := map[string][]string{}
	var groups []string
	converted := false
	aliases := map[string]string{}
	for _, spec := range s.file.Imports {
		importPath, _ := strconv.Unquote(spec.Path.Value)
		aliases[s.importName(importPath)] = importPath
	}
	for _, k := range kinds {
		folder, err := filepath.Rel(p.root, filepath.Join(p.from, k.Folder))
		if err != nil || !filepath.IsLocal(folder) {
			return nil, generate.Problem{File: k.Folder, Message: "is not in the module " + p.module + ": choose a folder in the module"}
		}
		for _, version := range append([]string{k.Hub}, k.Versions...) {
			if shown := p.show(path.Join(filepath.ToSlash(folder), version)); !slices.Contains(result.Packages, shown) {
				result.Packages = append(result.Packages, shown)
			}
		}
		known, err := p.kinds(k.Group)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(known, func(r registration) bool { return r.kind == k.Kind }) {
			continue
		}
		pkg := func(version string) string {
			importPath, alias := path.Join(p.module, filepath.ToSlash(folder), version), importAlias(k.Group, version)
			if other, taken := aliases[alias]; taken && other != importPath {
				alias = notInAlias.Replace(k.Group) + version // for groups with the same first label
			}
			alias = s.use(importPath, alias)
			aliases[alias] = importPath
			return alias
		}
		hub := pkg(k.Hub)
		line := fmt.Sprintf("%s.KindOf[%s.%s, %s.%sList](%q, %s.API)", annex, hub, k.Kind, hub, k.Kind, k.Resource, hub)
		if len(k.Versions) > 0 {
			converted = true
			var versions strings.Builder
			for _, version := range k.Versions {
				other := pkg(version)
				fmt.Fprintf(
					&versions,
					"\n%s.Version(%s.API, asJSON[%s.%s, %s.%s], asJSON[%s.%s, %s.%s]),",
					annex,
					other,
					other,
					k.Kind,
					hub,
					k.Kind,
					hub,
					k.Kind,
					other,
					k.Kind,
				)
			}
			line += ".\nVersions(" + versions.String() + "\n)"
		}
		if lines[k.Group] == nil {
			groups = append(groups, k.Group)
		}
		lines[k.Group] = append(lines[k.Group], line)
	}
	if err := p.addKinds(groups, lines); err != nil {
		return nil, err
	}
	if err := w.edited(s); err != nil {
		return nil, err
	}
	if converted {
		dir := path.Dir(s.path)
		beside, err := p.readPackage(filepath.Join(p.root, filepath.FromSlash(dir)))
		if err != nil {
			return nil, err
		}
		if _, f := beside.function("asJSON"); f == nil {
			if err := w.render(path.Join(dir, "asjson.go"), "crd/asjson.go", struct{ Package string }{s.file.Name.Name}); err != nil {
				return nil, err
			}
		}
	}
	if result.Files, err = w.carryOut(o); err != nil {
		return nil, err
	}
	result.Next = []string{"annex run   # serves the kinds; then, in another terminal:", "kubectl --kubeconfig data/kubeconfig api-resources"}
	return result, nil
}

// addKinds adds the registrations of kinds to the definition, by group.
func (p *project) addKinds(names []string, lines map[string][]string) error {
	s := p.server
	annex := s.importName(library)
	literal := func(group string) string {
		return fmt.Sprintf("Kinds: []%s.Kind{\n%s,\n}", annex, strings.Join(lines[group], ",\n"))
	}
	groups, err := p.groups()
	if err != nil {
		return err
	}
	var fresh []string
	for _, name := range names {
		group, err := p.group(name)
		if err != nil {
			return err
		}
		if group == nil {
			fresh = append(fresh, fmt.Sprintf("{\nName: %q,\n%s,\n}", name, literal(name)))
			continue
		}
		kinds, err := p.kindsOf(group)
		switch {
		case err != nil:
			return err
		case kinds == nil:
			s.appendTo(group, literal(name))
		default:
			s.appendTo(kinds, strings.Join(lines[name], ",\n"))
		}
	}
	switch {
	case len(fresh) == 0:
	case groups == nil:
		s.appendTo(p.definition, fmt.Sprintf("Groups: []%s.Group{\n%s,\n}", annex, strings.Join(fresh, ",\n")))
	default:
		s.appendTo(groups, strings.Join(fresh, ",\n"))
	}
	return nil
}

// SortImported sorts kinds by group and name.
func SortImported(kinds []ImportedKind) {
	slices.SortFunc(kinds, func(a, b ImportedKind) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind))
	})
}
