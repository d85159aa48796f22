package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/annexapi/annex/internal/aggregated/requirements"
)

// completeAdmission selects the definition's plugins that are enabled.
func (p *Plan) completeAdmission() error {
	o := &p.Options.Admission
	known := p.KnownAdmissionPlugins()
	for _, list := range []struct {
		field string
		names []string
	}{{"Options.Admission.EnablePlugins", o.EnablePlugins}, {"Options.Admission.DisablePlugins", o.DisablePlugins}} {
		for _, name := range list.names {
			switch {
			case slices.Contains(known, name):
			case slices.Contains(requirements.Plugins(), name):
				return fmt.Errorf("%s: the plugin %s needs the objects of a cluster: add Options.Aggregated", list.field, name)
			case len(known) == 0:
				return fmt.Errorf("%s: unknown plugin %q: the server declares no plugins", list.field, name)
			default:
				return fmt.Errorf("%s: unknown plugin %q; plugins: %s", list.field, name, strings.Join(known, ", "))
			}
		}
	}
	for _, name := range o.EnablePlugins {
		if slices.Contains(o.DisablePlugins, name) {
			return fmt.Errorf("the plugin %s is both in Options.Admission.EnablePlugins and in Options.Admission.DisablePlugins", name)
		}
	}
	for _, plugin := range p.Definition.AdmissionPlugins {
		if slices.Contains(requirements.Plugins(), plugin.Name) {
			return fmt.Errorf("admission plugin %q: name: aggregated servers have a built-in plugin with the same name", plugin.Name)
		}
		if slices.Contains(o.EnablePlugins, plugin.Name) || !plugin.Disabled && !slices.Contains(o.DisablePlugins, plugin.Name) {
			p.AdmissionPlugins = append(p.AdmissionPlugins, plugin)
		}
	}
	return nil
}

// KnownAdmissionPlugins returns the names of all plugins that the server can run, in the order of their calls.
func (p *Plan) KnownAdmissionPlugins() []string {
	on, off := p.mode.admissionPlugins()
	names := slices.Concat(on, off)
	for _, plugin := range p.Definition.AdmissionPlugins {
		names = append(names, plugin.Name)
	}
	return names
}

// BuiltInAdmissionPlugins returns the names of the enabled plugins that the mode brings without a declaration.
func (p *Plan) BuiltInAdmissionPlugins() []string {
	o := p.Options.Admission
	on, off := p.mode.admissionPlugins()
	on = slices.DeleteFunc(slices.Clone(on), func(name string) bool { return slices.Contains(o.DisablePlugins, name) })
	return append(on, slices.DeleteFunc(slices.Clone(off), func(name string) bool { return !slices.Contains(o.EnablePlugins, name) })...)
}

func (standalone) admissionPlugins() (on, off []string) { return nil, nil }

func (aggregated) admissionPlugins() (on, off []string) { return requirements.Plugins(), nil }
