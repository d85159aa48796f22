package define

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"

	"github.com/annexapi/annex/internal/model/structural"
)

// markers applies the kubebuilder markers of the kind's packages. The declaration may extend but not contradict them.
// Markers that apply to a kind as a whole are read from its hub.
func (c *checker) markers(where string, k *Kind) {
	status := k.Status
	for _, v := range k.Versions {
		v.Structural = nil
		if v.Facts == nil || v.SameType {
			continue
		}
		facts := v.Facts()
		if facts.CustomResources == nil {
			continue
		}
		definition, ok := facts.CustomResources()[v.Type.Name()]
		if !ok {
			continue
		}
		if definition == "" {
			c.errorf(where, "version %s: its Go type is marked +kubebuilder:skipversion, or its package +kubebuilder:skip: do not serve it, or "+
				"remove the marker and run annex generate", facts.GroupVersion.Version)
			continue
		}
		s, err := structural.New(facts.GroupVersion.WithKind(v.Type.Name()), v.Type, definition, status)
		if err != nil {
			c.errorf(where, "markers of version %s: %v; run annex generate", facts.GroupVersion.Version, err)
			continue
		}
		v.Structural = s
		if v == k.Versions[0] {
			status = s.HasStatus()
		}
		if !s.Served() {
			v.Unserved = true
		}
	}
	c.storageVersion(where, k)
	for _, v := range k.Versions {
		if v.Structural != nil {
			c.deprecation(k, v)
		}
	}
	hub := k.Versions[0].Structural
	named := hub != nil && hub.Scoped()
	if named {
		k.ClusterScoped = c.markedScope(where, k, hub)
	}
	for _, v := range k.Versions {
		if v.Structural != nil && !v.Structural.Scoped() {
			v.Structural.SetScope(k.ClusterScoped)
		}
	}
	if hub != nil {
		c.markedNames(where, k, hub, named)
		c.markedAbilities(where, k, hub)
	}
}

// markedScope reports whether the markers make the kind cluster-scoped.
func (c *checker) markedScope(where string, k *Kind, hub *structural.Version) bool {
	if k.ClusterScoped && hub.Namespaced() {
		c.errorf(where, "ClusterScoped: the markers make the kind namespaced: add +kubebuilder:resource:scope=Cluster")
	}
	return !hub.Namespaced()
}

// markedNames applies the names of the markers. named is false if the kind itself has no markers; then the names are
// the generator's guess, and the declaration may differ from them.
func (c *checker) markedNames(where string, k *Kind, hub *structural.Version, named bool) {
	names := hub.Definition.Spec.Names
	if k.Resource != names.Plural && named {
		c.errorf(
			where,
			"resource %q: the markers have the resource %q: use this name, or add +kubebuilder:resource:path=%s",
			k.Resource,
			names.Plural,
			k.Resource,
		)
	}
	switch {
	case k.Singular == "":
		k.Singular = names.Singular
	case named && k.Singular != names.Singular && names.Singular != strings.ToLower(names.Kind):
		c.errorf(where, "Singular(%q): the markers have the singular name %q", k.Singular, names.Singular)
	}
	k.ShortNames = union(names.ShortNames, k.ShortNames)
	k.Categories = union(names.Categories, k.Categories)
}

func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, name := range b {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

func (c *checker) markedAbilities(where string, k *Kind, hub *structural.Version) {
	if k.WithoutStatus && hub.HasStatus() {
		c.errorf(where, "WithoutStatus: the markers include +kubebuilder:subresource:status")
	}
	k.Status = hub.HasStatus()
	if s := hub.Scale(); s != nil {
		scale := &Scale{SpecReplicas: fieldsOf(s.SpecReplicasPath), StatusReplicas: fieldsOf(s.StatusReplicasPath)}
		if s.LabelSelectorPath != nil {
			scale.Selector = fieldsOf(*s.LabelSelectorPath)
		}
		if k.Scale != nil && !reflect.DeepEqual(k.Scale, scale) {
			c.errorf(where, "Scale: the marker +kubebuilder:subresource:scale has other paths")
		}
		k.Scale = scale
	}
	for _, path := range hub.SelectableFields() {
		if slices.ContainsFunc(k.Selectable, func(f SelectableField) bool { return f.Path == path }) {
			continue
		}
		names := strings.Split(path, ".")
		k.Selectable = append(k.Selectable, SelectableField{Path: path, Value: func(obj runtime.Object) string {
			value := ValueAt(reflect.ValueOf(obj), names, false)
			if !value.IsValid() {
				return ""
			}
			return fmt.Sprint(value.Interface())
		}})
	}
	for _, v := range k.Versions[1:] {
		if v.Structural == nil || v.Unserved {
			continue
		}
		name := v.Structural.Definition.Spec.Versions[0].Name
		if v.Structural.HasStatus() != k.Status {
			c.errorf(where, "version %s: either all versions or none must have the marker +kubebuilder:subresource:status", name)
		}
		for _, path := range v.Structural.SelectableFields() {
			if !slices.Contains(hub.SelectableFields(), path) {
				c.errorf(where, "version %s: +kubebuilder:selectablefield .%s: add the marker to the hub, too", name, path)
			}
		}
	}
}

func fieldsOf(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

// storageVersion applies the marked storage version, unless the declaration has one.
func (c *checker) storageVersion(where string, k *Kind) {
	var stored []string
	for _, v := range k.Versions {
		if v.Structural != nil && v.Structural.Stored() {
			stored = append(stored, v.Structural.Definition.Spec.Versions[0].Name)
		}
	}
	switch {
	case len(stored) > 1:
		c.errorf(where, "+kubebuilder:storageversion: versions %s have the marker, but only one version may", strings.Join(stored, " and "))
	case len(stored) == 1 && k.StoredAs == "":
		k.StoredAs = stored[0]
	case len(stored) == 1 && k.StoredAs != stored[0]:
		c.errorf(where, "StoredAs(%q): version %s is marked +kubebuilder:storageversion", k.StoredAs, stored[0])
	}
}

// deprecation sets the warning of a version that is marked as deprecated. The default warning names the newest
// version that is not deprecated.
func (c *checker) deprecation(k *Kind, v *Version) {
	deprecated, warning := v.Structural.Deprecated()
	if !deprecated || v.Deprecated != "" || v.Unserved {
		return
	}
	spec := v.Structural.Definition.Spec
	own := spec.Versions[0].Name
	if warning == "" {
		warning = fmt.Sprintf("%s/%s %s is deprecated", spec.Group, own, spec.Names.Kind)
		best := ""
		for _, other := range k.Versions {
			if other.Structural == nil || other.Unserved || other.Deprecated != "" {
				continue
			}
			name := other.Structural.Definition.Spec.Versions[0].Name
			if old, _ := other.Structural.Deprecated(); !old && version.CompareKubeAwareVersionStrings(own, name) < 0 &&
				(best == "" || version.CompareKubeAwareVersionStrings(best, name) < 0) {
				best = name
			}
		}
		if best != "" {
			warning += fmt.Sprintf("; use %s/%s %s", spec.Group, best, spec.Names.Kind)
		}
	}
	v.Deprecated = warning
}

// sharedMarkers applies the markers of a primary kind to its alias.
func sharedMarkers(k *Kind) {
	primary := k.AliasOf
	if primary.Versions[0].Structural == nil {
		return
	}
	k.ClusterScoped, k.Status, k.Scale, k.Selectable = primary.ClusterScoped, primary.Status, primary.Scale, primary.Selectable
	for _, v := range k.Versions {
		if i := slices.IndexFunc(
			primary.Versions,
			func(o *Version) bool { return v.SameType && o.Type == v.Type },
		); i >= 0 &&
			primary.Versions[i].Structural != nil {
			v.Structural = primary.Versions[i].Structural.WithKind(v.GroupVersion.WithKind(k.Name))
		}
	}
}
