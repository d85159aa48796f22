package managed

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// reapply applies a configuration that has the same fields as its manager applied last, and changes none that other managers
// own. Nothing has to be pruned then, and all managers own what they owned. It says whether it has done so; if not, nothing
// has changed.
func (m *Manager) reapply(live, applied runtime.Object, manager string) (runtime.Object, bool) {
	// Upstream keeps the annotation of client-side apply for this one.
	if manager == "kubectl" || applied.GetObjectKind().GroupVersionKind() != m.Kind {
		return nil, false
	}
	is, err := meta.Accessor(applied)
	if err != nil || is.GetManagedFields() != nil {
		return nil, false
	}
	was, err := meta.Accessor(live)
	if err != nil {
		return nil, false
	}
	entries, ok := m.entries(nil, was.GetManagedFields())
	if !ok {
		return nil, false
	}
	own := slices.IndexFunc(entries, func(e entry) bool {
		return e.is(manager, metav1.ManagedFieldsOperationApply, "")
	})
	if own < 0 {
		return nil, false
	}

	configuration, err := m.types.ObjectToTyped(applied)
	if err != nil {
		return nil, false
	}
	set, err := configuration.ToFieldSet()
	if err != nil || m.filter != nil && !m.filter.Filter(set).Equals(set) || !set.Difference(m.never).Equals(entries[own].set) {
		return nil, false
	}
	versioned, err := m.Convertor.ConvertToVersion(live, m.Kind.GroupVersion())
	if err != nil {
		return nil, false
	}
	old, err := m.types.ObjectToTyped(versioned, typed.AllowDuplicates)
	if err != nil {
		return nil, false
	}
	merged, err := old.Merge(configuration)
	if err != nil {
		return nil, false
	}
	c, err := old.Compare(merged)
	if err != nil || !c.Removed.Empty() {
		return nil, false
	}
	set = c.Modified.Union(c.Added)
	for i := range entries {
		if i != own && !entries[i].set.Intersection(set).Empty() {
			return nil, false // a conflict
		}
	}

	var obj runtime.Object
	if set.Empty() && value.Equals(old.AsValue(), merged.AsValue()) {
		obj = live.DeepCopyObject()
	} else {
		if obj, err = m.types.TypedToObject(merged); err != nil {
			return nil, false
		}
		if obj, err = m.Convertor.ConvertToVersion(obj, m.Kind.GroupVersion()); err != nil {
			return nil, false
		}
		m.Defaulter.Default(obj)
		if obj, err = m.Convertor.ConvertToVersion(obj, schema.GroupVersion{Group: m.Kind.Group, Version: runtime.APIVersionInternal}); err != nil {
			return nil, false
		}
		entries[own].Time = &metav1.Time{Time: time.Now().UTC()}
	}
	fields, err := m.written(entries)
	if err != nil {
		return nil, false
	}
	if is, err = meta.Accessor(obj); err != nil {
		return nil, false
	}
	is.SetManagedFields(fields)
	return obj, true
}
