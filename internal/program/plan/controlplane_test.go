package plan

import (
	"slices"
	"testing"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/program/definition"
	"github.com/annexapi/annex/store/memory"
)

// bare is a control plane without an extension.
type bare struct{ plane define.Plane }

func (b bare) Plane() *define.Plane { return &b.plane }

func (b bare) With(o define.PlaneOptions) (definition.ControlPlane, error) {
	if o.Workloads != nil && *o.Workloads {
		return nil, define.ErrNoExtension
	}
	return b, nil
}

func (bare) Open(definition.Host) (*definition.Opened, error) { return nil, nil }

// resolve returns the plan of a server with a control plane, or without if it is nil.
func resolve(plane *define.Plane, o config.Options) (*Plan, error) {
	d := &definition.Definition{Server: &define.Server{Name: "shop"}}
	if plane != nil {
		d.ControlPlane = bare{*plane}
		d.Server.Plane = plane
	}
	o.Storage = memory.Storage()
	return Resolve(d, o, nil)
}

func shopPlane() *define.Plane {
	return &define.Plane{
		Groups:              func() []define.Group { return nil },
		Controllers:         []define.Controller{{Name: define.NamespaceController}, {Name: "garbage-collector-controller"}},
		AdmissionPlugins:    []string{"On", "Other"},
		OffAdmissionPlugins: []string{"Off", "Rare"},
	}
}

func TestResolve_workloads_needAnExtension(t *testing.T) {
	t.Parallel()
	const noPlane = "Options.ControlPlane.Workloads requires a server with a control plane"
	for _, test := range []struct {
		name      string
		plane     *define.Plane
		workloads *bool
		want      string
	}{
		{"no control plane, on", nil, new(true), noPlane},
		{"no control plane, off", nil, new(false), noPlane},
		{"no control plane, no choice", nil, nil, ""},
		{"no extension, on", shopPlane(), new(true), "Options.ControlPlane.Workloads: " + define.ErrNoExtension.Error()},
		{"no extension, off", shopPlane(), new(false), ""},
		{"no extension, no choice", shopPlane(), nil, ""},
	} {
		_, err := resolve(test.plane, config.Options{ControlPlane: config.ControlPlaneOptions{Workloads: test.workloads}})
		if test.want == "" && err != nil || test.want != "" && (err == nil || err.Error() != test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// Only a control plane can be told to leave namespaces Terminating.
func TestDeletesNamespaces_modes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		plane       *define.Plane
		controllers []string
		want        bool
	}{
		{"standalone", nil, nil, true},
		{"standalone, no controllers", nil, []string{}, true},
		{"control plane", shopPlane(), nil, true},
		{"control plane, no controllers", shopPlane(), []string{}, false},
		{"control plane, others", shopPlane(), []string{"garbage-collector-controller"}, false},
		{"control plane, all others", shopPlane(), []string{"*", "-" + define.NamespaceController}, false},
		{"control plane, this one", shopPlane(), []string{define.NamespaceController}, true},
	} {
		p, err := resolve(test.plane, config.Options{Controllers: test.controllers})
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if got := p.DeletesNamespaces(); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}

func TestBuiltInAdmissionPlugins_offPlugins_runIfEnabled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name            string
		enable, disable []string
		want            []string
	}{
		{"no choice", nil, nil, []string{"On", "Other"}},
		{"one enabled", []string{"Rare"}, nil, []string{"On", "Other", "Rare"}},
		{"both enabled, one disabled", []string{"Rare", "Off"}, []string{"On"}, []string{"Other", "Off", "Rare"}},
		{"an off one disabled", nil, []string{"Off"}, []string{"On", "Other"}},
		{"an on one enabled", []string{"On"}, nil, []string{"On", "Other"}},
	} {
		admission := config.AdmissionOptions{EnablePlugins: test.enable, DisablePlugins: test.disable}
		p, err := resolve(shopPlane(), config.Options{Admission: admission})
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if got := p.BuiltInAdmissionPlugins(); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		if got := p.KnownAdmissionPlugins(); !slices.Equal(got, []string{"On", "Other", "Off", "Rare"}) {
			t.Errorf("%s: known are %q", test.name, got)
		}
	}
	_, err := resolve(shopPlane(), config.Options{Admission: config.AdmissionOptions{EnablePlugins: []string{"None"}}})
	if want := `Options.Admission.EnablePlugins: unknown plugin "None"; plugins: On, Other, Off, Rare`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
