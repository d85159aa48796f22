package scaffold

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/annexapi/annex/cmd/annex/internal/generate"
)

// pluginModule is the module of the kubectl plugin, beside the library.
const (
	pluginFolder = "cmd/kubectl-annex"
	pluginModule = library + "/" + pluginFolder
)

// PluginOptions describe a kubectl plugin for the server.
type PluginOptions struct {
	Options
	// Name is the plugin's name, after kubectl. Empty means the server's name.
	Name string
}

var pluginPattern = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

// Plugin adds a kubectl plugin to the project: a program of a few lines. The go command adds the plugin's module
// unless the project requires it already.
func Plugin(ctx context.Context, o PluginOptions) (*Result, error) {
	p, err := findProject(o.Dir)
	if err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = p.server.stringOf(fieldOf(p.definition, "Name"))
	}
	switch {
	case o.Name == "":
		return nil, misuse("--name is missing, and the server's name is not a literal: set --name to the name of the plugin, such as zoo")
	case !pluginPattern.MatchString(o.Name):
		return nil, misuse("--name %q: the name of a plugin must have only lower-case letters and digits, such as zoo, because kubectl "+
			"splits names at dashes", o.Name)
	}
	names, err := p.groupNames()
	if err != nil {
		return nil, err
	}
	program := "cmd/kubectl-" + o.Name
	w := &plan{root: p.root}
	data := struct {
		Name, Server string
		Groups       []string
	}{o.Name, p.server.stringOf(fieldOf(p.definition, "Name")), p.pluginGroups(names)}
	if err := w.render(program+"/main.go", "plugin/main.go", data); err != nil {
		return nil, err
	}
	// Report files in the way before the go command runs.
	files, err := w.carryOut(Options{Dir: o.Dir, DryRun: true, Force: o.Force})
	if err != nil {
		return nil, err
	}
	if !o.DryRun {
		if err := p.needsPlugin(ctx); err != nil {
			return nil, err
		}
		if err := w.direct(pluginModule); err != nil {
			return nil, err
		}
		if files, err = w.carryOut(o.Options); err != nil {
			return nil, err
		}
	}
	return &Result{Files: files, Next: []string{
		"go install ./" + program + "   # into the folder bin of `go env GOPATH`, which must be in PATH",
		"kubectl " + o.Name + "   # lists the verbs of the server of the current context",
	}}, nil
}

// pluginGroups returns the groups of the plugin: all groups below the project's domain, including future ones, and
// other groups by name.
func (p *project) pluginGroups(names []string) []string {
	if p.domain == "" {
		return names
	}
	groups := []string{"*." + p.domain}
	for _, name := range names {
		if !strings.HasSuffix(name, "."+p.domain) {
			groups = append(groups, name)
		}
	}
	return groups
}

// needsPlugin adds the plugin's module to the project's requirements, in the version of the library, and from the
// same checkout if the library is replaced.
func (p *project) needsPlugin(ctx context.Context) error {
	before, err := readModule(p.root)
	if err != nil {
		return err
	}
	f, err := parseModule(p.module, before.mod)
	if err != nil {
		return err
	}
	version := ""
	for _, r := range f.Require {
		switch r.Mod.Path {
		case pluginModule:
			return nil
		case library:
			version = "@" + r.Mod.Version
		}
	}
	if i := slices.IndexFunc(f.Replace, func(r *modfile.Replace) bool { return r.Old.Path == library }); i >= 0 {
		version = "@v0.0.0-00010101000000-000000000000" // the version for a folder; without it, the go command asks the proxy for newer versions
		to := f.Replace[i].New
		if to.Version != "" {
			return generate.Problem{
				File:    p.show("go.mod"),
				Line:    f.Replace[i].Syntax.Start.Line,
				Message: fmt.Sprintf("%s is replaced by another module, %s: replace %s as well, and require it", library, to, pluginModule),
			}
		}
		if err := f.AddReplace(pluginModule, "", strings.TrimSuffix(to.Path, "/")+"/"+pluginFolder, ""); err != nil {
			return fmt.Errorf("write go.mod: %w", err)
		}
		f.Cleanup()
		text, err := f.Format()
		if err != nil {
			return fmt.Errorf("write go.mod: %w", err)
		}
		if err := write(filepath.Join(p.root, "go.mod"), text); err != nil {
			return err
		}
	}
	if err := goGet(ctx, p.root, pluginModule+version); err != nil {
		// An incomplete requirement would make all other commands of the go command fail.
		return errors.Join(
			generate.Problem{File: p.show("go.mod"), Message: err.Error() + ": run this command again when the module proxy is reachable"},
			write(filepath.Join(p.root, "go.mod"), before.mod),
			write(filepath.Join(p.root, "go.sum"), before.sum),
		)
	}
	return nil
}
