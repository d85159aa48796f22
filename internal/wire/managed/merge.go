package managed

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// merge applies a configuration by structured-merge-diff's merge and compare. It handles every configuration that is
// the first of its manager or has the same fields as its last one: then nothing must be pruned, and the entries of the
// managers need not be parsed again. If it returns an error, nothing has changed.
func (m *Manager) merge(live, applied runtime.Object, manager string, force bool) (runtime.Object, error) {
	if applied.GetObjectKind().GroupVersionKind() != m.Kind {
		return nil, errUpstreams
	}
	is, err := meta.Accessor(applied)
	if err != nil || is.GetManagedFields() != nil {
		return nil, errUpstreams
	}
	configuration, err := m.types.ObjectToTyped(applied)
	if err != nil {
		return nil, errUpstreams
	}
	set, err := configuration.ToFieldSet()
	if err != nil {
		return nil, errUpstreams
	}
	if set = m.ownable(set); set.Empty() {
		return nil, errUpstreams
	}
	entries, own, err := m.entriesOf(live, manager, &ownedFields{set: set})
	if err != nil {
		return nil, err
	}
	versioned, err := m.Convertor.ConvertToVersion(live, m.Kind.GroupVersion())
	if err != nil {
		return nil, errUpstreams
	}
	old, err := m.types.ObjectToTyped(versioned, typed.AllowDuplicates)
	if err != nil {
		return nil, errUpstreams
	}
	merged, err := old.Merge(configuration)
	if err != nil {
		return nil, errUpstreams
	}
	compared, err := old.Compare(merged)
	if err != nil || !compared.Removed.Empty() {
		return nil, errUpstreams
	}
	c := &comparison{changed: compared.Modified.Union(compared.Added), removed: compared.Removed}
	unchanged := c.changed.Empty() && value.Equals(old.AsValue(), merged.AsValue())
	if m.filter != nil && !c.changed.Empty() {
		c.changed = m.filter.Filter(c.changed)
	}

	var obj runtime.Object
	if unchanged {
		obj = live.DeepCopyObject()
	} else {
		if obj, err = m.types.TypedToObject(merged); err != nil {
			return nil, errUpstreams
		}
		if obj, err = m.Convertor.ConvertToVersion(obj, m.Kind.GroupVersion()); err != nil {
			return nil, errUpstreams
		}
		m.Defaulter.Default(obj)
		if obj, err = m.Convertor.ConvertToVersion(
			obj,
			schema.GroupVersion{Group: m.Kind.Group, Version: runtime.APIVersionInternal},
		); err != nil {
			return nil, errUpstreams
		}
	}
	return m.recordApply(
		obj,
		entries,
		application{comparison: c, manager: manager, ownIndex: own, fields: &ownedFields{set: set}, unchanged: unchanged, force: force},
	)
}
